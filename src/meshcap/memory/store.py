"""The long-term memory: pictures that people showed, as vectors, with what they said of them.

A store is a folder:

    store.json       version, the vision that made the vectors, their width, the generation of the files below
    entries-G.log    what was said: one frame an entry, only ever appended to
    vectors-G.i8     the vectors: D bytes an entry, in the same order
    end-G            how far both were written when `add` last returned: what is missing before that is lost
    index-G.usearch  where the engine is usearch: made of the vectors by `build_index`
    lock             held by the process that is writing

A frame is a header (mark, length, checksum, entry's number, row of its vector, the vector's checksum) and JSON. Vectors
are written and flushed before the frames that name them, and an entry counts when its frame is whole: what `add`
returned survives a kill at any moment. A frame that is damaged is skipped, and reading goes on at the next mark.
Forgetting writes the files again without the entry and changes the generation by replacing `store.json`.
Readers need no lock: they see whole frames only, and look for more at each search.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from meshcap.errors import MeshcapError
from meshcap.files import open_regular, read_json, remove_unfinished, write_file, write_text
from meshcap.memory.search import Index, Query, UsearchIndex, nearest_rows, need_usearch, norms_of, quantize

VERSION = 1
SETTINGS = "store.json"
MARK = b"\xf1mem"  # no UTF-8 text has this first byte
FRAME = struct.Struct("<4sIIQQI")  # mark, length of the JSON, checksum of all that follows, id, row, vector's checksum
MOST_BYTES = 1 << 20  # of one entry
MOST_NUMBER, MOST_WIDTH = 1 << 48, 1 << 16  # of an id, a generation, a row; numbers of a vector
MOST_LOST = 10_000  # rows beyond those that files have room for
MOST_HOLES = 100_000  # marks in a log that are no frames: with more it is no log that was damaged by accident
MOST_CAPTIONS, LONGEST = 100, 2000  # captions of an entry, and letters of one
YEAR_10000 = 253_402_300_800.0  # in seconds since 1970
END = struct.Struct("<QQQ")  # bytes of the log, rows, largest id
PATIENCE = 30.0  # seconds that a writer waits for another
MOST_NAMES = 100_000  # that are known by more than their nearest picture
NAMED = b'"names":["'  # in the JSON of an entry that has some
NOT_INDEXED = 20_000  # rows outside of an index, or a tenth of those in it, that are worth making it again

EngineName = Literal["exact", "usearch"]


@dataclass(frozen=True)
class Entry:
    """What is remembered of a picture."""

    captions: tuple[str, ...]
    names: tuple[str, ...] = ()  # of who or what is in it
    source: str | None = None  # where the picture was: a path, or whatever its owner knows it by
    time: float | None = None  # seconds since 1970
    id: int = -1  # given by the store

    def checked(self) -> Entry:
        """Without spaces around texts.

        Raises:
            MeshcapError: no caption, too much text, text that UTF-8 cannot hold, a time that is none.
        """
        captions, names = _texts(self.captions, "captions"), _texts(self.names, "names")
        if not captions:
            raise MeshcapError("an empty caption was given: expected what to remember of the picture")
        moment = time.time() if self.time is None else self.time
        if not abs(moment) < YEAR_10000:
            raise MeshcapError(f"the time is {moment}, expected seconds since 1970")
        _expect_text(self.source or "", "the source", "surrogateescape")  # a path need not be UTF-8
        return replace(self, captions=captions, names=names, time=moment)


def _texts(given: Iterable[str], kind: str) -> tuple[str, ...]:
    if isinstance(given, str):
        given = (given,)
    texts = tuple(text for one in given if (text := " ".join(one.split())))
    if len(texts) > MOST_CAPTIONS or any(len(one) > LONGEST for one in texts):
        raise MeshcapError(f"{kind} are too many or too long: expected {MOST_CAPTIONS} of up to {LONGEST:,} letters")
    for one in texts:
        _expect_text(one, f"one of the {kind}")
    return texts


def _expect_text(text: str, what: str, errors: str = "strict") -> None:
    """What is no text could be stored, and no answer could hold it."""
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise MeshcapError(f"{what} is {text[:40]!a}, which UTF-8 cannot hold: expected text") from None


@dataclass(frozen=True)
class Neighbour:
    """An entry that is near to a picture."""

    similarity: float  # cosine of the two vectors, 1 for the same picture
    captions: tuple[str, ...]
    names: tuple[str, ...]
    id: int
    source: str | None = None
    time: float | None = None

    @classmethod
    def of(cls, similarity: float, entry: Entry) -> Neighbour:
        return cls(similarity, entry.captions, entry.names, entry.id, entry.source, entry.time)


class Likenesses:
    """What pictures of one name have in common: the mean direction of those that have it.

    What is around somebody changes from picture to picture and averages out: a picture of them is nearer to the mean
    than to most of the pictures themselves, and a stranger's is not.
    """

    def __init__(self, width: int):
        self.places: dict[str, int] = {}
        self._sums = np.empty((0, width), np.float32)
        self._means: np.ndarray | None = None

    def add(self, names: Iterable[str], row: np.ndarray) -> None:
        """A picture's vector (D,) for each of its names."""
        direction = row.astype(np.float32)
        direction /= np.linalg.norm(direction)
        for name in names:
            if name not in self.places:
                if len(self.places) == MOST_NAMES:
                    continue
                self.places[name] = len(self.places)
                if len(self.places) > len(self._sums):
                    more = np.zeros((max(16, len(self._sums)), row.size), np.float32)
                    self._sums = np.concatenate((self._sums, more))
            self._sums[self.places[name]] += direction
        self._means = None

    def nearest(self, vectors: np.ndarray, k: int) -> list[list[tuple[str, float]]]:
        """The k names most like each vector (B, D), with cosines, the most similar first."""
        if self._means is None:
            sums = self._sums[: len(self.places)]
            self._means = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
        names, lengths = list(self.places), np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ self._means.T / np.maximum(lengths, 1e-9)
        best = np.argsort(-cosines, 1, kind="stable")[:, :k]
        return [
            [(names[place], float(row[place])) for place in places.tolist()]
            for row, places in zip(cosines, best, strict=True)
        ]


