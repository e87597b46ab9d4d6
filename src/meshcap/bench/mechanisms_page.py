"""The bench of mechanisms as a table in Markdown and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from meshcap.evaluation.charts import Axis, nice_ticks, tick_labels

if TYPE_CHECKING:
    from meshcap.bench.mechanisms_results import Bench, Row

WIDE, LINE, LEFT, RIGHT, TOP, BOTTOM = 760, 26, 230, 60, 52, 46


def page(rows: Sequence[Row], bench: Bench, beams: int, words: int) -> str:
    """What they say and what they cost, a row for each case; scores times 100, intervals of 95 %.

    Args:
        words: of the captions that were timed.
    """
    pictures = ", ".join(f"{count:,} {split}" for split, count in bench.counts.items())
    told = (
        f"Pictures: {pictures}. Each captioner: {bench.settings['xe_steps']:,} steps of {bench.settings['batch']} "
        f"pictures by cross-entropy, {len(bench.seeds)} seed{'s' * (len(bench.seeds) > 1)}; beam {beams}; "
        f"{bench.machine}."
    )
    if any(row.step_ms is not None for row in rows):
        told += f" Speed was measured alone, with nothing beside it, in captions of {words} words."
    scores = ["| captioner | CIDEr | of seeds | ahead of M² | BLEU-4 | METEOR |", "|---|--:|--:|--:|--:|--:|"]
    costs = ["| captioner | weights | ms a step | captions/s |", "|---|--:|--:|--:|"]
    for row in rows:
        ahead = "–"
        if row.ahead is not None and row.ahead_interval is not None and row.p is not None:
            ahead = f"{row.ahead:+.1f} ({row.ahead_interval[0]:+.1f} to {row.ahead_interval[1]:+.1f}), p {row.p:.3f}"
        scores.append(
            f"| {row.name} | {row.cider:.1f} ({row.interval[0]:.1f}–{row.interval[1]:.1f}) "
            f"| {row.lowest:.1f}–{row.highest:.1f} | {ahead} | {row.bleu:.1f} | {number(row.meteor)} |"
        )
        costs.append(f"| {row.name} | {row.weights / 1e6:.2f} M | {number(row.step_ms)} | {number(row.captions)} |")
    lines = [told, "", *scores, "", *costs]
    return "\n".join([*lines, ""])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def plot(rows: Sequence[Row]) -> str:
    """CIDEr with its interval, a line for each case, as an SVG of its own."""
    ends = [end for row in rows for end in (*row.interval, row.lowest, row.highest)]
    ticks = nice_ticks(min(ends), max(ends))
    x = Axis(min([*ticks, *ends]), max([*ticks, *ends]), tuple(ticks))
    high = TOP + LINE * len(rows) + BOTTOM

    def at(value: float) -> float:
        return round(LEFT + x.place(value) * (WIDE - LEFT - RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#374151">',
        "<title>CIDEr of each captioner with its interval</title>",
        f'<rect width="{WIDE}" height="{high}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="15" fill="#111827">CIDEr × 100: the mean of seeds, 95 % over pictures; '
        "grey: from seed to seed</text>",
    ]
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        parts.append(f'<path d="M{at(tick)} {TOP - 8}V{high - BOTTOM}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{at(tick)}" y="{high - BOTTOM + 20}" text-anchor="middle">{escape(label)}</text>')
    for place, row in enumerate(rows):
        y = TOP + LINE * place + LINE / 2
        colour = "#c2410c" if row.ahead is None else "#1d4ed8"
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(row.name)}</text>')
        parts.append(f'<path d="M{at(row.lowest)} {y}H{at(row.highest)}" stroke="#d1d5db" stroke-width="10"/>')
        parts.append(f'<path d="M{at(row.interval[0])} {y}H{at(row.interval[1])}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{at(row.cider)}" cy="{y}" r="4" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>", ""])
