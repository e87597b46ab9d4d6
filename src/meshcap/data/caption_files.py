"""Captions from files: candidates and references to score, and the layouts that the field keeps captions in.

COCO annotations and results, Karpathy's JSON, plain JSON, JSONL, CSV and TSV, any of them gzipped. What a file is, is
seen from what it holds; its name decides only between text formats. Ids are strings from here on, so that 42 in one
file and "42" in another are the same picture. Nothing is skipped silently: what does not fit is refused, or counted in
a warning.
"""

from __future__ import annotations

import csv
import io
import json
import os
import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from meshcap.errors import MeshcapError
from meshcap.files import read_text, why_not_json


@dataclass(frozen=True)
class ReferenceCaptions:
    """What a reference file says of its pictures, by the id that the candidates use."""

    captions: dict[str, list[str]]
    domains: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # the pictures' file names
    warnings: list[str] = field(default_factory=list)


def read_candidates(path: str | os.PathLike[str], *, split: str | None = None) -> dict[str, list[str]]:
    """The candidates of each picture, best first: one, or an n-best list.

    Raises:
        MeshcapError: a file in no known layout, or a picture that occurs twice.
    """
    candidates: dict[str, list[str]] = {}
    for picture in _chosen(path, split, must=False):
        if not picture.captions:  # no candidate, which is not an empty one; the picture will be missed
            continue
        if picture.id in candidates:
            raise MeshcapError(
                f"{path}: picture {short(picture.id)} has two candidates, expected one "
                "(an n-best list is written as one entry with a list of captions)"
            )
        candidates[picture.id] = picture.captions
    if not candidates:
        raise MeshcapError(f"{path} holds no captions, expected at least one")
    return candidates


def read_references(
    path: str | os.PathLike[str], *, split: str | None = None, like: Collection[str] = ()
) -> ReferenceCaptions:
    """The references of each picture.

    A file may know its pictures by several names (`cocoid`, `filename` and `imgid`; `id` and `file_name`). Those are
    taken under which all of the ids in `like` are found, or else the most of them.

    Args:
        split: of Karpathy's file, several joined by "+", or "all"; "test" by default.

    Raises:
        MeshcapError: a file in no known layout, a split that it does not have, or no references at all.
    """
    known: dict[str, CaptionEntry] = {}
    for picture in _chosen(path, split, must=True):
        if picture.id in known:
            known[picture.id].captions.extend(picture.captions)
        else:
            known[picture.id] = picture
    given = [picture for picture in known.values() if picture.captions]
    if not given:
        raise MeshcapError(f"{path} holds no captions, expected references")
    named = _by_name(path, given, set(like))
    warnings = []
    if len(given) < len(known):
        first = next(picture.id for picture in known.values() if not picture.captions)
        warnings.append(f"{len(known) - len(given):,} pictures of {path} have no captions (first: {short(first)})")
    files = ((id, _file_name(picture)) for id, picture in named.items())
    return ReferenceCaptions(
        {id: picture.captions for id, picture in named.items()},
        {id: picture.domain for id, picture in named.items() if picture.domain},
        {id: file for id, file in files if file},
        warnings,
    )


def read_training(path: str | os.PathLike[str]) -> list[str]:
    """All captions of a file, whatever picture they belong to; of Karpathy's, those of the training splits.

    Raises:
        MeshcapError: a file in no known layout, or without such captions.
    """
    given = (picture for picture in pictures(path) if picture.split in (None, "train", "restval"))
    captions = [caption for picture in given for caption in picture.captions]
    if not captions:
        raise MeshcapError(f"{path} holds no captions of a training split, expected training captions")
    return captions


def _chosen(path: str | os.PathLike[str], split: str | None, *, must: bool) -> list[CaptionEntry]:
    """The pictures of a file; of a file with splits, those of the split.

    Args:
        must: refuse a split asked of a file that has none.
    """
    given = list(pictures(path))
    splits = Counter(picture.split for picture in given if picture.split is not None)
    if not splits:
        if split and must:
            raise MeshcapError(f"{path} has no splits, expected Karpathy's JSON for --split {split}")
        return given
    wanted = set((split or "test").split("+"))
    if wanted == {"all"}:
        return given
    if missing := sorted(wanted - set(splits)):
        found = ", ".join(f"{name} ({count:,} pictures)" for name, count in splits.items())
        raise MeshcapError(f"{path} has no split {missing[0]!r}, expected one of {found}, or all")
    return [picture for picture in given if picture.split in wanted]


