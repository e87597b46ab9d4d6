"""Drawn scenes: pictures with captions that are true of them. Endless, seeded, no file to download.

Things stand on squared paper, six squares by six, and the cells of the `small-cnn` of `meshcap.vision` are those
squares. Eyes then meet few different squares and learn them within a minute; things at any place would first take many
minutes to be learned as the same things wherever they are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from meshcap.data.shapes import BACKGROUNDS, COLOURS, SHAPES, draw_gradient, draw_shape
from meshcap.data.tell import Thing, aligned, gaps, tell
from meshcap.errors import MeshcapError

SQUARES = 6  # of the paper, along each side
SIDES = {"small": 2, "large": 3}  # of a thing, in squares
GAP = 0.02  # at least this much of the picture is free between two things
SMALLEST_PICTURE = 48  # pixels; below, a star and a flower are the same few dots


@dataclass(frozen=True)
class Scene:
    """A picture, five captions that are true of it, and what they are about."""

    image: Image.Image
    captions: list[str]
    objects: list[Thing]
    background: str


def draw_scene(seed: int, size: int = 96) -> Scene:
    """The scene of this number: one to three things on a background. The same number always gives the same scene.

    Raises:
        MeshcapError: a picture too small to tell things apart.
    """
    if size < SMALLEST_PICTURE:
        raise MeshcapError(f"a scene {size} pixels wide was asked for, expected at least {SMALLEST_PICTURE}")
    rng = random.Random(seed)
    background = rng.choice(sorted(BACKGROUNDS))
    things = _arrange(rng.choices((1, 2, 3), (2, 3, 2))[0], size, rng)
    image = _backdrop(background, size, rng)
    for thing in things:
        x1, y1, x2, y2 = (round(edge * size) for edge in thing.box)
        draw_shape(image, thing.kind, thing.colour, (x1, y1, x2, y2))
    return Scene(image, tell(things, background, rng), things, background)


def _arrange(count: int, size: int, rng: random.Random) -> list[Thing]:
    """Things that differ in colour or kind, do not overlap, and each stand straight beside one that came before."""
    while True:  # a large thing in the middle may leave no room for others: begin again
        things = [_thing(size, rng)]
        for _ in range(100):
            if len(things) == count:
                return things
            new = _thing(size, rng)
            fits = all(max(gaps(new, old).values()) >= GAP and new.name != old.name for old in things)
            if fits and any(aligned(new, old) for old in things):
                things.append(new)


def _thing(size: int, rng: random.Random) -> Thing:
    """A thing somewhere on the paper, with a little room left on all sides of its squares."""
    kind, colour, side = rng.choice(sorted(SHAPES)), rng.choice(sorted(COLOURS)), rng.choices(list(SIDES), (3, 2))[0]
    column, row = (rng.randint(0, SQUARES - SIDES[side]) for _ in "xy")
    square = size / SQUARES
    room = max(1, round(square / 8))
    width = round(SIDES[side] * square) - 2 * room
    height = round(width * SHAPES[kind].height)
    x, y = round(column * square) + room, round(row * square) + room + (width - height) // 2
    return Thing(kind, colour, side, (x / size, y / size, (x + width) / size, (y + height) / size))


def _backdrop(name: str, size: int, rng: random.Random) -> Image.Image:
    look = BACKGROUNDS[name]
    image = Image.new("RGB", (size, size))
    horizon = size if look.ground is None else round(size * rng.uniform(0.55, 0.75))
    draw_gradient(image, look.sky, 0, horizon)
    if look.ground is not None:
        draw_gradient(image, look.ground, horizon, size)
    if look.specks is not None:
        draw = ImageDraw.Draw(image)
        for _ in range(24):
            draw.point((rng.randrange(size), rng.randrange(size)), fill=look.specks)
    return image
