"""Pictures made small, once, and put into tar shards: what training reads fastest.

A picture is cut and resized as `Preprocess` would at training, so that nothing is left to do there but decoding.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from meshcap.data.dataset import Dataset, Sample, Source
from meshcap.data.locate import PICTURES
from meshcap.data.packing import Failed, Pack, write_dataset
from meshcap.data.pool import spread
from meshcap.data.shard_writer import Packed, keys_of
from meshcap.errors import MeshcapError

Format = Literal["webp", "jpg", "avif"]
# By name in Pillow, and what makes its encoder neither slow nor dependent on the number of cores.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "webp": ("WEBP", {"method": 4}),
    "jpg": ("JPEG", {"optimize": True}),
    # 9 of 10: eight times as fast as 6, and files a sixteenth larger.
    "avif": ("AVIF", {"speed": 9, "max_threads": 1}),
}


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """How pictures are kept. With `size` 0 they stay as they are, byte for byte."""

    size: int = 256
    geometry: Literal["squash", "crop"] = "squash"
    format: Format = "webp"
    quality: int = 45

    def __post_init__(self) -> None:
        from PIL import features

        from meshcap.vision.base import Preprocess

        if self.size != 0:
            Preprocess(size=self.size, geometry=self.geometry)  # refuses what it cannot do
        if self.format not in ENCODERS:
            raise MeshcapError(f"format is {self.format!r}, expected one of {', '.join(ENCODERS)}")
        if not 1 <= self.quality <= 100:
            raise MeshcapError(f"quality is {self.quality}, expected 1 to 100")
        if self.size and self.format != "jpg" and not features.check(self.format):
            raise MeshcapError(f"this Pillow was built without {self.format}: choose another format")

    def to_dict(self) -> dict[str, Any]:
        # Of pictures that stay as they are, the rest means nothing: other values are no other settings.
        return dict(vars(self)) if self.size else {"size": 0}


class Unreadable(NamedTuple):
    why: str


def pack(
    dataset: Dataset,
    out: str | Path,
    settings: PackSettings | None = None,
    *,
    shard_mb: float = 20,
    skip_broken: bool = False,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Pack:
    """Write a dataset's pictures and captions into shards in a folder; a call that was stopped is gone on with.

    Args:
        skip_broken: leave out pictures that cannot be read; `Pack.left_out` and `pack.json` name them.
        workers: processes; as many as there are cores unless told.
        progress: told the number of samples done.

    Raises:
        MeshcapError: a picture that cannot be read, a folder that was begun with other settings or other data or that
            holds other things, or a system that refuses to write.
    """
    settings = settings or PackSettings()
    if alone := [sample.id for sample in dataset if sample.picture is None]:
        raise MeshcapError(f"{dataset.name}: {len(alone):,} samples name no picture, the first {alone[0]!r}")
    keys = keys_of(sample.id for sample in dataset)

    def begin(samples: list[Sample], start: int) -> Iterator[Packed | Failed]:
        work = partial(encode, settings=settings)
        pictures = (sample.picture for sample in samples[start:] if sample.picture is not None)
        for number, made in enumerate(spread(work, pictures, workers), start=start):
            sample = samples[number]
            if isinstance(made, Unreadable):
                if not skip_broken:
                    raise MeshcapError(f"{made.why}; --skip-broken leaves such pictures out")
                yield Failed(number, sample.id)
            else:
                ending, content = made
                yield Packed(number, keys[sample.id], ending, content, told_of(sample))

    splits = {split: partial(begin, dataset.split(split)) for split in dataset.counts()}
    all_settings = {**settings.to_dict(), "data": fingerprint_of(dataset)}
    return write_dataset(Path(out), all_settings, splits, shard_mb=shard_mb, progress=progress)


def told_of(sample: Sample) -> dict[str, Any]:
    """What goes into key.json."""
    own = {"id": sample.id, "filename": sample.filename, "captions": list(sample.captions), "split": sample.split}
    return {**own, **(sample.more or {})}


def fingerprint_of(dataset: Dataset) -> str:
    """Of what a dataset says, not of where it lies: it may be mounted elsewhere tomorrow."""
    digest = hashlib.blake2b(digest_size=16)
    for sample in dataset:
        digest.update(json.dumps(told_of(sample), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def encode(source: Source, *, settings: PackSettings) -> tuple[str, bytes] | Unreadable:
    """A picture's ending and content as they go into a shard. Runs in worker processes."""
    from PIL import Image

    from meshcap.vision.base import Preprocess
    from meshcap.vision.pictures import read_picture

    try:
        content = source.read()
        image = read_picture(content, at_least=settings.size)
    except MeshcapError as mistake:
        return Unreadable(str(mistake).replace("the picture", str(source), 1))
    if not settings.size:
        ending = Path(str(source)).suffix.lower()
        return ending[1:] if ending in PICTURES else "jpg", content  # a reader asks the content, not the name
    preprocess = Preprocess(size=settings.size, geometry=settings.geometry)
    side = (settings.size, settings.size)
    if image.size != side:
        image = image.resize(side, Image.Resampling.BICUBIC, box=preprocess.window(*image.size), reducing_gap=3.0)
    form, options = ENCODERS[settings.format]
    buffer = io.BytesIO()
    # A new picture: notes about the old one (its camera, its colour profile) do not belong to the small one.
    Image.frombytes("RGB", side, image.tobytes()).save(buffer, form, quality=settings.quality, **options)
    return settings.format, buffer.getvalue()
