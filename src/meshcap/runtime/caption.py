"""What a captioner says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Caption:
    """A sentence about a picture, and how the model came to it."""

    text: str  # as a person would write it
    words: list[str]
    log_probs: list[float]  # of each word, and of the end where it was reached
    confidence: float  # 0-1: how far to trust it, as measured where the model is calibrated; else the probability
    probability: float  # 0-1: the geometric mean of the words' probabilities
    score: float  # what the search ranked it by
    finished: bool  # False: cut off at the greatest length
    missing: int = 0  # how many of the required mentions could not be met
    attention: Tensor | None = None  # (words, regions): where the model looked for each word
    alternatives: tuple[Caption, ...] = ()  # the next best, where more than one was asked for
