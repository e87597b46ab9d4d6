// Pictures in; captions with their words out, and where the model looked for each word.
"use strict";

const $ = (id) => document.getElementById(id);
const NIGHT = "12, 14, 26";
const DIM = 0.6; // how much night lies on what was not looked at
const UNSEEN = 0.85; // and on what was cut away before the model looked
const GLOW = 1.25; // brightness of where it looked
const SPREAD = 0.75; // weights to this power: one place has the most, and its neighbours shall be seen too
const BLEND = 160; // milliseconds from one word's light to the next
const CELLS = 56; // of a side, where regions are boxes of objects
const AT_ONCE = 4; // requests under way: the server joins them into one batch
const LATER = 350; // milliseconds after the last change of an option

const still = matchMedia("(prefers-reduced-motion: reduce)");
const form = $("form");
const cards = [];
let limits = { bytes: Infinity, pictures: 1 };
let round = 0; // which state of the options captions belong to

const percent = (share) => (share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`);
// To everybody; quietly to screen readers alone, where eyes find it elsewhere.
const say = (text, quiet = false) => {
  $("status").textContent = text;
  $("status").classList.toggle("quiet", quiet);
};
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// ---- options

function captionOptions() {
  const asked = new FormData(form);
  const chance = asked.get("strategy") === "sample";
  const options = { strategy: asked.get("strategy"), n: asked.get("n"), must_not: asked.get("must_not"), attention: "true", tags: "true" };
  if (chance) options.temperature = asked.get("temperature");
  else Object.assign(options, { beams: Math.max(asked.get("beams"), asked.get("n")), must: asked.get("must") });
  return options;
}

function showOptions() {
  const chosen = new FormData(form).get("strategy");
  for (const part of form.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== chosen;
  for (const output of form.querySelectorAll("output")) output.value = $(output.htmlFor.value).value;
}

function problem(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
  const wrong = /to avoid|\bmust_not\b/i.test(message) ? "must_not" : /to mention|\bmust\b/i.test(message) ? "must" : "";
  for (const name of ["must", "must_not"]) $(name).setAttribute("aria-invalid", String(name === wrong));
}

let timer = 0;
function changed() {
  showOptions();
  clearTimeout(timer);
  timer = setTimeout(() => {
    problem("");
    round += 1;
    for (const card of cards) card.state = "waiting";
    work();
  }, LATER);
}

// ---- asking

class Refused extends Error {
  constructor(status, message, retry) {
    super(message);
    Object.assign(this, { status, retry });
  }
}

async function ask(file) {
  if (globalThis.local) { // the model is in this browser: `meshcap export --format web`
    try {
      return await local.caption(file, captionOptions());
    } catch (error) {
      throw new Refused(422, asSentence(error.message), null);
    }
  }
  const body = new FormData();
  for (const [name, value] of Object.entries(captionOptions())) if (value) body.append(name, value);
  body.append("picture", file, file.name || "picture");
  const headers = $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};
  let answer;
  try {
    answer = await fetch("v1/caption", { method: "POST", body, headers });
  } catch {
    throw new Refused(0, "The server does not answer.", null);
  }
  let content = {};
  try {
    content = await answer.json();
  } catch { /* its status says it below */ }
  if (answer.ok) return content.results[0];
  const message = content.error ? content.error.message : `the server answered with status ${answer.status}`;
  throw new Refused(answer.status, asSentence(message), Number(answer.headers.get("Retry-After")) || null);
}

const asSentence = (message) => message.slice(0, 1).toUpperCase() + message.slice(1) + (/[.…?]$/.test(message) ? "" : ".");

let running = 0;
function work() {
  while (running < AT_ONCE) {
    const card = cards.find((one) => one.state === "waiting");
    if (!card) break;
    running += 1;
    card.state = "asking";
    card.busy(true);
    one(card).finally(() => {
      running -= 1;
      work();
    });
  }
  const left = cards.filter((card) => card.state !== "done").length;
  if (left) say(`Looking at ${plural(left, "picture")} …`);
}

async function one(card) {
  const asked = round;
  try {
    const found = await ask(card.file);
    if (card.state !== "asking" || asked !== round) return;
    card.show(found);
    const left = cards.filter((other) => other !== card && other.state !== "done").length;
    const sentence = found.caption.replace(/\.?$/, ".");
    if (left) say(`Looking at ${plural(left, "picture")} …`);
    else say(`${card.name}: ${sentence} ${percent(found.confidence)} confident.`, true);
  } catch (error) {
    if (card.state !== "asking" || asked !== round) return;
    if (error.status === 503 && error.retry) {
      say("The server is busy; trying again soon.");
      await new Promise((go) => setTimeout(go, 1000 * Math.min(error.retry, 30)));
      if (card.state === "asking") card.state = "waiting";
      return;
    }
    if (error.status === 401) {
      $("key-field").hidden = false;
      $("options").open = true;
    }
    const ofWords = error.status === 422 && /(to mention|to avoid|required words|\bmust(_not)?\b)/i.test(error.message);
    if (error.status === 401 || ofWords) problem(error.message);
    card.fail(ofWords ? "" : error.message);
    say(`${card.name}: ${error.message}`, true);
  }
}

// ---- cards

class Card {
  constructor(file) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.state = "waiting";
    this.found = null;
    this.element = $("card").content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", this.name);
    this.image = this.part("img");
    this.light = new Light(this.part("canvas"), this.image);
    this.url = URL.createObjectURL(file);
    this.image.addEventListener("error", () => this.part(".frame").classList.add("none"));
    this.image.src = this.url;
    this.image.alt = `the picture ${this.name}`;
    this.part(".name").textContent = this.name;
    this.part(".name").title = this.name;
    this.part(".remove").addEventListener("click", () => this.remove());
    this.part(".remove").setAttribute("aria-label", `Remove ${this.name}`);
    for (const button of this.element.querySelectorAll(".copy button")) button.addEventListener("click", () => this.copy(button));
    this.part(".words").addEventListener("pointerleave", () => { if (!this.part(".word:focus")) this.dark(); });
  }

  part(selector) {
    return this.element.querySelector(selector);
  }

  busy(on) {
    this.element.classList.toggle("busy", on && this.found !== null);
    this.element.setAttribute("aria-busy", String(on));
    this.part(".wait").hidden = !on || this.found !== null;
    if (on) this.part(".problem").hidden = true;
  }

  show(found) {
    this.state = "done";
    this.found = found;
    // By what they are labelled with; what a search ranks them by is another number.
    const all = [found, ...(found.alternatives || [])];
    this.captions = all.sort((a, b) => (a.missing || 0) - (b.missing || 0) || b.confidence - a.confidence);
    this.busy(false);
    this.finished(true);
    showRoll(this, found.roll);
    showMemory(this);
    const list = this.part(".others ol");
    this.part(".others").hidden = all.length < 2;
    list.replaceChildren(...all.map((caption, at) => {
      const button = document.createElement("button");
      button.type = "button";
      const text = document.createElement("span");
      const sure = document.createElement("span");
      text.textContent = caption.caption;
      sure.textContent = percent(caption.confidence);
      button.append(text, sure);
      button.addEventListener("click", () => this.choose(at));
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
    this.choose(this.captions.indexOf(found));
  }

  // With captions, or with what went wrong.
  finished(well) {
    for (const part of this.element.querySelectorAll(".found")) part.hidden = !well;
    this.element.classList.toggle("failed", !well);
    showAll();
  }

  choose(at) {
    this.chosen = at;
    this.dark();
    const caption = this.captions[at];
    const regions = this.found.regions;
    const words = this.part(".words");
    words.setAttribute("aria-label", `Caption: ${caption.caption}`);
    words.replaceChildren(...caption.words.map((word, number) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "word";
      // As the sentence has it, where it begins with a capital.
      button.textContent = number === 0 ? caption.caption.slice(0, word.word.length) : word.word;
      button.style.setProperty("--p", word.probability);
      const where = regions && word.attention ? `, looked at ${bar(this, word.attention) || `the ${place(regions, word.attention)}`}` : "";
      button.setAttribute("aria-label", `${word.word}, ${percent(word.probability)}${where}`);
      button.title = percent(word.probability);
      const lit = () => this.lit(button, word);
      for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, lit);
      button.addEventListener("blur", () => this.dark());
      button.addEventListener("keydown", (event) => this.keys(event, number));
      return button;
    }));
    this.image.alt = caption.caption;
    this.part(".warning").textContent = caption.warning || "";
    this.part(".warning").hidden = !caption.warning;
    this.part(".sure").style.setProperty("--p", caption.confidence);
    const missing = caption.missing ? `; ${plural(caption.missing, "required word")} found no place` : "";
    this.part(".percent").textContent = `${percent(caption.confidence)} confident${missing}${caption.shortened ? "; what was not sure is left out" : ""}`;
    const tags = this.found.tags || [];
    this.part(".tags").replaceChildren(...tags.map((tag) => Object.assign(document.createElement("li"), { textContent: tag.name, title: `${tag.kind}, ${percent(tag.probability)}` })));
    this.part(".tags").hidden = !tags.length;
    this.part(".hint").hidden = !regions;
    this.element.querySelectorAll(".others button").forEach((button, number) => button.setAttribute("aria-pressed", String(number === at)));
  }

  keys(event, number) {
    if (event.key === "Escape") return this.dark();
    const words = [...this.element.querySelectorAll(".word")];
    const to = { ArrowLeft: number - 1, ArrowRight: number + 1, Home: 0, End: words.length - 1 }[event.key];
    if (to === undefined || !words[to]) return undefined;
    event.preventDefault();
    return words[to].focus();
  }

  lit(button, word) {
    for (const other of this.element.querySelectorAll(".word.now")) other.classList.remove("now");
    button.classList.add("now");
    if (this.found.regions && word.attention) this.light.show(this.found.regions, word.attention);
  }

  dark() {
    for (const other of this.element.querySelectorAll(".word.now")) other.classList.remove("now");
    this.light.hide();
  }

  fail(message) {
    this.state = "done";
    this.busy(false);
    this.part(".problem").textContent = message;
    this.part(".problem").hidden = !message;
    if (!message) return;
    this.found = null;
    this.dark();
    this.finished(false);
    this.image.alt = `the picture ${this.name}`;
  }

  async copy(button) {
    const { caption } = this.captions[this.chosen];
    const quoted = caption.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
    const texts = { text: caption, alt: `alt="${quoted}"`, json: JSON.stringify(this.result(), null, 2) };
    await copyBy(button, texts[button.dataset.as]);
  }

  // The chosen caption with its words, for programs.
  result() {
    const chosen = this.captions[this.chosen];
    const plain = { ...chosen, words: chosen.words.map(({ word, probability }) => ({ word, probability })) };
    for (const name of ["alternatives", "regions", "tags"]) delete plain[name];
    return { file: this.name, ...plain, ...(this.found.tags && { tags: this.found.tags }) };
  }

  leave() {
    cards.splice(cards.indexOf(this), 1);
    this.state = "gone";
    URL.revokeObjectURL(this.url);
    this.element.remove();
    showAll();
  }

  remove() {
    const at = cards.indexOf(this);
    this.leave();
    say(`${this.name} removed.`);
    const next = cards[Math.min(at, cards.length - 1)];
    (next ? next.part(".remove") : $("pick")).focus();
  }
}

// ---- memory

let remembers = false; // whether this server was started to take corrections

function showMemory(card) {
  const near = card.found.similar || [];
  card.part(".similar").hidden = !near.length;
  card.part(".similar ul").replaceChildren(...near.map((one) => {
    const item = document.createElement("li");
    item.textContent = [one.captions.join(" / "), one.names.join(", ")].filter(Boolean).join(" – ");
    item.title = `${percent(one.similarity)} similar`;
    return item;
  }));
  const correct = card.part(".remember");
  correct.hidden = !remembers;
  const words = correct.querySelector("textarea");
  if (!words.value || words.value === card.suggested) words.value = card.suggested = card.found.caption; // else being written
  correct.onsubmit = (event) => {
    event.preventDefault();
    remember(card, correct);
  };
}

async function remember(card, correct) {
  const [words, names, button, note] = ["textarea", "input", "button", ".note"].map((one) => correct.querySelector(one));
  const body = new FormData();
  body.append("caption", words.value);
  body.append("names", names.value);
  body.append("picture", card.file, card.name);
  const headers = $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};
  button.disabled = true;
  try {
    const answer = await fetch("v1/remember", { method: "POST", body, headers });
    const content = await answer.json();
    note.textContent = answer.ok ? "Remembered: pictures like this one will know of it." : `Not remembered: ${content.error.message}.`;
  } catch {
    note.textContent = "Not remembered: the server does not answer.";
  }
  button.disabled = false;
}

async function copyBy(button, text) {
  const done = await toClipboard(text);
  const before = button.dataset.name || button.textContent;
  button.dataset.name = before;
  button.textContent = done ? "Copied" : "Not allowed";
  say(done ? "Copied." : "The browser does not allow copying here.");
  setTimeout(() => { button.textContent = before; }, 1500);
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // pages that are not served over https have no clipboard
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// ---- all of them

const done = () => cards.filter((card) => card.found);

function showAll() {
  document.body.classList.toggle("some", cards.length > 0);
  $("all").hidden = !cards.length;
  for (const name of ["copy-all", "save-csv", "save-json"]) $(name).disabled = !done().length;
}

// Commas, quotes and new lines may stand in a file's name. A byte order mark tells spreadsheets that it is UTF-8, and
// what they would compute begins with an apostrophe.
function csv(rows) {
  const field = (value) => `"${String(value).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  return `\ufeff${rows.map((row) => row.map(field).join(",")).join("\r\n")}\r\n`;
}

