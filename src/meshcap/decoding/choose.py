"""Hypotheses under way, and how each strategy chooses their next words, in torch.

B pictures, W hypotheses of each, k candidate words of a hypothesis, V vocabulary. Shapes never change and nothing is
read back to the host, so that a whole step can be captured as one CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from meshcap.decoding.records import Beam, ConstrainedBeam, DiverseBeam, Greedy, Sampling, Settings, Strategy
from meshcap.kernels import (
    MOST_KEPT,
    can_choose_words,
    can_take_words,
    can_top_k,
    choose_words,
    take_words,
    top_k_logits,
    top_k_rows,
)

INFINITY = float("inf")


class Logits(NamedTuple):
    """Log-probabilities (B, W, V) that nobody has written out: values less log Σ exp of them."""

    values: Tensor
    totals: Tensor | None  # (B, W) those sums, where values have been forbidden since


class Choice(NamedTuple):
    """How a strategy goes on: all (B, W)."""

    parents: Tensor | None  # which hypothesis each new one continues; None: each its own
    words: Tensor
    log_probs: Tensor  # of those words, by the model; 0 for hypotheses that had ended
    scores: Tensor  # of the hypotheses with those words


@dataclass(frozen=True)
class Search:
    """The W hypotheses of each picture so far: tensors updated in place by `take`."""

    ids: Tensor  # (B, W, T), <pad> where no word is yet
    log_probs: Tensor  # (B, W, T)
    scores: Tensor  # (B, W)
    lengths: Tensor  # (B, W)
    finished: Tensor  # (B, W) bool
    last: Tensor  # (B, W) the latest word
    step: Tensor  # (1,)
    settings: Settings

    @classmethod
    def new(cls, settings: Settings, *, pictures: int, width: int, length: int, device: torch.device) -> Search:
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        search = cls(
            ids=zeros(pictures, width, length, dtype=torch.long),
            log_probs=zeros(pictures, width, length, dtype=torch.float),
            scores=zeros(pictures, width, dtype=torch.float),
            lengths=zeros(pictures, width, dtype=torch.long),
            finished=zeros(pictures, width, dtype=torch.bool),
            last=zeros(pictures, width, dtype=torch.long),
            step=zeros(1, dtype=torch.long),
            settings=settings,
        )
        search.reset()
        return search

    def reset(self) -> None:
        self.ids.fill_(self.settings.pad)
        self.last.fill_(self.settings.bos)
        for tensor in (self.log_probs, self.scores, self.lengths, self.finished, self.step):
            tensor.zero_()

    def take(self, choice: Choice) -> None:
        """Go on with a choice. A hypothesis that nothing is allowed to follow scores -inf and grows no more."""
        parents, words, log_probs, scores = choice
        if can_take_words(self.ids):
            take_words(
                *choice, self.ids, self.log_probs, self.scores, self.lengths, self.finished, self.last, self.step,
                pad=self.settings.pad, eos=self.settings.eos,
            )  # fmt: skip
            self.step.add_(1)
            return
        alive = scores > float("-inf")
        words, log_probs = words.masked_fill(~alive, self.settings.pad), log_probs.masked_fill(~alive, 0)
        if parents is not None:
            for tensor in (self.lengths, self.finished):
                tensor.copy_(tensor.gather(1, parents))
            for tensor in (self.ids, self.log_probs):
                tensor.copy_(tensor.gather(1, parents[..., None].expand_as(tensor)))
        self.ids.index_copy_(2, self.step, words[..., None])
        self.log_probs.index_copy_(2, self.step, log_probs[..., None])
        self.scores.copy_(scores)
        self.last.copy_(words)
        self.lengths.add_(~self.finished & alive)
        self.finished.logical_or_(words == self.settings.eos)
        self.step.add_(1)

    def ended(self) -> Tensor:
        """Whether every hypothesis has ended or is out of the running, as a tensor."""
        return (self.finished | (self.scores == float("-inf"))).all()

    def latest(self, count: int) -> Tensor:
        """(B, W, count) the latest words, any word where there are fewer."""
        places = (self.step + torch.arange(-count, 0, device=self.ids.device)).clamp_min(0)
        return self.ids.index_select(-1, places)


class Chooser(Protocol):
    """One strategy with whatever tensors it needs on the search's device.

    It may have a random `generator`, which is seeded anew for every search, and may read `Logits` (`reads_logits`).
    """

    def open(self, search: Search) -> None:
        """Set the first scores, where they are not zero."""

    def choose(self, log_probs: Any, search: Search) -> Choice:
        """Choose how all hypotheses go on, by log-probabilities (B, W, V), or `Logits`."""

    def score(self, search: Search) -> Tensor:
        """(B, W): what a person reads as the score of each hypothesis."""

    def rank(self, search: Search) -> Tensor:
        """(B, W): what the hypotheses are sorted by at the end."""


def chooser(strategy: Strategy, search: Search) -> Chooser:
    """What runs a strategy.

    Raises:
        MeshcapError: constraints that do not fit the pictures or the vocabulary.
    """
    if isinstance(strategy, Greedy):
        return GreedyChooser()
    if isinstance(strategy, Beam):
        return BeamChooser(strategy)
    if isinstance(strategy, DiverseBeam):
        return DiverseChooser(strategy)
    if isinstance(strategy, Sampling):
        return SampleChooser(strategy, torch.Generator(search.scores.device))
    return ConstrainedChooser(strategy, search)


@dataclass(frozen=True)
class GreedyChooser:
    def open(self, search: Search) -> None:
        pass

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        best, words = keep_finished(search.finished, *log_probs.max(-1, keepdim=True), search.settings.pad)
        return Choice(None, words[..., 0], best[..., 0], search.scores + best[..., 0])

    def score(self, search: Search) -> Tensor:
        return search.scores

    rank = score


@dataclass(frozen=True)
class BeamChooser:
    strategy: Beam

    @property
    def reads_logits(self) -> bool:
        return self.strategy.beams <= MOST_KEPT

    def open(self, search: Search) -> None:
        one_alive(search)

    def choose(self, log_probs: Tensor | Logits, search: Search) -> Choice:
        # The best of each hypothesis are enough to find the best of all, and far less to compare.
        found = best_words(log_probs, self.strategy.beams)
        if can_choose_words(found[0]) and self.strategy.length_penalty == 0:
            return Choice(*choose_words(*found, search.finished, search.scores, search.settings.pad))
        gained, words = keep_finished(search.finished, *found, search.settings.pad)
        return best_continuations(search, gained, words, penalty=self.strategy.length_penalty)

    def score(self, search: Search) -> Tensor:
        return normalised(search.scores, search.lengths, self.strategy.length_penalty)

    rank = score


@dataclass(frozen=True)
class DiverseChooser:
    strategy: DiverseBeam

    def open(self, search: Search) -> None:
        one_alive(search, self.strategy.groups)

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        beams, diversity = self.strategy.beams, self.strategy.diversity
        size = beams // self.strategy.groups
        used = torch.zeros_like(log_probs[:, :1])  # (B, 1, V) how often earlier groups chose each word
        # (B, W, W): which hypotheses consist of the same words so far
        alike = (search.ids[:, :, None] == search.ids[:, None]).all(-1)
        choices: list[Choice] = []
        for start in range(0, beams, size):
            group = slice(start, start + size)
            finished, own = search.finished[:, group], log_probs[:, group]
            # As many words as there are beams: all but `size` may be taken by earlier groups.
            _, words = best_words(own.sub(used, alpha=diversity), beams)
            cost = diversity * used.expand_as(own).gather(-1, words).masked_fill(finished[..., None], 0)
            gained, words = keep_finished(finished, own.gather(-1, words), words, search.settings.pad)
            for earlier in choices:
                assert earlier.parents is not None
                same = alike[:, group].gather(2, earlier.parents[:, None].expand(-1, size, -1))  # (B, w, w')
                same = same & (earlier.scores > -INFINITY)[:, None]
                taken = (same[..., None, :] & (words[..., None] == earlier.words[:, None, None])).any(-1)
                gained = gained.masked_fill(taken, -INFINITY)
            choice = best_continuations(
                search, gained, words, keep=group, cost=cost, penalty=self.strategy.length_penalty
            )
            choices.append(choice)
            assert choice.parents is not None
            # A finished caption adds no word, nor does a place that found no continuation.
            added = ~search.finished.gather(1, choice.parents) & (choice.scores > -INFINITY)
            used.scatter_add_(-1, choice.words[:, None], added[:, None].to(used.dtype))
        return Choice(*(torch.cat(parts, 1) for parts in zip(*choices, strict=True)))

    def score(self, search: Search) -> Tensor:
        return normalised(search.scores, search.lengths, self.strategy.length_penalty)

    rank = score


@dataclass(frozen=True)
class SampleChooser:
    strategy: Sampling
    generator: torch.Generator

    def open(self, search: Search) -> None:
        pass

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        odds = keep_likeliest(log_probs / self.strategy.temperature, self.strategy.top_k, self.strategy.top_p)
        # argmax(p / Exp(1)) is a draw from p, and needs no sum and no synchronisation
        noise = torch.empty_like(odds).exponential_(generator=self.generator)
        words = (odds.softmax(-1) / noise).argmax(-1, keepdim=True)
        gained, words = keep_finished(search.finished, log_probs.gather(-1, words), words, search.settings.pad)
        return Choice(None, words[..., 0], gained[..., 0], search.scores + gained[..., 0])

    def score(self, search: Search) -> Tensor:
        return search.scores

    rank = score


class ConstrainedChooser:
    """The automata of a batch as tables: S states, C special words."""

    def __init__(self, strategy: ConstrainedBeam, search: Search):
        device, vocab = search.scores.device, search.settings.vocab_size
        strategy.check(len(search.scores), vocab)
        self.strategy, automata = strategy, strategy.automata
        states, classes = max(len(a.next) for a in automata), max(len(a.words) for a in automata)
        special = torch.zeros(len(automata), vocab, dtype=torch.bool)
        words = torch.zeros(len(automata), classes, dtype=torch.long)
        absent = torch.ones(len(automata), classes, dtype=torch.bool)
        table = torch.zeros(len(automata), states, 1 + classes, dtype=torch.long)
        met = torch.zeros(len(automata), states, dtype=torch.long)
        for row, a in enumerate(automata):
            special[row, list(a.words)] = True
            words[row, : len(a.words)] = torch.tensor(a.words, dtype=torch.long)
            absent[row, : len(a.words)] = False
            table[row, : len(a.next), : 1 + len(a.words)] = torch.tensor(a.next)
            met[row, : len(a.next)] = torch.tensor(a.satisfied)
        self.special = special.to(device)  # (B or 1, V) the words that phrases contain
        self.words = words.to(device)  # (B or 1, C) those words
        self.absent = absent.to(device)  # (B or 1, C) where a picture has fewer
        self.next = table.to(device)  # (B or 1, S, 1 + C)
        self.met = met.to(device)  # (B or 1, S)

    def open(self, search: Search) -> None:
        one_alive(search)

    def choose(self, log_probs: Tensor, search: Search) -> Choice:
        beams = self.strategy.beams
        pictures, width, _ = log_probs.shape
        states = width // beams

        # Candidates of each hypothesis: its likeliest ordinary words, which all lead to one state, and every
        # special word, each leading to its own.
        best, ordinary = best_words(log_probs.masked_fill(self.special[:, None], -INFINITY), beams)
        words = self.words[:, None].expand(pictures, width, -1)  # (B, W, C)
        special = log_probs.gather(-1, words).masked_fill(self.absent[:, None], -INFINITY)
        gained = torch.cat((best, special), -1)  # (B, W, k + C)
        words = torch.cat((ordinary, words), -1)
        count = ordinary.shape[-1]
        after = torch.cat((self.next[..., :1].expand(-1, -1, count), self.next[..., 1:]), -1)  # (B, S, k + C)
        after = after.repeat_interleave(beams, 1).expand(pictures, -1, -1)  # (B, W, k + C)

        gained, words = keep_finished(search.finished, gained, words, search.settings.pad)
        here = torch.arange(states, device=words.device).repeat_interleave(beams)[:, None]  # (W, 1)
        after = torch.where(search.finished[..., None], here, after)

        totals = search.scores[..., None] + gained
        keys = normalised(totals, (search.lengths + ~search.finished)[..., None], self.strategy.length_penalty)
        elsewhere = after.flatten(1)[:, None] != torch.arange(states, device=words.device)[:, None]  # (B, S, W·(k + C))
        ranked = keys.flatten(1)[:, None].masked_fill(elsewhere, -INFINITY).topk(beams)
        picked = ranked.indices.flatten(1)  # (B, W)
        # A state that too few candidates lead to is filled up with dead hypotheses, not with other states' captions.
        dead = ranked.values.flatten(1) == -INFINITY
        return Choice(
            parents=picked // words.shape[-1],
            words=words.flatten(1).gather(1, picked),
            log_probs=gained.flatten(1).gather(1, picked),
            scores=totals.flatten(1).gather(1, picked).masked_fill(dead, -INFINITY),
        )

    def score(self, search: Search) -> Tensor:
        return normalised(search.scores, search.lengths, self.strategy.length_penalty)

    def rank(self, search: Search) -> Tensor:
        # Requirements come first, scores second: a place in the order of scores, and a whole beam more for each
        # requirement met. (Adding a large number to the scores would swallow their differences.)
        places = self.score(search).argsort(-1).argsort(-1)
        return places + self.satisfied(search) * search.scores.shape[1]

    def satisfied(self, search: Search) -> Tensor:
        """(B, W): how many requirements each hypothesis meets."""
        met = self.met.repeat_interleave(self.strategy.beams, 1).expand(len(search.scores), -1)
        return met.masked_fill(search.scores == -INFINITY, 0)


def one_alive(search: Search, groups: int = 1) -> None:
    """All hypotheses begin alike: let the first of each group alone go on, or they would all go the same way."""
    search.scores.fill_(-INFINITY)
    search.scores.view(len(search.scores), groups, -1)[..., 0] = 0


def best_words(log_probs: Tensor | Logits, k: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (…, k) of the k likeliest words of (…, V), likeliest first; k is lowered to V."""
    if isinstance(log_probs, Logits):
        return top_k_logits(log_probs.values, min(k, log_probs.values.shape[-1]), log_probs.totals)
    k = min(k, log_probs.shape[-1])
    if log_probs.is_cuda and can_top_k(log_probs, k):
        return top_k_rows(log_probs, k)
    found = log_probs.topk(k, -1)
    return found.values, found.indices


