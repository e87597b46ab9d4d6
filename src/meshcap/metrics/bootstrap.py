"""How sure a score is: bootstrap over pictures.

Every corpus score is a function of sums over pictures: BLEU of its counts, a mean of the picture's own scores. So a
resample of the pictures is a row of weights (how often each was drawn), all resamples are one product of weights and
statistics, and no caption is looked at twice. CIDEr keeps its document frequencies in all resamples: they belong to the
references that were asked for, not to the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy

Array = numpy.ndarray
Total = Callable[[Array, int], Array]  # sums of statistics (…, K) over so many pictures -> scores (…)

LEVEL = 0.95
CHUNK = 4_000_000  # drawn pictures held at once: 32 MB of them, whatever the number of pictures


@dataclass(frozen=True)
class Measure:
    """A metric on a set of pictures: the score of any part of them is `total` of the sums of `statistics` (N, K).

    per_image (N,) may hold NaN where a picture has no score of its own.
    """

    name: str
    per_image: Array
    statistics: Array
    total: Total

    @classmethod
    def mean(cls, name: str, per_image: Array) -> Measure:
        """A metric that is the mean of the pictures' scores."""
        return cls(name, per_image, per_image[:, None], _mean)

    def corpus(self, pictures: Array | None = None) -> float:
        """The score of all pictures, or of these (indices)."""
        chosen = self.statistics if pictures is None else self.statistics[pictures]
        return float(self.total(chosen.sum(0), len(chosen)))


@dataclass(frozen=True)
class Difference:
    """How much better the first of two systems is on the same pictures."""

    value: float
    interval: tuple[float, float] | None
    p: float | None


def intervals(
    measures: Sequence[Measure], resamples: int, seed: int, pictures: Array | None = None
) -> list[tuple[float, float]]:
    """The percentile interval of each measure, over all pictures or over these (indices)."""
    return [_interval(values) for values in resampled(measures, resamples, seed, pictures).T]


def differences(first: Sequence[Measure], second: Sequence[Measure], resamples: int, seed: int) -> list[Difference]:
    """First minus second for each pair of measures, both resampled with the same draws of pictures.

    p is two-sided: twice the share of resamples on the rarer side of zero, each share counted with the sample itself
    as one of them. So p is never 0, and it is about 0.05 where the interval just touches zero.
    """
    values = [one.corpus() - other.corpus() for one, other in zip(first, second, strict=True)]
    if not resamples:
        return [Difference(value, None, None) for value in values]
    both = resampled([*first, *second], resamples, seed)
    apart = both[:, : len(first)] - both[:, len(first) :]  # (B, M)
    return [
        Difference(value, _interval(drawn), _two_sided(drawn)) for value, drawn in zip(values, apart.T, strict=True)
    ]


def _mean(sums: Array, pictures: int) -> Array:
    return sums[..., 0] / pictures


def _two_sided(drawn: Array) -> float:
    below, above = int((drawn <= 0).sum()), int((drawn >= 0).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(drawn)))


def _interval(values: Array) -> tuple[float, float]:
    low, high = numpy.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def resampled(measures: Sequence[Measure], resamples: int, seed: int, pictures: Array | None = None) -> Array:
    """(B, M): the scores of each resample."""
    # BLEU-1..4 share one table of statistics: each table enters the product once.
    tables = {id(measure.statistics): measure.statistics for measure in measures}
    joined = numpy.concatenate(list(tables.values()), axis=1)
    if pictures is not None:
        joined = joined[pictures]
    ends = numpy.cumsum([table.shape[1] for table in tables.values()])
    places = {key: slice(end - table.shape[1], end) for (key, table), end in zip(tables.items(), ends, strict=True)}
    count = len(joined)
    sums = numpy.concatenate([weights @ joined for weights in draws(count, resamples, seed)])  # (B, K)
    scores = [measure.total(sums[:, places[id(measure.statistics)]], count) for measure in measures]
    return numpy.stack(scores, axis=1)


def draws(pictures: int, resamples: int, seed: int) -> Iterator[Array]:
    """Chunks (b, N) of how often each picture was drawn, with replacement, as many as there are."""
    random = numpy.random.default_rng(seed)
    rows = max(1, CHUNK // pictures)
    for start in range(0, resamples, rows):
        chunk = min(rows, resamples - start)
        drawn = random.integers(0, pictures, size=(chunk, pictures))
        drawn += pictures * numpy.arange(chunk)[:, None]
        yield numpy.bincount(drawn.ravel(), minlength=chunk * pictures).reshape(chunk, pictures).astype(numpy.float64)
