"""Writing tar shards that are the same, byte for byte, whenever and wherever the same samples are written."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meshcap.data.locate import PICTURES
from meshcap.files import write_file

RECORD = 10_240  # tars end on a whole one
LONGEST_KEY = 80  # with its ending it fits a plain tar header


class Packed(NamedTuple):
    """A sample as it goes into a shard."""

    number: int  # its place among the samples of its split
    key: str
    ending: str  # of the picture: "webp"
    picture: bytes
    told: dict[str, Any]  # what becomes key.json


@dataclass(frozen=True)
class Shard:
    """A finished shard, and where the next one begins."""

    name: str
    split: str
    samples: int
    stop: int  # the number after that of its last sample
    size: int
    digest: str

    def is_whole(self, folder: Path) -> bool:
        """Whether the file is there, just as it was written."""
        path = folder / self.name
        try:
            return path.stat().st_size == self.size and digest_of(path) == self.digest
        except OSError:
            return False


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def keys_of(ids: Iterable[str]) -> dict[str, str]:
    """A name for each id that is fit for members of a tar: no dots, which end a key, and no folders."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for id in ids:
        stem = id[: -len(ending)] if (ending := Path(id).suffix).lower() in PICTURES else id
        key = re.sub(r"[^\w-]", "_", stem)
        if key in taken or not 0 < len(key) <= LONGEST_KEY:
            key = f"{key[:60]}-{hashlib.blake2b(id.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}"
        keys[id] = key
        taken.add(key)
    return keys


def write_shards(folder: Path, split: str, samples: Iterator[Packed], *, most: int, first: int) -> Iterator[Shard]:
    """Fill the shards `split-<first>.tar` and so on, of at most `most` bytes, and say of each when it is finished.

    A sample goes into the next shard if it would make this one too large; one that alone is larger gets a shard of its
    own. What goes where depends on the samples alone, so that work taken up again ends as if it had never stopped.

    Raises:
        MeshcapError: the system refuses to write. Shards finished before stay.
    """
    rest = _Ahead(samples)
    number = first
    while rest.next is not None:
        name = f"{split}-{number}.tar"
        write_file(folder / name, lambda part: rest.fill(part, most))
        yield Shard(name, split, rest.count, rest.stop, rest.size, digest_of(folder / name))
        number += 1


class _Ahead:
    """Samples, with a look at the next one: only its size says whether it still has room."""

    def __init__(self, samples: Iterator[Packed]) -> None:
        self._samples = samples
        self.next = next(samples, None)
        self.count = self.stop = self.size = 0  # of the shard written last

    def fill(self, path: Path, most: int) -> None:
        """Write one shard."""
        count = size = 0
        with open(path, "wb") as file:
            while self.next is not None:
                content = _members(self.next)
                if count and _whole(size + len(content)) > most:
                    break
                file.write(content)
                count, size, self.stop = count + 1, size + len(content), self.next.number + 1
                self.next = next(self._samples, None)
            file.write(bytes(_whole(size) - size))
        self.count, self.size = count, _whole(size)


def _whole(size: int) -> int:
    """With the two empty blocks at a tar's end."""
    size += 2 * tarfile.BLOCKSIZE
    return size + -size % RECORD


def _members(sample: Packed) -> bytes:
    told = json.dumps(sample.told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    return _member(f"{sample.key}.{sample.ending}", sample.picture) + _member(f"{sample.key}.json", told)


def _member(name: str, content: bytes) -> bytes:
    info = tarfile.TarInfo(name)  # no time, no owner: the same bytes on every machine
    info.size = len(content)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)
