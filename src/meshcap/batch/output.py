"""Where captions go: a table (JSONL, CSV, Parquet), a text beside each picture, a description inside it or a copy.

Writing twice is the same as writing once: a block that was killed half-way is delivered again.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from meshcap.batch import metadata
from meshcap.batch.inputs import Picture
from meshcap.data.parquet import need_pyarrow
from meshcap.errors import MeshcapError
from meshcap.files import UNFINISHED, edit_bytes, read_regular, write_bytes, write_file, write_text

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".csv", ".parquet")
GROUP = 65_536  # rows of a Parquet row group
THREADS = 4
KINDS = ("exif", "xmp", "iptc")
SHARD_COLUMNS = ("key", "caption", "alternatives", "confidence", "tags", "model", "weights_hash")
METADATA = "meshcap"  # of Parquet, that says how a shard's captions were made
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet begins a formula with


def check_table(path: Path) -> None:
    """Refuse now what could not be written hours later."""
    if path.suffix == ".parquet":
        need_pyarrow(path)


def write_table(
    path: Path,
    rows: Iterable[Row],
    *,
    words: bool,
    alternatives: bool,
    warnings: bool = False,
    tags: bool = False,
    shortened: bool = False,
    excel: bool = False,
) -> None:
    """All rows with a caption, in order; whole or not at all.

    Args:
        excel: of CSV: begin with the mark by which Excel knows UTF-8, and let no cell look like a formula.

    Raises:
        MeshcapError: a suffix that is not known, no pyarrow for Parquet, or a system that refuses.
    """
    if path.suffix == ".jsonl":
        write = _jsonl
    elif path.suffix == ".csv":
        write = partial(_csv, excel=excel)
    elif path.suffix == ".parquet":
        write = _parquet
    else:
        raise MeshcapError(f"{path} ends in {path.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    columns = ["path", "caption", "confidence", *(["words", "log_probs"] if words else [])]
    columns += ["shortened"] if shortened else []
    columns += ["warning"] if warnings else []
    columns += ["tags"] if tags else []
    columns += ["alternatives"] if alternatives else []
    write_file(path, lambda part: write(part, _captioned(rows), columns))


def write_errors(path: Path, rows: Iterable[Row]) -> None:
    """The pictures with an error, and what it is. Without any there is no such file."""
    errors = [{"path": row["path"], "error": row["error"]} for row in rows if "error" in row]
    if errors:
        write_text(path, json_lines(errors), errors="surrogateescape")
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
            file.write(json_lines([row]))


def _csv(part: Path, rows: Iterator[Row], columns: list[str], excel: bool = False) -> None:
    with open(part, "w", encoding="utf-8-sig" if excel else "utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row.get(name), excel) for name in columns])


def _cell(value: Any, excel: bool) -> Any:
    """Lists as JSON: CSV has none of its own. An apostrophe says that what follows is text."""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return f"'{value}" if excel and isinstance(value, str) and value.startswith(FORMULA) else value


def read_table(path: Path) -> Iterator[Row]:
    """What `write_table` wrote, of a caption only the texts and numbers."""
    if path.suffix == ".parquet":
        with need_pyarrow(path).ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
        return
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        if path.suffix == ".jsonl":
            yield from map(json.loads, file)
            return
        for row in csv.DictReader(file):
            lists = {name: json.loads(row[name]) for name in ("tags", "alternatives") if row.get(name)}
            text = {
                name: row[name].removeprefix("'") if row[name][1:2] in FORMULA else row[name]
                for name in ("path", "caption")
            }
            yield {**row, **text, **lists, "confidence": float(row["confidence"])}


def write_shard_table(path: Path, rows: Iterable[Row], columns: Sequence[str], metadata: dict[str, Any]) -> None:
    """A row for each picture of a shard, also for one without a caption: Parquet, with JSON of what made it inside."""
    write_file(path, lambda part: _parquet(part, iter(rows), [*SHARD_COLUMNS, *columns], metadata))


def _parquet(part: Path, rows: Iterator[Row], columns: list[str], metadata: dict[str, Any] | None = None) -> None:
    parquet = need_pyarrow(part)
    import pyarrow as arrow

    kinds = {
        "key": arrow.string(),
        "path": arrow.string(),
        "model": arrow.string(),
        "weights_hash": arrow.string(),
        "caption": arrow.string(),
        "confidence": arrow.float32(),
        "words": arrow.list_(arrow.string()),
        "log_probs": arrow.list_(arrow.float32()),
        "shortened": arrow.bool_(),
        "warning": arrow.string(),
        "tags": arrow.list_(
            arrow.struct({"name": arrow.string(), "kind": arrow.string(), "probability": arrow.float32()})
        ),
        "alternatives": arrow.list_(arrow.struct({"caption": arrow.string(), "confidence": arrow.float32()})),
    }
    schema = arrow.schema([(name, kinds[name]) for name in columns])
    if metadata is not None:
        schema = schema.with_metadata({METADATA: json.dumps(metadata)})
    with parquet.ParquetWriter(part, schema, compression="zstd") as writer:
        while group := list(islice(rows, GROUP)):
            for row in group:  # Parquet's text is UTF-8, and a path need not be
                row[columns[0]] = row[columns[0]].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def json_lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True)
class Delivery:
    """What is written for each picture, and where."""

    sidecar: bool = False  # PICTURE.txt
    kinds: tuple[str, ...] = ()  # of descriptions inside pictures: exif, xmp, iptc
    folder: Path | None = None  # for texts and copies; None: beside the picture, and inside itself
    overwrite: bool = False  # texts and descriptions that are there
    shared: set[Path] = field(default_factory=set)  # paths of texts that several pictures would share

    def check(self, pictures: Sequence[Picture]) -> None:
        """Refuse now what could not be written later, and note which pictures share a text: a.jpg and a.png."""
        if self.sidecar:
            paths = Counter(self._path(picture).with_suffix(".txt") for picture in pictures)
            self.shared.update(path for path, count in paths.items() if count > 1)
        if not (self.sidecar or self.kinds) or self.folder is not None:
            return
        inside = next((picture for picture in pictures if picture.tar is not None), None)
        if inside is not None:
            raise MeshcapError(f"{inside.path} is inside a shard, which is not changed: give --out FOLDER")

    def __call__(self, pictures: Sequence[Picture], rows: Sequence[Row]) -> None:
        """Write what belongs to these pictures; what cannot be written becomes the `error` of its row."""
        if not (self.sidecar or self.kinds):
            return
        with ThreadPoolExecutor(THREADS) as pool:
            for row, error in zip(rows, pool.map(self._deliver, pictures, rows), strict=True):
                if error is not None:
                    row["error"] = error

    def state(self, pictures: Sequence[Picture], pages: Sequence[str] = ()) -> str:
        """Changes when anything does that was written beside pictures, into them or into pages, or is gone."""
        paths = [Path(page) for page in pages]
        for picture in pictures:
            own = self._path(picture)
            paths += [own] if self.kinds else []
            paths += [self._path(picture, ".xmp")] if "xmp" in self.kinds else []
            paths += [own.with_suffix(".txt"), self._path(picture, ".txt")] if self.sidecar else []
        digest = hashlib.blake2b(digest_size=16)
        for path in paths:
            try:
                about = os.stat(path)
                line = f"{path}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ctime_ns}\n"
            except OSError:
                line = f"{path}\0\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def remove_unfinished(self, pictures: Sequence[Picture]) -> None:
        """Delete files that a killed job was writing for these pictures, one listing for each folder."""
        if not (self.sidecar or self.kinds):
            return
        names: dict[Path, set[str]] = {}
        for picture in pictures:
            path = self._path(picture)
            real = Path(os.path.realpath(path))
            for one in (path, real, path.with_suffix(".txt"), self._path(picture, ".txt"), self._path(picture, ".xmp")):
                names.setdefault(one.parent, set()).add(one.name)
        for folder, own in names.items():
            for left in folder.glob(f".*{UNFINISHED}"):
                if left.name[1:].rsplit(".", 2)[0] in own:
                    with suppress(OSError):  # not ours to delete, then
                        left.unlink()

    def _deliver(self, picture: Picture, row: Row) -> str | None:
        if not row.get("caption"):
            return None
        problems = []
        keywords = [tag["name"] for tag in row.get("tags", ())]
        writers: list[Callable[[], None]] = [lambda: self._sidecar(picture, row["caption"])] if self.sidecar else []
        writers += [lambda: self._embed(picture, row["caption"], keywords)] if self.kinds else []
        for write in writers:
            try:
                write()
            except MeshcapError as error:
                problems.append(str(error))
            except Exception as error:  # nothing that a single picture holds may stop a job
                problems.append(f"{picture.path} cannot be written to: {type(error).__name__} {error}".strip())
        return "; ".join(problems) or None

    def _path(self, picture: Picture, suffix: str = "") -> Path:
        return Path(picture.path + suffix) if self.folder is None else picture.path_in(self.folder, suffix)

    def _sidecar(self, picture: Picture, text: str) -> None:
        """a.txt for a.jpg, as trainers of other models expect; a.jpg.txt where a.png is beside it."""
        path = self._path(picture).with_suffix(".txt")
        if path in self.shared:
            path = self._path(picture, ".txt")
        content = f"{text}\n".encode()
        try:
            existing = path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
        if existing is not None and existing != content and not self.overwrite:  # a person may have written it
            raise MeshcapError(f"{path} is there and says something else: --overwrite replaces it")
        if existing != content:
            write_output(path, content)

    def _embed(self, picture: Picture, text: str, keywords: Sequence[str]) -> None:
        source = picture.source()
        try:
            old = read_regular(picture.path) if source is None else source.read()
        except OSError as error:
            raise MeshcapError(f"{picture.path} cannot be read: {error.strerror or error}") from error
        new, problems = old, []
        for kind in self.kinds:
            try:
                if new.startswith(b"\xff\xd8"):
                    new = metadata.jpeg_with_description(new, text, kind, overwrite=self.overwrite, keywords=keywords)
                elif kind == "xmp" and new.startswith(metadata.PNG_SIGNATURE):
                    new = metadata.png_with_description(new, text, overwrite=self.overwrite, keywords=keywords)
                elif kind == "xmp":
                    self._xmp_file(picture, text, keywords)
                else:
                    raise MeshcapError(f"only JPEG takes {kind.upper()} here: use --write-xmp")
            except MeshcapError as error:
                problems.append(f"{picture.path} has no description: {error}")
        if self.folder is not None:
            write_output(self._path(picture), new)
        elif new != old:
            edit_bytes(Path(os.path.realpath(picture.path)), new)  # a link stays a link
        if problems:
            raise MeshcapError("; ".join(problems))

    def _xmp_file(self, picture: Picture, text: str, keywords: Sequence[str]) -> None:
        """a.webp.xmp beside a.webp, for formats that are not edited."""
        path = self._path(picture, ".xmp")
        try:
            old = path.read_bytes() if path.exists() else None
            packet = metadata.edited("xmp", old, text, self.overwrite, keywords)
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
        if packet is not None:
            write_output(path, packet)


def write_output(path: Path, content: bytes) -> None:
    """Write a file whole; folders are made where they are missing.

    Raises:
        MeshcapError: the system refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{path} cannot be written: {error.strerror or error}") from error
    write_bytes(path, content)