function save(name, kind, content) {
  const link = Object.assign(document.createElement("a"), { download: name });
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

$("copy-all").addEventListener("click", (event) => {
  copyBy(event.target, done().map((card) => `${card.name}\t${card.captions[card.chosen].caption}\n`).join(""));
});
$("save-csv").addEventListener("click", () => {
  const rows = done().map((card) => {
    const chosen = card.captions[card.chosen];
    const others = card.captions.filter((caption) => caption !== chosen).map((caption) => caption.caption);
    const names = (card.found.tags || []).map((tag) => tag.name);
    return [card.name, chosen.caption, chosen.confidence, others.join(" | "), names.join(", ")];
  });
  save("captions.csv", "text/csv", csv([["file", "caption", "confidence", "alternatives", "keywords"], ...rows]));
});
$("save-json").addEventListener("click", () => {
  const rows = done().map((card) => {
    const chosen = card.captions[card.chosen];
    const others = card.captions.filter((caption) => caption !== chosen);
    const alternatives = others.map(({ caption, confidence }) => ({ caption, confidence }));
    return { ...card.result(), alternatives };
  });
  save("captions.json", "application/json", `${JSON.stringify(rows, null, 2)}\n`);
});
$("clear").addEventListener("click", () => {
  for (const card of [...cards]) card.leave();
  say("All pictures removed.");
  $("pick").focus();
});

// ---- light

// Weights of regions as a field of numbers, 1 at the largest.
function fieldOf(regions, weights) {
  let rows = CELLS;
  let columns = CELLS;
  let values;
  if (regions.grid) {
    [rows, columns] = regions.grid;
    values = Float32Array.from(weights.slice(0, rows * columns));
  } else {
    values = new Float32Array(rows * columns);
    regions.boxes.forEach(([left, top, right, bottom], at) => {
      const [x, y] = [Math.min(columns - 1, Math.round(left * columns)), Math.min(rows - 1, Math.round(top * rows))];
      for (let row = y; row < Math.max(y + 1, Math.min(rows, Math.round(bottom * rows))); row += 1) {
        for (let column = x; column < Math.max(x + 1, Math.min(columns, Math.round(right * columns))); column += 1) {
          values[row * columns + column] += weights[at];
        }
      }
    });
  }
  const most = Math.max(...values, 1e-9);
  return { rows, columns, values: values.map((value) => (value / most) ** SPREAD) };
}

// Where the light is brightest, for whoever cannot see it.
function place(regions, weights) {
  const { rows, columns, values } = fieldOf(regions, weights);
  const at = values.indexOf(Math.max(...values));
  const [left, top, right, bottom] = regions.window;
  const y = top + ((Math.floor(at / columns) + 0.5) / rows) * (bottom - top);
  const x = left + (((at % columns) + 0.5) / columns) * (right - left);
  const down = ["top", "middle", "bottom"][Math.min(2, Math.floor(3 * y))];
  const across = ["left", "middle", "right"][Math.min(2, Math.floor(3 * x))];
  if (across === "middle") return down;
  return down === "middle" ? across : `${down} ${across}`;
}

class Light {
  constructor(canvas, image) {
    this.canvas = canvas;
    this.image = image;
    this.small = document.createElement("canvas");
    this.field = null;
    this.frame = 0;
    new ResizeObserver(() => this.fit()).observe(image);
  }

  // The canvas lies over the picture itself, not over the bars beside a tall one.
  fit() {
    const { naturalWidth: width, naturalHeight: height, clientWidth, clientHeight, offsetLeft, offsetTop } = this.image;
    if (!width || !clientWidth) return;
    const scale = Math.min(clientWidth / width, clientHeight / height);
    const [wide, high] = [width * scale, height * scale];
    const sharp = Math.min(2, devicePixelRatio || 1);
    Object.assign(this.canvas, { width: Math.round(wide * sharp), height: Math.round(high * sharp) });
    Object.assign(this.canvas.style, {
      // Whole pixels, and one more: no bright hair along an edge.
      width: `${Math.ceil(wide) + 1}px`, height: `${Math.ceil(high) + 1}px`,
      left: `${Math.floor(offsetLeft + (clientWidth - wide) / 2)}px`, top: `${Math.floor(offsetTop + (clientHeight - high) / 2)}px`,
    });
    if (this.field) this.draw(this.field); // a new size has wiped it
  }

  show(regions, weights) {
    const to = fieldOf(regions, weights);
    const from = this.canvas.classList.contains("lit") ? this.field : null;
    this.window = regions.window;
    this.canvas.classList.add("lit");
    cancelAnimationFrame(this.frame);
    if (!from || still.matches || from.values.length !== to.values.length) {
      this.draw(to);
      return;
    }
    const start = performance.now();
    const step = (now) => {
      const share = Math.min(1, Math.max(0, (now - start) / BLEND));
      this.draw({ ...to, values: to.values.map((value, at) => share * value + (1 - share) * from.values[at]) });
      if (share < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  hide() {
    cancelAnimationFrame(this.frame);
    this.canvas.classList.remove("lit");
  }

  draw(field) {
    this.field = field;
    const { rows, columns, values } = field;
    Object.assign(this.small, { width: columns, height: rows });
    const pen = this.small.getContext("2d");
    const dots = pen.createImageData(columns, rows);
    values.forEach((value, at) => { dots.data[4 * at + 3] = Math.round(255 * value); });
    pen.putImageData(dots, 0, 0);
    const { width, height } = this.canvas;
    const [left, top, right, bottom] = this.window.map((part, at) => part * (at % 2 ? height : width));
    const paper = this.canvas.getContext("2d");
    // The picture, brighter, where it was looked at ...
    paper.globalCompositeOperation = "copy";
    paper.imageSmoothingQuality = "high";
    paper.drawImage(this.small, left, top, right - left, bottom - top);
    paper.globalCompositeOperation = "source-in";
    paper.filter = `brightness(${GLOW})`;
    paper.drawImage(this.image, 0, 0, width, height);
    paper.filter = "none";
    // ... and behind it a little night.
    paper.globalCompositeOperation = "destination-over";
    paper.fillStyle = `rgba(${NIGHT}, ${UNSEEN})`;
    for (const edges of [[0, 0, width, top], [0, bottom, width, height - bottom], [0, top, left, bottom - top],
      [right, top, width - right, bottom - top]]) paper.fillRect(...edges);
    paper.fillStyle = `rgba(${NIGHT}, ${DIM})`;
    paper.fillRect(left, top, right - left, bottom - top);
  }
}

// ---- scores: MIDI files, shown as the piano roll that the server drew

const isScore = (file) => /\.midi?$/i.test(file.name || "") || /^audio\/(x-)?midi?$/.test(file.type);

function showRoll(card, roll) {
  if (!roll) return;
  card.part(".frame").classList.remove("none");
  if (card.image.src !== roll) card.image.src = roll;
}

// The bar that was looked at most; of pictures nothing.
function bar(card, weights) {
  return card.found.roll ? `bar ${weights.indexOf(Math.max(...weights)) + 1}` : "";
}

// ---- pictures come in

function add(files) {
  const all = [...files];
  const pictures = all.filter((file) => file.type.startsWith("image/") || !file.type || isScore(file));
  if (!pictures.length) {
    if (all.length) say(`${plural(all.length, "file")} left out: none is a picture or a MIDI file.`);
    return;
  }
  for (const file of pictures.reverse()) { // the first on top
    const card = new Card(file);
    cards.unshift(card);
    $("results").prepend(card.element);
    if (file.size > limits.bytes - 4096) {
      const most = Math.floor(limits.bytes / 2 ** 20);
      card.fail(`${card.name} is larger than the ${most} megabytes that this server takes.`);
    }
  }
  showAll();
  work();
}

function dragging(on) {
  document.body.classList.toggle("over", on);
}

for (const kind of ["dragenter", "dragover"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    dragging(true);
  });
}
addEventListener("dragleave", (event) => { if (!event.relatedTarget) dragging(false); });
addEventListener("drop", (event) => {
  event.preventDefault();
  dragging(false);
  add(event.dataTransfer.files);
});
addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) {
    event.preventDefault();
    add(event.clipboardData.files);
  }
});
$("pick").addEventListener("click", () => $("files").click());
for (const name of ["files", "snap"]) {
  $(name).addEventListener("change", () => {
    add($(name).files);
    $(name).value = ""; // the same picture may be chosen again
  });
}

