"""Drawn scenes as a dataset on disk, with the facts by which captions can be judged true or false.

Scenes have numbers, and each split its own. Different numbers may still give the same things in the same places,
above all where there is one thing before a plain wall: no scene is taken twice, in any split.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

from meshcap.data.draw import SMALLEST_PICTURE, Scene, draw_scene
from meshcap.data.pack import Failed, Pack, write_dataset
from meshcap.data.shards import Packed
from meshcap.data.tell import Thing
from meshcap.data.workers import spread
from meshcap.errors import MeshcapError

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
        told = ", ".join(f"{number:,} {split}" for split, number in counts.items())
        raise MeshcapError(f"{told} scenes were asked for, expected 0 to {MOST:,} of each, and some")
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
        for key, ending, content, told in spread(partial(_drawn, size=size, split=split), scenes, workers):
            what = _content(told["facts"])
            if what in seen:
                continue
            seen.add(what)
            if number >= start:
                yield Packed(number, key, ending, content, told)
            number += 1
            if number == wanted:
                return

    settings = {"drawn": {**counts, "size": size, "seed": seed}}
    splits = {split: partial(begin, split) for split in counts}
    return write_dataset(Path(out), settings, splits, shard_mb=shard_mb, progress=progress)


def _drawn(number: int, *, size: int, split: str) -> tuple[str, str, bytes, dict[str, Any]]:
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


def facts_of(told: Mapping[str, Any] | None) -> tuple[list[Thing], str]:
    """The things and the background of a drawn scene, from its JSON or from `Sample.more`, as `mistakes` takes them.

    Raises:
        MeshcapError: the sample is no drawn scene.
    """
    try:
        facts = (told or {})["facts"]
        things = [Thing(one["kind"], one["colour"], one["size"], tuple(one["box"])) for one in facts["objects"]]
        return things, str(facts["background"])
    except (KeyError, TypeError):
        raise MeshcapError("this sample has no facts, expected a scene of `meshcap data draw`") from None
