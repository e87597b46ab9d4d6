"""What scoring finds: the scores of a system, or of two with their differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from meshcap.metrics.bootstrap import Array, Difference, Measure, intervals

DOMAINS = ("in-domain", "near-domain", "out-domain")  # nocaps', in the order of its tables
OVERALL = "overall"


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
        told = {
            "scores": self.scores,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "per_image": self.per_image,
            "signature": self.signature,
            "warnings": self.warnings,
            "diversity": self.diversity,
        }
        return told | ({"domains": self.domains} if self.domains else {})


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