// ---- camera

let stream = null;

$("camera").addEventListener("click", async () => {
  // Phones have a camera of their own to offer; so does every browser that may not show one here.
  if (matchMedia("(pointer: coarse)").matches || !navigator.mediaDevices) {
    $("snap").click();
    return;
  }
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } } });
  } catch {
    say("No camera can be used here: choose a picture instead.");
    return;
  }
  $("video").srcObject = stream;
  $("booth").showModal();
});
$("leave").addEventListener("click", () => $("booth").close());
$("booth").addEventListener("close", () => {
  for (const track of stream ? stream.getTracks() : []) track.stop();
  stream = null;
});
$("shoot").addEventListener("click", () => {
  const video = $("video");
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => {
    $("booth").close();
    if (blob) add([new File([blob], "photo.jpg", { type: "image/jpeg" })]);
  }, "image/jpeg", 0.92);
});

// ---- begin

form.addEventListener("input", (event) => { if (event.target.id !== "key") changed(); });
form.addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", changed);
showOptions();
const narrow = matchMedia("(max-width: 980px)");
const fold = () => { $("options").open = !narrow.matches; }; // where they would stand in the way
narrow.addEventListener("change", fold);
fold();
if (!globalThis.local) fetch("version").then((answer) => {
  if (answer.status === 401) $("key-field").hidden = false;
  return answer.ok ? answer.json() : null;
}).then((facts) => {
  if (!facts) return;
  limits = facts.limits;
  remembers = facts.remember;
  for (const card of cards) if (card.found) showMemory(card);
  $("about").textContent = `${facts.model}: ${facts.architecture}, ${facts.words.toLocaleString("en")} words`;
}).catch(() => say("The server does not answer."));
