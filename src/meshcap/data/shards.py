"""WebDataset tar shards: `key.jpg` and `key.json` (or `key.txt`) side by side.

A shard is indexed once, by walking over its headers, and each picture is read later by its place in the file: in any
order, from any process, without unpacking. The walk is our own, because tarfile takes four times as long and does
not tell a shard that was cut off between two members from a whole one.

Shards are written so that they are the same, byte for byte, whenever and wherever the same samples are written.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import reprlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meshcap.data.dataset import Source
from meshcap.errors import MeshcapError
from meshcap.files import open_regular, write_file
from meshcap.vision.pictures import SOURCES, Stored

BLOCK = 512
PAX_DIGITS = 18
PAX_COUNT = re.compile(rb"(\d{1,18}) ")
ABOUT_THE_NEXT = (b"x", b"L", b"K")  # kinds of members that only say more of the one that follows
KNOWN = ("id", "filename", "file_name", "captions", "caption", "split")  # of key.json; the rest is kept as it is


@dataclass(frozen=True)
class TarSource(Stored):
    """A picture inside a shard, by its place."""

    path: Path
    offset: int
    size: int
    name: str

    def read(self) -> bytes:
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset)
                content = file.read(self.size)
        except OSError as error:
            raise MeshcapError(f"{self} cannot be read: {error.strerror or error}") from error
        if len(content) < self.size:
            raise MeshcapError(f"{self} cannot be read: the shard has become shorter since it was indexed")
        return content

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


class Member(NamedTuple):
    """A file inside a tar."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class ShardSample:
    """What a shard says of a picture."""

    id: str
    captions: list[str]
    split: str | None
    picture: Source | None
    filename: str | None
    more: dict[str, Any] | None


def read_shard(path: Path) -> list[ShardSample]:
    """The samples of a shard, in its order.

    Raises:
        MeshcapError: no tar, a truncated or damaged one, or members that are not samples.
    """
    try:
        with open_regular(path) as file:
            if not file.seek(0, 2):
                raise MeshcapError(f"{path} is empty, expected a tar shard")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                groups: dict[str, dict[str, Member]] = {}
                for member in members(path, content):
                    key, dot, ending = member.name.removeprefix("./").rpartition(".")
                    if not dot or "/" in ending or key.rpartition("/")[2][:1] in ("", "."):
                        continue  # a file without a kind, or one that its name hides (._x.jpg of a Macintosh)
                    kind = "picture" if f".{ending.lower()}" in SOURCES else ending.lower()
                    group = groups.setdefault(key, {})
                    if kind in group:
                        raise MeshcapError(f"{path}: {group[kind].name} and {member.name} are the same sample's")
                    group[kind] = member
                samples = (group for group in groups.items() if "picture" in group[1] or "json" in group[1])
                return [_sample(path, key, group, content) for key, group in samples]
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error


def _sample(path: Path, key: str, group: dict[str, Member], content: mmap.mmap) -> ShardSample:
    record: dict[str, Any] = {}
    if "json" in group:
        where = f"{path}:{group['json'].name}"
        try:
            record = json.loads(_bytes(content, group["json"]))
        except (ValueError, RecursionError) as error:
            raise MeshcapError(f"{where} is not JSON ({str(error).splitlines()[0]})") from None
        if not isinstance(record, dict):
            raise MeshcapError(f"{where} is {reprlib.repr(record)}, expected an object with captions")
    captions = record.get("captions", record.get("caption"))
    if captions is None and "txt" in group:
        where = f"{path}:{group['txt'].name}"
        try:
            captions = _bytes(content, group["txt"]).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise MeshcapError(f"{where} is not UTF-8 text, expected a caption a line") from None
    captions = [] if captions is None else [captions] if isinstance(captions, str) else captions
    if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
        raise MeshcapError(f"{where} has the captions {reprlib.repr(captions)}, expected a string or strings")
    id, split = record.get("id", key), record.get("split")
    if isinstance(id, bool) or not isinstance(id, str | int) or id == "":
        raise MeshcapError(f"{where} has the id {reprlib.repr(id)}, expected a number or a name")
    filename = record.get("filename", record.get("file_name"))
    picture = group.get("picture")
    return ShardSample(
        str(id),
        captions,
        split if isinstance(split, str) else None,
        TarSource(path, picture.offset, picture.size, picture.name) if picture else None,
        filename if isinstance(filename, str) else picture.name.rpartition("/")[2] if picture else None,
        {name: value for name, value in record.items() if name not in KNOWN} or None,
    )


