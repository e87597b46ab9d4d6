"""A drawing that stands alone: lines, boxes, dots and words, as SVG or as PNG, in the light colours of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from meshcap.errors import MeshcapError
from meshcap.evaluation.calibration_fit import Bin, Trial
from meshcap.evaluation.charts import Axis
from meshcap.files import write_file, write_text

PAPER, INK, SOFT, LINE, BLUE, ORANGE = "#ffffff", "#1c2026", "#5c6470", "#e2e3e0", "#2a6fdb", "#d4611c"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', sans-serif"
SUFFIXES = (".svg", ".png")
TIMES = 2  # pixels of a PNG along one of the drawing's own
SMOOTH = 2  # times that are drawn and averaged, since Pillow's lines have stairs

Anchor = Literal["start", "middle", "end"]
PILLOW = {"start": "ls", "middle": "ms", "end": "rs"}


@dataclass
class Drawing:
    """Things in the order they are drawn, in pixels from the left and from the top."""

    width: float
    height: float
    about: str  # for those who cannot see it
    svg: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        times = TIMES * SMOOTH
        self._picture = Image.new("RGB", (round(self.width * times), round(self.height * times)), PAPER)
        self._pen = ImageDraw.Draw(self._picture)
        self._words: list[tuple[float, float, str, str, float, Anchor, bool]] = []

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.0, dash: float | None = None
    ) -> None:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash:g}"' if dash else ""
        self.svg.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashes}/>')
        for piece in _dashed(points, dash) if dash else [list(points)]:
            self._pen.line(self._at(piece), colour, round(width * TIMES * SMOOTH), joint="curve")

    def box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        self.svg.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
            f'fill="{colour}"/>'
        )
        if right > left and bottom > top:
            self._pen.rectangle(self._at([(left, top), (right, bottom)]), colour)

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        self.svg.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}" stroke="{PAPER}"/>')
        self._pen.ellipse(self._at([(x - radius, y - radius), (x + radius, y + radius)]), colour)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = SOFT,
        *,
        size: float = 12,
        anchor: Anchor = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.svg.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size:g}" text-anchor="{anchor}"{weight}>'
            f"{escape(words)}</text>"
        )
        self._words.append((x, y, words, colour, size, anchor, bold))

    def as_svg(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
                f'width="{self.width:g}" height="{self.height:g}" role="img" font-family="{FONT}">',
                f"<title>{escape(self.about)}</title>",
                f'<rect width="100%" height="100%" fill="{PAPER}"/>',
                *self.svg,
                "</svg>\n",
            ]
        )

    def as_picture(self) -> Image.Image:
        size = (round(self.width * TIMES), round(self.height * TIMES))
        picture = self._picture.resize(size, Image.Resampling.BOX)
        pen = ImageDraw.Draw(picture)
        for x, y, words, colour, size_, anchor, bold in self._words:
            font = ImageFont.load_default(size_ * TIMES)
            thick = 0.4 if bold else 0
            pen.text((x * TIMES, y * TIMES), words, colour, font, PILLOW[anchor], stroke_width=thick)
        return picture

    def write(self, path: Path) -> None:
        """As the name's ending says; a reader sees the old file or the new one."""
        if path.suffix.lower() == ".svg":
            write_text(path, self.as_svg())
        elif path.suffix.lower() == ".png":
            write_file(path, lambda part: self.as_picture().save(part, "PNG", optimize=True))
        else:
            raise MeshcapError(f"{path} is no name of a drawing: expected one that ends in {' or '.join(SUFFIXES)}")

    def _at(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x * TIMES * SMOOTH, y * TIMES * SMOOTH) for x, y in points]


def _dashed(points: Sequence[tuple[float, float]], dash: float) -> list[list[tuple[float, float]]]:
    """The first stretch of `dash` pixels, not the next, and so on; each piece of the line begins anew."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(points):
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        at = 0.0
        while at < length:
            ends = [min(at, length) / length, min(at + dash, length) / length]
            found.append([(x0 + end * (x1 - x0), y0 + end * (y1 - y0)) for end in ends])
            at += 2 * dash
    return found


WIDTH, LEFT, RIGHT = 520, 62, 20
TOP, SIDE, GAP, LOW, APART, BOTTOM = 104, WIDTH - LEFT - RIGHT, 36, 44, 12, 48  # LOW: of each histogram
HEIGHT = TOP + SIDE + GAP + 2 * LOW + APART + BOTTOM
BARS = 50
COLOURS = (ORANGE, BLUE)


@dataclass(frozen=True)
class ConfidenceSeries:
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
    series = [
        ConfidenceSeries(
            f"{name}: calibration error {one.error:.3f} (by chance {one.noise:.3f})", one.bins, values.tolist()
        )
        for name, (one, values) in ways.items()
    ]
    return reliability_drawing(title, "confidence", "share of content words that people used", series)


def reliability_drawing(title: str, across: str, up: str, series: Sequence[ConfidenceSeries]) -> Drawing:
    """Two ways beside each other. Points on the diagonal keep their promise; bars are 95 % intervals."""
    about = f"{title}. " + " ".join(
        f"{one.name}: " + ", ".join(f"{b.confidence:.2f} came to {b.share:.2f}" for b in one.bins) + "."
        for one in series
    )
    paper = Drawing(WIDTH, HEIGHT, about)
    paper.text(LEFT, 26, title, INK, size=15, bold=True)
    for place, one in enumerate(series):
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
    for colour, one in zip(COLOURS, series, strict=False):
        paper.line([_xy(unit, b.confidence, b.share) for b in one.bins], colour, 1.2)
        for b in one.bins:
            paper.line([_xy(unit, b.confidence, end) for end in b.interval], colour, 1.6)
        for b in one.bins:
            paper.dot(*_xy(unit, b.confidence, b.share), 4, colour)
    paper.text(LEFT - 50, TOP - 10, up, INK)
    paper.text(LEFT + SIDE, HEIGHT - 10, across, INK, anchor="end")
    _counts(paper, series)
    return paper


def _xy(unit: Axis, across: float, up: float) -> tuple[float, float]:
    return LEFT + SIDE * unit.place(across), TOP + SIDE * (1 - unit.place(up))


def _counts(paper: Drawing, series: Sequence[ConfidenceSeries]) -> None:
    """The histograms below, one above the other and as high as their highest bar."""
    wide = SIDE / BARS
    for row, (colour, one) in enumerate(zip(COLOURS, series, strict=False)):
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
