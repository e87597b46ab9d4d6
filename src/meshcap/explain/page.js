// Words over the large picture, by mouse, finger or keys. The cards say the same without.
"use strict";
const stage = document.querySelector(".stage");
const words = [...stage.querySelectorAll(".word")];
const shade = stage.querySelector(".shade");
const toggle = stage.querySelector(".toggle");
const panel = document.getElementById("panel");
const kinds = toggle ? [...toggle.querySelectorAll("button")] : [];
let kind = "a";
let shown = -1;

const press = (buttons, chosen) => {
  for (const one of buttons) one.setAttribute("aria-pressed", String(one === chosen));
};
const draw = () => {
  if (shade) shade.className = kind ? `shade m${shown}${kind}` : "shade";
};
const show = (number) => {
  if (number === shown) return;
  shown = number;
  const card = document.getElementById(`word-${number}`);
  const title = document.createElement("h2");
  title.textContent = card.querySelector("h3").firstChild.textContent.trim();
  panel.replaceChildren(title, card.querySelector(".details").cloneNode(true));
  press(words, words[number]);
  draw();
};
const choose = (button) => {
  kind = button.dataset.kind;
  press(kinds, button);
  draw();
};

words.forEach((word, number) => {
  for (const event of ["pointerenter", "focus", "click"]) word.addEventListener(event, () => show(number));
  word.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) words[Math.max(0, Math.min(words.length - 1, number + move))].focus();
  });
});
for (const button of kinds) button.addEventListener("click", () => choose(button));
if (toggle) {
  toggle.hidden = false;
  choose(kinds[0]);
}
show(Number(stage.dataset.first));
