"""What captions may look like, whatever strategy searches for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from meshcap.decoding.protocol import Settings
from meshcap.decoding.search import Search
from meshcap.errors import MeshcapError

Judge = Callable[[Tensor, Search], None]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Lengths count words and `<eos>`; words are given as ids."""

    max_length: int = 20
    min_length: int = 1
    no_repeat_ngram: int = 0  # no sequence of this many words twice in a caption; 0: no such rule
    banned: tuple[int, ...] = ()
    bad_endings: tuple[int, ...] = ()  # words after which a caption may not end ("a", "of", "with", …)
    end_in_time: bool = False  # captions are whole: the last place is for `<eos>` alone, even after a bad ending

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise MeshcapError(f"lengths from {self.min_length} to {self.max_length}: expected 1 ≤ min ≤ max")
        if self.no_repeat_ngram < 0:
            raise MeshcapError(f"no_repeat_ngram is {self.no_repeat_ngram}, expected 0 (off) or more")

    def check(self, model: Settings) -> None:
        if self.max_length > model.max_length:
            raise MeshcapError(
                f"max_length is {self.max_length}, and this model can say at most {model.max_length} words"
            )
        for one in (*self.banned, *self.bad_endings):
            if not 0 <= one < model.vocab_size:
                raise MeshcapError(f"word id {one} is not in a vocabulary of {model.vocab_size}")
        if model.eos in self.banned:
            raise MeshcapError("<eos> is banned, and no caption could end: ban words instead")

    def judges(self, model: Settings, device: torch.device) -> list[Judge]:
        """Each judge sets the log-probabilities (B, W, V) of what it forbids to -inf, in place, on the device."""
        judges: list[Judge] = []
        if self.banned:
            judges.append(ban(torch.tensor(self.banned, device=device)))
        if self.min_length > 1:
            judges.append(at_least(self.min_length, model.eos))
        if self.bad_endings:
            bad = torch.zeros(model.vocab_size, dtype=torch.bool, device=device)
            bad[list(self.bad_endings)] = True
            judges.append(end_well(bad, model.eos, self.max_length if self.end_in_time else None))
        if self.no_repeat_ngram:
            judges.append(no_repeats(self.no_repeat_ngram))
        if self.end_in_time:
            others = torch.arange(model.vocab_size, device=device) != model.eos
            judges.append(end_at(self.max_length, others))
        return judges


def ban(words: Tensor) -> Judge:
    def judge(log_probs: Tensor, search: Search) -> None:
        log_probs.index_fill_(-1, words, float("-inf"))

    return judge


def at_least(length: int, eos: int) -> Judge:
    def judge(log_probs: Tensor, search: Search) -> None:
        log_probs[..., eos].masked_fill_(search.step + 1 < length, float("-inf"))

    return judge


def end_well(bad: Tensor, eos: int, must_end: int | None) -> Judge:
    def judge(log_probs: Tensor, search: Search) -> None:
        ends_badly = bad[search.last]
        if must_end is not None:
            ends_badly = ends_badly & (search.step + 1 < must_end)
        log_probs[..., eos].masked_fill_(ends_badly, float("-inf"))

    return judge


def end_at(length: int, others: Tensor) -> Judge:
    def judge(log_probs: Tensor, search: Search) -> None:
        log_probs.masked_fill_(others & (search.step + 1 >= length), float("-inf"))

    return judge


def no_repeats(n: int) -> Judge:
    """Forbid the word that would complete an n-gram said before.

    Every window of n words in the history whose first n - 1 are the latest n - 1 forbids its last word.
    """

    def judge(log_probs: Tensor, search: Search) -> None:
        said = search.ids  # (B, W, T), words from place `step` on are still padding
        windows = said.unfold(-1, min(n, said.shape[-1]), 1)  # (B, W, T - n + 1, n)
        if n > said.shape[-1]:
            return
        starts = torch.arange(windows.shape[-2], device=said.device)
        repeats = (starts + n <= search.step).expand(windows.shape[:-1])  # the whole window has been said
        if n > 1:
            places = (search.step + torch.arange(1 - n, 0, device=said.device)).clamp_min(0)
            latest = said.index_select(-1, places)  # (B, W, n - 1)
            repeats = repeats & (windows[..., :-1] == latest[..., None, :]).all(-1)
        penalty = torch.zeros(repeats.shape, device=said.device, dtype=log_probs.dtype)
        log_probs.scatter_add_(-1, windows[..., -1], penalty.masked_fill_(repeats, float("-inf")))

    return judge