def _by_name(path: object, given: list[CaptionEntry], wanted: set[str]) -> dict[str, CaptionEntry]:
    best: dict[str, CaptionEntry] = {}
    most = -1
    for kind in given[0].names:
        named = {picture.names[kind]: picture for picture in given if kind in picture.names}
        if len(named) < len(given):  # a name that some lack or share names no picture
            continue
        hits = len(wanted & named.keys())
        if hits > most:
            best, most = named, hits
    if most < 0:
        raise MeshcapError(f"{path}: no name ({', '.join(given[0].names)}) is there once for every picture")
    return best


def _file_name(picture: CaptionEntry) -> str | None:
    return next((name for kind, name in picture.names.items() if kind in ("file", "filename", "file_name")), None)


# In the order of preference: where a record has several, "id" is often the caption's own number (COCO's is).
FILE_NAMES = (  # those that can only be a file's; "path" is what `meshcap batch` writes
    "image", "file", "filename", "file_name", "picture", "path", "image_path", "file_path", "img",
)  # fmt: skip
ID_NAMES = ("image_id", *FILE_NAMES, "cocoid", "imgid", "id")
CAPTION_NAMES = ("caption", "captions", "text", "sentence", "description")  # "text": Hugging Face's picture folders
NAMED = 10  # wrong records that are named
LAYOUTS = (
    "COCO annotations or results, Karpathy's JSON, {id: caption} or {id: [captions]}, "
    "or records with image_id (or image, file, id) and caption (or captions)"
)


@dataclass
class CaptionEntry:
    """A picture as one entry of a file describes it."""

    names: dict[str, str]  # kind of name -> name, the kind that the field uses first
    captions: list[str]
    domain: str | None = None  # nocaps'
    split: str | None = None  # Karpathy's
    column: str | None = None  # what a record says of its split; scores are not chosen by it
    folder: str | None = None  # Karpathy's filepath
    called: list[str] = field(default_factory=list)  # names of who or what is in it, for a memory

    @property
    def id(self) -> str:
        return next(iter(self.names.values()))


def pictures(path: str | os.PathLike[str], broken: list[str] | None = None) -> Iterator[CaptionEntry]:
    """The pictures of a caption file. The same picture may come again with another caption.

    Args:
        broken: takes what is wrong with records, which are then left out; without it they are refused, all at once.

    Raises:
        MeshcapError: the file is in no known layout, or records are broken.
    """
    text = read_text(path)
    kind = Path(Path(path).name.lower().removesuffix(".gz")).suffix
    if kind in (".csv", ".tsv"):
        return _of_table(path, text, "\t" if kind == ".tsv" else ",", broken)
    if kind in (".jsonl", ".ndjson"):
        return _of_records(path, _json_lines(path, text), "line", broken)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return _of_records(path, _json_lines(path, text), "line", broken)  # lines of JSON under another name
        header = text.split("\n", 1)[0]
        for mark in ("\t", ","):  # a table under another name, as Flickr's captions.txt
            if kind != ".json" and _columns(header.split(mark)):
                return _of_table(path, text, mark, broken)
        raise MeshcapError(f"{path} is not JSON ({why_not_json(error)}), expected {LAYOUTS}") from None
    return _of_json(path, data, text, broken)


def _of_json(path: object, data: object, text: str, broken: list[str] | None) -> Iterator[CaptionEntry]:
    if isinstance(data, list):
        return _of_records(path, enumerate(data, start=1), "entry", broken)
    if not isinstance(data, dict):
        raise MeshcapError(f"{path} holds a JSON {type(data).__name__}, expected {LAYOUTS}")
    images, annotations = data.get("images"), data.get("annotations")
    if _objects(annotations):
        return _of_coco(path, images if _objects(images) else [], annotations)
    if _objects(images):
        return _of_karpathy(path, images)
    if _columns(data):
        return _of_records(path, [(1, data)], "entry", broken)
    # json.loads keeps the last of two equal keys without a word.
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> None:
        counts = Counter(key for key, _ in found)
        twice[:] = [key for key, count in counts.items() if count > 1]

    json.loads(text, object_pairs_hook=pairs)  # the outermost object comes last
    if twice:
        raise MeshcapError(f"{path}: picture {short(twice[0])} is there twice, expected once")
    return _of_plain(path, data)


