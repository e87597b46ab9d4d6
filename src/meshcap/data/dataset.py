"""What training and evaluation read: pictures with captions, in named splits.

A dataset is a list of samples in memory; the pictures themselves stay where they are, in files or inside tar shards,
and are read when needed, in any order and from any process.

A picture's split is what its own record says, else a word of its file's name, else a hash of its id. Names are those of
the field brought to three: Karpathy's "restval" is for training, "validation", "valid" and "dev" are "val". A name that
is none of these is a split of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from meshcap.errors import MeshcapError
from meshcap.files import read_regular

SPLITS = ("train", "val", "test")


class Source(Protocol):
    """Where a picture's file content is. Small and picklable: it travels to worker processes."""

    def read(self) -> bytes:
        """Raises: MeshcapError naming the file if it is not there or cannot be read."""

    def __str__(self) -> str:
        """As a person would find it: a path, or shard.tar:member."""


@dataclass(frozen=True)
class FileSource:
    """A picture in a file of its own."""

    path: Path

    def read(self) -> bytes:
        try:
            return read_regular(self.path)
        except OSError as error:
            raise MeshcapError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Sample:
    """A picture and what people said of it."""

    id: str
    captions: tuple[str, ...]
    split: str
    picture: Source | None  # None: captions alone (features come from elsewhere)
    filename: str | None = None  # the picture's own, before anybody packed it
    more: Mapping[str, Any] | None = field(default=None, repr=False)  # what else a shard says: `facts` of drawn scenes


@dataclass(frozen=True)
class LeftOut:
    """What a reader met and did not take."""

    empty_captions: int = 0
    without_captions: tuple[str, ...] = ()  # ids of pictures
    in_no_list: int = 0  # pictures that the files with the splits do not name
    broken: tuple[str, ...] = ()  # records, and what is wrong with each
    unreadable: tuple[str, ...] = ()  # pictures, and why


@dataclass(frozen=True)
class Dataset:
    """Samples, in the order of their files."""

    name: str
    samples: Sequence[Sample] = field(repr=False)
    left_out: LeftOut = LeftOut()

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def split(self, name: str) -> list[Sample]:
        """The samples of a split.

        Raises:
            MeshcapError: there are none; says which splits there are.
        """
        found = [sample for sample in self.samples if sample.split == name]
        if not found:
            there = ", ".join(f"{split} ({count:,})" for split, count in self.counts().items()) or "none at all"
            raise MeshcapError(f"{self.name} has no pictures in the split {name!r}: there are {there}")
        return found

    def counts(self) -> dict[str, int]:
        """Pictures of each split, the usual splits first."""
        counts = Counter(sample.split for sample in self.samples)
        order = [name for name in SPLITS if name in counts] + sorted(set(counts) - set(SPLITS))
        return {name: counts[name] for name in order}


def hashed_place(id: str) -> float:
    """A number from 0 to 1 that is the same for an id on every machine."""
    # surrogateescape: an id may be the name of a file, and those need not be text
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big") / 2**64


def hashed_split(id: str, *, val: float = 0.05, test: float = 0.05) -> str:
    """A split for a picture whose file names none: the same on every machine and however many others there are."""
    place = hashed_place(id)
    return "test" if place < test else "val" if place < test + val else "train"


MEANINGS = {
    "train": "train",
    "training": "train",
    "restval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
# A whole word of a file's name, years and numbers being no letters: captions_train2014.json, val-0.tar. Not "trainval".
_WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(MEANINGS, key=len, reverse=True))})(?![a-z])")


def named_split(name: str | None) -> str | None:
    """The split that a file says, by its usual name; None if it says nothing."""
    name = (name or "").strip()
    return MEANINGS.get(name.lower(), name) or None


def split_in_name(name: str) -> str | None:
    """The split that is a word of a file's name; None if none is, or several are."""
    found = {MEANINGS[word] for word in _WORD.findall(name.lower())}
    return found.pop() if len(found) == 1 else None


def hashed_splits(ids: Iterable[str], *, val: float, test: float, alone: bool = True) -> dict[str, str]:
    """A split for each id, of pictures whose files name none.

    Each by itself, so that a picture stays where it is when others come or go. But training needs pictures, and a few
    to watch itself by: of a dataset so small that chance leaves out either, the picture whose place in the order of
    hashes is nearest goes there. That one picture may move when others are added.

    Args:
        alone: these are the whole dataset. Where other pictures have splits by name, nothing need be filled.

    Raises:
        MeshcapError: shares that leave nothing for training.
    """
    if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
        raise MeshcapError(f"val {val} and test {test} are no shares, expected 0 or more, below 1 together")
    splits = {id: hashed_split(id, val=val, test=test) for id in ids}
    if not alone:
        return splits
    if splits and "train" not in splits.values():
        splits[max(splits, key=hashed_place)] = "train"
    training = [id for id, split in splits.items() if split == "train"]
    if val > 0 and len(training) > 1 and "val" not in splits.values():
        splits[min(training, key=hashed_place)] = "val"
    return splits


def without(dataset: Dataset, file: Path) -> Dataset:
    """Leave out the training pictures whose ids a file names, one a line; lines that begin with # say something else.

    Raises:
        MeshcapError: the file cannot be read, or names a picture that is no training picture, or all of them.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise MeshcapError(f"{file} cannot be read ({error}): expected ids of pictures, one a line") from error
    ids = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    there = {sample.id for sample in dataset.split("train")}
    if missing := sorted(ids - there):
        raise MeshcapError(
            f"{file} names {missing[0]!r}, which is no training picture ({len(missing)} such): expected ids "
            f"like {dataset.split('train')[0].id!r}"
        )
    if ids == there:
        raise MeshcapError(f"{file} names all {len(there):,} training pictures: nothing is left to learn from")
    kept = [sample for sample in dataset if sample.split != "train" or sample.id not in ids]
    return replace(dataset, samples=kept)
