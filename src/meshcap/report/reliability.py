"""The reliability diagram: what came true at which confidence, and how often each confidence was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshcap.calibration.measure import Bin
from meshcap.calibration.trial import Trial
from meshcap.report.charts import Axis
from meshcap.report.drawing import BLUE, INK, LINE, ORANGE, SOFT, Drawing

WIDTH, LEFT, RIGHT = 520, 62, 20
TOP, SIDE, GAP, LOW, APART, BOTTOM = 104, WIDTH - LEFT - RIGHT, 36, 44, 12, 48  # LOW: of each histogram
HEIGHT = TOP + SIDE + GAP + 2 * LOW + APART + BOTTOM
BARS = 50
COLOURS = (ORANGE, BLUE)


@dataclass(frozen=True)
class Told:
    """A way to be confident: its name with what it came to, its bins, and every confidence."""

    name: str
    bins: Sequence[Bin]
    confidences: Sequence[float]


def trial_drawing(title: str, trial: Trial) -> Drawing:
    """What a calibration does: confidences without it and with it."""
    ways = {
        "the words' probability": (trial.before, trial.plain),
        "calibrated, on held-out captions": (trial.after, trial.expected),
    }
    told = [
        Told(f"{name}: calibration error {one.error:.3f} (by chance {one.noise:.3f})", one.bins, values.tolist())
        for name, (one, values) in ways.items()
    ]
    return reliability_drawing(title, "confidence", "share of content words that people used", told)


def reliability_drawing(title: str, across: str, up: str, told: Sequence[Told]) -> Drawing:
    """Two ways beside each other. Points on the diagonal keep their promise; bars are 95 % intervals."""
    about = f"{title}. " + " ".join(
        f"{one.name}: " + ", ".join(f"{b.confidence:.2f} came to {b.share:.2f}" for b in one.bins) + "." for one in told
    )
    paper = Drawing(WIDTH, HEIGHT, about)
    paper.text(LEFT, 26, title, INK, size=15, bold=True)
    for place, one in enumerate(told):
        line = 46.0 + 18 * place
        paper.dot(LEFT + 5, line - 4, 4.5, COLOURS[place])
        paper.text(LEFT + 16, line, one.name)
    unit = Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    for tick, label in zip(unit.ticks, unit.labels(), strict=True):
        x, y = _xy(unit, tick, tick)
        paper.line([(LEFT, y), (LEFT + SIDE, y)], LINE)
        paper.line([(x, TOP), (x, TOP + SIDE)], LINE)
        paper.text(LEFT - 8, y + 4, label, anchor="end")
        paper.text(x, HEIGHT - BOTTOM + 17, label, anchor="middle")
    paper.line([_xy(unit, 0, 0), _xy(unit, 1, 1)], SOFT, 1.2, dash=5)
    for colour, one in zip(COLOURS, told, strict=False):
        paper.line([_xy(unit, b.confidence, b.share) for b in one.bins], colour, 1.2)
        for b in one.bins:
            paper.line([_xy(unit, b.confidence, end) for end in b.interval], colour, 1.6)
        for b in one.bins:
            paper.dot(*_xy(unit, b.confidence, b.share), 4, colour)
    paper.text(LEFT - 50, TOP - 10, up, INK)
    paper.text(LEFT + SIDE, HEIGHT - 10, across, INK, anchor="end")
    _counts(paper, told)
    return paper


def _xy(unit: Axis, across: float, up: float) -> tuple[float, float]:
    return LEFT + SIDE * unit.place(across), TOP + SIDE * (1 - unit.place(up))


def _counts(paper: Drawing, told: Sequence[Told]) -> None:
    """The histograms below, one above the other and as high as their highest bar."""
    wide = SIDE / BARS
    for row, (colour, one) in enumerate(zip(COLOURS, told, strict=False)):
        bottom = TOP + SIDE + GAP + (LOW + APART) * row + LOW
        counts = [0] * BARS
        for value in one.confidences:
            counts[min(BARS - 1, int(value * BARS))] += 1
        most = max(counts)
        for bar, count in enumerate(counts):
            if count:
                left = LEFT + bar * wide
                paper.box(left + 0.5, bottom - LOW * count / most, left + wide - 0.5, bottom, colour)
        paper.line([(LEFT, bottom), (LEFT + SIDE, bottom)], LINE)
        paper.text(LEFT - 8, bottom - LOW + 9, f"{most:,}", anchor="end")
        paper.text(LEFT - 8, bottom + 1, "0", anchor="end")
    paper.text(LEFT - 50, TOP + SIDE + GAP - 10, "captions", INK)