def _bytes(content: mmap.mmap, member: Member) -> bytes:
    return content[member.offset : member.offset + member.size]


def members(path: Path, content: mmap.mmap | bytes) -> Iterator[Member]:
    """The plain files of a tar: ustar, with the long names of GNU and pax.

    Raises:
        MeshcapError: no tar, or a tar that ends too early.
    """
    place, whole = 0, len(content)
    name: str | None = None  # a long one, given before the member that it belongs to
    size: int | None = None
    while True:
        header = content[place : place + BLOCK]
        if len(header) < BLOCK:
            raise MeshcapError(f"{path} ends at byte {whole:,} without the end of a tar: truncated?")
        if not any(header):
            return
        # The sum of all bytes, with the field that holds it taken for spaces.
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 32:
            what = "is not a tar" if place == 0 else f"is damaged at byte {place:,}"
            raise MeshcapError(f"{path} {what}: expected a tar shard, not compressed")
        kind, start = header[156:157], place + BLOCK
        length = size if size is not None and kind not in ABOUT_THE_NEXT else _number(header[124:136])
        if length < 0 or start + length > whole:
            raise MeshcapError(f"{path} ends at byte {whole:,}, inside {_name(header, name)}: truncated?")
        place = start + -(-length // BLOCK) * BLOCK
        if kind == b"L":
            name = _text(content[start : start + length])
        elif kind == b"x":
            record = _pax(content[start : start + length])
            name = record.get("path", name)
            size = _pax_size(path, record["size"]) if "size" in record else None
        elif kind not in (*ABOUT_THE_NEXT, b"g"):
            if kind in (b"0", b"\0"):
                yield Member(_name(header, name), start, length)
            name = size = None


def _name(header: bytes, long: str | None) -> str:
    if long is not None:
        return long
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""  # GNU keeps other things there
    return f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """Octal digits, or, where those do not suffice, GNU's binary number behind a set bit. -1: neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        return -1


def _pax(content: bytes) -> dict[str, str]:
    """Records of the form "25 path=some/long/name\\n", the number counting all of it."""
    record, place = {}, 0
    while found := PAX_COUNT.match(content, place):
        end = place + int(found[1])
        if not found.end() < end <= len(content):
            break
        key, _, value = content[found.end() : end - 1].partition(b"=")
        record[_text(key)] = _text(value)
        place = end
    return record


def _pax_size(path: Path, text: str) -> int:
    if not text.isdecimal() or len(text) > PAX_DIGITS:
        raise MeshcapError(f"{path} has a member of size {reprlib.repr(text)}, expected a number of bytes")
    return int(text)


RECORD = 10_240  # tars end on a whole one
LONGEST_KEY = 80  # with its ending it fits a plain tar header


class Packed(NamedTuple):
    """A sample as it goes into a shard."""

    number: int  # its place among the samples of its split
    key: str
    ending: str  # of the picture: "webp"
    picture: bytes
    record: dict[str, Any]  # what becomes key.json


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
        stem = id[: -len(ending)] if (ending := Path(id).suffix).lower() in SOURCES else id
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
    record = json.dumps(sample.record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    return _member(f"{sample.key}.{sample.ending}", sample.picture) + _member(f"{sample.key}.json", record)


def _member(name: str, content: bytes) -> bytes:
    info = tarfile.TarInfo(name)  # no time, no owner: the same bytes on every machine
    info.size = len(content)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)
