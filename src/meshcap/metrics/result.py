"""What scoring gives: metrics by name, scores with bootstrap intervals, differences, and the line that says how.

Every corpus score is a function of sums over pictures: BLEU of its counts, a mean of the picture's own scores. So a
resample of the pictures is a row of weights (how often each was drawn), all resamples are one product of weights and
statistics, and no caption is read twice. CIDEr keeps its document frequencies in all resamples: they belong to the
references, not to the draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

import meshcap
from meshcap.errors import MeshcapError
from meshcap.metrics.ngrams import BETA

DOMAINS = ("in-domain", "near-domain", "out-domain")  # nocaps', in the order of its tables
OVERALL = "overall"


class Missing(Exception):  # noqa: N818 - no error: the other metrics are still wanted
    """A metric cannot be computed here; the message is one line and says why and what to do."""


@dataclass(frozen=True)
class Result:
    """What `score` found. Intervals are of 95 %; a picture's own score is None where it has none."""

    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    per_image: dict[str, dict[str, float | None]]
    signature: str
    warnings: list[str]
    diversity: dict[str, float]
    domains: dict[str, dict[str, Any]] = field(default_factory=dict)  # nocaps' -> pictures, scores, intervals

    def to_dict(self) -> dict[str, Any]:
        """What `meshcap score --json` prints."""
        content = {
            "scores": self.scores,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "per_image": self.per_image,
            "signature": self.signature,
            "warnings": self.warnings,
            "diversity": self.diversity,
        }
        return content | ({"domains": self.domains} if self.domains else {})


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same pictures; differences are first minus second."""

    first: Result
    second: Result
    differences: dict[str, Difference]

    def to_dict(self) -> dict[str, Any]:
        """The first system's result, and under "against" the second's scores and the differences."""
        other = self.second.to_dict()
        apart = {
            name: {"difference": found.value, "interval": found.interval and list(found.interval), "p": found.p}
            for name, found in self.differences.items()
        }
        kept = {key: other[key] for key in ("scores", "intervals", "warnings", "diversity")}
        return self.first.to_dict() | {"against": {**kept, "differences": apart}}


@dataclass(frozen=True)
class Systems:
    """Systems on the same pictures, by name; differences are of each but the first, from the first."""

    results: dict[str, Result]
    differences: dict[str, dict[str, Difference]]

    def to_dict(self) -> dict[str, Any]:
        """What `meshcap score A B C --json` prints."""
        return {
            "systems": {name: result.to_dict() for name, result in self.results.items()},
            "differences": {
                name: {
                    metric: {
                        "difference": found.value,
                        "interval": found.interval and list(found.interval),
                        "p": found.p,
                        "corrected": found.corrected,
                    }
                    for metric, found in those.items()
                }
                for name, those in self.differences.items()
            },
        }


def summary(measures: Sequence[Measure], bootstrap: int, seed: int, pictures: Array | None = None) -> dict[str, Any]:
    """Scores and intervals, over all pictures or over these (indices)."""
    found = intervals(measures, bootstrap, seed, pictures) if bootstrap and measures else []
    return {
        "scores": {measure.name: measure.corpus(pictures) for measure in measures},
        "intervals": {measure.name: ends for measure, ends in zip(measures, found, strict=bool(found))},
    }


def by_domain(measures: Sequence[Measure], own: Sequence[str], bootstrap: int, seed: int) -> dict[str, dict[str, Any]]:
    """A `summary` for each domain's pictures, and for all. own: the domain of each picture, "" for none."""
    kinds = [*DOMAINS, *sorted(set(own) - {*DOMAINS, ""})]
    places = {kind: numpy.flatnonzero(numpy.array(own) == kind) for kind in kinds} | {OVERALL: numpy.arange(len(own))}
    return {
        kind: {"pictures": len(found)} | summary(measures, bootstrap, seed, found)
        for kind, found in places.items()
        if len(found)
    }


def by_picture(measures: Sequence[Measure], ids: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """The scores of each picture."""
    columns = [measure.per_image.tolist() for measure in measures]
    names = [measure.name for measure in measures]
    return {
        id: {name: None if math.isnan(value) else value for name, value in zip(names, values, strict=True)}
        for id, *values in zip(ids, *columns, strict=True)
    }


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
    corrected: float | None = None  # p after Holm's correction, where there are several comparisons


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


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm, 1979): one below 0.05 by chance comes up in 5 % of all tables."""
    found, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        found[place] = largest
    return found


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


BLEU = tuple(f"BLEU-{n}" for n in (1, 2, 3, 4))
METRICS = (*BLEU, "METEOR", "ROUGE-L", "CIDEr", "CIDEr-plain", "SPICE")  # in the order of the tables
DEFAULT = (*BLEU, "ROUGE-L", "CIDEr")
ALSO = {"bleu": BLEU, "rouge": ("ROUGE-L",), "cider-d": ("CIDEr",), "all": METRICS}

# How each is computed. df: where CIDEr counts in how many pictures an n-gram occurs.
HOW = {
    "BLEU": "coco,n=1-4,closest",
    "METEOR": "1.5,{language},norm,python",
    "ROUGE-L": f"beta={BETA}",
    "CIDEr": "D,n=1-4,sigma=6,df=references",
    "CIDEr-plain": "n=1-4,df=references",
    "SPICE": "1.0",
}


def chosen_metrics(names: Sequence[str] | str) -> list[str]:
    """Names as in `METRICS`, from names in any case, "bleu" for four of them, and "all".

    Raises:
        MeshcapError: an unknown name, or none.
    """
    known = {name.lower(): (name,) for name in METRICS} | ALSO
    wanted: set[str] = set()
    for name in [names] if isinstance(names, str) else names:
        if name.lower() not in known:
            raise MeshcapError(f"there is no metric {name!r}, expected some of bleu, {', '.join(METRICS)}, or all")
        wanted.update(known[name.lower()])
    if not wanted:
        raise MeshcapError(f"no metric was asked for, expected some of bleu, {', '.join(METRICS)}, or all")
    return [name for name in METRICS if name in wanted]


def signature(
    found: Collection[str],
    *,
    tokenizer: str,
    pictures: int,
    references: int,
    bootstrap: int,
    seed: int,
    language: str = "en",
    more: Sequence[str] = (),
) -> str:
    """One line: two figures can be compared where their lines agree, but for bootstrap and seed.

    Args:
        found: the metrics that were computed.
        language: METEOR's.
        more: "name:how" of what else was.
    """
    parts = [f"meshcap:{meshcap.__version__}", f"tokenizer:{tokenizer}", "eos:no"]
    kinds = {"BLEU" if name in BLEU else name for name in found}
    parts += [f"{name}:{how.format(language=language)}" for name, how in HOW.items() if name in kinds]
    drawn = f"{bootstrap},seed={seed},percentile,95%" if bootstrap else "no"
    return "|".join([*parts, *more, f"pictures:{pictures}", f"references:{references}", f"bootstrap:{drawn}"])