def _of_plain(path: object, data: dict[str, Any]) -> Iterator[CaptionEntry]:
    for id, value in data.items():
        captions = [value] if isinstance(value, str) else value
        if _objects(captions):  # {id: [{"caption": …}]}, as scripts around pycocoevalcap keep them
            captions = [caption.get("caption") for caption in captions]
        if not _strings(captions):
            raise MeshcapError(f"{path}: {short(id)} has {reprlib.repr(value)}, expected {LAYOUTS}")
        yield CaptionEntry({"id": _id(path, id, "a picture")}, list(captions))


def _of_coco(path: object, images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> Iterator[CaptionEntry]:
    known: dict[str, CaptionEntry] = {}
    for number, image in enumerate(images, start=1):
        id = _id(path, image.get("id"), f"image {number}")
        file, domain = image.get("file_name"), image.get("domain")
        names = {"id": id, "file_name": file} if isinstance(file, str) else {"id": id}
        known[id] = CaptionEntry(names, [], domain=domain if isinstance(domain, str) else None)
    more = []
    for number, annotation in enumerate(annotations, start=1):
        where = f"annotation {number}"
        id = _id(path, annotation.get("image_id"), where)
        caption = annotation.get("caption")
        if not isinstance(caption, str):
            raise MeshcapError(f"{path}: {where} has the caption {reprlib.repr(caption)}, expected a string")
        if images and id not in known:
            raise MeshcapError(f"{path}: {where} is of picture {short(id)}, which is not among its images")
        # A second caption is a picture of its own here: more references, but one candidate too many.
        if id in known and not known[id].captions:
            known[id].captions.append(caption)
        else:
            more.append(CaptionEntry({"id": id}, [caption]))
    yield from known.values()
    yield from more


def _of_karpathy(path: object, images: list[dict[str, Any]]) -> Iterator[CaptionEntry]:
    seen = set()
    for number, image in enumerate(images, start=1):
        where = f"image {number}"
        sentences, split = image.get("sentences"), image.get("split")
        if not _objects(sentences) or not isinstance(split, str):
            keys = ", ".join(map(str, image))
            raise MeshcapError(f"{path}: {where} has the keys {keys or '(none)'}, expected {LAYOUTS}")
        names: dict[str, str] = {}
        names |= {kind: _id(path, image[kind], where) for kind in ("cocoid", "filename", "imgid") if kind in image}
        captions = [sentence.get("raw") for sentence in sentences]
        if not names or not _strings(captions):
            raise MeshcapError(f"{path}: {where} lacks cocoid, filename and imgid, or a sentence lacks raw")
        folder = image.get("filepath")
        picture = CaptionEntry(names, captions, split=split, folder=folder if isinstance(folder, str) else None)
        if picture.id in seen:
            raise MeshcapError(f"{path}: picture {short(picture.id)} is there twice, expected once")
        seen.add(picture.id)
        yield picture


def _of_records(
    path: object, records: Iterable[tuple[int, object]], unit: str, broken: list[str] | None
) -> Iterator[CaptionEntry]:
    wrong: list[str] = []
    for number, record in records:
        try:
            if isinstance(record, MeshcapError):
                raise record
            entry = _of_record(path, f"{unit} {number}", record)
        except MeshcapError as error:
            wrong.append(str(error))
        else:
            yield entry
    _refuse(path, wrong, broken)


def _refuse(path: object, wrong: list[str], broken: list[str] | None) -> None:
    """Name what is wrong with the records of a file, all in one line, or hand it on."""
    if broken is not None:
        broken += wrong
    elif len(wrong) == 1:
        raise MeshcapError(wrong[0])
    elif wrong:
        short = [one.removeprefix(f"{path}: ").partition(", expected ")[0] for one in wrong[:NAMED]]
        more = f"; and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
        expected = wrong[0].partition(", expected ")[2]
        raise MeshcapError(f"{path}: {len(wrong):,} bad records: {'; '.join(short)}{more}, expected {expected}")


def _of_record(path: object, where: str, record: object) -> CaptionEntry:
    columns = _columns(record) if isinstance(record, dict) else None
    if not columns:
        if isinstance(record, dict):
            found = f"the keys {', '.join(map(str, record))}"
            raise MeshcapError(f"{path}: {where} has {found}, expected {LAYOUTS}{_rename(record)}")
        raise MeshcapError(f"{path}: {where} has {reprlib.repr(record)}, expected {LAYOUTS}")
    assert isinstance(record, dict)
    value = record[columns[1]]
    captions = [value] if isinstance(value, str) else value
    others = record.get("alternatives")  # what `meshcap caption --n` writes beside the best one
    if isinstance(captions, list) and _objects(others):
        captions = captions + [other.get("caption") for other in others]
    if not _strings(captions):
        raise MeshcapError(f"{path}: {where} has the caption {reprlib.repr(value)}, expected a string or strings")
    names = {columns[0]: _id(path, record[columns[0]], where)}
    split = record.get("split")
    column = split if isinstance(split, str) else None
    return CaptionEntry(names | _files(record), list(captions), column=column, called=_called(path, where, record))


def _rename(names: Collection[Any]) -> str:
    """What to do about columns of other names."""
    wanted = ["the one that names pictures to image"] if not any(name in names for name in ID_NAMES) else []
    wanted += ["the one with captions to caption"] if not any(name in names for name in CAPTION_NAMES) else []
    return f": rename {' and '.join(wanted)}" if wanted and names else ""


def _of_table(path: object, text: str, mark: str, broken: list[str] | None) -> Iterator[CaptionEntry]:
    wrong: list[str] = []
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        columns = _columns(header)
        if not columns:
            there = ", ".join(header) or "(none)"
            raise MeshcapError(
                f"{path} has the columns {there}, expected {LAYOUTS}{_rename(list(filter(None, header)))}"
            )
        places = [header.index(name) for name in columns]
        more = [name for name in (*FILE_NAMES, "split", "name", "names") if name in header]
        for row in rows:
            if not row:  # an empty line, as many editors leave at the end
                continue
            if len(row) != len(header):
                wrong.append(
                    f"{path}: line {rows.line_num} has {len(row)} fields and the header {len(header)}: "
                    "a caption with a separator in it must be in quotes"
                )
                continue
            try:
                id = _id(path, row[places[0]], f"line {rows.line_num}")
            except MeshcapError as error:
                wrong.append(str(error))
                continue
            given = {name: row[header.index(name)] for name in more}
            called = [name for key in ("name", "names") for name in given.get(key, "").split(";") if name.strip()]
            names = {columns[0]: id} | _files(given)
            yield CaptionEntry(names, [row[places[1]]], column=given.get("split"), called=called)
    except csv.Error as error:  # where a record ends is not known from here on
        raise MeshcapError(f"{path}: line {rows.line_num} is not CSV ({error})") from None
    _refuse(path, wrong, broken)


def _called(path: object, where: str, record: dict[str, Any]) -> list[str]:
    value = record.get("names", record.get("name"))
    names = [value] if isinstance(value, str) else [] if value is None else value
    if not _strings(names):
        raise MeshcapError(f"{path}: {where} has the names {reprlib.repr(value)}, expected a string or strings")
    return names


def _json_lines(path: object, text: str) -> Iterator[tuple[int, object]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = why_not_json(error)
            yield number, MeshcapError(f"{path}: line {number} is not JSON ({reason}), expected a record a line")


def _id(path: object, value: object, where: str) -> str:
    if isinstance(value, float) and value.is_integer():  # what a table with a missing value makes of whole numbers
        value = int(value)
    if isinstance(value, str) and value.strip() and _is_text(value):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise MeshcapError(f"{path}: {where} has the id {reprlib.repr(value)}, expected a number or a name")


def _columns(names: Collection[str]) -> tuple[str, str] | None:
    """Which of the names are the picture's and the caption's."""
    id = next((name for name in ID_NAMES if name in names), None)
    caption = next((name for name in CAPTION_NAMES if name in names), None)
    return (id, caption) if id and caption else None


def _files(record: dict[str, Any]) -> dict[str, str]:
    """The names of files beside an id: a second way to know the picture, and where to find it."""
    names = ((name, record.get(name)) for name in FILE_NAMES)
    return {name: value.strip() for name, value in names if isinstance(value, str) and value.strip()}


def _objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) and _is_text(item) for item in value)


def _is_text(value: str) -> bool:
    """JSON can hold halves of letters ("\\ud800"), which nothing can print or write."""
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def short(id: str) -> str:
    return reprlib.repr(id)
