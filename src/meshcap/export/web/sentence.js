// Options to what a search is told, and words to captions, as meshcap/options.py, text/sentence.py and captioner.py do
// it. Lists of English words come with the model, from Python.

import { automatonOf, meanProbability } from "./search.js";

const UNSURE = 0.75; // a caption with less confidence ends before the phrase with the first word less likely than
const DOUBTED = Math.log(0.5); // this
const UNSUITED = 0.4; // share of a free caption's probability below which required words do not suit a picture

export class Language {
  constructor({ words, sentence, plurals, settings }) {
    this.words = words;
    this.ids = new Map(words.map((word, id) => [word, id]));
    this.settings = settings;
    this.plurals = plurals; // of a word, those of the vocabulary
    this.lists = Object.fromEntries(Object.entries(sentence).map(
      ([name, list]) => [name, Array.isArray(list) ? new Set(list) : new Map(Object.entries(list))]));
    this.english = settings.tokenizer === "ptb";
  }

  // { strategy, rules } for `search` of options as a form has them: strings or numbers.
  plan(options) {
    const most = this.settings.max_length - 1;
    const given = (name) => (options[name] === undefined || options[name] === "" ? null : Number(options[name]));
    const wished = given("max_words");
    if (wished !== null && !(Number.isInteger(wished) && wished >= 1 && wished <= most)) {
      throw new Error(`max_words is ${options.max_words}, expected 1 to ${most}`);
    }
    const longest = wished === null ? Math.min(this.settings.words, most) : wished;
    const required = entries(options.must).map((entry) => entry.map((phrase) => this.idsOf(phrase, "to mention")));
    const avoided = this.avoided(entries(options.must_not).flat(), required.flat());
    const endings = wished === null ? "bad_endings" : "open_endings";
    const rules = {
      maxLength: longest + 1,
      minLength: 2,
      banned: [this.settings.unk, this.settings.pad, this.settings.bos, ...avoided.filter((one) => one.length === 1).flat()],
      bannedPhrases: avoided.filter((one) => one.length > 1),
      badEndings: [...this.lists[endings]].filter((word) => this.ids.has(word)).map((word) => this.ids.get(word)),
      endInTime: true,
    };
    const n = given("n") || 1;
    if (options.strategy === "sample") return { rules, strategy: { samples: n, temperature: given("temperature") || 1 } };
    const strategy = { beams: Math.max(given("beams") || Math.max(5, n), n) };
    if (required.length) strategy.automaton = automatonOf(required.map((phrases) => this.possible(phrases, avoided, longest)));
    return { rules, strategy };
  }

  // Ids of what a person wrote: as it stands, or else in lower case and split as captions are.
  idsOf(phrase, purpose) {
    let words = phrase.split(" ");
    if (!words.every((word) => this.ids.has(word))) {
      const spaced = this.english ? phrase.toLowerCase().replace(/(n['’]t|['’](?:s|m|re|ve|ll|d))(?![a-z])/g, " $1") : [...phrase].join(" ");
      words = spaced.split(/\s+/).map((word) => word.replace(/^[^\p{L}\p{N}'’]+|[^\p{L}\p{N}'’]+$/gu, "")).filter(Boolean);
    }
    const unknown = words.find((word) => !this.ids.has(word));
    if (unknown !== undefined || !words.length) {
      throw new Error(`unknown word '${unknown || phrase}' ${purpose}: this model has ${this.words.length} words, and it is none of them`);
    }
    return words.map((word) => this.ids.get(word));
  }

  // Phrases to avoid, with the plural of each unless that is required.
  avoided(phrases, required) {
    const found = phrases.map((phrase) => this.idsOf(phrase, "to avoid"));
    for (const ids of [...found]) {
      for (const word of this.plurals[this.words[ids.at(-1)]] || []) {
        const plural = [...ids.slice(0, -1), this.ids.get(word)];
        if (!required.some((one) => contains(one, plural))) found.push(plural);
      }
    }
    return found;
  }

  possible(phrases, avoided, longest) {
    const found = phrases.filter((one) => one.length <= longest && !avoided.some((phrase) => contains(one, phrase)));
    if (!found.length) {
      const named = phrases.map((ids) => `'${ids.map((id) => this.words[id]).join(" ")}'`).join(" or ");
      throw new Error(`must has ${named}, which is too long or in must_not, too`);
    }
    return found;
  }

  // The best caption with its alternatives, in the form that `meshcap serve` answers in.
  captions(hypotheses, options, calibration) {
    const n = Number(options.n) || 1;
    const required = entries(options.must).length;
    const found = [];
    const seen = new Set();
    hypotheses.forEach((one, rank) => {
      if (found.length === n || (rank && one.score === -Infinity)) return;
      let caption = this.caption(one, calibration, required);
      if (!rank && !required) caption = this.shorten(caption, calibration);
      const words = caption.words.map(({ word }) => word).join(" ");
      if (!seen.has(words)) found.push(caption);
      seen.add(words);
    });
    const [first, ...alternatives] = found;
    return alternatives.length ? { ...first, alternatives } : first;
  }

  caption(one, calibration, required) {
    const said = one.ids.slice(0, one.length).filter((id) => id !== this.settings.eos).map((id) => this.words[id]);
    const words = this.english ? said.map((word, at) => this.article(word, said[at + 1])) : said;
    const logProbs = one.logProbs.slice(0, one.length);
    const probability = meanProbability(one);
    const missing = required ? required - one.satisfied : 0;
    const unsuited = required && !missing && probability < UNSUITED * one.unconstrained;
    const warning = missing ? `${missing} of ${required} required words could not be fitted in`
      : unsuited ? "what must be mentioned does not suit the picture" : "";
    return {
      caption: this.sentence(words, one.finished),
      confidence: calibration && logProbs.length ? confidence(logProbs, calibration) : probability,
      probability,
      score: one.score,
      words: words.map((word, at) => ({ word, probability: Math.exp(logProbs[at]) })),
      finished: one.finished,
      missing,
      ...(warning && { warning }),
    };
  }

