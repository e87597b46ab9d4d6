"""Pictures made small, once, and put into tar shards: what training reads fastest.

A picture is cut and resized as `Preprocess` would at training, so that nothing is left to do there but decoding.

A folder may be made in one go or in several: `pack.json` says what is finished. Each shard is written whole and then
entered in `pack.json`. Whoever is stopped between the two makes that one shard again, with the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from meshcap.data.dataset import Dataset, Sample, Source
from meshcap.data.shards import Packed, Shard, keys_of, write_shards
from meshcap.data.workers import parallel_map
from meshcap.errors import MeshcapError
from meshcap.files import remove_unfinished, write_text
from meshcap.vision.pictures import SOURCES

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

        from meshcap.vision.preprocess import Preprocess

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


class UnreadablePicture(NamedTuple):
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
        workers: processes; as many as there are cores by default.
        progress: called with the number of samples done.

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
        for number, made in enumerate(parallel_map(work, pictures, workers), start=start):
            sample = samples[number]
            if isinstance(made, UnreadablePicture):
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


def encode(source: Source, *, settings: PackSettings) -> tuple[str, bytes] | UnreadablePicture:
    """A picture's ending and content as they go into a shard. Runs in worker processes."""
    from PIL import Image

    from meshcap.music.score import is_score, read_score
    from meshcap.vision.pictures import read_picture
    from meshcap.vision.preprocess import Preprocess

    try:
        content = source.read()
        if is_score(content):  # there is nothing to make smaller
            read_score(content)
            return Path(str(source)).suffix.lower().lstrip(".") or "mid", content
        image = read_picture(content, at_least=settings.size)
    except MeshcapError as mistake:
        return UnreadablePicture(str(mistake).replace("the picture", str(source), 1))
    if not settings.size:
        ending = Path(str(source)).suffix.lower()
        return ending[1:] if ending in SOURCES else "jpg", content  # a reader asks the content, not the name
    preprocess = Preprocess(size=settings.size, geometry=settings.geometry)
    side = (settings.size, settings.size)
    if image.size != side:
        image = image.resize(side, Image.Resampling.BICUBIC, box=preprocess.window(*image.size), reducing_gap=3.0)
    form, options = ENCODERS[settings.format]
    buffer = io.BytesIO()
    # A new picture: notes about the old one (its camera, its colour profile) do not belong to the small one.
    Image.frombytes("RGB", side, image.tobytes()).save(buffer, form, quality=settings.quality, **options)
    return settings.format, buffer.getvalue()


MANIFEST = "pack.json"
MEGABYTE = 1_000_000


class Failed(NamedTuple):
    """A sample that could not be made, and is to be left out."""

    number: int
    id: str


# The samples of a split from a number on.
Begin = Callable[[int], Iterator[Packed | Failed]]


@dataclass
class Pack:
    """What is in a folder of shards."""

    settings: dict[str, Any]
    shards: list[Shard] = field(default_factory=list)
    left_out: dict[str, list[Failed]] = field(default_factory=dict)  # by split
    complete: bool = False

    def samples(self) -> dict[str, int]:
        """Pictures of each split."""
        counts: dict[str, int] = {}
        for shard in self.shards:
            counts[shard.split] = counts.get(shard.split, 0) + shard.samples
        return counts

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def save(self, folder: Path) -> None:
        content = {
            "settings": self.settings,
            "complete": self.complete,
            "shards": [asdict(shard) for shard in self.shards],
            "left_out": self.left_out,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        write_text(folder / MANIFEST, text, errors="surrogateescape")

    @classmethod
    def load(cls, folder: Path) -> Pack:
        path = folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
            left_out = {split: [Failed(*one) for one in failed] for split, failed in content["left_out"].items()}
            return cls(content["settings"], [Shard(**one) for one in content["shards"]], left_out, content["complete"])
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MeshcapError(f"{path} was not written by `meshcap data`: choose another folder") from None


def write_dataset(
    folder: Path,
    settings: dict[str, Any],
    splits: Mapping[str, Begin],
    *,
    shard_mb: float,
    progress: Callable[[int], object] | None = None,
) -> Pack:
    """Write the samples of each split into shards, or go on where an earlier call was stopped.

    Args:
        settings: all that decides what the shards hold; a folder begun with other ones is refused.
        progress: called with the number of samples done, those of earlier calls included.

    Raises:
        MeshcapError: a folder with other things in it, or the system refuses to write.
    """
    if shard_mb <= 0:
        raise MeshcapError(f"shards of {shard_mb} MB were asked for, expected more than 0")
    settings = json.loads(json.dumps({**settings, "shard_mb": shard_mb}))  # as it will be read back
    pack = _open(folder, settings)
    if pack.complete:
        return pack
    before = 0  # samples of the splits that are done
    for split, begin in splits.items():
        done = pack.of(split)
        start = done[-1].stop if done else 0
        failed = pack.left_out.setdefault(split, [])
        # What failed after the last finished shard will fail again, and be counted then.
        failed[:] = [one for one in failed if one.number < start]
        samples = _good(begin(start), failed, partial(_tell, progress, before))
        for shard in write_shards(folder, split, samples, most=int(shard_mb * MEGABYTE), first=len(done)):
            done.append(shard)
            pack.shards = [one for name in splits for one in (done if name == split else pack.of(name))]
            pack.save(folder)
        before += done[-1].stop if done else 0
    if not pack.shards:
        raise MeshcapError(f"{folder}: nothing was packed, since no picture could be read")
    pack.complete = True
    pack.save(folder)
    return pack


def _good(
    samples: Iterator[Packed | Failed], failed: list[Failed], progress: Callable[[int], object]
) -> Iterator[Packed]:
    """Those that did not fail; the others are noted."""
    for sample in samples:
        progress(sample.number)
        if isinstance(sample, Failed):
            failed.append(sample)
        else:
            yield sample


def _tell(progress: Callable[[int], object] | None, before: int, number: int) -> None:
    if progress:
        progress(before + number + 1)


def _open(folder: Path, settings: dict[str, Any]) -> Pack:
    """What is finished in a folder, and nothing half-finished."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        there = sorted(folder.iterdir())
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be made a folder of shards: {error.strerror or error}") from error
    if not (folder / MANIFEST).exists():
        if others := [path.name for path in there]:
            raise MeshcapError(f"{folder} holds {others[0]} and no {MANIFEST}: expected a new or empty folder")
        pack = Pack(settings)
        pack.save(folder)
        return pack
    pack = Pack.load(folder)
    for name in {**pack.settings, **settings}:
        before, now = pack.settings.get(name), settings.get(name)
        if before != now and name == "data":
            raise MeshcapError(f"{folder} was begun with other captions or pictures than these: choose another folder")
        if before != now:
            raise MeshcapError(f"{folder} was begun with {name} {before}, and now it is {now}: choose another folder")
    # From the first shard of a split that is not as it was written, the split is made again.
    whole: list[Shard] = []
    damaged: set[str] = set()
    for shard in pack.shards:
        if shard.split in damaged or not shard.is_whole(folder):
            damaged.add(shard.split)
        else:
            whole.append(shard)
    if damaged:
        pack.shards, pack.complete = whole, False
    return pack