class Store(ABC):
    """What a captioner needs of a memory, whatever keeps it."""

    vision: str  # the fingerprint of the vision that made the vectors
    width: int

    @abstractmethod
    def __len__(self) -> int:
        """How many entries there are."""

    @abstractmethod
    def add(self, vectors: Any, entries: Sequence[Entry]) -> list[int]:
        """Remember entries with their vectors (n, D); returns their ids. When it returns, they are on the disk.

        Raises:
            MeshcapError: an empty caption, vectors that do not fit, no room, or another writer that does not end.
        """

    @abstractmethod
    def nearest(self, vectors: Any, k: int) -> list[list[Neighbour]]:
        """The k entries nearest to each vector (B, D), nearest first; fewer where there are fewer."""

    @abstractmethod
    def named(self, vectors: Any, k: int) -> list[list[tuple[str, float]]]:
        """The k names most like each vector (B, D), with cosines, the most similar first: see `Likenesses`."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first."""

    @abstractmethod
    def forget(self, ids: Collection[int]) -> int:
        """Remove entries and every byte of them; returns how many there were."""

    def some(self, most: int) -> list[Entry]:
        """So many of the entries, evenly from all."""
        return evenly(list(self.entries()), most)

    @property
    def warnings(self) -> list[str]:
        """What was found damaged, a line each."""
        return []

    def find(self, text: str, limit: int = 10) -> list[Entry]:
        """Entries whose captions or names have all words of a text, the newest first."""
        words = text.casefold().split()
        found = [one for one in self.entries() if _says(one, words)]
        return found[: -limit - 1 : -1]

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return "in this process"

    def expect_vision(self, vision: str) -> None:
        """
        Raises:
            MeshcapError: another vision made the vectors.
        """
        if vision != self.vision:
            raise MeshcapError(
                f"the memory {self.place} was made with another model's vision, whose vectors mean something else: "
                f"rebuild it with `meshcap remember {self.place} --memory NEW`, or use the model that made it"
            )

    def _checked(self, vectors: Any) -> np.ndarray:
        found = np.asarray(vectors.float().cpu() if hasattr(vectors, "cpu") else vectors, np.float32)
        if found.ndim != 2 or found.shape[1] != self.width:
            raise MeshcapError(f"vectors have shape {found.shape}, this memory expects (pictures, {self.width})")
        return found

    def _checked_entries(self, vectors: Any, entries: Sequence[Entry]) -> tuple[np.ndarray, list[Entry]]:
        found = self._checked(vectors)
        if len(found) != len(entries):
            raise MeshcapError(f"{len(found)} vectors for {len(entries)} entries, expected one each")
        return quantize(found), [one.checked() for one in entries]