def keep_finished(finished: Tensor, log_probs: Tensor, words: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Of candidates (B, W, k), leave a finished hypothesis one: to stay as it is, with `<pad>` for a word."""
    ended = finished[..., None]
    first = torch.arange(words.shape[-1], device=words.device) == 0
    log_probs = log_probs.masked_fill(ended, -INFINITY).masked_fill(ended & first, 0)
    return log_probs, words.masked_fill(ended, pad)


def normalised(scores: Tensor, lengths: Tensor, penalty: float) -> Tensor:
    """Scores divided by length ** penalty."""
    return scores if penalty == 0 else scores / lengths.clamp_min(1).float() ** penalty


def best_continuations(
    search: Search,
    gained: Tensor,
    words: Tensor,
    *,
    keep: slice = slice(None),
    cost: Tensor | None = None,
    penalty: float,
) -> Choice:
    """Of the hypotheses `keep` (w of them), each with k candidate words, the w best continuations.

    Args:
        gained, words: (B, w, k) log-probabilities and ids, as `keep_finished` leaves them.
        cost: (B, w, k) what a candidate costs in the comparison alone.
    """
    totals = search.scores[:, keep, None] + gained  # (B, w, k)
    lengths = (search.lengths + ~search.finished)[:, keep, None]
    keys = normalised(totals if cost is None else totals - cost, lengths, penalty)
    picked = keys.flatten(1).topk(words.shape[1]).indices  # (B, w)
    return Choice(
        parents=picked // words.shape[-1] + (keep.start or 0),
        words=words.flatten(1).gather(1, picked),
        log_probs=gained.flatten(1).gather(1, picked),
        scores=totals.flatten(1).gather(1, picked),
    )


def keep_likeliest(odds: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set the log-odds of all but the likeliest words to -inf."""
    if 0 < top_k < odds.shape[-1]:
        least = odds.topk(top_k, -1).values[..., -1:]
        odds = odds.masked_fill(odds < least, -INFINITY)
    if top_p < 1:
        ordered, order = odds.sort(-1, descending=True)
        shares = ordered.softmax(-1)
        # A word stays if those before it have not reached p yet: so the likeliest always does.
        ordered = ordered.masked_fill(shares.cumsum(-1) - shares >= top_p, -INFINITY)
        odds = torch.empty_like(odds).scatter_(-1, order, ordered)
    return odds
