"""How far confidences can be trusted: calibration error, squared error, and what withholding the unsure would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from meshcap.calibration.curves import equal_parts
from meshcap.calibration.isotonic import Array

BINS = 10
LEVELS = (0.5, 0.6, 0.7, 0.8)  # at which --min-confidence is tried


@dataclass(frozen=True)
class Bin:
    """Captions of about the same confidence."""

    count: int
    confidence: float  # their mean
    share: float  # the mean of what came true
    interval: tuple[float, float]  # of that mean, 95 %


@dataclass(frozen=True)
class Reliability:
    """Of confidences beside what came true."""

    error: float  # mean distance of a bin's confidence from its share, weighted by captions
    noise: float  # what that would be by chance alone if every confidence were right
    squared_error: float
    order: float  # rank correlation of confidences and shares
    bins: list[Bin]


@dataclass(frozen=True)
class Withheld:
    """What remains when captions below a confidence are not shown; None where there are none."""

    level: float
    withheld: float  # share of the captions
    withheld_share: float | None
    withheld_cider: float | None
    kept_share: float | None
    kept_cider: float | None


def reliability(confidences: Array, shares: Array, count: int = BINS) -> Reliability:
    """Bins of equally many captions, so that each has the same say and none is empty."""
    bins, error, noise = [], 0.0, 0.0
    for places in equal_parts(confidences, min(count, max(1, len(shares) // 10))):
        said, came = confidences[places], shares[places]
        # Of a mean; within a bin confidences differ, and that part of the spread is no noise.
        sure = float((came - said).std(ddof=1)) / len(places) ** 0.5 if len(places) > 1 else 0.0
        part = len(places) / len(shares)
        error += part * abs(float(said.mean() - came.mean()))
        noise += part * sure * (2 / numpy.pi) ** 0.5  # the mean distance of a normal variable from its middle
        middle, wide = float(came.mean()), 1.96 * sure
        ends = (max(0.0, middle - wide), min(1.0, middle + wide))
        bins.append(Bin(len(places), float(said.mean()), middle, ends))
    squared = float(((confidences - shares) ** 2).mean())
    return Reliability(error, noise, squared, rank_correlation(confidences, shares), bins)


def withheld(confidences: Array, shares: Array, cider: Array, levels: Sequence[float] = LEVELS) -> list[Withheld]:
    """For each level, how many captions lie below it, and how good those and the others are."""
    found = []
    for level in levels:
        below = confidences < level
        found.append(
            Withheld(
                level,
                float(below.mean()),
                *(_mean(values[below]) for values in (shares, cider)),
                *(_mean(values[~below]) for values in (shares, cider)),
            )
        )
    return found


def rank_correlation(one: Array, other: Array) -> float:
    """Spearman's: 1 where the order is the same, 0 where one says nothing of the other or never changes."""
    first, second = ranks(one), ranks(other)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(numpy.corrcoef(first, second)[0, 1])


def ranks(values: Array) -> Array:
    """From 0; equal values share the mean of their ranks."""
    _, place, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    ends = numpy.cumsum(counts)
    middles: Array = (ends - 1 + ends - counts) / 2
    return middles[place]


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None
