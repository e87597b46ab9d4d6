"""What training and evaluation read: pictures with captions, in named splits.

A dataset is a list of samples in memory; the pictures themselves stay where they are, in files or inside tar shards,
and are read when needed, in any order and from any process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from meshcap.errors import MeshcapError

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
            return self.path.read_bytes()
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
