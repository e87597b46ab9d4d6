"""Curves as SVG for a page: no library, no script needed to read them, colours by the page's style.

What a script may use for tooltips is in data-points: the points as drawn, [x, y, step, value as text].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
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


# Of the drawing, in its own pixels: small, so that letters stay readable on a phone, where the page shrinks it.
WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 14, 28
COLOURS = 4  # that the style knows: s0 … s3
FEW = 100  # so many points or fewer need no smoothing; a quarter of that, and each is a dot


@dataclass(frozen=True)
class Axis:
    """Numbers from low to high along one side, with ticks at round ones."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)

    def labels(self) -> list[str]:
        if self.log:
            return [_power(tick) for tick in self.ticks]
        return tick_labels(self.ticks)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers at equal distances; the first is at most `low`, the last at least `high`."""
    if low == high:
        margin = abs(low) / 10 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(times * unit for times in (1, 2, 5, 10) if times * unit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))  # 0.30000000000000004 is no round number
    return [round(place * step, digits) for place in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """With as many digits as tell neighbours apart; thousands as k."""
    apart = ticks[1] - ticks[0] if len(ticks) > 1 else ticks[0] or 1.0
    if max(map(abs, ticks)) >= 1e4:
        ticks, apart, suffix = [tick / 1000 for tick in ticks], apart / 1000, "k"
    else:
        suffix = ""
    digits = max(0, -math.floor(math.log10(abs(apart)) + 1e-9))
    return [f"{tick:,.{digits}f}".replace("-", "−") + (suffix if tick else "") for tick in ticks]


def number(value: float) -> str:
    """A value as a person would note it: three digits that count, or one behind the point."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if power < -3:
        return f"{value / 10.0**power:.3g} × {_power(10.0**power)}".replace("-", "−")
    digits = 0 if power > 2 else max(1, 2 - power)
    text = f"{value:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if digits else text).replace("-", "−")


def chart(curve: Curve, colours: Mapping[str, int]) -> str:
    """A figure with title, legend, drawing and what the drawing leaves out; "" where there is nothing to draw.

    Args:
        colours: the place in the palette of each name.
    """
    finite = {name: [p for p in points if _drawable(p, curve.log)] for name, points in curve.series.items()}
    finite = {name: sorted(points) for name, points in finite.items() if points}
    if not finite:
        return ""
    every = [point for points in finite.values() for point in points]
    x = _steps([step for step, _ in every])
    low, high = _range([value for _, value in every], curve.smooth)
    y = _powers(low, high) if curve.log else _values(low, high)
    lines, data = [], []
    ends: list[tuple[Point, str, str]] = []  # what gets a label, its colour, and a word before its value
    best = _best(curve, every)
    for name, points in finite.items():
        colour = f"s{colours.get(name, 0) % COLOURS}"
        drawn = points
        if curve.smooth and len(points) > FEW:
            lines.append(f'<path class="raw {colour}" d="{_path(thinned(points), x, y)}"/>')
            drawn = smoothed(points)
        drawn = thinned(drawn)
        lines.append(f'<path class="line {colour}" d="{_path(drawn, x, y)}"/>')
        if len(every) <= FEW // 4:
            lines += [_dot(point, x, y, colour, 2.2) for point in drawn]
        data.append({"name": name, "colour": colour, "points": [[*_xy(p, x, y), p[0], number(p[1])] for p in drawn]})
        if best not in points:
            ends.append((drawn[-1], colour, ""))
        elif best is not None:
            ends.append((best, colour, "best "))
    values = "; ".join(f"{name or curve.title}: {_in_words(points)}" for name, points in finite.items())
    unit = f" {curve.unit}" if curve.unit else ""
    picture = "".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{escape(curve.title + unit)}. ',
            f'{escape(values)}." data-points="{escape(json.dumps(data, ensure_ascii=False))}">',
            _frame(x, y),
            f'<svg x="0" y="{TOP - 3}" width="{WIDTH}" height="{HEIGHT - TOP - BOTTOM + 4}" ',
            f'viewBox="0 {TOP - 3} {WIDTH} {HEIGHT - TOP - BOTTOM + 4}">{"".join(lines)}</svg>',
            *_labels(ends, x, y),
            '<g class="pointer"></g></svg>',
        ]
    )
    legend = "".join(f'<span><i class="s{colours.get(n, 0) % COLOURS}"></i>{escape(n)}</span>' for n in finite if n)
    return (
        f'<figure class="chart"><figcaption><h3>{escape(curve.title)}<small>{escape(unit)}</small></h3>'
        f'<div class="legend">{legend}</div></figcaption>{picture}{_left_out(curve, finite, y)}</figure>'
    )


