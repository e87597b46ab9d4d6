"""Pictures inside Parquet files: Hugging Face datasets and img2dataset's.

A picture is a row's bytes: a struct of `bytes` and `path` (what `datasets` writes for an Image), or a binary column
named after a format (`jpg`, as img2dataset writes). Rows are read by whole row groups, the last few of which are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from meshcap.data.dataset import FileSource
from meshcap.errors import MeshcapError
from meshcap.vision.pictures import SOURCES

NAMES = ("image", "img", "picture", "photo", *(suffix[1:] for suffix in SOURCES))  # of columns with bytes
KEYS = ("key", "__key__", "id", "image_id", "filename", "file_name")  # of columns that may name a row
KEPT = 4  # row groups in memory: readers go through a file in order, a few of them side by side


def need_pyarrow(path: object) -> Any:
    """pyarrow's Parquet part, or a line that says how to get it."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise MeshcapError(f"{path} is Parquet, which needs another package: pip install pyarrow") from None
    return parquet


@dataclass(frozen=True)
class ParquetSource:
    """A picture inside a Parquet file, by its row."""

    path: Path
    row: int
    name: str
    column: str

    def read(self) -> bytes:
        content = _groups.value(str(self.path), self.column, self.row)
        if isinstance(content, dict):
            file = content.get("path")
            if content["bytes"] is None and file:  # `datasets` leaves pictures of this machine where they are
                return FileSource(self.path.parent / file).read()
            content = content["bytes"]
        if not content:
            raise MeshcapError(f"{self} has no picture: the column {self.column} is empty there")
        return bytes(content)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


def picture_column(path: str | Path, column: str | None = None) -> str | None:
    """The column with the bytes of pictures; None: there is none, or `column` holds something else.

    Raises:
        MeshcapError: no Parquet, or no pyarrow.
    """
    schema = _opened(path).schema_arrow
    found = [field for field in schema if column in (None, field.name)]
    for field in found:
        if _is_struct(field.type):
            return str(field.name)
    for field in found:
        if _is_binary(field.type) and (column is not None or field.name.lower() in NAMES):
            return str(field.name)
    return None


def rows_of(path: str | Path, column: str) -> Iterator[tuple[str, int]]:
    """Name and number of each row with a picture. Rows that img2dataset could not fetch are left out.

    A name is a row's `key`, `id` or the like, or its picture's file name, where those are there once for each row;
    else it is the row's number.
    """
    file = _opened(path)
    schema = file.schema_arrow
    wanted = [name for name in KEYS if name in schema.names]
    wanted += [f"{column}.path"] if _is_struct(schema.field(column).type) else []
    numbers = range(file.metadata.num_rows)
    names: list[str] = []
    for name in wanted:
        values = _column(file, path, name)
        if all(isinstance(value, str | int) and str(value).strip() for value in values):
            names = [str(value) for value in values]
            if len(set(names)) == len(names):
                break
            names = []
    good = [True] * len(numbers)
    if "status" in schema.names and "error_message" in schema.names:
        good = [value == "success" for value in _column(file, path, "status")]
    for number in numbers:
        if good[number]:
            yield names[number] if names else str(number), number


def _opened(path: str | Path) -> Any:
    parquet = need_pyarrow(path)
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise MeshcapError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _column(file: Any, path: str | Path, name: str) -> list[Any]:
    try:
        values = file.read(columns=[name]).column(0).to_pylist()
    except (OSError, ValueError) as error:
        raise MeshcapError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return [value["path"] if isinstance(value, dict) else value for value in values]


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return types.is_struct(kind) and any(one.name == "bytes" and _is_binary(one.type) for one in kind)


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


class _Groups:
    """The row groups that were read last, for all threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.kept: OrderedDict[tuple[str, str, int], tuple[int, Any]] = OrderedDict()  # first row, values

    def value(self, path: str, column: str, row: int) -> Any:
        with self.lock:
            for key, (first, values) in self.kept.items():
                if key[:2] == (path, column) and first <= row < first + len(values):
                    self.kept.move_to_end(key)
                    return values[row - first].as_py()
            group, first, values = self._read(path, column, row)
            self.kept[path, column, group] = first, values
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
            return values[row - first].as_py()

    def _read(self, path: str, column: str, row: int) -> tuple[int, int, Any]:
        file = _opened(path)
        first = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if row < first + count:
                try:
                    return group, first, file.read_row_group(group, columns=[column]).column(0)
                except (OSError, ValueError) as error:
                    raise MeshcapError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
            first += count
        raise MeshcapError(f"{path} cannot be read: it has become shorter since it was indexed")


_groups = _Groups()
