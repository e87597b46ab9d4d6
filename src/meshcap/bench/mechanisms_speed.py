"""CIDEr of each captioner against its speed, as a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import product

from meshcap.bench.mechanisms_results import Row
from meshcap.evaluation.charts import Axis, nice_ticks, tick_labels

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 900, 560, 60, 40, 52, 56
LETTER, LINE = 5.9, 13.0  # pixels of a label of size 11, about

Box = tuple[float, float, float, float]  # left, top, right, bottom


def speed_plot(rows: Sequence[Row]) -> str:
    """A dot for each case that has been timed, as an SVG of its own; further right is faster, higher is better."""
    speeds = {row.name: row.captions for row in rows if row.captions}
    ticks = round_ticks(min(speeds.values()), max(speeds.values()))
    x = Axis(ticks[0], ticks[-1], tuple(ticks), log=True)
    shown = [row for row in rows if row.name in speeds]
    levels = nice_ticks(min(row.cider for row in shown), max(row.cider for row in shown))
    y = Axis(levels[0], levels[-1], tuple(levels))

    def across(value: float) -> float:
        return round(LEFT + x.place(value) * (WIDE - LEFT - RIGHT), 1)

    def down(value: float) -> float:
        return round(HIGH - BOTTOM - y.place(value) * (HIGH - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#374151">',
        "<title>CIDEr of each captioner against captions a second</title>",
        f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="15" fill="#111827">CIDEr × 100 against captions a second</text>',
    ]
    for tick in ticks:
        parts.append(f'<path d="M{across(tick)} {TOP}V{HIGH - BOTTOM}" stroke="#e5e7eb"/>')
        label = f'<text x="{across(tick)}" y="{HIGH - BOTTOM + 20}" text-anchor="middle">{tick:,g}</text>'
        parts.append(label)
    for level, text in zip(levels, tick_labels(levels), strict=True):
        parts.append(f'<path d="M{LEFT} {down(level)}H{WIDE - RIGHT}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down(level) + 4}" text-anchor="end">{escape(text)}</text>')
    dots = [(across(speeds[row.name]), down(row.cider)) for row in shown]
    taken: list[Box] = [(left - 5, top - 5, left + 5, top + 5) for left, top in dots]
    for row, (left, top) in zip(shown, dots, strict=True):
        colour = "#c2410c" if row.ahead is None else "#1d4ed8"
        box = next((one for one in places(left, top, row.name) if not any(meet(one, other) for other in taken)), None)
        box = box or next(places(left, top, row.name))
        taken.append(box)
        middle, end = (box[1] + box[3]) / 2, box[0] if box[0] > left else box[2]
        if abs(middle - top) > 1:
            parts.append(f'<path d="M{left} {top}L{end:.1f} {middle:.1f}" stroke="#9ca3af" stroke-width="0.7"/>')
        parts.append(f'<circle cx="{left}" cy="{top}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{box[0]:.1f}" y="{middle + 4:.1f}" font-size="11">{escape(row.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def places(left: float, top: float, name: str) -> Iterator[Box]:
    """Where a dot's label may stand inside the plot, the nearest first: right and left of it, then above and below."""
    wide = LETTER * len(name)
    for away, (sign, right) in product(range(30), product((-1, 1), (True, False))):
        gap = 8 if away == 0 else 18
        start = left + gap if right else left - gap - wide
        start = min(max(start, LEFT + 2), WIDE - wide - 2)
        middle = top + sign * away * LINE / 2
        if TOP <= middle <= HIGH - BOTTOM:
            yield start, middle - LINE / 2, start + wide, middle + LINE / 2


def meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def round_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … from at most `low` to at least `high`, for an axis of logarithms."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = [float(f"{times}e{power}") for power in powers for times in (1, 2, 5)]
    first = max(place for place, tick in enumerate(every) if tick <= low)
    last = min(place for place, tick in enumerate(every) if tick >= high)
    return every[first : max(last, first + 1) + 1]
