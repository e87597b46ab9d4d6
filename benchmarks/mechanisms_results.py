"""What `mechanisms.py` keeps on disk (`results.jsonl`; `bench.json`: what the results are of), its table and plots."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy

from benchmarks.side_by_side import Job
from meshcap.errors import MeshcapError
from meshcap.evaluation.charts import Axis, nice_ticks, tick_labels
from meshcap.files import write_text
from meshcap.metrics.result import Measure, differences, intervals

REFERENCE = "m2"  # what all others are compared with
RESULTS, BENCH = "results.jsonl", "bench.json"
RESAMPLES = 1000
# Settings that say where things are or how the work is shared out: results do not depend on them.
ELSEWHERE = ("data.path", "run.out", "run.seed", "model.arch", "run.threads", "data.workers")


@dataclass(frozen=True)
class Bench:
    """What results belong to: with it they can be finished on another machine than that of the runs."""

    signature: str  # of data and settings
    machine: str
    seeds: list[int]
    layers: int
    asked: dict[str, Any]  # settings as they were given
    settings: dict[str, Any]  # and as the data and the device completed them
    data: str  # fingerprint of what was learned from and judged on
    references: str  # fingerprint of what was judged on
    counts: dict[str, int]

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, default=str) + "\n"
        write_text(folder / BENCH, text)

    @classmethod
    def load(cls, folder: Path) -> Bench:
        """
        Raises:
            MeshcapError: there is none, or it cannot be read.
        """
        if not (folder / BENCH).is_file():
            raise MeshcapError(f"{folder} holds no {BENCH}: run the bench there first")
        try:
            return cls(**json.loads((folder / BENCH).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise MeshcapError(f"{folder / BENCH} cannot be read ({error}): remove it, run the bench anew") from None


@dataclass
class Results:
    """The lines of one signature."""

    path: Path
    signature: str
    runs: dict[Job, dict[str, Any]] = field(default_factory=dict)
    timings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, signature: str) -> Results:
        found = cls(folder / RESULTS, signature)
        for line in read_results(found.path):
            if line.get("signature") == signature:
                found._take(line)
        return found

    def _take(self, line: dict[str, Any]) -> None:
        if line.get("timing"):
            self.timings[line["case"]] = line
            return
        job = (line["case"], line["seed"])
        if not line.get("meteor"):
            self.runs[job] = line
        elif job in self.runs:
            self.runs[job] = self.runs[job] | {"METEOR": line["METEOR"]}

    def add(self, case: str, line: dict[str, Any], seed: int | None = None) -> None:
        whole = {"case": case, **({} if seed is None else {"seed": seed}), "signature": self.signature, **line}
        append(self.path, whole)
        self._take(whole)

    def rows(self, names: Sequence[str], seeds: Sequence[int]) -> list[Row]:
        return summed_up([[self.runs[name, seed] for seed in seeds] for name in names], self.timings)


@dataclass(frozen=True)
class Row:
    """What became of a case: means over its seeds, of numbers times 100 where they are scores."""

    name: str
    seeds: int
    weights: int
    cider: float
    interval: tuple[float, float]  # over pictures, of the mean of all seeds
    lowest: float  # of the seeds
    highest: float
    bleu: float
    meteor: float | None = None
    step_ms: float | None = None  # of training; this and the next measured alone
    captions: float | None = None  # a second
    ahead: float | None = None  # of M², on the same pictures
    ahead_interval: tuple[float, float] | None = None
    p: float | None = None


def summed_up(
    lines: Sequence[Sequence[dict[str, Any]]], timings: Mapping[str, dict[str, Any]] | None = None
) -> list[Row]:
    """A row for each case from its runs, and how far it is ahead of M² where that is among them.

    A picture's CIDEr is the mean of all seeds before pictures are drawn: the interval says what other pictures would
    have changed, `lowest` and `highest` what other seeds did.
    """
    measures = {runs[0]["case"]: measure_of(runs) for runs in lines}
    rows = []
    for runs in lines:
        name = runs[0]["case"]
        ciders = [100 * run["CIDEr"] for run in runs]
        ((low, high),) = intervals([measures[name]], RESAMPLES, 0)
        row = Row(
            name=name,
            seeds=len(runs),
            weights=runs[0]["weights"],
            cider=mean(ciders),
            interval=(100 * low, 100 * high),
            lowest=min(ciders),
            highest=max(ciders),
            bleu=100 * mean(run["BLEU-4"] for run in runs),
            meteor=100 * mean(run["METEOR"] for run in runs) if all("METEOR" in run for run in runs) else None,
        )
        if timing := (timings or {}).get(name):
            row = replace(row, step_ms=1000 * timing["step_seconds"], captions=timing["captions_per_second"])
        if REFERENCE in measures and name != REFERENCE:
            (apart,) = differences([measures[name]], [measures[REFERENCE]], RESAMPLES, 0)
            assert apart.interval is not None
            ends = (100 * apart.interval[0], 100 * apart.interval[1])
            row = replace(row, ahead=100 * apart.value, ahead_interval=ends, p=apart.p)
        rows.append(row)
    return rows


def measure_of(runs: Sequence[dict[str, Any]]) -> Measure:
    """CIDEr of each picture, the mean over runs; pictures in the same order for all."""
    ids = sorted(runs[0]["pictures"])
    return Measure.mean("CIDEr", numpy.array([[run["pictures"][id] for id in ids] for run in runs]).mean(0))


def append(path: Path, line: dict[str, Any]) -> None:
    """Add what is finished, on a line of its own even if the one before was cut off."""
    with path.open("ab+") as file:
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Finished lines; a last one that was cut off is none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that results depend on, as JSON would give them back."""
    told = {key: value for key, value in settings.items() if key not in ELSEWHERE}
    found: dict[str, Any] = json.loads(json.dumps(told, default=str))
    return found


