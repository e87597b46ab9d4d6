"""`read_dataset`: any of the field's layouts to samples.

`dataset_files` finds the files that a path, a folder or a pattern names, `PictureFolder` the pictures that a caption
file names.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from meshcap.data import caption_files
from meshcap.data.caption_files import FILE_NAMES, CaptionEntry, short
from meshcap.data.dataset import (
    MEANINGS,
    Dataset,
    FileSource,
    LeftOut,
    Sample,
    Source,
    hashed_splits,
    named_split,
    split_in_name,
)
from meshcap.data.shards import read_shard
from meshcap.errors import MeshcapError
from meshcap.files import read_text
from meshcap.vision.pictures import SOURCES

_TOKEN = re.compile(r"(\S[^\t]*)#\d+\t(.*)")  # Flickr's name.jpg#0<TAB>caption
_LIST = re.compile(r"(?:.*[^a-z])?(train|dev|val|test)_?(?:images)?\.txt", re.IGNORECASE)


@dataclass
class PictureEntry:
    """A picture as one file describes it; another line or file may add captions."""

    id: str
    captions: list[str]
    split: str | None
    picture: Source | None
    filename: str | None
    file: Path  # that named it first
    more: dict[str, Any] | None = None


def read_dataset(
    path: str | Path, *, pictures: Path | None = None, val: float = 0.05, test: float = 0.05, skip_broken: bool = False
) -> Dataset:
    """Read a dataset: a folder, a file, or a pattern such as `train-{0..9}.tar` or `captions_*2014.json`.

    Known are WebDataset tar shards, COCO's and Karpathy's JSON, JSONL, CSV and TSV with the columns `image` (or
    `file_name`, …), `caption` (or `captions`) and perhaps `split`, Flickr's token files, and folders of pictures with a
    text beside each (a.txt or a.jpg.txt for a.jpg, a caption a line); all but shards and texts may be gzipped. Of a
    folder with several of these, shards are taken before captions, and those before texts. Captions lose the spaces
    around them; empty ones are left out and counted, and so are pictures with none left.

    A picture's split is what its own record says, else the word train, val or test in its file's name (of pictures with
    texts: its folder's name), else a hash of its id, by the shares `val` and `test`.

    Args:
        pictures: where the pictures are; the folder of the caption file by default. They need not be there: reading
            one says so, and `meshcap data check` finds them all.
        skip_broken: leave out records of a caption file that make no sense; `Dataset.left_out` has them.

    Raises:
        MeshcapError: nothing of a known layout, no captions at all, a picture outside of its folder, or one that is
            described in contradicting ways.
    """
    files = dataset_files(path)
    broken: list[str] = []
    known: dict[str, PictureEntry] = {}
    unlisted: set[str] = set()
    if shards := files[0].suffix == ".tar":
        if pictures is not None:
            raise MeshcapError(f"{path} holds its pictures itself: expected no folder of pictures beside shards")
        entries = _of_shards(files)
    elif files[0].is_dir():
        entries = _of_texts(files[0])
    else:
        entries = _of_caption_files(files, pictures, broken if skip_broken else None)
    for entry in entries:
        if entry.split == "":  # what `_of_tokens` says of pictures in none of the lists
            unlisted.add(entry.id)
        elif entry.id not in known:
            known[entry.id] = entry
        else:
            _merge(known[entry.id], entry, shards=shards)
    return _dataset(str(path), known, len(unlisted), tuple(broken), val=val, test=test)


def _merge(first: PictureEntry, again: PictureEntry, *, shards: bool) -> None:
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
    if again.more:
        first.more = {**(first.more or {}), **again.more}


def _dataset(
    name: str, known: dict[str, PictureEntry], unlisted: int, broken: tuple[str, ...], *, val: float, test: float
) -> Dataset:
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
    return Dataset(name, samples, LeftOut(empty, tuple(bare), unlisted, broken))


def _of_shards(files: list[Path]) -> Iterator[PictureEntry]:
    for file in files:
        for member in read_shard(file):
            split = named_split(member.split) or split_in_name(file.stem)
            yield PictureEntry(member.id, member.captions, split, member.picture, member.filename, file, member.more)


def text_beside(path: Path) -> Path | None:
    """The text of a picture that `meshcap batch --sidecar` and others write: a.jpg.txt, or a.txt, for a.jpg."""
    return next((text for text in (Path(f"{path}.txt"), path.with_suffix(".txt")) if text.is_file()), None)


def _of_texts(folder: Path) -> Iterator[PictureEntry]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        named = [split for part in Path(where).relative_to(folder).parts if (split := MEANINGS.get(part.lower()))]
        for name in sorted(files):
            path = Path(where, name)
            if path.suffix.lower() in SOURCES and not name.startswith("."):
                text = text_beside(path)
                captions = [] if text is None else read_text(text).splitlines()
                id = path.relative_to(folder).as_posix()
                yield PictureEntry(id, captions, named[-1] if named else None, FileSource(path), name, folder)


def _of_caption_files(files: list[Path], folder: Path | None, broken: list[str] | None) -> Iterator[PictureEntry]:
    for file in files:
        if file.name.lower().endswith((".tar.gz", ".tgz", ".zip")):
            raise MeshcapError(f"{file} is compressed, and pictures are read in any order: unpack it first")
        if file.name.lower().removesuffix(".gz").endswith((".token", ".txt")):
            text = read_text(file)
            if _TOKEN.match(text):
                yield from _of_tokens(file, text, PictureFolder(folder or file.parent))
                continue
        yield from _of_layout(file, PictureFolder(folder or file.parent), broken)


def _of_layout(file: Path, folder: PictureFolder, broken: list[str] | None) -> Iterator[PictureEntry]:
    by_name = split_in_name(file.name)
    seen: set[str] = set()
    for picture in caption_files.pictures(file, broken):
        names = picture.names
        filename = next((names[kind] for kind in FILE_NAMES if kind in names), None)
        if filename is None and picture.id.lower().endswith(SOURCES):
            filename = picture.id
        split = named_split(picture.split or picture.column) or by_name
        source = None
        if picture.id not in seen:  # with another caption, it is looked for no more
            seen.add(picture.id)
            found = folder.find(_guesses(file, picture, filename))
            # Of a picture that is only a number, a file is a guess: none found means that none was named.
            source = FileSource(found) if filename is not None or found.is_file() else None
        more = {"names": picture.called} if picture.called else None
        yield PictureEntry(picture.id, picture.captions, split, source, filename, file, more)


def _guesses(file: Path, picture: CaptionEntry, filename: str | None) -> list[str]:
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
        guesses += [f"{picture.id}{suffix}" for suffix in SOURCES[:5]]
    return guesses


def _of_tokens(file: Path, text: str, folder: PictureFolder) -> Iterator[PictureEntry]:
    """Flickr8k's captions, and its splits where the files that list them lie beside."""
    lists = {other: match[1] for other in sorted(file.parent.iterdir()) if (match := _LIST.fullmatch(other.name))}
    splits = {name: split for other, split in lists.items() for name in _lines(read_text(other))}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        parts = _TOKEN.fullmatch(line.rstrip("\r"))
        if parts is None:
            raise MeshcapError(f"{file}: line {number} is {short(line)}, expected name.jpg#0, a tab and a caption")
        name = parts[1].strip()
        split = named_split(splits.get(name)) or "" if splits else None
        yield PictureEntry(name, [parts[2]], split, FileSource(folder.find([name])), name, file)


def _lines(text: str) -> Iterable[str]:
    return filter(None, (line.strip() for line in text.splitlines()))


TABLES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv")
LAYOUTS = (
    "tar shards, captions.jsonl, metadata.jsonl, captions.csv, captions.tsv, captions.txt, "
    "captions_*.json of COCO, dataset_*.json of Karpathy, Flickr8k.token.txt, or pictures with a .txt beside each"
)
# Folders that pictures are usually kept in beside their captions.
USUAL_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")


def dataset_files(path: str | Path) -> list[Path]:
    """The files that a path names: all of them shards, all of them caption files, or a folder of pictures with texts.

    Raises:
        MeshcapError: nothing there, nothing of a known kind, or a folder that could be read in several ways.
    """
    path = Path(path)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [path]
    patterns = expand_braces(str(path))
    files: list[Path] = []
    for pattern in patterns:
        found = (
            sorted(glob.glob(pattern), key=_in_order)
            if glob.has_magic(pattern)
            else [pattern] * os.path.exists(pattern)
        )
        if not found and len(patterns) > 1:
            raise MeshcapError(f"{pattern}, which is one of {path}, is not there")
        files += map(Path, found)
    files = [file for file in dict.fromkeys(files) if file.is_file()]
    if not files:
        raise MeshcapError(f"{path} is not there, expected a folder or file with captions: {LAYOUTS}")
    shards = [file for file in files if file.suffix == ".tar"]
    return shards or files


def _in_folder(folder: Path) -> list[Path]:
    try:
        seen = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
        files = sorted(seen, key=_in_order)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be read: {error.strerror or error}") from error
    if shards := [file for file in files if file.suffix == ".tar"]:
        return shards
    found = [file for file in files if _is_usual(file.name.lower())]
    found = found or [file for file in files if file.name.lower().removesuffix(".gz").endswith(TABLES)]
    if len(found) > 1:
        # One file a split is a dataset in several files; anything else could be the same dataset several times.
        splits = [split_in_name(file.name) for file in found]
        if None in splits or len(set(splits)) < len(splits) or len({_ending(file) for file in found}) > 1:
            names = ", ".join(file.name for file in found)
            raise MeshcapError(f"{folder} holds {names}: name the one that is meant")
    if not found and _has_texts(folder):
        return [folder]
    if not found:
        raise MeshcapError(f"{folder} holds no captions, expected {LAYOUTS}")
    return found


def _has_texts(folder: Path) -> bool:
    """Whether a picture in it, or in its folders, has a text beside it."""
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        texts = {name.lower() for name in files if name.lower().endswith(".txt")}
        for name in files if texts else ():
            stem, suffix = os.path.splitext(name.lower())
            if suffix in SOURCES and texts & {f"{stem}.txt", f"{name.lower()}.txt"}:
                return True
    return False


def _in_order(path: str | Path) -> list[tuple[int, str]]:
    """Numbers by their size: train-2.tar before train-10.tar."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _is_usual(name: str) -> bool:
    name = name.removesuffix(".gz")
    stem, ending = os.path.splitext(name)
    if name.endswith((".token", ".token.txt")):
        return "lemma" not in name  # Flickr8k's words without their endings
    if ending == ".txt":
        return stem == "captions"
    return ending in TABLES and (stem.startswith(("captions", "metadata", "dataset")) or stem in MEANINGS)


def _ending(file: Path) -> str:
    return Path(file.name.lower().removesuffix(".gz")).suffix


def expand_braces(pattern: str) -> list[str]:
    """`train-{0..2}.tar` and `{train,val}-0.tar` as shells and WebDataset write them; 00..12 keeps its zeros."""
    parts = re.split(r"\{([^{}]+)\}", pattern)
    choices: list[list[str]] = []
    for place, part in enumerate(parts):
        numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
        if place % 2 == 0:
            choices.append([part])
        elif numbers:
            first, last = numbers.groups()
            choices.append([str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)])
        elif "," in part:
            choices.append(part.split(","))
        else:
            choices.append([f"{{{part}}}"])
    return ["".join(chosen) for chosen in product(*choices)]


class PictureFolder:
    """Finds pictures by the names that a caption file gives them, and only below one folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MeshcapError(f"{folder} is not a folder, expected one with pictures")
        self.folder = folder
        self._whole = os.path.abspath(folder)
        self._usual = [name for name in USUAL_FOLDERS if (folder / name).is_dir()]
        self._names: dict[str, frozenset[str]] = {}  # of each folder that was looked into
        self._hit = 0  # which of the guesses was right last time: mostly it is again

    def find(self, guesses: list[str]) -> Path:
        """The first of the names that is a file here or in a usual folder; the first of all if none is.

        Raises:
            MeshcapError: a name that leads out of the folder.
        """
        guesses = guesses + [os.path.join(usual, guess) for usual in self._usual for guess in guesses]
        if self._hit < len(guesses) and self._is_there(guesses[self._hit]):
            return Path(self._inside(guesses[self._hit]))
        for place, guess in enumerate(guesses):
            if self._is_there(guess):
                self._hit = place
                return Path(self._inside(guess))
        return Path(self._inside(guesses[0]))

    def _inside(self, name: str) -> str:
        # By the words of the path, not by where links lead: people do link their pictures into a folder.
        whole = os.path.normpath(os.path.join(self._whole, name))
        root = self._whole.rstrip(os.sep) + os.sep
        if "\0" in name or not whole.startswith(root):
            raise MeshcapError(f"the picture {name!r} is outside of {self.folder}: expected a path below it")
        return os.path.join(self.folder, whole[len(root) :])

    def _is_there(self, name: str) -> bool:
        # A folder is listed once; asking the system for each of 120,000 pictures in each of several places takes long.
        folder, _, name = name.rpartition("/")
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(os.path.join(self._whole, folder)))
            except (OSError, ValueError):
                self._names[folder] = frozenset()
        return name in self._names[folder]
