// Tooltips on the curves, by mouse, finger or arrow keys. The page says the same without.
"use strict";
for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector("svg[data-points]");
  const series = JSON.parse(svg.dataset.points);
  const box = svg.viewBox.baseVal;
  const pointer = svg.querySelector(".pointer");
  const steps = [...new Set(series.flatMap((one) => one.points.map((p) => p[2])))].sort((a, b) => a - b);
  let tip = null;
  let at = -1;

  const element = (name, inside) => {
    const made = document.createElement(name);
    if (inside !== undefined) made.textContent = inside;
    return made;
  };
  const shape = (name, attributes) => {
    const made = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // Of each line that has a point at the place, that point.
  const show = (x) => {
    let near = series.map((one) => [one, one.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))]);
    const least = Math.min(...near.map(([, p]) => Math.abs(p[0] - x)));
    near = near.filter(([, p]) => Math.abs(p[0] - x) < least + 4);
    const [px, , step] = near[0][1];
    at = steps.indexOf(step);
    pointer.replaceChildren(shape("path", { d: `M${px} 14V${box.height - 28}` }));
    if (!tip) figure.append((tip = element("div")));
    tip.className = "tip";
    tip.replaceChildren(element("span", `step ${step.toLocaleString("en")}`));
    for (const [one, p] of near) {
      pointer.append(shape("circle", { class: `dot ${one.colour}`, cx: p[0], cy: p[1], r: 4 }));
      const line = element("div");
      const mark = element("i");
      mark.className = one.colour;
      line.append(mark, one.name ? `${one.name} ` : "", element("b", p[3]));
      tip.append(line);
    }
    const scale = svg.clientWidth / box.width;
    const room = figure.clientWidth - tip.offsetWidth - 8;
    const bounds = [svg.getBoundingClientRect(), figure.getBoundingClientRect()];
    const centre = bounds[0].left - bounds[1].left + px * scale;
    const beside = centre + 14 > room ? centre - tip.offsetWidth - 14 : centre + 14;
    tip.style.left = `${Math.max(8, Math.min(room, beside))}px`;
    tip.style.top = `${bounds[0].top - bounds[1].top + 14 * scale}px`;
  };
  const hide = () => {
    pointer.replaceChildren();
    tip?.remove();
    tip = null;
  };
  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    show(((event.clientX - bounds.left) / bounds.width) * box.width);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!move) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(steps.length - 1, at + move));
    const points = series.flatMap((one) => one.points);
    show(points.find((p) => p[2] === steps[next])[0]);
    at = next; // show() may have named a neighbour of another line
  });
}
