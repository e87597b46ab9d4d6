"""A finished job as one file: JSONL, CSV or Parquet, and the list of pictures that have no caption."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from meshcap.batch.parts import Row, lines
from meshcap.batch.pictures import need_pyarrow
from meshcap.errors import MeshcapError
from meshcap.files import write_beside

SUFFIXES = (".jsonl", ".csv", ".parquet")
GROUP = 65_536  # rows of a Parquet row group


def check_table(path: Path) -> None:
    """Refuse now what could not be written hours later."""
    if path.suffix == ".parquet":
        need_pyarrow(path)


def write_table(path: Path, rows: Iterable[Row], *, words: bool, alternatives: bool) -> None:
    """All rows with a caption, in order; whole or not at all.

    Raises:
        MeshcapError: a suffix that is not known, no pyarrow for Parquet, or a system that refuses.
    """
    if path.suffix == ".jsonl":
        write = _jsonl
    elif path.suffix == ".csv":
        write = _csv
    elif path.suffix == ".parquet":
        write = _parquet
    else:
        raise MeshcapError(f"{path} ends in {path.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    columns = ["path", "caption", "confidence", *(["words", "log_probs"] if words else [])]
    columns += ["alternatives"] if alternatives else []
    write_beside(path, lambda part: write(part, _captioned(rows), columns))


def write_errors(path: Path, rows: Iterable[Row]) -> None:
    """The pictures with an error, and what it is. Without any there is no such file."""
    errors = [{"path": row["path"], "error": row["error"]} for row in rows if "error" in row]
    if errors:
        write_beside(path, lambda part: part.write_text(lines(errors), encoding="utf-8", errors="surrogateescape"))
    else:
        path.unlink(missing_ok=True)


def errors_path(table: Path) -> Path:
    return table.with_name(f"{table.stem}.errors.jsonl")


def _captioned(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if "caption" in row:
            yield {name: value for name, value in row.items() if name != "error"}


def _jsonl(part: Path, rows: Iterator[Row], columns: list[str]) -> None:
    with open(part, "w", encoding="utf-8", errors="surrogateescape") as file:
        for row in rows:
            file.write(lines([row]))


def _csv(part: Path, rows: Iterator[Row], columns: list[str]) -> None:
    with open(part, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row.get(name)) for name in columns])


def _cell(value: Any) -> Any:
    """Lists as JSON: CSV has none of its own."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _parquet(part: Path, rows: Iterator[Row], columns: list[str]) -> None:
    parquet = need_pyarrow(part)
    import pyarrow as arrow

    kinds = {
        "path": arrow.string(),
        "caption": arrow.string(),
        "confidence": arrow.float32(),
        "words": arrow.list_(arrow.string()),
        "log_probs": arrow.list_(arrow.float32()),
        "alternatives": arrow.list_(arrow.struct({"caption": arrow.string(), "confidence": arrow.float32()})),
    }
    schema = arrow.schema([(name, kinds[name]) for name in columns])
    with parquet.ParquetWriter(part, schema, compression="zstd") as writer:
        while group := list(islice(rows, GROUP)):
            for row in group:  # Parquet's text is UTF-8, and a path need not be
                row["path"] = row["path"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