def _drawable(point: Point, log: bool) -> bool:
    return all(map(math.isfinite, point)) and (point[1] > 0 or not log)


def _range(values: Sequence[float], robust: bool) -> tuple[float, float]:
    """Where the values lie; of noisy ones 98 of 100, or the first steps of a run would press all others flat."""
    ranked = sorted(values)
    cut = len(ranked) // 100 if robust else 0
    return ranked[cut], ranked[len(ranked) - 1 - cut]


def _steps(steps: Sequence[float]) -> Axis:
    low, high = min(steps), max(steps)
    if low > 0 and low < high / 4:  # a run is drawn from its beginning, a later stage from its own
        low = 0.0
    high = high if high > low else low + 1
    return Axis(low, high, tuple(tick for tick in nice_ticks(low, high) if low <= tick <= high))


def _values(low: float, high: float) -> Axis:
    ticks = nice_ticks(low, high, 4)
    return Axis(ticks[0], ticks[-1], tuple(ticks))


def _powers(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    apart = max(1, math.ceil((last - first) / 6))  # from a warm-up's first step it may be many
    last = max(first + 1, last)
    ticks = tuple(10.0**power for power in range(first, last + 1, apart))
    return Axis(10.0**first, 10.0**last, ticks, log=True)


def _xy(point: Point, x: Axis, y: Axis) -> tuple[float, float]:
    """In the drawing's pixels."""
    across, up = x.place(point[0]), y.place(point[1])
    return (
        round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
        round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
    )


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return "M" + "L".join("{} {}".format(*_xy(point, x, y)) for point in points)


def _dot(point: Point, x: Axis, y: Axis, colour: str, radius: float) -> str:
    across, down = _xy(point, x, y)
    return f'<circle class="dot {colour}" cx="{across}" cy="{down}" r="{radius}"/>'


def _labels(ends: Sequence[tuple[Point, str, str]], x: Axis, y: Axis) -> list[str]:
    """Dots with their values: above the dot where there is room, else as near below as there is."""
    shown = sorted((_xy(end[0], x, y)[::-1], end) for end in ends)
    shown = [(place, end) for place, end in shown if TOP - 3 <= place[0] <= HEIGHT - BOTTOM + 1]
    taken = [place for place, _ in shown]
    found = []
    for (down, across), (point, colour, before) in shown:
        others = [place for place in taken if place != (down, across)]
        for middle in (down - 13, down + 15, down + 29, down + 43):
            if middle > TOP + 4 and all(abs(across - a) > 80 or abs(middle - d) > 12 for d, a in others):
                break
        taken.append((middle, across))
        side, shift = ("start", -4) if across < WIDTH / 4 else ("end", 4)
        found.append(
            f'{_dot(point, x, y, colour, 3.6)}<text class="value" x="{across + shift:.1f}" y="{middle + 4:.1f}" '
            f'text-anchor="{side}">{before}{number(point[1])}</text>'
        )
    return found


def _frame(x: Axis, y: Axis) -> str:
    parts = []
    for tick, label in zip(y.ticks, y.labels(), strict=True):
        down = _xy((x.low, tick), x, y)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {down}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{down + 4}" text-anchor="end">{label}</text>')
    for tick, label in zip(x.ticks, x.labels(), strict=True):
        across = _xy((tick, y.low), x, y)[0]
        side = "end" if across > WIDTH - RIGHT - 12 else "start" if across < LEFT + 12 else "middle"
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{side}">{label}</text>')
    parts.append(f'<text x="{LEFT - 7}" y="{HEIGHT - BOTTOM + 18}" text-anchor="end">step</text>')
    return "".join(parts)


def _best(curve: Curve, every: Sequence[Point]) -> Point | None:
    if curve.best is None:
        return None
    return (max if curve.best == "highest" else min)(every, key=lambda point: point[1])


def _in_words(points: Sequence[Point]) -> str:
    (first, begun), (last, ended) = points[0], points[-1]
    return f"from {number(begun)} at step {first:,.0f} to {number(ended)} at step {last:,.0f}"


def _left_out(curve: Curve, finite: Mapping[str, Sequence[Point]], y: Axis) -> str:
    """The honest line below a drawing that does not show everything."""
    shown = sum(map(len, finite.values()))
    lost = sum(map(len, curve.series.values())) - shown
    outside = sum(not y.low <= value <= y.high for points in finite.values() for _, value in points)
    parts = []
    if outside:
        parts.append(f"{outside:,} of {shown:,} values lie outside the frame")
    if lost:
        parts.append(f"{lost:,} cannot be drawn ({'not above zero' if curve.log else 'not finite'})")
    return f'<p class="note">{"; ".join(parts)}</p>' if parts else ""


def _power(value: float) -> str:
    exponent = str(round(math.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{exponent}"
