// The searches of meshcap/decoding/array_search.py for one picture, choice for choice.
//
// settings: { bos, eos, pad }
// rules: { maxLength, minLength, banned, bannedPhrases, badEndings, endInTime }, in ids; lengths count <eos>
// strategy: { samples, temperature } or { beams } or { beams, automaton }
// step(words): of the latest word of each hypothesis, the log-probabilities of the next, one Float32Array each to change
// reorder(parents): hypothesis w goes on from the words of hypothesis parents[w]

export async function search(settings, step, reorder, strategy, rules) {
  const { automaton } = strategy;
  const width = strategy.samples || strategy.beams * (automaton ? automaton.next.length : 1);
  let hypotheses = Array.from({ length: width }, (_, at) => ({
    ids: [],
    logProbs: [],
    length: 0,
    finished: false,
    last: settings.bos,
    // All begin alike: of beams, let the first alone go on, or they would all go the same way.
    score: strategy.samples || at === 0 ? 0 : -Infinity,
  }));
  for (let place = 0; place < rules.maxLength; place += 1) {
    const rows = await step(hypotheses.map((one) => one.last));
    hypotheses.forEach((one, at) => forbid(rows[at], one, place, rules, settings));
    const choices = strategy.samples ? sample(rows, hypotheses, strategy.temperature, settings)
      : automaton ? constrained(rows, hypotheses, strategy, settings)
        : best(hypotheses.flatMap((one, at) => candidates(one, at, rows[at], width, settings)), width, settings);
    hypotheses = choices.map((choice) => take(choice, hypotheses[choice.parent], settings));
    if (hypotheses.every((one) => one.finished || one.score === -Infinity)) break;
    if (!strategy.samples) await reorder(choices.map((choice) => choice.parent));
  }
  if (automaton) {
    const free = hypotheses.reduce((a, b) => (b.score > a.score ? b : a));
    hypotheses.forEach((one, at) => {
      one.satisfied = one.score === -Infinity ? 0 : automaton.satisfied[Math.floor(at / strategy.beams)] || 0;
      one.unconstrained = meanProbability(free);
    });
  }
  return hypotheses.sort((a, b) => (b.satisfied || 0) - (a.satisfied || 0) || descending(a.score, b.score));
}

const descending = (a, b) => (a === b ? 0 : b - a); // of two -Infinity neither comes first

export function meanProbability({ logProbs, length }) {
  return Math.exp(logProbs.reduce((sum, one) => sum + one, 0) / Math.max(1, length));
}

// Go on with a choice. A hypothesis that nothing is allowed to follow scores -Infinity and grows no more.
function take({ word, logProb, score }, from, settings) {
  const alive = score > -Infinity;
  const next = alive ? word : settings.pad;
  return {
    ids: [...from.ids, next],
    logProbs: [...from.logProbs, alive ? logProb : 0],
    length: from.length + (!from.finished && alive ? 1 : 0),
    finished: from.finished || next === settings.eos,
    last: next,
    score,
  };
}

function forbid(row, hypothesis, place, rules, { eos }) {
  const { ids, last } = hypothesis;
  for (const word of rules.banned) row[word] = -Infinity;
  for (const phrase of rules.bannedPhrases) {
    const before = phrase.slice(0, -1);
    if (place >= before.length && before.every((word, at) => word === ids[place - before.length + at])) {
      row[phrase.at(-1)] = -Infinity;
    }
  }
  if (place + 1 < rules.minLength) row[eos] = -Infinity;
  if (rules.badEndings.includes(last)) row[eos] = -Infinity;
  // The last word of all may be none of these.
  if (rules.endInTime && place === rules.maxLength - 2) for (const word of rules.badEndings) row[word] = -Infinity;
  if (rules.endInTime && place >= rules.maxLength - 1) {
    const end = row[eos];
    row.fill(-Infinity);
    row[eos] = end;
  }
}

// Sums are those of 32-bit numbers, as Python's are.
const candidate = (from, parent, word, logProb) => ({ parent, word, logProb, score: Math.fround(from.score + logProb) });