def signature(settings: Mapping[str, Any], data: str) -> str:
    """What runs must have in common to be compared, in a few letters: data, and settings but where they come from."""
    text = json.dumps([comparable(settings), data], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# The table in Markdown, and two plots as SVG: pixels of CIDEr with its interval, and of CIDEr against speed.
PLOT_WIDE, PLOT_LINE, PLOT_LEFT, PLOT_RIGHT, PLOT_TOP, PLOT_BOTTOM = 760, 26, 230, 60, 52, 46
SPEED_WIDE, SPEED_HIGH, SPEED_LEFT, SPEED_RIGHT, SPEED_TOP, SPEED_BOTTOM = 900, 560, 60, 40, 52, 56
SPEED_LETTER, SPEED_LINE = 5.9, 13.0  # of a label of size 11, about

Box = tuple[float, float, float, float]  # left, top, right, bottom


def page(rows: Sequence[Row], bench: Bench, beams: int, words: int) -> str:
    """What they say and what they cost, a row for each case; scores times 100, intervals of 95 %.

    Args:
        words: of the captions that were timed.
    """
    pictures = ", ".join(f"{count:,} {split}" for split, count in bench.counts.items())
    told = (
        f"Pictures: {pictures}. Each captioner: {bench.settings['xe.steps']:,} steps of {bench.settings['xe.batch']} "
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
    high = PLOT_TOP + PLOT_LINE * len(rows) + PLOT_BOTTOM

    def at(value: float) -> float:
        return round(PLOT_LEFT + x.place(value) * (PLOT_WIDE - PLOT_LEFT - PLOT_RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PLOT_WIDE} {high}" width="{PLOT_WIDE}" height="{high}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#374151">',
        "<title>CIDEr of each captioner with its interval</title>",
        f'<rect width="{PLOT_WIDE}" height="{high}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="15" fill="#111827">CIDEr × 100: the mean of seeds, 95 % over pictures; '
        "grey: from seed to seed</text>",
    ]
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        parts.append(f'<path d="M{at(tick)} {PLOT_TOP - 8}V{high - PLOT_BOTTOM}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{at(tick)}" y="{high - PLOT_BOTTOM + 20}" text-anchor="middle">{escape(label)}</text>')
    for place, row in enumerate(rows):
        y = PLOT_TOP + PLOT_LINE * place + PLOT_LINE / 2
        colour = "#c2410c" if row.ahead is None else "#1d4ed8"
        parts.append(f'<text x="{PLOT_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(row.name)}</text>')
        parts.append(f'<path d="M{at(row.lowest)} {y}H{at(row.highest)}" stroke="#d1d5db" stroke-width="10"/>')
        parts.append(f'<path d="M{at(row.interval[0])} {y}H{at(row.interval[1])}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{at(row.cider)}" cy="{y}" r="4" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>", ""])


def speed_plot(rows: Sequence[Row]) -> str:
    """A dot for each case that has been timed, as an SVG of its own; further right is faster, higher is better."""
    speeds = {row.name: row.captions for row in rows if row.captions}
    ticks = round_ticks(min(speeds.values()), max(speeds.values()))
    x = Axis(ticks[0], ticks[-1], tuple(ticks), log=True)
    shown = [row for row in rows if row.name in speeds]
    levels = nice_ticks(min(row.cider for row in shown), max(row.cider for row in shown))
    y = Axis(levels[0], levels[-1], tuple(levels))

    def across(value: float) -> float:
        return round(SPEED_LEFT + x.place(value) * (SPEED_WIDE - SPEED_LEFT - SPEED_RIGHT), 1)

    def down(value: float) -> float:
        return round(SPEED_HIGH - SPEED_BOTTOM - y.place(value) * (SPEED_HIGH - SPEED_TOP - SPEED_BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SPEED_WIDE} {SPEED_HIGH}" '
        f'width="{SPEED_WIDE}" height="{SPEED_HIGH}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#374151">',
        "<title>CIDEr of each captioner against captions a second</title>",
        f'<rect width="{SPEED_WIDE}" height="{SPEED_HIGH}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="15" fill="#111827">CIDEr × 100 against captions a second</text>',
    ]
    for tick in ticks:
        parts.append(f'<path d="M{across(tick)} {SPEED_TOP}V{SPEED_HIGH - SPEED_BOTTOM}" stroke="#e5e7eb"/>')
        label = f'<text x="{across(tick)}" y="{SPEED_HIGH - SPEED_BOTTOM + 20}" text-anchor="middle">{tick:,g}</text>'
        parts.append(label)
    for level, text in zip(levels, tick_labels(levels), strict=True):
        parts.append(f'<path d="M{SPEED_LEFT} {down(level)}H{SPEED_WIDE - SPEED_RIGHT}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{SPEED_LEFT - 8}" y="{down(level) + 4}" text-anchor="end">{escape(text)}</text>')
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
    wide = SPEED_LETTER * len(name)
    for away, (sign, right) in product(range(30), product((-1, 1), (True, False))):
        gap = 8 if away == 0 else 18
        start = left + gap if right else left - gap - wide
        start = min(max(start, SPEED_LEFT + 2), SPEED_WIDE - wide - 2)
        middle = top + sign * away * SPEED_LINE / 2
        if SPEED_TOP <= middle <= SPEED_HIGH - SPEED_BOTTOM:
            yield start, middle - SPEED_LINE / 2, start + wide, middle + SPEED_LINE / 2


def meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def round_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … from at most `low` to at least `high`, for an axis of logarithms."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = [float(f"{times}e{power}") for power in powers for times in (1, 2, 5)]
    first = max(place for place, tick in enumerate(every) if tick <= low)
    last = min(place for place, tick in enumerate(every) if tick >= high)
    return every[first : max(last, first + 1) + 1]
