"""Many pictures with what people said of them, into a captioner's memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshcap.batch.inputs import list_pictures
from meshcap.captioner import Captioner
from meshcap.data.read import read_dataset, text_beside
from meshcap.errors import MeshcapError
from meshcap.files import read_text
from meshcap.memory import Entry, Store, is_store, open_store
from meshcap.vision.pictures import SUFFIXES

TOGETHER = 32  # pictures that are added at once: each time the disk is waited for


class Shown(NamedTuple):
    """A picture and what to remember of it."""

    picture: Any  # a path, or what reads the content of a file
    entry: Entry

    def content(self) -> Any:
        return self.picture.read() if hasattr(self.picture, "read") else self.picture


@dataclass
class Remembered:
    """What became of a list of pictures."""

    added: int = 0
    known: int = 0  # that were remembered with the same words before
    errors: list[str] = field(default_factory=list)


def read_shown(path: str | os.PathLike[str]) -> list[Shown]:
    """The pictures that a file or folder describes.

    A dataset as for training (JSONL and CSV, also with `names`, COCO, Karpathy, WebDataset shards, Flickr), a folder of
    pictures with a text beside each (a.txt or a.jpg.txt for a.jpg), or another memory whose pictures are still there.

    Raises:
        MeshcapError: none of these.
    """
    if is_store(os.fspath(path)):
        return list(_of_store(os.fspath(path)))
    place = Path(path)
    if place.is_dir():
        beside = list(_sidecars(place))
        if beside:
            return beside
    found = []
    for sample in read_dataset(place):
        if sample.picture is None:
            raise MeshcapError(f"{path} names no picture for {sample.id}: expected where the pictures are")
        names = tuple((sample.more or {}).get("names", ()))
        found.append(Shown(sample.picture, Entry(sample.captions, names, os.path.abspath(str(sample.picture)))))
    return found


def _of_store(place: str) -> Iterator[Shown]:
    shards: dict[str, dict[str, Any]] = {}  # tar -> member's path -> what reads it
    for entry in open_store(place).entries():
        if not entry.source:
            continue
        tar, mark, _ = entry.source.partition(".tar:")
        tar += ".tar"
        if mark and not os.path.exists(entry.source) and os.path.exists(tar):
            if tar not in shards:
                shards[tar] = {picture.path: picture.source() for picture in list_pictures([tar])}
            yield Shown(shards[tar].get(entry.source, entry.source), entry)
        else:
            yield Shown(entry.source, entry)


def _sidecars(folder: Path) -> Iterator[Shown]:
    try:
        pictures = list_pictures([str(folder)])
    except MeshcapError:  # none in it
        return
    for picture in pictures:
        path = Path(picture.path)
        if picture.tar is None and path.suffix.lower() in SUFFIXES and (text := text_beside(path)):
            lines = tuple(line for line in read_text(text).splitlines() if line.strip())
            if lines:
                yield Shown(picture.path, Entry(lines, source=os.path.abspath(path)))


def remember_all(
    captioner: Captioner,
    shown: Sequence[Shown],
    memory: Store,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Remembered:
    """Add pictures to a memory, some at a time: what is added stays, also where the work is stopped.

    Pictures that are remembered from the same place with the same words are not added again: the same call goes on
    where another was stopped. One that cannot be read is reported, and the others are added.

    Args:
        progress: called with how many pictures were just done, and how many of them failed.
    """
    result = Remembered()
    there = {(one.source, one.captions, one.names) for one in memory.entries()}

    def read(one: Shown) -> np.ndarray | MeshcapError:
        try:
            return captioner.read(one.content())
        except MeshcapError as error:
            return error

    def new() -> Iterator[Shown]:
        for one in shown:
            try:
                entry = one.entry.checked()
            except MeshcapError as error:
                result.errors.append(f"{one.entry.source}: {error}")
                continue
            if (entry.source, entry.captions, entry.names) in there:
                result.known += 1
            else:
                yield Shown(one.picture, entry)

    rest = new()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="meshcap-remember") as pool:
        while block := list(islice(rest, TOGETHER)):
            pixels, entries, failed = [], [], 0
            for one, found in zip(block, pool.map(read, block), strict=True):
                if isinstance(found, MeshcapError):
                    failed += 1
                    result.errors.append(_named(str(found), one.entry.source))
                else:
                    pixels.append(found)
                    entries.append(one.entry)
            if pixels:
                size = captioner.batch_size
                seen = (captioner.see(pixels[start : start + size]) for start in range(0, len(pixels), size))
                vectors = [captioner.embed(some).float().cpu().numpy() for some in seen]
                memory.add(np.concatenate(vectors), entries)
                result.added += len(entries)
            if progress is not None:
                progress(len(block), failed)
    return result


def _named(message: str, source: str | None) -> str:
    """Bytes have no name of their own."""
    return message if source is None or source in message else message.replace("the picture", source, 1)
