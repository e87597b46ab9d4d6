"""`read_dataset`: any of the field's layouts to samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshcap.data.dataset import Dataset, FileSource, LeftOut, Sample, Source
from meshcap.data.locate import PICTURES, PictureFolder, dataset_files
from meshcap.data.shards import read_shard
from meshcap.data.splits import hashed_splits, named_split, split_in_name
from meshcap.errors import MeshcapError
from meshcap.metrics import layouts
from meshcap.metrics.layouts import FILE_NAMES, Picture, read_text, short

_TOKEN = re.compile(r"(\S[^\t]*)#\d+\t(.*)")  # Flickr's name.jpg#0<TAB>caption
_LIST = re.compile(r"(?:.*[^a-z])?(train|dev|val|test)_?(?:images)?\.txt", re.IGNORECASE)


@dataclass
class Entry:
    """A picture as one file tells of it; another line or file may add captions."""

    id: str
    captions: list[str]
    split: str | None
    picture: Source | None
    filename: str | None
    file: Path  # that told of it first
    more: dict[str, Any] | None = None


def read_dataset(path: str | Path, *, pictures: Path | None = None, val: float = 0.05, test: float = 0.05) -> Dataset:
    """Read a dataset: a folder, a file, or a pattern such as `train-{0..9}.tar` or `captions_*2014.json`.

    Known are WebDataset tar shards, COCO's and Karpathy's JSON, JSONL, CSV and TSV with the columns `image` (or
    `file_name`, …), `caption` (or `captions`) and perhaps `split`, and Flickr's token files; all but shards may be
    gzipped. Of a folder with shards and other files, the shards are taken. Captions lose the spaces around them;
    empty ones are left out and counted, and so are pictures with none left.

    A picture's split is what its own record says, else the word train, val or test in its file's name, else a hash of
    its id, by the shares `val` and `test`.

    Args:
        pictures: where the pictures are; the folder of the caption file unless told. They need not be there: reading
            one says so, and `meshcap data check` finds them all.

    Raises:
        MeshcapError: nothing of a known layout, no captions at all, a picture outside of its folder, or one that is
            told of in contradicting ways.
    """
    files = dataset_files(path)
    known: dict[str, Entry] = {}
    unlisted: set[str] = set()
    if shards := files[0].suffix == ".tar":
        if pictures is not None:
            raise MeshcapError(f"{path} holds its pictures itself: expected no folder of pictures beside shards")
        entries = _of_shards(files)
    else:
        entries = _of_caption_files(files, pictures)
    for entry in entries:
        if entry.split == "":  # what `_of_tokens` says of pictures in none of the lists
            unlisted.add(entry.id)
        elif entry.id not in known:
            known[entry.id] = entry
        else:
            _merge(known[entry.id], entry, shards=shards)
    return _dataset(str(path), known, len(unlisted), val=val, test=test)


def _merge(first: Entry, again: Entry, *, shards: bool) -> None:
    where = first.file if first.file == again.file else f"{first.file} and {again.file}"
    if shards:
        raise MeshcapError(f"{where}: picture {short(again.id)} is there twice, expected once")
    if (again.split or first.split) != first.split:
        raise MeshcapError(
            f"{where}: picture {short(again.id)} is in the splits {first.split} and {again.split}, expected one"
        )
    if again.filename is not None and first.filename not in (None, again.filename):
        raise MeshcapError(
            f"{where}: picture {short(again.id)} is the file {first.filename} and {again.filename}, expected one"
        )
    first.captions += again.captions


def _dataset(name: str, known: dict[str, Entry], unlisted: int, *, val: float, test: float) -> Dataset:
    empty, bare = 0, []
    for entry in known.values():
        given = len(entry.captions)
        entry.captions = [stripped for caption in entry.captions if (stripped := caption.strip())]
        empty += given - len(entry.captions)
        if not entry.captions:
            bare.append(entry.id)
    kept = [entry for entry in known.values() if entry.captions]
    if not kept:
        pictures = f"{len(bare):,} pictures without captions" if bare else "no pictures"
        raise MeshcapError(f"{name} holds {pictures}, expected at least one with a caption")
    unnamed = [entry.id for entry in kept if entry.split is None]
    hashed = hashed_splits(unnamed, val=val, test=test, alone=len(unnamed) == len(kept))
    samples = [Sample(e.id, tuple(e.captions), e.split or hashed[e.id], e.picture, e.filename, e.more) for e in kept]
    return Dataset(name, samples, LeftOut(empty, tuple(bare), unlisted))


def _of_shards(files: list[Path]) -> Iterator[Entry]:
    for file in files:
        for member in read_shard(file):
            split = named_split(member.split) or split_in_name(file.stem)
            yield Entry(member.id, member.captions, split, member.picture, member.filename, file, member.more)


def _of_caption_files(files: list[Path], folder: Path | None) -> Iterator[Entry]:
    for file in files:
        if file.name.lower().endswith((".tar.gz", ".tgz", ".zip")):
            raise MeshcapError(f"{file} is compressed, and pictures are read in any order: unpack it first")
        if file.name.lower().removesuffix(".gz").endswith((".token", ".txt")):
            text = read_text(file)[1]
            if _TOKEN.match(text):
                yield from _of_tokens(file, text, PictureFolder(folder or file.parent))
                continue
        yield from _of_layout(file, PictureFolder(folder or file.parent))


def _of_layout(file: Path, folder: PictureFolder) -> Iterator[Entry]:
    by_name = split_in_name(file.name)
    seen: set[str] = set()
    for picture in layouts.pictures(file):
        names = picture.names
        filename = next((names[kind] for kind in FILE_NAMES if kind in names), None)
        if filename is None and picture.id.lower().endswith(PICTURES):
            filename = picture.id
        split = named_split(picture.split or picture.column) or by_name
        source = None
        if picture.id not in seen:  # with another caption, it is looked for no more
            seen.add(picture.id)
            found = folder.find(_guesses(file, picture, filename))
            # Of a picture that is only a number, a file is a guess: none found means that none was told of.
            source = FileSource(found) if filename is not None or found.is_file() else None
        yield Entry(picture.id, picture.captions, split, source, filename, file)


def _guesses(file: Path, picture: Picture, filename: str | None) -> list[str]:
    """Where a picture may be below the folder of pictures, the likeliest first."""
    guesses: list[str] = []
    if filename is not None:
        guesses.append(filename)
        if picture.folder:
            guesses.append(f"{picture.folder}/{filename}")
        elif year := re.search(r"(?:train|val|test)20\d\d", file.name):  # captions_val2017.json: beside val2017/
            guesses.append(f"{year[0]}/{filename}")
    if picture.id.isdecimal() and (filename is None or filename.startswith("COCO_")):
        stem = f"{int(picture.id):012d}"  # what COCO calls the same pictures since 2017
        guesses += [f"{stem}.jpg", f"train2017/{stem}.jpg", f"val2017/{stem}.jpg"]
    if filename is None:
        guesses += [f"{picture.id}{suffix}" for suffix in PICTURES[:5]]
    return guesses


def _of_tokens(file: Path, text: str, folder: PictureFolder) -> Iterator[Entry]:
    """Flickr8k's captions, and its splits where the files that list them lie beside."""
    lists = {other: match[1] for other in sorted(file.parent.iterdir()) if (match := _LIST.fullmatch(other.name))}
    splits = {name: split for other, split in lists.items() for name in _lines(read_text(other)[1])}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        parts = _TOKEN.fullmatch(line.rstrip("\r"))
        if parts is None:
            raise MeshcapError(f"{file}: line {number} is {short(line)}, expected name.jpg#0, a tab and a caption")
        name = parts[1].strip()
        split = named_split(splits.get(name)) or "" if splits else None
        yield Entry(name, [parts[2]], split, FileSource(folder.find([name])), name, file)


def _lines(text: str) -> Iterable[str]:
    return filter(None, (line.strip() for line in text.splitlines()))
