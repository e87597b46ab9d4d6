"""Drawn scenes: pictures with captions that are true of them. Endless, seeded, no file to download.

`draw_scene` makes one, `draw_dataset` a folder of shards, with the facts by which captions can be judged true or false.

Things stand on squared paper, six squares by six, and the cells of the backbone `small-cnn` are those squares. A
backbone then meets few different squares and learns them within a minute; things at any place would first take many
minutes to be learned as the same things wherever they are.

Scenes have numbers, and each split its own. Different numbers may still give the same things in the same places,
above all where there is one thing before a plain wall: no scene is taken twice, in any split.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from meshcap.data.pack import Failed, Pack, write_dataset
from meshcap.data.scene_captions import Thing, aligned, gaps, write_captions
from meshcap.data.shapes import BACKGROUNDS, COLOURS, SHAPES, draw_gradient, draw_shape
from meshcap.data.shards import Packed
from meshcap.data.workers import parallel_map
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
    image = backdrop(background, size, rng)
    for thing in things:
        x1, y1, x2, y2 = (round(edge * size) for edge in thing.box)
        draw_shape(image, thing.kind, thing.colour, (x1, y1, x2, y2))
    return Scene(image, write_captions(things, background, rng), things, background)


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


def backdrop(name: str, size: int, rng: random.Random) -> Image.Image:
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


# Where the numbers of each split begin; a seed's are a billion apart. Test and val come first, so that they are the
# same however many scenes there are to train on.
FIRST = {"test": 700_000_000, "val": 400_000_000, "train": 0}
OF_A_SEED = 1_000_000_000
MOST = 300_000_000


def draw_dataset(
    out: str | Path,
    *,
    train: int = 6000,
    val: int = 200,
    test: int = 500,
    size: int = 96,
    seed: int = 0,
    shard_mb: float = 20,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Pack:
    """Draw scenes into tar shards (lossless WebP) in a folder, as `meshcap.data.pack` does with photographs.

    The JSON of each has its captions and, under "facts", what is there: see `facts_of`.

    Raises:
        MeshcapError: numbers that make no dataset, or a folder that cannot be written or holds something else.
    """
    counts = {"test": test, "val": val, "train": train}
    if min(counts.values()) < 0 or max(counts.values()) > MOST or not any(counts.values()):
        record = ", ".join(f"{number:,} {split}" for split, number in counts.items())
        raise MeshcapError(f"{record} scenes were asked for, expected 0 to {MOST:,} of each, and some")
    if size < SMALLEST_PICTURE:
        raise MeshcapError(f"scenes {size} pixels wide were asked for, expected at least {SMALLEST_PICTURE}")
    seen: set[Any] = set()

    def begin(split: str, start: int) -> Iterator[Packed | Failed]:
        # Drawn again from the first, even where shards are finished: what was seen decides what may come.
        wanted = counts[split]
        if not wanted:
            return
        scenes = numbers_from(seed * OF_A_SEED + FIRST[split])
        number = 0
        for key, ending, content, record in parallel_map(
            partial(_packed_scene, size=size, split=split), scenes, workers
        ):
            what = _content(record["facts"])
            if what in seen:
                continue
            seen.add(what)
            if number >= start:
                yield Packed(number, key, ending, content, record)
            number += 1
            if number == wanted:
                return

    settings = {"drawn": {**counts, "size": size, "seed": seed}}
    splits = {split: partial(begin, split) for split in counts}
    return write_dataset(Path(out), settings, splits, shard_mb=shard_mb, progress=progress)


def _packed_scene(number: int, *, size: int, split: str) -> tuple[str, str, bytes, dict[str, Any]]:
    """Runs in worker processes."""
    scene = draw_scene(number, size)
    buffer = io.BytesIO()
    scene.image.save(buffer, "WEBP", lossless=True, quality=20, method=1)  # twice as fast, a tenth larger
    key = f"scene-{number}"
    own = {"id": key, "filename": f"{key}.webp", "captions": scene.captions, "split": split}
    return key, "webp", buffer.getvalue(), {**own, "facts": _facts(scene)}


def _facts(scene: Scene) -> dict[str, Any]:
    return {
        "background": scene.background,
        "objects": [{**vars(thing), "box": list(thing.box)} for thing in scene.objects],
    }


def _content(facts: Mapping[str, Any]) -> object:
    """What makes two scenes the same, in whatever order their things were drawn."""
    things = sorted((one["kind"], one["colour"], one["size"], *one["box"]) for one in facts["objects"])
    return facts["background"], tuple(things)


def facts_of(record: Mapping[str, Any] | None) -> tuple[list[Thing], str]:
    """The things and the background of a drawn scene, from its JSON or from `Sample.more`.

    Raises:
        MeshcapError: the sample is no drawn scene.
    """
    try:
        facts = (record or {})["facts"]
        things = [Thing(one["kind"], one["colour"], one["size"], tuple(one["box"])) for one in facts["objects"]]
        return things, str(facts["background"])
    except (KeyError, TypeError):
        raise MeshcapError("this sample has no facts, expected a scene of `meshcap data draw`") from None
