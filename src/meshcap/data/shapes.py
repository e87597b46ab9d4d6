"""What drawn scenes are made of: shapes, colours, backgrounds.

Everything is a polygon with whole-number corners. Pillow fills those alike on every machine, which cannot be said of
its ellipses across versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Points = tuple[tuple[float, float], ...]

SUPERSAMPLING = 4  # shapes are drawn this many times larger and reduced: antialiasing

COLOURS: dict[str, Colour] = {
    "red": (218, 44, 50),
    "orange": (244, 132, 24),
    "yellow": (252, 218, 50),
    "green": (30, 150, 70),
    "blue": (40, 92, 222),
    "purple": (128, 62, 184),
    "pink": (250, 146, 192),
    "white": (252, 252, 252),
}
BROWN: Colour = (112, 74, 44)


class Polygon(NamedTuple):
    """One polygon of a shape, in a unit square with y downwards. Paint: the thing's own colour, or how it differs."""

    points: Points
    paint: float | Colour = 1.0  # below 1 darker than the thing's colour, above 1 lighter; or a colour of its own


class Shape(NamedTuple):
    """Parts from back to front; together they touch all four sides of the unit square."""

    parts: tuple[Polygon, ...]
    height: float = 1.0  # as a share of the width


def ellipse(x: float, y: float, rx: float, ry: float, corners: int = 40) -> Points:
    turns = [2 * math.pi * i / corners for i in range(corners)]
    return tuple((x + rx * math.cos(turn), y + ry * math.sin(turn)) for turn in turns)


def filled(points: Points) -> Points:
    """Stretched to touch all four sides of the unit square."""
    xs, ys = zip(*points, strict=True)
    width, height = max(xs) - min(xs), max(ys) - min(ys)
    return tuple(((x - min(xs)) / width, (y - min(ys)) / height) for x, y in points)


def star(points: int, inner: float) -> Points:
    turns = [math.pi * i / points for i in range(2 * points)]
    return filled(
        tuple(
            (math.sin(turn) * (inner if i % 2 else 1), -math.cos(turn) * (inner if i % 2 else 1))
            for i, turn in enumerate(turns)
        )
    )


def heart(corners: int = 48) -> Points:
    turns = [2 * math.pi * i / corners for i in range(corners)]
    return filled(
        tuple(
            (math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16)
            for t in turns
        )
    )


def petals(count: int = 6) -> tuple[Polygon, ...]:
    turns = [2 * math.pi * i / count for i in range(count)]
    out = 0.3 / max(map(math.sin, turns))  # far enough for the outermost to touch the sides
    return tuple(Polygon(ellipse(0.5 + out * math.sin(t), 0.5 - 0.3 * math.cos(t), 0.2, 0.2)) for t in turns)


