"""What captions may look like: `meshcap.decoding.records` on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.runtime.facts import Facts
    from meshcap.runtime.search import Search


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

    def check(self, facts: Facts) -> None:
        if self.max_length > facts.max_length:
            raise MeshcapError(
                f"max_length is {self.max_length}, and this model can say at most {facts.max_length} words"
            )
        for one in (*self.banned, *self.bad_endings):
            if not 0 <= one < facts.vocab_size:
                raise MeshcapError(f"word id {one} is not in a vocabulary of {facts.vocab_size}")
        if facts.eos in self.banned:
            raise MeshcapError("<eos> is banned, and no caption could end: ban words instead")

    def forbid(self, log_probs: np.ndarray, search: Search) -> None:
        """Set the log-probabilities (B, W, V) of what is forbidden to -inf, in place."""
        eos = search.facts.eos
        log_probs[..., list(self.banned)] = -np.inf
        if search.step + 1 < self.min_length:
            log_probs[..., eos] = -np.inf
        last_place = self.end_in_time and search.step + 1 >= self.max_length
        if self.bad_endings and not last_place:
            log_probs[..., eos][np.isin(search.last, self.bad_endings)] = -np.inf
        if 0 < self.no_repeat_ngram <= search.step:
            self._forbid_repeats(log_probs, search)
        if last_place:
            log_probs[..., np.arange(log_probs.shape[-1]) != eos] = -np.inf

    def _forbid_repeats(self, log_probs: np.ndarray, search: Search) -> None:
        """Every n words said before whose first n - 1 are the latest n - 1 forbid their last one."""
        n, said = self.no_repeat_ngram, search.ids[..., : search.step]  # (B, W, t)
        windows = np.lib.stride_tricks.sliding_window_view(said, n, axis=-1)  # (B, W, t - n + 1, n)
        latest = said[..., search.step - n + 1 :]  # (B, W, n - 1)
        repeats = (windows[..., :-1] == latest[..., None, :]).all(-1)
        picture, hypothesis, place = np.nonzero(repeats)
        log_probs[picture, hypothesis, windows[picture, hypothesis, place, -1]] = -np.inf
