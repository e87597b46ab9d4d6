"""Greedy, beam, diverse beam and sampling: ways to choose the next words of all hypotheses.

A strategy is a frozen record of its options that says how many hypotheses it keeps (`width`), what they score at the
start (`open`), how to choose (`picker`) and what counts at the end (`rank`). Constrained beam search has a file of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from meshcap.decoding.search import Choice, Search, best_continuations, normalised, rest
from meshcap.errors import MeshcapError
from meshcap.kernels import top_k_rows


class Strategy(Protocol):
    """Frozen and hashable: equal strategies may share a captured step."""

    @property
    def width(self) -> int: ...

    def open(self, search: Search) -> None:
        """Set the first scores, where they are not zero."""

    def picker(self, search: Search) -> Picker:
        """What chooses, with whatever tensors it needs on the search's device."""

    def rank(self, search: Search) -> Tensor:
        """(B, W): what the hypotheses are sorted by at the end."""


class Picker(Protocol):
    """Chooses how all hypotheses go on. It may have a random `generator`, which is seeded anew for every search."""

    def choose(self, log_probs: Tensor, search: Search) -> Choice: ...


def positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise MeshcapError(f"{name} is {value}, expected more than 0")


def one_alive(search: Search, groups: int = 1) -> None:
    """All hypotheses begin alike: let the first of each group alone go on, or they would all go the same way."""
    search.scores.fill_(float("-inf"))
    search.scores.view(len(search.scores), groups, -1)[..., 0] = 0


@dataclass(frozen=True)
class Greedy:
    """The likeliest word, each time."""

    width: int = field(default=1, init=False)

    def open(self, search: Search) -> None:
        pass

    def picker(self, search: Search) -> Greedy:
        return self

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        best, words = rest(search.finished, *log_probs.max(-1, keepdim=True), search.settings.pad)
        return Choice(None, words[..., 0], best[..., 0], search.scores + best[..., 0])

    def rank(self, search: Search) -> Tensor:
        return search.scores


@dataclass(frozen=True)
class Beam:
    """The `beams` best sums of log-probabilities, each divided by length ** `length_penalty` for comparison.

    A finished caption stays in the beam as long as it is among the best. 0, the default, compares plain sums, as the
    public M² does; 1 compares means.
    """

    beams: int = 5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        positive(beams=self.beams)

    @property
    def width(self) -> int:
        return self.beams

    def open(self, search: Search) -> None:
        one_alive(search)

    def picker(self, search: Search) -> Beam:
        return self

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        # The best of each hypothesis are enough to find the best of all, and far less to compare.
        gained, words = rest(search.finished, *top_k_rows(log_probs, self.beams), search.settings.pad)
        return best_continuations(search, gained, words, penalty=self.length_penalty)

    def rank(self, search: Search) -> Tensor:
        return normalised(search.scores, search.lengths, self.length_penalty)


@dataclass(frozen=True)
class DiverseBeam:
    """Beams in groups that see what earlier groups just said and avoid it (Vijayakumar et al., 2018).

    Each time a word was chosen by an earlier group in this step, it costs `diversity` when a later one chooses;
    scores stay the model's own.
    """

    beams: int = 6
    groups: int = 3
    diversity: float = 0.5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        positive(beams=self.beams, groups=self.groups)
        if self.beams % self.groups:
            raise MeshcapError(f"{self.beams} beams do not divide into {self.groups} equal groups")

    @property
    def width(self) -> int:
        return self.beams

    def open(self, search: Search) -> None:
        one_alive(search, self.groups)

    def picker(self, search: Search) -> DiverseBeam:
        return self

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        size, pad = self.beams // self.groups, search.settings.pad
        said = torch.zeros_like(log_probs[:, :1])  # (B, 1, V) how often earlier groups chose each word
        choices = []
        for start in range(0, self.beams, size):
            group = slice(start, start + size)
            finished, own = search.finished[:, group], log_probs[:, group]
            _, words = top_k_rows(own.sub(said, alpha=self.diversity), size)
            cost = self.diversity * said.expand_as(own).gather(-1, words).masked_fill(finished[..., None], 0)
            gained, words = rest(finished, own.gather(-1, words), words, pad)
            choice = best_continuations(search, gained, words, keep=group, cost=cost, penalty=self.length_penalty)
            choices.append(choice)
            assert choice.parents is not None
            # A caption at rest says nothing, nor does a place that found no continuation.
            spoke = ~search.finished.gather(1, choice.parents) & (choice.scores > float("-inf"))
            said.scatter_add_(-1, choice.words[:, None], spoke[:, None].to(said.dtype))
        return Choice(*(torch.cat(parts, 1) for parts in zip(*choices, strict=True)))

    def rank(self, search: Search) -> Tensor:
        return normalised(search.scores, search.lengths, self.length_penalty)


@dataclass(frozen=True)
class Sample:
    """Words drawn at random, independently for each of `samples` captions.

    `temperature` sharpens (below 1) or flattens the distribution; `top_k` keeps the k likeliest words (0: all);
    `top_p` the likeliest words that together reach probability p. The same seed draws the same captions.
    """

    samples: int = 5
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        positive(samples=self.samples, temperature=self.temperature)
        if self.top_k < 0:
            raise MeshcapError(f"top_k is {self.top_k}, expected 0 (all words) or more")
        if not 0 < self.top_p <= 1:
            raise MeshcapError(f"top_p is {self.top_p}, expected a share above 0 and up to 1")

    @property
    def width(self) -> int:
        return self.samples

    def open(self, search: Search) -> None:
        pass

    def picker(self, search: Search) -> Sampler:
        return Sampler(self, torch.Generator(search.scores.device))

    def rank(self, search: Search) -> Tensor:
        return search.scores


@dataclass(frozen=True)
class Sampler:
    """`Sample` with its random numbers."""

    strategy: Sample
    generator: torch.Generator

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        odds = log_probs / self.strategy.temperature
        odds = keep_likeliest(odds, self.strategy.top_k, self.strategy.top_p)
        # argmax(p / Exp(1)) is a draw from p, and needs no sum and no synchronisation
        noise = torch.empty_like(odds).exponential_(generator=self.generator)
        words = (odds.softmax(-1) / noise).argmax(-1, keepdim=True)
        gained, words = rest(search.finished, log_probs.gather(-1, words), words, search.settings.pad)
        return Choice(None, words[..., 0], gained[..., 0], search.scores + gained[..., 0])


def keep_likeliest(odds: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set the log-odds of all but the likeliest words to -inf."""
    if 0 < top_k < odds.shape[-1]:
        least = odds.topk(top_k, -1).values[..., -1:]
        odds = odds.masked_fill(odds < least, float("-inf"))
    if top_p < 1:
        ordered, order = odds.sort(-1, descending=True)
        shares = ordered.softmax(-1)
        # A word stays if those before it have not reached p yet: so the likeliest always does.
        ordered = ordered.masked_fill(shares.cumsum(-1) - shares >= top_p, float("-inf"))
        odds = torch.empty_like(odds).scatter_(-1, order, ordered)
    return odds