SHAPES: dict[str, Shape] = {
    "ball": Shape((Polygon(ellipse(0.5, 0.5, 0.5, 0.5)), Polygon(ellipse(0.34, 0.32, 0.12, 0.1), 1.6))),
    "square": Shape((Polygon(((0, 0), (1, 0), (1, 1), (0, 1))),)),
    "triangle": Shape((Polygon(((0.5, 0), (1, 1), (0, 1))),)),
    "star": Shape((Polygon(star(5, 0.45)),)),
    "heart": Shape((Polygon(heart()),)),
    "house": Shape(
        (
            Polygon(((0.1, 0.42), (0.9, 0.42), (0.9, 1), (0.1, 1))),
            Polygon(((0.5, 0), (1, 0.45), (0, 0.45)), 0.6),
            Polygon(((0.2, 0.62), (0.38, 0.62), (0.38, 1), (0.2, 1)), BROWN),
            Polygon(((0.54, 0.58), (0.78, 0.58), (0.78, 0.8), (0.54, 0.8)), (255, 240, 170)),
        )
    ),
    "tree": Shape(
        (
            Polygon(((0.41, 0.55), (0.59, 0.55), (0.63, 1), (0.37, 1)), BROWN),
            Polygon(ellipse(0.27, 0.5, 0.27, 0.22)),
            Polygon(ellipse(0.73, 0.5, 0.27, 0.22)),
            Polygon(ellipse(0.5, 0.3, 0.32, 0.3)),
        )
    ),
    "boat": Shape(
        (
            Polygon(((0.46, 0), (0.52, 0), (0.52, 0.72), (0.46, 0.72)), BROWN),
            Polygon(((0.56, 0.06), (0.95, 0.62), (0.56, 0.62)), 1.6),
            Polygon(((0.42, 0.16), (0.42, 0.62), (0.12, 0.62)), 1.6),
            Polygon(((0, 0.7), (1, 0.7), (0.8, 1), (0.2, 1))),
        )
    ),
    "flower": Shape((*petals(), Polygon(ellipse(0.5, 0.5, 0.18, 0.18), BROWN))),
    "fish": Shape(
        (
            Polygon(((0.3, 0.5), (0, 0.08), (0, 0.92)), 0.75),
            Polygon(ellipse(0.6, 0.5, 0.4, 0.5)),
            Polygon(ellipse(0.8, 0.38, 0.05, 0.08, 16), (20, 20, 30)),
        ),
        height=0.66,
    ),
}


@dataclass(frozen=True)
class Background:
    """A sky, and perhaps ground below a horizon; each goes from its first colour above to its second below."""

    sky: tuple[Colour, Colour]
    ground: tuple[Colour, Colour] | None = None
    specks: Colour | None = None  # stars, flakes, …


BACKGROUNDS: dict[str, Background] = {
    "wall": Background(((238, 230, 212), (228, 218, 198))),
    "meadow": Background(((176, 214, 244), (224, 240, 250)), ((176, 214, 132), (140, 188, 104))),
    "night": Background(((12, 16, 48), (48, 52, 104)), specks=(236, 236, 200)),
    "sea": Background(((206, 232, 246), (236, 244, 248)), ((112, 184, 208), (64, 140, 176))),
    "snow": Background(((176, 190, 210), (206, 214, 228)), ((240, 244, 250), (222, 230, 242)), (255, 255, 255)),
    "sunset": Background(((196, 130, 160), (252, 204, 150)), ((120, 92, 100), (88, 66, 82))),
}


def tinted(colour: Colour, amount: float) -> Colour:
    """Darker below 1, lighter above: at 2 white."""
    if amount <= 1:
        return tuple(round(c * amount) for c in colour)  # type: ignore[return-value]
    return tuple(round(c + (255 - c) * (amount - 1)) for c in colour)  # type: ignore[return-value]


def draw_shape(picture: Image.Image, kind: str, colour: str, box: tuple[int, int, int, int]) -> None:
    """Draw onto the picture, into a box of whole pixels."""
    width, height = box[2] - box[0], box[3] - box[1]
    # What lies behind is enlarged with it, so that reducing mixes every edge with its true background.
    tile = picture.crop(box).resize((width * SUPERSAMPLING, height * SUPERSAMPLING), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(tile)
    own = COLOURS[colour]
    for part in SHAPES[kind].parts:
        paint = part.paint if isinstance(part.paint, tuple) else tinted(own, part.paint)
        corners = [(round(x * (tile.width - 1)), round(y * (tile.height - 1))) for x, y in part.points]
        draw.polygon(corners, fill=paint, outline=tinted(paint, 0.7), width=SUPERSAMPLING)
    picture.paste(tile.reduce(SUPERSAMPLING), box)


def draw_gradient(picture: Image.Image, colours: tuple[Colour, Colour], top: int, bottom: int) -> None:
    draw = ImageDraw.Draw(picture)
    for y in range(top, bottom):
        share = (y - top) / max(1, bottom - top - 1)
        colour = tuple(round(a + (b - a) * share) for a, b in zip(*colours, strict=True))
        draw.line(((0, y), (picture.width - 1, y)), fill=colour)
