"""The searches of `meshcap.decoding.search` on NumPy arrays, choice for choice: for captioners that run without torch.

B pictures, W hypotheses of each, T words, V vocabulary, k candidate words of a hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshcap.decoding.records import (
    Beam,
    ConstrainedBeam,
    DiverseBeam,
    Greedy,
    Hypotheses,
    Rules,
    Sampling,
    Settings,
    Strategy,
    expect_kept,
    mean_probability,
)

Array = np.ndarray[Any, Any]
# ids (B, W) of the latest words -> log-probabilities (B, W, V) of the next, the caller's to change
Step = Callable[[Array], Array]
# (B, W): hypothesis w of picture b goes on from the words of hypothesis parents[b, w]
Reorder = Callable[[Array], None]


@dataclass
class ArraySearch:
    """The hypotheses so far."""

    settings: Settings
    ids: Array  # (B, W, T), <pad> where no word is yet
    log_probs: Array  # (B, W, T)
    scores: Array  # (B, W)
    lengths: Array  # (B, W)
    finished: Array  # (B, W) bool
    last: Array  # (B, W) the latest word
    step: int = 0

    @classmethod
    def new(cls, settings: Settings, *, pictures: int, width: int, length: int) -> ArraySearch:
        return cls(
            settings=settings,
            ids=np.full((pictures, width, length), settings.pad, np.int64),
            log_probs=np.zeros((pictures, width, length), np.float32),
            scores=np.zeros((pictures, width), np.float32),
            lengths=np.zeros((pictures, width), np.int64),
            finished=np.zeros((pictures, width), bool),
            last=np.full((pictures, width), settings.bos, np.int64),
        )

    def take(self, choice: ArrayChoice) -> None:
        """Go on with a choice. A hypothesis that nothing is allowed to follow scores -inf and grows no more."""
        parents, words, log_probs, scores = choice
        alive = scores > -np.inf
        words, log_probs = np.where(alive, words, self.settings.pad), np.where(alive, log_probs, 0)
        self.lengths, self.finished, self.ids, self.log_probs = (
            rows_of(array, parents) for array in (self.lengths, self.finished, self.ids, self.log_probs)
        )
        self.ids[..., self.step] = words
        self.log_probs[..., self.step] = log_probs
        self.scores, self.last = scores, words
        self.lengths += ~self.finished & alive
        self.finished |= words == self.settings.eos
        self.step += 1

    def over(self) -> bool:
        return bool((self.finished | (self.scores == -np.inf)).all())


class ArrayChoice(NamedTuple):
    """How a strategy goes on: all (B, W)."""

    parents: Array
    words: Array
    log_probs: Array
    scores: Array


def search_arrays(
    settings: Settings,
    step: Step,
    reorder: Reorder,
    strategy: Strategy,
    rules: Rules,
    *,
    pictures: int,
    n_best: int = 1,
) -> Hypotheses:
    """Caption pictures by whatever gives log-probabilities.

    Raises:
        MeshcapError: rules that do not fit the model, more captions than the search keeps.
    """
    rules.check(settings)
    expect_kept(n_best, strategy)
    now = ArraySearch.new(settings, pictures=pictures, width=strategy.width, length=rules.max_length)
    choose = _chooser(strategy, now)
    while now.step < rules.max_length:
        log_probs = step(now.last)
        forbid(log_probs, rules, now)
        choice = choose(log_probs)
        now.take(choice)
        if now.over():
            break
        if not isinstance(strategy, Greedy | Sampling):  # there each goes on from itself
            reorder(choice.parents)
    ranked = order = normalised(now.scores, now.lengths, getattr(strategy, "length_penalty", 0.0))
    satisfied = unconstrained = None
    if isinstance(strategy, ConstrainedBeam):
        met = _satisfied(strategy, now)
        # Requirements come first, scores second.
        order = ranked.argsort(-1).argsort(-1) + met * strategy.width
        free = ranked.argmax(-1)[:, None]
        unconstrained = mean_probability(rows_of(now.log_probs, free), rows_of(now.lengths, free))[:, 0]
    best = greatest(order, n_best)
    if isinstance(strategy, ConstrainedBeam):
        satisfied = rows_of(met, best)
    return Hypotheses(
        ids=rows_of(now.ids, best),
        log_probs=rows_of(now.log_probs, best),
        scores=rows_of(ranked, best),
        lengths=rows_of(now.lengths, best),
        finished=rows_of(now.finished, best),
        satisfied=satisfied,
        unconstrained=unconstrained,
    )


def score_arrays(settings: Settings, step: Step, ids: Array) -> Array:
    """Log-probabilities (B, W, T) of the words ids (B, W, T), each after those before it."""
    last = np.full(ids.shape[:2], settings.bos, np.int64)
    found = []
    for place in range(ids.shape[-1]):
        word = ids[..., place : place + 1]
        found.append(np.take_along_axis(step(last), word, -1))
        last = ids[..., place]
    return np.concatenate(found, -1)


def forbid(log_probs: Array, rules: Rules, search: ArraySearch) -> None:
    """Set the log-probabilities (B, W, V) of what the rules forbid to -inf, in place."""
    eos, step, last_place = search.settings.eos, search.step, rules.max_length - 1
    log_probs[..., list(rules.banned)] = -np.inf
    for word in rules.once:
        log_probs[..., word][(search.ids[..., :step] == word).any(-1)] = -np.inf
    for *before, word in rules.banned_phrases:
        if step >= len(before):
            begun = (search.ids[..., step - len(before) : step] == before).all(-1)
            log_probs[..., word][begun] = -np.inf
    if step + 1 < rules.min_length:
        log_probs[..., eos] = -np.inf
    if rules.bad_endings:
        log_probs[..., eos][np.isin(search.last, rules.bad_endings)] = -np.inf
        if rules.end_in_time and step == last_place - 1:  # the last word of all may be none of these
            log_probs[..., list(rules.bad_endings)] = -np.inf
    if 0 < rules.no_repeat_ngram <= step:
        # Every n words of the history whose first n - 1 are the latest n - 1 forbid their last one.
        n, ids = rules.no_repeat_ngram, search.ids[..., :step]  # (B, W, t)
        windows = np.lib.stride_tricks.sliding_window_view(ids, n, axis=-1)  # (B, W, t - n + 1, n)
        repeats = (windows[..., :-1] == ids[..., None, step - n + 1 :]).all(-1)
        picture, hypothesis, place = np.nonzero(repeats)
        log_probs[picture, hypothesis, windows[picture, hypothesis, place, -1]] = -np.inf
    if rules.end_in_time and step >= last_place:
        log_probs[..., np.arange(log_probs.shape[-1]) != eos] = -np.inf


def _chooser(strategy: Strategy, search: ArraySearch) -> Callable[[Array], ArrayChoice]:
    if isinstance(strategy, Sampling):
        random = np.random.default_rng(strategy.seed)
        return lambda log_probs: _sample(log_probs, search, strategy, random)
    if isinstance(strategy, Greedy):
        return lambda log_probs: _each(log_probs, log_probs.argmax(-1)[..., None], search)
    one_alive(search, strategy.groups if isinstance(strategy, DiverseBeam) else 1)
    if isinstance(strategy, DiverseBeam):
        return lambda log_probs: _diverse(log_probs, search, strategy)
    if isinstance(strategy, ConstrainedBeam):
        strategy.check(len(search.scores), search.settings.vocab_size)
        return lambda log_probs: _constrained(log_probs, search, strategy)
    return lambda log_probs: _beam(log_probs, search, strategy)


def one_alive(search: ArraySearch, groups: int) -> None:
    """All hypotheses begin alike: let the first of each group alone go on, or they would all go the same way."""
    search.scores[:] = -np.inf
    search.scores.reshape(len(search.scores), groups, -1)[..., 0] = 0


def _each(log_probs: Array, words: Array, search: ArraySearch) -> ArrayChoice:
    """Every hypothesis with a word (B, W, 1) of its own."""
    gained, words = keep_finished(search.finished, np.take_along_axis(log_probs, words, -1), words, search.settings.pad)
    own = np.broadcast_to(np.arange(words.shape[1]), words.shape[:2])
    return ArrayChoice(own, words[..., 0], gained[..., 0], search.scores + gained[..., 0])


def _sample(log_probs: Array, search: ArraySearch, strategy: Sampling, random: np.random.Generator) -> ArrayChoice:
    odds = log_probs.astype(np.float64) / strategy.temperature
    if 0 < strategy.top_k < odds.shape[-1]:
        least = np.partition(odds, -strategy.top_k, -1)[..., -strategy.top_k, None]
        odds = np.where(odds < least, -np.inf, odds)
    # Where nothing is allowed at all, any word does: its own log-probability, -inf, ends the hypothesis.
    peak = odds.max(-1, keepdims=True)
    shares = np.exp(np.where(np.isfinite(peak), odds - peak, 0.0))
    shares /= shares.sum(-1, keepdims=True)
    if strategy.top_p < 1:
        order = np.argsort(-shares, -1, kind="stable")
        ordered = np.take_along_axis(shares, order, -1)
        ordered = np.where(ordered.cumsum(-1) - ordered >= strategy.top_p, 0.0, ordered)
        np.put_along_axis(shares, order, ordered, -1)
    words = (shares / random.exponential(size=shares.shape)).argmax(-1)[..., None]
    return _each(log_probs, words, search)


def _beam(log_probs: Array, search: ArraySearch, strategy: Beam) -> ArrayChoice:
    gained, words = keep_finished(search.finished, *top_k(log_probs, strategy.beams), search.settings.pad)
    return best_continuations(search, gained, words, penalty=strategy.length_penalty)


def _diverse(log_probs: Array, search: ArraySearch, strategy: DiverseBeam) -> ArrayChoice:
    size = strategy.beams // strategy.groups
    used = np.zeros_like(log_probs[:, :1])  # (B, 1, V) how often earlier groups chose each word
    alike = (search.ids[:, :, None] == search.ids[:, None]).all(-1)  # (B, W, W)
    choices: list[ArrayChoice] = []
    for start in range(0, strategy.beams, size):
        group = slice(start, start + size)
        finished, own = search.finished[:, group], log_probs[:, group]
        _, words = top_k(own - strategy.diversity * used, strategy.beams)
        cost = strategy.diversity * np.take_along_axis(np.broadcast_to(used, own.shape), words, -1)
        cost = np.where(finished[..., None], 0, cost)
        gained, words = keep_finished(finished, np.take_along_axis(own, words, -1), words, search.settings.pad)
        for earlier in choices:  # whose captions are taken
            parents = np.broadcast_to(earlier.parents[:, None], (len(own), size, earlier.parents.shape[1]))
            same = np.take_along_axis(alike[:, group], parents, 2) & (earlier.scores > -np.inf)[:, None]
            taken = (same[..., None, :] & (words[..., None] == earlier.words[:, None, None])).any(-1)
            gained = np.where(taken, -np.inf, gained)
        choice = best_continuations(search, gained, words, keep=group, cost=cost, penalty=strategy.length_penalty)
        choices.append(choice)
        added = ~rows_of(search.finished, choice.parents) & (choice.scores > -np.inf)
        for picture, place in zip(*np.nonzero(added), strict=True):
            used[picture, 0, choice.words[picture, place]] += 1
    return ArrayChoice(*(np.concatenate(parts, 1) for parts in zip(*choices, strict=True)))


def _constrained(log_probs: Array, search: ArraySearch, strategy: ConstrainedBeam) -> ArrayChoice:
    """One picture after the other: automata may differ, and states are few."""
    automata = strategy.automata
    parts = []
    for picture in range(len(log_probs)):
        machine = automata[picture if len(automata) > 1 else 0]
        parts.append(_constrained_one(log_probs[picture], search, picture, machine, strategy))
    return ArrayChoice(*(np.stack(part) for part in zip(*parts, strict=True)))


def _constrained_one(
    log_probs: Array, search: ArraySearch, picture: int, machine: Any, strategy: ConstrainedBeam
) -> tuple[Array, ...]:
    beams, width = strategy.beams, strategy.width
    special = list(machine.words)
    ordinary = log_probs.copy()
    ordinary[:, special] = -np.inf
    gained, words = top_k(ordinary, beams)  # (W, k)
    count = words.shape[-1]
    gained = np.concatenate((gained, log_probs[:, special]), -1)  # (W, k + C)
    words = np.concatenate((words, np.broadcast_to(np.array(special, np.int64), (width, len(special)))), -1)
    table = np.array(machine.next)  # (S, 1 + C)
    states = np.arange(width) // beams
    real = states < len(table)
    after = table[np.where(real, states, 0)]
    after = np.concatenate((np.repeat(after[:, :1], count, 1), after[:, 1:]), -1)  # (W, k + C)
    finished = search.finished[picture]
    gained, words = keep_finished(finished, gained, words, search.settings.pad)
    after = np.where(finished[:, None], states[:, None], after)
    totals = search.scores[picture][:, None] + gained
    lengths = (search.lengths[picture] + ~finished)[:, None]
    keys = normalised(totals, lengths, strategy.length_penalty).ravel()
    picked, dead = [], []
    for state in range(width // beams):
        inside = np.where(after.ravel() == state, keys, -np.inf)
        best = greatest(inside, beams)
        picked.append(best)
        dead.append(inside[best] == -np.inf)
    chosen = np.concatenate(picked)
    scores = np.where(np.concatenate(dead), -np.inf, totals.ravel()[chosen]).astype(np.float32)
    return chosen // words.shape[-1], words.ravel()[chosen], gained.ravel()[chosen], scores


def _satisfied(strategy: ConstrainedBeam, search: ArraySearch) -> Array:
    """(B, W): how many requirements each hypothesis meets."""
    most = strategy.width // strategy.beams
    rows = np.array([[*a.satisfied, *[0] * (most - len(a.satisfied))] for a in strategy.automata])
    met = np.broadcast_to(np.repeat(rows, strategy.beams, 1), search.scores.shape)
    return np.where(search.scores == -np.inf, 0, met)


def keep_finished(finished: Array, log_probs: Array, words: Array, pad: int) -> tuple[Array, Array]:
    """Of candidates (…, k), leave a finished hypothesis one: to stay as it is, with `<pad>` for a word."""
    ended = finished[..., None]
    alone = np.where(np.arange(words.shape[-1]) == 0, np.float32(0), np.float32(-np.inf))
    return np.where(ended, alone, log_probs), np.where(ended, pad, words)


def best_continuations(
    search: ArraySearch,
    gained: Array,
    words: Array,
    *,
    keep: slice = slice(None),
    cost: Array | None = None,
    penalty: float,
) -> ArrayChoice:
    """Of the hypotheses `keep` (w of them), each with k candidate words (B, w, k), the w best continuations."""
    totals = search.scores[:, keep, None] + gained
    lengths = (search.lengths + ~search.finished)[:, keep, None]
    keys = normalised(totals if cost is None else totals - cost, lengths, penalty)
    pictures, width = totals.shape[:2]
    picked = greatest(keys.reshape(pictures, -1), width)  # (B, w)
    flat = (np.take_along_axis(one.reshape(pictures, -1), picked, 1) for one in (words, gained, totals))
    return ArrayChoice(picked // words.shape[-1] + (keep.start or 0), *flat)


def top_k(numbers: Array, k: int) -> tuple[Array, Array]:
    """Values and places (…, k) of the k greatest of (…, n), greatest first; k is lowered to n."""
    places = greatest(numbers, min(k, numbers.shape[-1]))
    return np.take_along_axis(numbers, places, -1), places


def greatest(numbers: Array, k: int) -> Array:
    """Places (…, k) of the k greatest of (…, n), greatest first."""
    places = np.argpartition(numbers, -k, axis=-1)[..., -k:]
    order = np.argsort(-np.take_along_axis(numbers, places, -1), axis=-1, kind="stable")
    return np.take_along_axis(places, order, -1)


def normalised(scores: Array, lengths: Array, penalty: float) -> Array:
    """Scores divided by length ** penalty."""
    return scores if penalty == 0 else scores / lengths.clip(1).astype(np.float32) ** np.float32(penalty)


def rows_of(array: Array, parents: Array) -> Array:
    """Of (B, W, …), the rows that `parents` (B, n) name: (B, n, …)."""
    return array[np.arange(len(array))[:, None], parents]
