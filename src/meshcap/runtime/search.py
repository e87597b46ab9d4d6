"""Beam search on arrays: `meshcap.decoding` without torch, choice for choice.

B pictures, W hypotheses of each, T words, V vocabulary, k candidate words of a hypothesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshcap.errors import MeshcapError
from meshcap.runtime.facts import Facts
from meshcap.runtime.rules import Rules

State = dict[str, np.ndarray]


class Graphs(Protocol):
    """The two graphs of an exported captioner, by whatever runs them."""

    def see(self, pixels: np.ndarray) -> State:
        """uint8 (B, 3, size, size) -> the parts of the state that come from the picture."""

    def say(self, ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """ids (B, W) -> log-probabilities (B, W, V), the caller's to change, and what has changed of the state."""


@dataclass(frozen=True)
class Beam:
    """As `meshcap.decoding.Beam`: the `beams` best sums of log-probabilities, divided by length ** `length_penalty`."""

    beams: int = 5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.beams <= 0:
            raise MeshcapError(f"beams is {self.beams}, expected more than 0")


@dataclass
class Search:
    """What the hypotheses have said so far."""

    facts: Facts
    ids: np.ndarray  # (B, W, T), <pad> where nothing is said yet
    log_probs: np.ndarray  # (B, W, T)
    scores: np.ndarray  # (B, W)
    lengths: np.ndarray  # (B, W)
    finished: np.ndarray  # (B, W) bool
    last: np.ndarray  # (B, W) the latest word
    step: int = 0

    @classmethod
    def new(cls, facts: Facts, *, pictures: int, width: int, length: int) -> Search:
        # All hypotheses begin alike: let the first alone go on, or they would all go the same way.
        scores = np.full((pictures, width), -np.inf, np.float32)
        scores[:, 0] = 0
        return cls(
            facts=facts,
            ids=np.full((pictures, width, length), facts.pad, np.int64),
            log_probs=np.zeros((pictures, width, length), np.float32),
            scores=scores,
            lengths=np.zeros((pictures, width), np.int64),
            finished=np.zeros((pictures, width), bool),
            last=np.full((pictures, width), facts.bos, np.int64),
        )

    def choose(self, log_probs: np.ndarray, beam: Beam) -> np.ndarray:
        """Go on with the best continuations of all; returns which hypothesis each new one continues, (B, W)."""
        gained, words = top_k(log_probs, beam.beams)  # (B, W, k)
        # A finished hypothesis has one way to go on: to stay as it is, saying <pad> for nothing.
        ended = self.finished[..., None]
        gained = np.where(ended, np.where(np.arange(gained.shape[-1]) == 0, np.float32(0), -np.inf), gained)
        words = np.where(ended, self.facts.pad, words)
        totals = self.scores[..., None] + gained
        keys = normalised(totals, (self.lengths + ~self.finished)[..., None], beam.length_penalty)
        pictures, width = self.scores.shape
        picked = greatest(keys.reshape(pictures, -1), width)  # (B, W)

        def pick(candidates: np.ndarray) -> np.ndarray:
            return np.take_along_axis(candidates.reshape(pictures, -1), picked, 1)

        parents = picked // gained.shape[-1]
        self._take(parents, pick(words), pick(gained), pick(totals))
        return parents

    def _take(self, parents: np.ndarray, words: np.ndarray, log_probs: np.ndarray, scores: np.ndarray) -> None:
        """A hypothesis that nothing is allowed to follow scores -inf and says no more."""
        alive = scores > -np.inf
        words, log_probs = np.where(alive, words, self.facts.pad), np.where(alive, log_probs, 0)
        self.lengths, self.finished, self.ids, self.log_probs = (
            rows_of(array, parents) for array in (self.lengths, self.finished, self.ids, self.log_probs)
        )
        self.ids[..., self.step] = words
        self.log_probs[..., self.step] = log_probs
        self.scores, self.last = scores, words
        self.lengths += ~self.finished & alive
        self.finished |= words == self.facts.eos
        self.step += 1

    def over(self) -> bool:
        return bool((self.finished | (self.scores == -np.inf)).all())


@dataclass(frozen=True)
class Found:
    """The n best captions of each picture, best first: as `meshcap.decoding.Hypotheses`."""

    ids: np.ndarray  # (B, n, T)
    log_probs: np.ndarray  # (B, n, T)
    scores: np.ndarray  # (B, n), -inf: the search found fewer than n
    lengths: np.ndarray  # (B, n)
    finished: np.ndarray  # (B, n)

    @property
    def probability(self) -> np.ndarray:
        """(B, n): the geometric mean of the words' probabilities."""
        return np.exp(self.log_probs.sum(-1) / self.lengths.clip(1))


def search(
    graphs: Graphs, facts: Facts, pixels: np.ndarray, beam: Beam, rules: Rules, *, n_best: int = 1
) -> Found:
    """Caption pictures, uint8 (B, 3, size, size).

    Raises:
        MeshcapError: rules that do not fit the model, more captions than the search keeps.
    """
    rules.check(facts)
    if not 1 <= n_best <= beam.beams:
        raise MeshcapError(f"{n_best} captions of each picture were asked for, and the search keeps {beam.beams}")
    now = Search.new(facts, pictures=len(pixels), width=beam.beams, length=rules.max_length)
    state = begin(facts, graphs.see(pixels), pictures=len(pixels), width=beam.beams, length=rules.max_length)
    following = [part.name for part in facts.state if part.follows]
    while now.step < rules.max_length:
        log_probs, changed = graphs.say(now.last, state)
        state |= changed
        rules.forbid(log_probs, now)
        parents = now.choose(log_probs, beam)
        if now.over():
            break
        for name in following:
            state[name] = rows_of(state[name], parents)
    ranked = normalised(now.scores, now.lengths, beam.length_penalty)
    order = greatest(ranked, n_best)
    return Found(*(rows_of(array, order) for array in (now.ids, now.log_probs, ranked, now.lengths, now.finished)))


def begin(facts: Facts, seen: State, *, pictures: int, width: int, length: int) -> State:
    """The state before the first word: what was seen, for each hypothesis, and zeros."""
    state = {}
    for part in facts.state:
        if not part.seen:
            shape = part.sizes(pictures=pictures, width=width, places=width * length)
            state[part.name] = np.zeros(shape, part.dtype)
        elif "width" in part.shape:
            state[part.name] = np.repeat(seen[part.name], width, axis=part.shape.index("width"))
        else:
            state[part.name] = seen[part.name]
    return state


def top_k(log_probs: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and ids (…, k) of the k greatest of (…, V), greatest first; k is lowered to V."""
    ids = greatest(log_probs, min(k, log_probs.shape[-1]))
    return np.take_along_axis(log_probs, ids, -1), ids


def greatest(numbers: np.ndarray, k: int) -> np.ndarray:
    """Places (…, k) of the k greatest of (…, n), greatest first."""
    places = np.argpartition(numbers, -k, axis=-1)[..., -k:]
    order = np.argsort(-np.take_along_axis(numbers, places, -1), axis=-1, kind="stable")
    return np.take_along_axis(places, order, -1)


def normalised(scores: np.ndarray, lengths: np.ndarray, penalty: float) -> np.ndarray:
    """Scores divided by length ** penalty."""
    return scores if penalty == 0 else scores / lengths.clip(1).astype(np.float32) ** np.float32(penalty)


def rows_of(array: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Of (B, W, …), the rows that `parents` (B, n) name: (B, n, …)."""
    return array[np.arange(len(array))[:, None], parents]
