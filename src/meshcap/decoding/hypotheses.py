"""What a search returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Hypotheses:
    """The n best captions of each of B pictures, best first.

    ids (B, n, T) end with `<eos>` where `finished` and are filled up with `<pad>`; log_probs (B, n, T) are the
    model's own for each word, 0 after the end; scores (B, n) are what the captions were ranked by (-inf: the search
    found fewer than n); lengths (B, n) count words with `<eos>`.
    """

    ids: Tensor
    log_probs: Tensor
    scores: Tensor
    lengths: Tensor
    finished: Tensor
    # How many of the required phrases each caption contains; of constrained searches alone.
    satisfied: Tensor | None = None
    # On request: `words` (B, n, T, N) and whatever else the model tells about how it looked.
    attention: dict[str, Tensor] | None = None

    @property
    def confidence(self) -> Tensor:
        """(B, n) from 0 to 1: the geometric mean of the words' probabilities."""
        return (self.log_probs.sum(-1) / self.lengths.clamp_min(1)).exp()
