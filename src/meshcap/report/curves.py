"""From a run's log to the curves that its report draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

Point = tuple[float, float]  # step and value

STAGES = {"xe": "XE", "scst": "SCST"}  # as papers write them


@dataclass(frozen=True)
class Curve:
    """Lines over the same steps. Values that are not finite are left out of the drawing, and counted below it."""

    title: str
    series: dict[str, list[Point]]  # by name; the name gives the colour, the same in all curves of a report
    unit: str = ""
    smooth: bool = False  # noisy: a smoothed line over the faint values, and the rarest values may leave the frame
    best: Literal["highest", "lowest"] | None = None  # mark this point of all
    log: bool = False  # powers of ten on the vertical axis


def curves_of(records: Sequence[dict[str, Any]]) -> list[Curve]:
    """The curves of a training run's log (`meshcap.training.log`); those that it knows nothing about are left out.

    Scores and shares become numbers out of 100, as papers print them.
    """
    stages = list(dict.fromkeys(_stage(record) for record in records if record["kind"] in ("train", "val")))

    def by_stage(kind: str, key: str, times: float = 1.0) -> dict[str, list[Point]]:
        return {stage: _points(records, kind, stage, key, times) for stage in stages}

    curves = [Curve("Validation CIDEr", by_stage("val", "CIDEr", 100), "× 100", best="highest")]
    for stage in stages:  # their losses have nothing to do with each other: each has a frame of its own
        loss = {stage: _points(records, "train", stage, "loss")}
        loss |= {"validation": _points(records, "val", stage, "loss")}
        curves.append(Curve(f"Loss, {stage}" if stage else "Loss", loss, smooth=True))
    curves += [
        Curve("Reward", by_stage("train", "reward"), smooth=True),
        Curve("Learning rate", by_stage("train", "lr"), log=True),
        Curve("Pictures per second", by_stage("train", "rate"), smooth=True),
        Curve("Captions with a bad ending", by_stage("val", "bad_endings", 100), "%"),
    ]
    found = []
    for curve in curves:
        series = {name: points for name, points in curve.series.items() if points}
        if any(math.isfinite(value) for points in series.values() for _, value in points):
            found.append(Curve(curve.title, series, curve.unit, curve.smooth, curve.best, curve.log))
    return found


def _stage(record: dict[str, Any]) -> str:
    stage = str(record.get("stage", ""))
    return STAGES.get(stage, stage)


def _points(records: Sequence[dict[str, Any]], kind: str, stage: str, key: str, times: float = 1.0) -> list[Point]:
    """(step, value) of the records that have the key; the log writes null for what was not finite."""
    return [
        (float(record["step"]), math.nan if record[key] is None else times * record[key])
        for record in records
        if record["kind"] == kind and key in record and _stage(record) == stage
    ]


def smoothed(points: Sequence[Point]) -> list[Point]:
    """The mean of each value and its neighbours, a thirtieth of all, before and after: a fall is not drawn late."""
    sums = [0.0, *accumulate(value for _, value in points)]
    reach, count = len(points) // 60, len(points)
    means = []
    for place, (step, _) in enumerate(points):
        first, last = max(0, place - reach), min(count, place + reach + 1)
        means.append((step, (sums[last] - sums[first]) / (last - first)))
    return means


def thinned(points: Sequence[Point], most: int = 400) -> list[Point]:
    """At most so many of the points: the first, the last, and the lowest and highest of each stretch between."""
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    stretches = (most - 2) // 2
    kept = [points[0]]
    for place in range(stretches):
        stretch = inner[place * len(inner) // stretches : (place + 1) * len(inner) // stretches]
        low = min(range(len(stretch)), key=lambda at: stretch[at][1])
        high = max(range(len(stretch)), key=lambda at: stretch[at][1])
        kept += [stretch[at] for at in sorted({low, high})]
    return [*kept, points[-1]]
