"""A folder of shards that is made in one go or in several: `pack.json` says what is finished.

Each shard is written beside and renamed, and then entered in `pack.json`. Whoever is stopped between the two makes
that one shard again, with the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from meshcap.data.shard_writer import Packed, Shard, write_shards
from meshcap.errors import MeshcapError
from meshcap.files import remove_unfinished, write_text

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
        told = {
            "settings": self.settings,
            "complete": self.complete,
            "shards": [asdict(shard) for shard in self.shards],
            "left_out": self.left_out,
        }
        text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
        write_text(folder / MANIFEST, text, errors="surrogateescape")

    @classmethod
    def load(cls, folder: Path) -> Pack:
        path = folder / MANIFEST
        try:
            told = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
            left_out = {split: [Failed(*one) for one in failed] for split, failed in told["left_out"].items()}
            return cls(told["settings"], [Shard(**one) for one in told["shards"]], left_out, told["complete"])
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
        progress: told the number of samples done, those of earlier calls included.

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


def _good(samples: Iterator[Packed | Failed], failed: list[Failed], tell: Callable[[int], object]) -> Iterator[Packed]:
    """Those that did not fail; the others are noted."""
    for sample in samples:
        tell(sample.number)
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