// The k likeliest words after a hypothesis; a finished one stays as it is.
function candidates(from, parent, row, k, { pad }) {
  if (from.finished) return [candidate(from, parent, pad, 0)];
  return greatest(row, k).map((word) => candidate(from, parent, word, row[word]));
}

function best(all, count, { pad }) {
  const found = all.filter((one) => one.score > -Infinity).sort((a, b) => b.score - a.score).slice(0, count);
  while (found.length < count) found.push({ parent: 0, word: pad, logProb: 0, score: -Infinity });
  return found;
}

// Places of the k greatest numbers, greatest first.
export function greatest(numbers, k) {
  const found = [];
  let least = -Infinity;
  for (let place = 0; place < numbers.length; place += 1) {
    if (!(numbers[place] > least)) continue;
    let at = found.length;
    while (at > 0 && numbers[found[at - 1]] < numbers[place]) at -= 1;
    found.splice(at, 0, place);
    if (found.length > k) found.pop();
    if (found.length === k) least = numbers[found[k - 1]];
  }
  return found;
}

// Words drawn at random: the largest of log-odds with Gumbel's noise.
function sample(rows, hypotheses, temperature, { pad }) {
  return hypotheses.map((from, parent) => {
    if (from.finished) return candidate(from, parent, pad, 0);
    let drawn = 0;
    let most = -Infinity;
    rows[parent].forEach((logProb, word) => {
      const luck = logProb / temperature - Math.log(-Math.log(Math.random()));
      if (luck > most) [drawn, most] = [word, luck];
    });
    return candidate(from, parent, drawn, rows[parent][drawn]);
  });
}

// Captions that must contain given words (Anderson et al., 2017): a beam in every state of an automaton.
function constrained(rows, hypotheses, { beams, automaton }, settings) {
  const { words, next } = automaton;
  const all = hypotheses.flatMap((from, at) => {
    const state = Math.floor(at / beams);
    const row = rows[at];
    if (from.finished) return [{ ...candidate(from, at, settings.pad, 0), state }];
    // The likeliest ordinary words, which all lead to one state, and every special word, each leading to its own.
    const special = words.map((word, kind) => ({ ...candidate(from, at, word, row[word]), state: next[state][kind + 1] }));
    for (const word of words) row[word] = -Infinity;
    return [...candidates(from, at, row, beams, settings).map((one) => ({ ...one, state: next[state][0] })), ...special];
  });
  return next.flatMap((_, state) => best(all.filter((one) => one.state === state), beams, settings));
}

// Of requirements, each a list of alternative phrases, each a list of ids: next[s][c] is the state after word class c,
// where class 0 is any word that no phrase contains and class c the word words[c - 1]; satisfied[s] how many are met.
export function automatonOf(requirements) {
  const words = [...new Set(requirements.flat(2))].sort((a, b) => a - b);
  const states = [{ met: [], tail: [] }];
  const numbers = new Map([[JSON.stringify([[], []]), 0]]);
  const ends = (latest, phrase) => phrase.every((word, at) => word === latest.at(at - phrase.length));
  const next = [];
  for (let state = 0; state < states.length; state += 1) {
    if (states.length > 256) throw new Error("the required phrases need over 256 search states: require fewer");
    const { met, tail } = states[state];
    next.push([null, ...words].map((word) => {
      const latest = word === null ? [] : [...tail, word];
      const now = requirements.flatMap((phrases, number) => {
        const here = phrases.some((phrase) => phrase.length <= latest.length && ends(latest, phrase));
        return met.includes(number) || here ? [number] : [];
      });
      const open = requirements.flatMap((phrases, number) => (now.includes(number) ? [] : phrases));
      // The longest beginning of a phrase that the latest words are.
      const begun = latest.map((_, start) => latest.slice(start)).find((part) => open.some(
        (phrase) => part.length < phrase.length && part.every((one, at) => one === phrase[at])));
      const key = JSON.stringify([now, begun || []]);
      if (!numbers.has(key)) {
        numbers.set(key, states.length);
        states.push({ met: now, tail: begun || [] });
      }
      return numbers.get(key);
    }));
  }
  return { words, next, satisfied: states.map(({ met }) => met.length) };
}
