"""From what a person names (folders, patterns, tar shards, lists of paths) to pictures, each once, in order."""

from __future__ import annotations

import csv
import glob
import hashlib
import mmap
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from meshcap.data.parquet import ParquetSource, need_pyarrow, picture_column, rows_of
from meshcap.data.read import expand_braces
from meshcap.data.shards import TarSource, members
from meshcap.errors import MeshcapError
from meshcap.files import open_regular
from meshcap.vision.pictures import SOURCES

SHARDS = (".tar", ".parquet")
CAPTIONS = ".captions.parquet"  # the end of the names of what is written for a shard
LISTS = (".csv", ".tsv", ".parquet", ".txt")
COLUMNS = ("path", "image", "file", "filename", "file_name", "image_path", "file_path")


class Picture(NamedTuple):
    """A file, or a member of a shard by its place. Small, and plain enough to travel to other machines."""

    path: str  # as the person wrote it; shard.tar:member inside a shard
    tar: str | None = None  # the shard, which may be Parquet too
    offset: int = 0  # of Parquet: the row
    size: int = 0
    column: str = ""  # of Parquet

    def source(self) -> TarSource | ParquetSource | None:
        """Where a member of a shard is read from; None: a file of its own."""
        if self.tar is None:
            return None
        if self.column:
            return ParquetSource(Path(self.tar), self.offset, self.member, self.column)
        return TarSource(Path(self.tar), self.offset, self.size, self.member)

    @property
    def member(self) -> str:
        return "" if self.tar is None else self.path[len(self.tar) + 1 :]

    @property
    def key(self) -> str:
        """The same for two ways of writing the same place."""
        return os.path.abspath(self.path) if self.tar is None else f"{os.path.abspath(self.tar)}:{self.member}"

    def path_in(self, folder: Path, suffix: str = "") -> Path:
        """Its path in a folder of results: the path as it was written, so that no two pictures collide."""
        path = self.path if self.tar is None else os.path.join(os.path.splitext(self.tar)[0], self.member)
        path = os.path.normpath(path)
        if path.startswith(".."):
            path = os.path.abspath(path)
        # A member's name is a stranger's: "..", even in its middle, must not lead out of the folder.
        parts = [part for part in Path(path).parts if part not in ("..", Path(path).anchor)]
        return folder.joinpath(*parts[:-1], parts[-1] + suffix)


@dataclass(frozen=True)
class Share:
    """One of several jobs that split the work among them without talking: `3/8` is the third of eight.

    Whole shards go around in order; any other picture belongs to the job that a hash of its path names.
    """

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise MeshcapError(f"--shard is {text!r}, expected a number and how many there are, as in 3/8")
        return cls(int(found[1]), int(found[2]))

    def has_tar(self, count: int) -> bool:
        return count % self.of == self.number - 1

    def has(self, key: str) -> bool:
        if self.of == 1:
            return True
        digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def list_pictures(
    inputs: Sequence[str],
    *,
    column: str | None = None,
    share: Share | None = None,
    copies: Path | None = None,
    allow_missing: bool = False,
    leave: Callable[[str], bool] | None = None,
) -> list[Picture]:
    """Every picture once, in the order of the inputs; a folder's by name, with those of its folders.

    Args:
        inputs: pictures, folders, patterns (`**`, `{0..9}`), tar shards, Parquet files with pictures, and lists of
            paths (CSV, TSV, Parquet, or one a line in a .txt), whose relative paths start from the list's own folder.
        column: of lists: the one with the paths; `path`, `image`, `file_name` and the like by default. Of Parquet
            with pictures: the one with those.
        share: only the pictures of this job.
        copies: a folder that is left out: copies of these very pictures will be in it.
        allow_missing: also list files that do not exist: reading them says so.
        leave: whether a shard, or a folder of pictures, is left out unopened. Pictures of a folder then stay together
            in a share.

    Raises:
        MeshcapError: an input is not there, holds no pictures, or is a list without paths.
    """
    share = share or Share()
    hidden = None if copies is None else os.path.join(os.path.abspath(copies), "")
    pictures: dict[str, Picture] = {}  # by key
    tars: dict[str, bool] = {}  # shards (and folders) seen so far, and whether they are left out
    for name in inputs:
        found = False
        for path in _expand(name, column, allow_missing):
            if hidden is not None and os.path.abspath(path).startswith(hidden):
                continue
            found = True
            if not path.lower().endswith(SHARDS):
                picture = Picture(path)
                folder = os.path.dirname(picture.key)
                if leave is not None and folder not in tars:
                    tars[folder] = not share.has(folder) or leave(os.path.dirname(path))
                if not tars[folder] if leave is not None else share.has(picture.key):
                    pictures.setdefault(picture.key, picture)
            elif os.path.abspath(path) not in tars:
                is_left = not share.has_tar(len(tars)) or (leave is not None and leave(path))
                tars[os.path.abspath(path)] = is_left
                if not is_left:
                    for picture in _in_tar(path) if path.lower().endswith(".tar") else _in_parquet(path, column):
                        pictures.setdefault(picture.key, picture)
        if not found and hidden is not None and os.path.join(os.path.abspath(name), "").startswith(hidden):
            raise MeshcapError(f"{name} is inside --out, where copies go: give another folder, or --in-place")
        if not found:
            raise MeshcapError(f"{name} holds no pictures: expected pictures, tar shards or a list of paths")
    return list(pictures.values())