def _says(entry: Entry, words: list[str]) -> bool:
    said = " ".join((*entry.captions, *entry.names)).casefold()
    return all(word in said for word in words)


T = TypeVar("T")


def evenly(given: Sequence[T], most: int) -> list[T]:
    count = min(most, len(given))
    return [given[at * len(given) // count] for at in range(count)]


def expect_k(k: int) -> None:
    if k < 1:
        raise MeshcapError(f"k is {k}, expected 1 or more neighbours")


class RamStore(Store):
    """A memory that ends with the process."""

    def __init__(self, vision: str = "", width: int = 0):
        self.vision, self.width = vision, width
        self._rows = np.empty((0, width), np.int8)
        self._norms = np.empty(0, np.float32)
        self._entries: list[Entry] = []
        self._likenesses: Likenesses | None = None
        self._next = 1

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, vectors: Any, entries: Sequence[Entry]) -> list[int]:
        rows, checked = self._checked_entries(vectors, entries)
        ids = list(range(self._next, self._next + len(checked)))
        self._next += len(ids)
        self._rows = np.concatenate((self._rows, rows))
        self._norms = np.concatenate((self._norms, norms_of(rows)))
        self._entries += [replace(one, id=id) for id, one in zip(ids, checked, strict=True)]
        self._likenesses = None
        return ids

    def nearest(self, vectors: Any, k: int) -> list[list[Neighbour]]:
        expect_k(k)
        places, similar = nearest_rows(Query(self._checked(vectors)), self._rows, self._norms, k)
        return [
            [Neighbour.of(float(one), self._entries[place]) for place, one in zip(*row, strict=True)]
            for row in zip(places, similar, strict=True)
        ]

    def named(self, vectors: Any, k: int) -> list[list[tuple[str, float]]]:
        expect_k(k)
        if self._likenesses is None:
            known = Likenesses(self.width)
            for entry, row in zip(self._entries, self._rows, strict=True):
                known.add(entry.names, row)
            self._likenesses = known
        return self._likenesses.nearest(self._checked(vectors), k)

    def entries(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def forget(self, ids: Collection[int]) -> int:
        kept = [place for place, one in enumerate(self._entries) if one.id not in ids]
        gone = len(self._entries) - len(kept)
        self._rows, self._norms = self._rows[kept], self._norms[kept]
        self._entries = [self._entries[place] for place in kept]
        self._likenesses = None
        return gone


class StoreSettings(NamedTuple):
    """What `store.json` says."""

    vision: str
    width: int
    engine: EngineName
    generation: int
    next_id: int  # no entry before this generation had it or a larger one

    def text(self) -> str:
        return json.dumps({"version": VERSION, **self._asdict()}, indent=2) + "\n"

    @classmethod
    def read(cls, folder: Path) -> StoreSettings:
        path = folder / SETTINGS
        if not path.is_file():
            raise MeshcapError(f"{folder} is no memory: expected a folder that `meshcap remember` made")
        found = read_json(path)
        version = found.get("version") if isinstance(found, dict) else None
        if version != VERSION:
            raise MeshcapError(f"{path} is of version {version!r}, this meshcap reads version {VERSION}: update it")
        right = {
            "vision": lambda one: isinstance(one, str),
            "width": lambda one: type(one) is int and 0 < one <= MOST_WIDTH,
            "engine": lambda one: isinstance(one, str) and one in get_args(EngineName),
            "generation": lambda one: type(one) is int and 0 <= one < MOST_NUMBER,
            "next_id": lambda one: type(one) is int and 0 <= one < MOST_NUMBER,
        }
        for name, fits in right.items():
            if name not in found:
                raise MeshcapError(f"{path} lacks {name!r}: it is damaged")
            if not fits(found[name]):
                raise MeshcapError(f"{path} has the {name} {str(found[name])[:40]!r}: it is damaged")
        return cls(**{name: found[name] for name in cls._fields})


class _Snapshot(NamedTuple):
    """What a process knows of a store at one moment. Rows that are there never change."""

    settings: StoreSettings
    seen: tuple[Any, ...]  # identities of store.json and of the index
    size: int  # of the log, as far as it was read
    touched: int  # when the log was written to, in nanoseconds
    end: int  # of its last whole frame
    log: mmap.mmap | None
    offsets: np.ndarray  # (rows,) of frames; -1: damaged
    vectors: np.ndarray  # (rows, D) int8, mapped; fewer rows where the file was cut
    norms: np.ndarray  # of the vectors; infinite: damaged
    last_id: int
    skipped: int  # bytes between whole frames
    written: tuple[int, int, int]  # what the file end-G says
    graph: Index | None

    @property
    def rows(self) -> int:
        return len(self.offsets)


class FolderStore(Store):
    """A memory in a folder. Any number of threads and processes may read it while others add; those take turns."""

    def __init__(self, folder: str | Path):
        """
        Raises:
            MeshcapError: no memory is there, or one of another version.
        """
        self.folder = Path(folder)
        self._lock = threading.RLock()
        self._now = self._open()
        self._known: tuple[tuple[Any, ...], int, Likenesses] = self._now.seen, 0, Likenesses(self.width)

    @classmethod
    def create(cls, folder: str | Path, *, vision: str, width: int, engine: EngineName = "exact") -> FolderStore:
        """An empty memory in a new or empty folder; one that is there already is opened.

        Raises:
            MeshcapError: the folder holds something else or cannot be made, or the engine is not installed.
        """
        place = Path(folder)
        if engine == "usearch":
            need_usearch()
        try:
            place.mkdir(parents=True, exist_ok=True)
            others = [one.name for one in place.iterdir() if one.name != "lock" and not one.name.endswith(".part")]
        except OSError as error:
            raise MeshcapError(f"{folder} cannot be made a memory: {error.strerror or error}") from error
        if SETTINGS not in others:
            if others:
                raise MeshcapError(f"{folder} holds other files ({others[0]}): choose another folder for the memory")
            with _writing(place):
                if not (place / SETTINGS).exists():
                    write_text(place / SETTINGS, StoreSettings(vision, width, engine, 1, 1).text())
                    _flush_folder(place)
        return cls(place)

    @property
    def settings(self) -> StoreSettings:
        return self._now.settings

    @property
    def place(self) -> str:
        return str(self.folder)

    @property
    def vision(self) -> str:  # type: ignore[override]
        return self._now.settings.vision

    @property
    def width(self) -> int:  # type: ignore[override]
        return self._now.settings.width

    def __len__(self) -> int:
        return int(np.count_nonzero(self._refresh().offsets >= 0))

    def __repr__(self) -> str:
        return f"FolderStore({str(self.folder)!r}, {len(self):,} entries)"

    def __reduce__(self) -> Any:
        """For worker processes: they open the folder themselves."""
        return FolderStore, (os.path.abspath(self.folder),)

    # Reading.

    def nearest(self, vectors: Any, k: int) -> list[list[Neighbour]]:
        expect_k(k)
        query = Query(self._checked(vectors))
        while True:
            now = self._refresh()
            places, similar = nearest_rows(query, now.vectors, now.norms, k, now.graph)
            read = {row: self._entry(now, row) for row in np.unique(places[similar > -np.inf]).tolist()}
            near = [
                [(read[row], cosine) for row, cosine in zip(*pair, strict=True) if row in read]
                for pair in zip(places.tolist(), similar.tolist(), strict=True)
            ]
            if None not in read.values():
                return [[Neighbour.of(cosine, entry) for entry, cosine in one if entry is not None] for one in near]
            # a damaged one was met: it counts as lost from now on, and others take its place

    def named(self, vectors: Any, k: int) -> list[list[tuple[str, float]]]:
        expect_k(k)
        given = self._checked(vectors)
        with self._lock:  # what is known grows with the store, from the bytes that it had when it was last asked
            now = self._refresh()
            seen, end, known = self._known
            if seen != now.seen or end > now.end:
                end, known = 0, Likenesses(self.width)
            for row in self._named_rows(now, end):
                entry = self._entry(now, row)
                if entry is not None:
                    known.add(entry.names, now.vectors[row])
            self._known = now.seen, now.end, known
            return known.nearest(given, k)

    @staticmethod
    def _named_rows(now: _Snapshot, start: int) -> Iterator[int]:
        """Rows of entries with names whose frames begin at an offset or later."""
        rows = np.flatnonzero(now.offsets >= start)
        rows = rows[np.argsort(now.offsets[rows])]
        offsets = now.offsets[rows]
        at = start
        while now.log is not None and (at := now.log.find(NAMED, at)) >= 0:
            place = int(np.searchsorted(offsets, at, "right"))
            if place:
                yield int(rows[place - 1])
            if place == len(rows):
                return
            at = int(offsets[place])

    def entries(self) -> Iterator[Entry]:
        now = self._refresh()
        for row in np.flatnonzero(now.offsets >= 0).tolist():
            entry = self._read(now, row)[0]
            if entry is not None:
                yield entry

    def some(self, most: int) -> list[Entry]:
        now = self._refresh()
        rows = evenly(np.flatnonzero(now.offsets >= 0).tolist(), most)
        return [entry for row in rows if (entry := self._read(now, row)[0]) is not None]

    def find(self, text: str, limit: int = 10) -> list[Entry]:
        now, words = self._refresh(), text.casefold().split()
        written = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
        found: list[Entry] = []
        for row in np.flatnonzero(now.offsets >= 0)[::-1].tolist():
            if len(found) >= limit:
                break
            said = self._bytes(now, row).decode("utf-8", "replace").casefold()
            if all(word in said for word in written):  # most are left out before their JSON is parsed
                entry = self._read(now, row)[0]
                found += [entry] if entry is not None and _says(entry, words) else []
        return found

    def check(self) -> list[str]:
        """Read everything; returns what is lost, a line each."""
        now = self._refresh()
        for row in np.flatnonzero(now.offsets >= 0).tolist():
            self._entry(now, row)
        return self.warnings

    @property
    def warnings(self) -> list[str]:
        now = self._refresh()
        lost = max(now.rows, now.written[1]) - int((now.offsets >= 0).sum())
        if not lost and not now.skipped:
            return []
        what = f"{lost:,} of its entries {'is' if lost == 1 else 'are'} lost" if lost else "none of its entries is lost"
        return [f"the memory {self.folder} is damaged: {what}, {len(self):,} are kept"]

    def _refresh(self, *, sure: bool = False) -> _Snapshot:
        """What is there now: entries that were added since, another generation, or another index.

        Args:
            sure: whoever is about to write, or has written, reads an end that was no frame again: a new frame may have
                taken its place that is as long, within the time that a file system tells apart.
        """
        with self._lock:
            now = self._now
            if self._seen(now.settings) != now.seen:
                self._now = self._open()
            else:
                size, touched = _state(self._path("entries"))
                if size != now.size or (now.end < size and (sure or touched != now.touched)):
                    self._now = self._extend(now)
            return self._now

    def _open(self) -> _Snapshot:
        for _ in range(100):
            settings = StoreSettings.read(self.folder)
            seen = self._seen(settings)
            index: Index | None = None
            path = self._path("index", settings.generation)
            if settings.engine == "usearch" and path.is_file():
                with contextlib.suppress(MeshcapError):  # damaged or not installed: rows are compared one by one
                    index = UsearchIndex(path, settings.width)
            nothing = np.empty(0, np.int64), np.empty((0, settings.width), np.int8), np.empty(0, np.float32)
            try:
                now = self._extend(_Snapshot(settings, seen, 0, 0, 0, None, *nothing, 0, 0, (0, 0, 0), index))
            except FileNotFoundError:
                continue  # forgotten in the meantime
            if self._seen(StoreSettings.read(self.folder)) == seen:
                return now
        raise MeshcapError(f"{self.folder} changes faster than it can be read")

    def _seen(self, settings: StoreSettings) -> tuple[Any, ...]:
        index = self._path("index", settings.generation) if settings.engine == "usearch" else None
        return _identity(self.folder / SETTINGS), None if index is None else _identity(index)

    def _path(self, kind: Literal["entries", "vectors", "end", "index"], generation: int | None = None) -> Path:
        suffix = {"entries": ".log", "vectors": ".i8", "end": "", "index": ".usearch"}[kind]
        return self.folder / f"{kind}-{self._now.settings.generation if generation is None else generation}{suffix}"

    def _extend(self, now: _Snapshot) -> _Snapshot:
        """With the frames after those that are known."""
        generation, width = now.settings.generation, now.settings.width
        written = _read_end(self._path("end", generation))  # before the log, which may grow in the meantime
        path = self._path("entries", generation)
        size, touched = _state(path)
        if size < now.size:  # a torn end was cut off, or the file is being damaged: from the beginning
            nothing = np.empty(0, np.int64), np.empty((0, width), np.int8), np.empty(0, np.float32)
            now = now._replace(end=0, offsets=nothing[0], vectors=nothing[1], norms=nothing[2], last_id=0, skipped=0)
        now = now._replace(size=size, touched=touched, written=written)
        if size <= now.end:
            return now
        try:
            with open_regular(path) as file:
                log = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise MeshcapError(f"{path} cannot be read: {error}") from error
        now = now._replace(log=log)
        vectors_path = self._path("vectors", generation)
        there = _size(vectors_path) // width
        try:
            # A hole in a file takes no room: rows that are only promised are not believed.
            found = _frames(log, now.end, MOST_LOST + max(size // FRAME.size, _taken(vectors_path) // width))
        except MeshcapError as error:
            raise MeshcapError(f"{path} {error}") from None
        if not found:
            return now
        numbers = np.array([one[:3] for one in found], np.int64)
        rows = max(now.rows, int(numbers[:, 1].max()) + 1)
        offsets = np.full(rows, -1, np.int64)
        offsets[: now.rows] = now.offsets
        offsets[numbers[:, 1]] = numbers[:, 0]
        there = min(rows, there)
        offsets[there:] = -1  # the file of vectors was cut
        vectors: np.ndarray = np.empty((0, width), np.int8)
        if there:
            # "c": torch wants memory that it could write to; nothing is written
            try:
                vectors = np.memmap(vectors_path, np.int8, "c", shape=(there, width))
            except (OSError, ValueError) as error:
                raise MeshcapError(f"{vectors_path} cannot be read: {error}") from error
        known = now.norms[:there]
        norms = np.concatenate((known, norms_of(vectors[len(known) :])))
        norms[offsets[:there] < 0] = np.inf
        offsets[:there][np.isinf(norms)] = -1  # no vector is all zeros: a hole in the file
        end, skipped = found[-1][3], now.skipped + found[-1][4]
        last_id = max(now.last_id, int(numbers[:, 2].max()))
        return now._replace(end=end, offsets=offsets, vectors=vectors, norms=norms, last_id=last_id, skipped=skipped)

    def _read(self, now: _Snapshot, row: int) -> tuple[Entry | None, int]:
        """An entry, None where it says nothing that `add` would have written, and the checksum of its vector."""
        assert now.log is not None
        _, _, _, id, _, checksum = FRAME.unpack_from(now.log, int(now.offsets[row]))
        return _said(self._bytes(now, row), id), checksum

    def _bytes(self, now: _Snapshot, row: int) -> bytes:
        """The JSON of an entry."""
        assert now.log is not None
        offset = int(now.offsets[row])
        length = FRAME.unpack_from(now.log, offset)[1]
        return now.log[offset + FRAME.size : offset + FRAME.size + length]

    def _entry(self, now: _Snapshot, row: int) -> Entry | None:
        """An entry whose vector is whole; one that is not is lost from now on."""
        if now.offsets[row] < 0:
            return None
        entry, checksum = self._read(now, row)
        if entry is not None and zlib.crc32(now.vectors[row].tobytes()) == checksum:
            return entry
        now.offsets[row], now.norms[row] = -1, np.inf
        return None

    # Writing.

    def add(self, vectors: Any, entries: Sequence[Entry]) -> list[int]:
        rows, checked = self._checked_entries(vectors, entries)
        if not checked:
            return []
        with self._lock, _writing(self.folder):
            now = self._refresh(sure=True)
            first = max(now.rows, now.written[1])
            next_id = max(now.last_id + 1, now.written[2] + 1, now.settings.next_id)
            ids = list(range(next_id, next_id + len(checked)))
            frames = b"".join(
                _frame(replace(one, id=id), first + place, zlib.crc32(rows[place].tobytes()))
                for place, (id, one) in enumerate(zip(ids, checked, strict=True))
            )
            _append(self._path("vectors"), first * now.settings.width, rows.tobytes())
            _append(self._path("entries"), now.end, frames)
            if not now.end:
                _flush_folder(self.folder)
            # Only a hint, for telling what is lost: not worth waiting for the disk.
            _write_end(self._path("end"), now.end + len(frames), first + len(checked), ids[-1])
            self._refresh(sure=True)
        return ids

    def forget(self, ids: Collection[int]) -> int:
        """Remove entries and every byte of them; returns how many there were. What was damaged goes as well."""
        unwanted = set(ids)
        with self._lock, _writing(self.folder):
            now = self._refresh(sure=True)
            kept, gone = [], 0
            for row in np.flatnonzero(now.offsets >= 0).tolist():
                entry, checksum = self._read(now, row)
                if entry is not None and entry.id in unwanted:
                    gone += 1
                elif entry is not None and zlib.crc32(now.vectors[row].tobytes()) == checksum:
                    kept.append(row)
            if gone:
                self._rewrite(now, kept)
        return gone

    def _rewrite(self, now: _Snapshot, kept: list[int]) -> None:
        """The files of the next generation, with some of the rows."""
        generation = now.settings.generation + 1

        def vectors(part: Path) -> None:
            with open(part, "wb") as file:
                for start in range(0, len(kept), 4096):
                    file.write(now.vectors[kept[start : start + 4096]].tobytes())

        def entries(part: Path) -> None:
            with open(part, "wb") as file:
                for place, row in enumerate(kept):
                    entry, checksum = self._read(now, row)
                    assert entry is not None
                    file.write(_frame(entry, place, checksum))

        try:
            write_file(self._path("vectors", generation), vectors)
            write_file(self._path("entries", generation), entries)
            size = _size(self._path("entries", generation))
            _write_end(self._path("end", generation), size, len(kept), now.last_id)
            _flush_folder(self.folder)
            settings = now.settings._replace(generation=generation, next_id=now.last_id + 1)
            write_text(self.folder / SETTINGS, settings.text())
            _flush_folder(self.folder)
        except BaseException:
            if StoreSettings.read(self.folder).generation != generation:
                for kind in ("entries", "vectors", "end"):
                    self._path(kind, generation).unlink(missing_ok=True)
            raise
        self._now = self._open()
        self._remove_old()

    def build_index(self, *, always: bool = False, progress: Callable[[int], Any] | None = None) -> bool:
        """Add what is missing to the index of the engine usearch, where enough rows are; whether it was done.

        Others read and write meanwhile.
        """
        if self.settings.engine != "usearch":
            return False
        now = self._refresh()
        covered = 0 if now.graph is None else now.graph.covered
        if not now.rows or (not always and now.rows - covered < max(NOT_INDEXED, covered // 10)):
            return False
        path = self._path("index", now.settings.generation)
        write = UsearchIndex.build(now.vectors, path if covered else None, progress=progress)
        with self._lock, _writing(self.folder):
            if self._refresh().settings.generation != now.settings.generation:
                return False  # something was forgotten, and may be in it
            write_file(path, write)
            self._refresh()
        return True

    def _remove_old(self) -> None:
        """Delete what other generations and killed writers left."""
        remove_unfinished(self.folder)
        mark = f"-{self._now.settings.generation}"
        for kind in ("entries", "vectors", "end", "index"):
            for path in self.folder.glob(f"{kind}-*"):
                if not path.stem.endswith(mark):
                    with contextlib.suppress(PermissionError):  # Windows: a reader has it open; the next writer does it
                        path.unlink(missing_ok=True)


def _frame(entry: Entry, row: int, checksum: int) -> bytes:
    said = {"captions": entry.captions, "names": entry.names, "source": entry.source, "time": entry.time}
    payload = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(payload) > MOST_BYTES:
        raise MeshcapError(f"an entry takes {len(payload):,} bytes, expected at most {MOST_BYTES:,}")
    rest = struct.pack("<QQI", entry.id, row, checksum)
    return FRAME.pack(MARK, len(payload), zlib.crc32(payload, zlib.crc32(rest)), entry.id, row, checksum) + payload


def _said(content: bytes, id: int) -> Entry | None:
    """The entry that the JSON of a frame says; None: a checksum that fits, and something else in it."""
    try:
        said = json.loads(content)
        captions, names, source, moment = said["captions"], said["names"], said["source"], said["time"]
        if not (isinstance(captions, list) and isinstance(names, list) and isinstance(source, str | None)):
            return None
        return Entry(tuple(captions), tuple(names), source, None if moment is None else float(moment), id).checked()
    except (MeshcapError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _frames(log: mmap.mmap, start: int, rows: int) -> list[tuple[int, int, int, int, int]]:
    """Whole frames from an offset on: each one's offset, row, id, its end, and the bytes skipped before its end.

    Raises:
        MeshcapError: so much of the log is no frame that looking for the next one would take for ever.
    """
    found = []
    size, at, skipped, holes, vain = len(log), start, 0, 0, 0
    while True:
        end = 0
        if at + FRAME.size <= size:
            mark, length, checksum, id, row, _ = FRAME.unpack_from(log, at)
            body = at + FRAME.size + length
            if mark == MARK and length <= MOST_BYTES and body <= size and row < rows and id < MOST_NUMBER:
                vain += body - at
                if zlib.crc32(log[at + 12 : body]) == checksum:
                    end, vain = body, vain - (body - at)
        if end:
            found.append((at, row, id, end, skipped))
            at = end
            continue
        holes += 1
        if holes > MOST_HOLES or vain > size + 256 * MOST_BYTES:
            raise MeshcapError("is damaged in too many places: what is lost cannot be told from what is whole")
        following = log.find(MARK, at + 1)
        if following < 0:
            return found
        skipped += following - at
        at = following


# Never through a link that somebody put there, nor waiting for the other end of a pipe.
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def _append(path: Path, at: int, content: bytes) -> None:
    """Write at the end that is known to be good, and wait for the disk; on failure the file is as it was.

    Raises:
        MeshcapError: the system refuses (no room, no right).
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o666)
        try:
            if os.fstat(file).st_size > at:  # what a killed writer left
                os.ftruncate(file, at)
            os.lseek(file, at, os.SEEK_SET)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(file, rest) :]
                os.fsync(file)
            except BaseException:
                os.ftruncate(file, at)
                raise
        finally:
            os.close(file)
    except OSError as error:
        raise MeshcapError(f"{path} cannot be written: {error.strerror or error}; nothing was added") from error


def _write_end(path: Path, end: int, rows: int, last_id: int) -> None:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | _PLAIN, 0o666)
        try:
            numbers = END.pack(end, rows, last_id)
            os.write(file, numbers + struct.pack("<I", zlib.crc32(numbers)))
        finally:
            os.close(file)


def _read_end(path: Path) -> tuple[int, int, int]:
    try:
        with open_regular(path) as file:
            content = file.read(END.size + 4)
    except (OSError, MeshcapError):
        return 0, 0, 0
    numbers, checksum = content[: END.size], content[END.size :]
    if len(numbers) < END.size or struct.pack("<I", zlib.crc32(numbers)) != checksum:
        return 0, 0, 0
    end, rows, last_id = END.unpack(numbers)
    return (end, rows, last_id) if max(end, rows, last_id) < MOST_NUMBER else (0, 0, 0)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _taken(path: Path) -> int:
    """Bytes that a file has on the disk; where a system does not say, its size."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return 512 * found.st_blocks if hasattr(found, "st_blocks") else found.st_size


def _size(path: Path) -> int:
    return _state(path)[0]


def _state(path: Path) -> tuple[int, int]:
    """The size of a file, and when it was written to."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _flush_folder(folder: Path) -> None:
    """Names of new files reach the disk, where a system can do that."""
    if os.name == "posix":
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the lock of a store; it goes when the process does.

    Raises:
        MeshcapError: another process holds it for longer than a writer should.
    """
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | _PLAIN, 0o666)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        until = time.monotonic() + PATIENCE
        while not _try_lock(file):
            if time.monotonic() > until:
                raise MeshcapError(f"{folder} is being written by another process: try again when it has finished")
            time.sleep(0.02)
        yield
    finally:
        os.close(file)  # which unlocks it


def _try_lock(file: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
