"""Constrained beam search: captions that must mention given words (Anderson et al., 2017).

The required phrases of a picture become a small automaton whose states say which of them a caption contains and how
far into another it is. Every state keeps a beam of its own, so a caption on its way to a rare required word never has
to compete with those that ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import cast

import torch
from torch import Tensor

from meshcap.decoding.search import Choice, Search, normalised, rest
from meshcap.decoding.strategies import one_alive, positive
from meshcap.errors import MeshcapError
from meshcap.kernels import top_k_rows

Phrase = tuple[int, ...]
Alternatives = tuple[Phrase, ...]  # one of these must appear
Constraints = tuple[Alternatives, ...]  # each of these must be met

MOST_STATES = 256


@dataclass(frozen=True)
class Automaton:
    """next[s][c]: the state after word class c, where class 0 is any word that no phrase contains."""

    words: tuple[int, ...]  # class c ≥ 1 is the word words[c - 1]
    next: tuple[tuple[int, ...], ...]
    satisfied: tuple[int, ...]  # how many constraints are met in each state


@lru_cache(maxsize=1024)
def automaton(constraints: Constraints) -> Automaton:
    """States are (constraints met, longest beginning of a phrase that the latest words are), numbered as reached."""
    words = tuple(sorted({word for alternatives in constraints for phrase in alternatives for word in phrase}))
    numbers: dict[tuple[frozenset[int], Phrase], int] = {(frozenset(), ()): 0}
    table: list[tuple[int, ...]] = []
    for met, tail in iterate_growing(numbers):
        row = []
        for word in (None, *words):
            said = () if word is None else (*tail, word)
            now = met | {
                i for i, phrases in enumerate(constraints) if any(ends_with(said, phrase) for phrase in phrases)
            }
            open_phrases = [phrase for i, phrases in enumerate(constraints) if i not in now for phrase in phrases]
            key = (frozenset(now), longest_beginning(said, open_phrases))
            row.append(numbers.setdefault(key, len(numbers)))
        table.append(tuple(row))
        if len(numbers) > MOST_STATES:
            raise MeshcapError(
                f"{len(constraints)} required phrases need over {MOST_STATES} search states: require fewer"
            )
    return Automaton(words, tuple(table), tuple(len(met) for met, _ in numbers))


def iterate_growing(numbers: dict[tuple[frozenset[int], Phrase], int]) -> Iterable[tuple[frozenset[int], Phrase]]:
    """The keys of a dict that grows while it is gone through."""
    done = 0
    while done < len(numbers):
        yield list(numbers)[done]
        done += 1


def ends_with(said: Phrase, phrase: Phrase) -> bool:
    return said[-len(phrase) :] == phrase


def longest_beginning(said: Phrase, phrases: list[Phrase]) -> Phrase:
    for start in range(len(said)):
        tail = said[start:]
        if any(len(tail) < len(phrase) and phrase[: len(tail)] == tail for phrase in phrases):
            return tail
    return ()


@dataclass(frozen=True)
class ConstrainedBeam:
    """A beam of `beams` in every state of an automaton.

    `constraints` holds one entry for each picture, or a single entry for all. `[[[[7], [9, 4]], [[12]]]]` requires of
    every picture word 7 or the words 9 4, and word 12. Captions are ranked by how many
    requirements they meet, then by score; what is returned meets them all whenever that is possible within the length
    and the other rules.
    """

    constraints: Sequence[Sequence[Sequence[Sequence[int]]]]
    beams: int = 5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        positive(beams=self.beams)
        try:  # lists are easier to write, tuples can be compared
            frozen = tuple(tuple(tuple(tuple(map(index, p)) for p in a) for a in one) for one in self.constraints)
        except TypeError:
            raise MeshcapError(
                f"constraints are {self.constraints!r}, expected for each picture a list of requirements, each a list "
                "of alternative phrases, each a list of word ids"
            ) from None
        object.__setattr__(self, "constraints", frozen)
        if not self.constraints:
            raise MeshcapError("no constraints given: expected one set for all pictures or one for each")
        for alternatives in (a for constraints in self.constraints for a in constraints):
            if not alternatives or not all(alternatives):
                raise MeshcapError("an empty requirement: expected at least one phrase of at least one word")

    @property
    def automata(self) -> list[Automaton]:
        return [automaton(constraints) for constraints in cast("tuple[Constraints, ...]", self.constraints)]

    @property
    def width(self) -> int:
        return self.beams * max(len(a.next) for a in self.automata)

    def open(self, search: Search) -> None:
        one_alive(search)

    def picker(self, search: Search) -> ConstrainedPicker:
        return ConstrainedPicker.build(self, search)

    def score(self, search: Search) -> Tensor:
        return normalised(search.scores, search.lengths, self.length_penalty)

    def rank(self, search: Search) -> Tensor:
        # Requirements come first, scores second: a place in the order of scores, and a whole beam more for each
        # requirement met. (Adding a large number to the scores would swallow their differences.)
        places = self.score(search).argsort(-1).argsort(-1)
        return places + self.satisfied(search) * self.width

    def satisfied(self, search: Search) -> Tensor:
        """(B, W): how many requirements each hypothesis meets."""
        table, most = [a.satisfied for a in self.automata], self.width // self.beams
        rows = torch.tensor([[*row, *[0] * (most - len(row))] for row in table], device=search.scores.device)
        met = rows.repeat_interleave(self.beams, 1).expand(len(search.scores), -1)
        return met.masked_fill(search.scores == float("-inf"), 0)


@dataclass(frozen=True)
class ConstrainedPicker:
    """The automata of a batch as tables: S states, C special words."""

    strategy: ConstrainedBeam
    special: Tensor  # (B or 1, V) bool, the words that phrases contain
    words: Tensor  # (B or 1, C) those words
    absent: Tensor  # (B or 1, C) bool, where a picture has fewer
    next: Tensor  # (B or 1, S, 1 + C)

    @classmethod
    def build(cls, strategy: ConstrainedBeam, search: Search) -> ConstrainedPicker:
        device, vocab = search.scores.device, search.settings.vocab_size
        automata = strategy.automata
        if len(automata) not in (1, len(search.scores)):
            raise MeshcapError(
                f"{len(automata)} sets of constraints for {len(search.scores)} pictures: expected 1 or one each"
            )
        states, classes = max(len(a.next) for a in automata), max(len(a.words) for a in automata)
        special = torch.zeros(len(automata), vocab, dtype=torch.bool)
        words = torch.zeros(len(automata), classes, dtype=torch.long)
        absent = torch.ones(len(automata), classes, dtype=torch.bool)
        table = torch.zeros(len(automata), states, 1 + classes, dtype=torch.long)
        for row, a in enumerate(automata):
            for word in a.words:
                if not 0 <= word < vocab:
                    raise MeshcapError(f"required word id {word} is not in a vocabulary of {vocab}")
            special[row, list(a.words)] = True
            words[row, : len(a.words)] = torch.tensor(a.words, dtype=torch.long)
            absent[row, : len(a.words)] = False
            table[row, : len(a.next), : 1 + len(a.words)] = torch.tensor(a.next)
        return cls(strategy, special.to(device), words.to(device), absent.to(device), table.to(device))

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        beams = self.strategy.beams
        pictures, width, _ = log_probs.shape
        states = width // beams
        infinity = float("-inf")

        # Candidates of each hypothesis: its likeliest ordinary words, which all lead to one state, and every
        # special word, each leading to its own.
        best, ordinary = top_k_rows(log_probs.masked_fill(self.special[:, None], infinity), beams)
        words = self.words[:, None].expand(pictures, width, -1)  # (B, W, C)
        special = log_probs.gather(-1, words).masked_fill(self.absent[:, None], infinity)
        gained = torch.cat((best, special), -1)  # (B, W, k + C)
        words = torch.cat((ordinary, words), -1)
        count = ordinary.shape[-1]
        after = torch.cat((self.next[..., :1].expand(-1, -1, count), self.next[..., 1:]), -1)  # (B, S, k + C)
        after = after.repeat_interleave(beams, 1).expand(pictures, -1, -1)  # (B, W, k + C)

        gained, words = rest(search.finished, gained, words, search.settings.pad)
        here = torch.arange(states, device=words.device).repeat_interleave(beams)[:, None]  # (W, 1)
        after = torch.where(search.finished[..., None], here, after)

        totals = search.scores[..., None] + gained
        keys = normalised(totals, (search.lengths + ~search.finished)[..., None], self.strategy.length_penalty)
        elsewhere = after.flatten(1)[:, None] != torch.arange(states, device=words.device)[:, None]  # (B, S, W·(k + C))
        ranked = keys.flatten(1)[:, None].masked_fill(elsewhere, infinity).topk(beams)
        picked = ranked.indices.flatten(1)  # (B, W)
        # A state that too few candidates lead to is filled up with dead hypotheses, not with other states' captions.
        dead = ranked.values.flatten(1) == infinity
        return Choice(
            parents=picked // words.shape[-1],
            words=words.flatten(1).gather(1, picked),
            log_probs=gained.flatten(1).gather(1, picked),
            scores=totals.flatten(1).gather(1, picked).masked_fill(dead, infinity),
        )