def is_url(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


def _expand(name: str, column: str | None, allow_missing: bool) -> Iterator[str]:
    if is_url(name):
        raise MeshcapError(
            f"{name} is a web address, and only files are read here: `meshcap caption --allow-urls` fetches a picture, "
            "img2dataset makes shards of many"
        )
    if os.path.isdir(name):
        yield from _in_folder(name, column)
        return
    paths = [name]
    if not os.path.lexists(name):
        paths = []
        for pattern in expand_braces(name):
            if glob.has_magic(pattern):
                paths += sorted(glob.glob(pattern, recursive=True))
            elif os.path.lexists(pattern):
                paths.append(pattern)
        if not paths and allow_missing and not glob.has_magic(name):
            paths = [name]
        if not paths:
            raise MeshcapError(f"{name} is not there, expected pictures, a folder, a pattern, tar shards or a list")
    for path in paths:
        if os.path.isdir(path):
            if "**" not in name:  # that pattern names what is inside by itself
                yield from _in_folder(path, column)
        elif path.lower().endswith(LISTS) and name.lower().endswith(LISTS):  # photos/* may meet texts beside pictures
            if path.lower().endswith(".parquet") and picture_column(path, column) is not None:
                yield path
            else:
                yield from _in_list(Path(path), column)
        elif path == name or path.lower().endswith((".tar", *SOURCES)):
            yield path


def _in_folder(folder: str, column: str | None) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise MeshcapError(f"{error.filename} cannot be read: {error.strerror or error}") from error

    for where, folders, files in os.walk(folder, onerror=stop):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        there = {*folders, *files}
        for name in sorted(files):
            path = os.path.join(where, name)
            if name.startswith("."):
                continue
            if name.lower().endswith((".tar", *SOURCES)) or (
                name.endswith(".parquet") and not _is_about(name, there) and _has_pictures(path, column)
            ):
                yield path


def _is_about(name: str, there: Collection[str]) -> bool:
    """Whether a Parquet file only tells of others: of a shard or folder beside it (img2dataset), or what we write."""
    stem = name.removesuffix(".parquet")
    return stem in there or f"{stem}.tar" in there or name.endswith(CAPTIONS)


def _has_pictures(path: str, column: str | None) -> bool:
    try:
        return picture_column(path, column) is not None
    except MeshcapError:  # in a folder of photos it may be anything
        return False


def _in_parquet(path: str, column: str | None) -> Iterator[Picture]:
    name = picture_column(path, column)
    assert name is not None
    for key, row in rows_of(path, name):
        yield Picture(f"{path}:{key}", path, row, column=name)


def _in_tar(path: str) -> Iterator[Picture]:
    try:
        with open_regular(path) as file:
            if not file.seek(0, 2):
                raise MeshcapError(f"{path} is empty, expected a tar shard")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for member in members(Path(path), content):
                    if member.name.lower().endswith(SOURCES) and not os.path.basename(member.name).startswith("."):
                        yield Picture(f"{path}:{member.name}", path, member.offset, member.size)
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error


def _in_list(path: Path, column: str | None) -> Iterator[str]:
    rows = _parquet(path, column) if path.suffix.lower() == ".parquet" else _lines(path, column)
    folder = path.parent
    for text in rows:
        if text:
            yield text if os.path.isabs(text) else str(folder / text)


def _lines(path: Path, column: str | None) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".txt":
                yield from (line.strip("\r\n") for line in file)
                return
            rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            place = _column(path, next(rows, []), column)
            for row in rows:
                if len(row) > place:
                    yield row[place].strip()
                elif row:
                    raise MeshcapError(f"{path}: line {rows.line_num} has {len(row)} fields, expected a path in each")
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise MeshcapError(f"{path} is not UTF-8 text, expected a list of paths") from None
    except csv.Error as error:
        raise MeshcapError(f"{path} is not CSV ({error}), expected a list of paths") from None


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    parquet = need_pyarrow(path)
    try:
        with parquet.ParquetFile(path) as file:
            name = file.schema_arrow.names[_column(path, file.schema_arrow.names, column)]
            for batch in file.iter_batches(columns=[name]):
                for value in batch.column(0).to_pylist():
                    if not isinstance(value, str | None):
                        raise MeshcapError(f"{path}: {name} has {type(value).__name__} values, expected paths")
                    yield value or ""
    except (OSError, ValueError) as error:
        if isinstance(error, MeshcapError):
            raise
        raise MeshcapError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _column(path: Path, header: Sequence[str], column: str | None) -> int:
    for name in COLUMNS if column is None else (column,):
        if name in header:
            return header.index(name)
    there = ", ".join(header) or "none"
    wanted = f"a column {column}" if column else f"one of {', '.join(COLUMNS)}, or --column"
    raise MeshcapError(f"{path} has the columns {there}: expected {wanted}")