  // "a" and "an" as the next word takes them, and other words as they are.
  article(word, next) {
    if ((word !== "a" && word !== "an") || next === undefined) return word;
    return this.lists.an.has(next) ? "an" : "a";
  }

  // A caption that is trusted little ends before the first phrase that is not sure.
  shorten(caption, calibration) {
    if (!calibration || caption.confidence >= UNSURE || !caption.finished) return caption;
    const doubted = caption.words.findIndex(({ probability }, place) => place >= 2 && Math.log(probability) < DOUBTED);
    const starts = this.phraseStarts(caption.words.map(({ word }) => word));
    if (doubted < 0 || !starts.length) return caption;
    const last = starts.filter((place) => place <= doubted).at(-1) || starts[0];
    const end = starts.indexOf(last - 1) > 0 ? last - 1 : last; // one word of a phrase: "with green eyes sitting"
    const words = caption.words.slice(0, end);
    const likely = words.reduce((sum, { probability }) => sum + Math.log(probability), 0) / end;
    const text = this.sentence(words.map(({ word }) => word), true);
    return { ...caption, caption: text, words, probability: Math.exp(likely), shortened: true };
  }

  // Places before which a caption may end: "a dog | sitting | on a bench".
  phraseStarts(words) {
    const { openers, counted, open_endings: open } = this.lists;
    const found = [];
    for (let place = 2; place < words.length; place += 1) {
      const [before, word, after] = words.slice(place - 1, place + 2);
      let opens = openers.has(word) || (word.endsWith("ing") && !counted.has(before));
      if ((word === "and" || word === "or") && !counted.has(after)) opens = false;
      if (opens && !openers.has(before) && !open.has(before)) found.push(place);
    }
    return found;
  }

  // Words as a person would write them, with a full stop where the caption came to its end.
  sentence(given, finished) {
    const { brackets, left, right, cased, one_word: oneWord, names, closing, no_stop: noStop } = this.lists;
    const words = given.map((word) => brackets.get(word.toLowerCase()) || word);
    const opened = { '"': false, "'": false };
    let [text, last, capital, bound] = ["", "", true, true]; // bound: the next word follows without a space
    words.forEach((written, place) => {
      let word = written;
      const low = word.toLowerCase();
      let [bindsLeft, bindsRight] = [left.has(low), right.has(low)];
      if (word in opened) { // a quotation mark opens or closes in turn; a last, lonely ' is a possessive
        const closes = opened[word] || (word === "'" && !words.slice(place + 1).includes("'"));
        opened[word] = !closes;
        [bindsLeft, bindsRight] = [closes, !closes];
      } else if (this.settings.tokenizer === "char") {
        bindsLeft ||= !(latin(last) && latin(word) && last.length + word.length > 2);
      } else if (this.english) {
        bindsLeft ||= oneWord.has(`${last.toLowerCase()} ${low}`);
        if (word === low) {
          word = cased.get(low) || word;
          if (names.has(`${low} ${(words[place + 1] || "").toLowerCase()}`)) word = capitalised(word);
        }
      }
      if (capital && /[\p{L}\p{N}]/u.test(word)) {
        capital = false;
        if (word === word.toLowerCase()) word = capitalised(word);
      }
      capital ||= [".", "!", "?"].includes(word);
      text += bound || bindsLeft ? word : ` ${word}`;
      [bound, last] = [bindsRight, word];
    });
    const end = text.split(" ").at(-1);
    const stop = this.english && finished && end && (/[\p{L}\p{N}]$/u.test(end) || closing.has(end.at(-1)));
    return stop && !noStop.has(end) ? `${text}.` : text;
  }
}

// "dog|puppy, red ball": of each entry its alternatives.
function entries(given) {
  if (!given || !given.trim()) return [];
  return given.split(",").map((entry) => entry.split("|").map((phrase) => phrase.trim().split(/\s+/).join(" "))).map((entry) => {
    if (!entry.every(Boolean)) throw new Error("expected words to mention or to avoid, alternatives separated by |");
    return entry;
  });
}

const contains = (ids, phrase) => ids.some((_, start) => phrase.every((id, at) => id === ids[start + at]));
const latin = (word) => /^[a-z0-9]+$/i.test(word);
const capitalised = (word) => word.replace(/[\p{L}\p{N}]/u, (letter) => letter.toUpperCase());

// Log-probabilities of words (and the end) as an expected share of what is right: meshcap/calibration.py.
export function confidence(logProbs, { weights, x, y }) {
  const given = logProbs.map((one) => Math.min(0, Math.max(-50, one))).sort((a, b) => a - b);
  const mean = (numbers) => numbers.reduce((sum, one) => sum + one, 0) / numbers.length;
  const signals = {
    mean: mean(given),
    lowest: given[0],
    "lowest third": mean(given.slice(0, Math.ceil(given.length / 3))),
    length: Math.log(given.length),
  };
  const at = Object.entries(weights).reduce((sum, [name, weight]) => sum + weight * signals[name], 0);
  if (at <= x[0]) return y[0];
  const next = x.findIndex((knot) => knot > at);
  if (next < 0) return y.at(-1);
  const share = (at - x[next - 1]) / (x[next] - x[next - 1]);
  return y[next - 1] + share * (y[next] - y[next - 1]);
}
