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
