"""A store in a Lance table: many millions of entries, object storage, several machines (extra `memory-lance`).

It lies in a folder or at an address that LanceDB knows (s3://bucket/memory, gs://…, az://…; these services find their
credentials in the environment). Each `add` is one commit: other machines see all of it or nothing, and writers need no
lock. Lance's search proposes, and similarities are computed from the same whole numbers as in every other store.

Forgetting writes the pieces of the table that held an entry again, and removes all older versions of it.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshcap.errors import MeshcapError
from meshcap.memory.search import Query, norms_of
from meshcap.memory.store import NOT_INDEXED, VERSION, Entry, Likenesses, Neighbour, Store, expect_k

TABLE = "memory"
KEY = b"meshcap"  # of the settings in the table's schema
COLUMNS = ["id", "time", "said"]
NAMED = """said LIKE '%"names": ["%'"""  # entries with names
TRIES = 10  # where other writers came between
PROBES, REFINE = 200, 4  # parts of an index that are searched, and how many times k are compared exactly
SPARE = 8  # more than k are asked for: Lance's own rounding may change the order


def has_table(place: str | Path) -> bool:
    """Whether such a store is there, in a folder or at an address."""
    if "://" not in str(place):
        return (Path(place) / f"{TABLE}.lance").is_dir()
    with _one_line(place):
        return TABLE in _connect(place).list_tables().tables


class LanceStore(Store):
    """A memory in a Lance table. Any number of machines may read it and add to it."""

    def __init__(self, place: str | Path):
        """
        Raises:
            MeshcapError: none is there, or one of another version, or lancedb is not installed.
        """
        self._place = str(place)
        if not has_table(place):
            raise MeshcapError(f"{place} is no memory: expected what `meshcap remember --engine lance` made")
        with _one_line(place):
            self.table = _connect(place).open_table(TABLE)
            found = json.loads((self.table.schema.metadata or {}).get(KEY, b"{}"))
        if found.get("version") != VERSION:
            raise MeshcapError(
                f"{place} is of version {found.get('version')!r}, this meshcap reads version {VERSION}: update it"
            )
        self.vision, self.width = found["vision"], found["width"]
        self._known: tuple[int, Likenesses] | None = None  # and of which version of the table

    @classmethod
    def create(cls, place: str | Path, *, vision: str, width: int) -> LanceStore:
        """An empty memory; one that is there already is opened."""
        if not has_table(place):
            folder = Path(place)
            if "://" not in str(place) and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise MeshcapError(f"{place} holds something else: choose another folder for the memory")
            settings = json.dumps({"version": VERSION, "vision": vision, "width": width})
            with _one_line(place):
                schema = _schema(width).with_metadata({KEY: settings.encode()})
                _connect(place).create_table(TABLE, schema=schema, exist_ok=True)
        return cls(place)

    @property
    def place(self) -> str:
        return self._place

    def __len__(self) -> int:
        with _one_line(self.place):
            return int(self.table.count_rows())

    def __repr__(self) -> str:
        return f"LanceStore({self.place!r}, {len(self):,} entries)"

    def __reduce__(self) -> Any:
        """For worker processes and other machines: they open it themselves."""
        return LanceStore, (self.place if "://" in self.place else str(Path(self.place).absolute()),)

    def add(self, vectors: Any, entries: Sequence[Entry]) -> list[int]:
        import pyarrow

        rows, checked = self._checked_entries(vectors, entries)
        if not checked:
            return []
        # No two writers count together: ids are drawn, from so many that none comes twice.
        first = secrets.randbelow(2**52) + 1
        ids = list(range(first, first + len(checked)))
        numbers = pyarrow.array(rows.ravel().astype(np.float16))  # whole numbers to 127, without loss
        columns = {
            "id": ids,
            "time": [one.time for one in checked],
            "said": [_said(one) for one in checked],
            "vector": pyarrow.FixedSizeListArray.from_arrays(numbers, self.width),
        }
        with _one_line(self.place, "nothing was added"):
            self.table.add(pyarrow.table(columns, schema=_schema(self.width)))
        return ids

    def nearest(self, vectors: Any, k: int) -> list[list[Neighbour]]:
        expect_k(k)
        given = self._checked(vectors)
        return [self._nearest(Query(one[None]), k) for one in given]

    def _nearest(self, query: Query, k: int) -> list[Neighbour]:
        direction = query.join(query.parts.astype(np.float32))[0]
        if not direction.any():
            return []

        def search() -> Any:
            asked = self.table.search(direction, vector_column_name="vector").distance_type("cosine")
            asked = asked.nprobes(PROBES).refine_factor(REFINE).limit(2 * k + SPARE)
            return asked.select([*COLUMNS, "vector", "_distance"]).to_arrow()

        found = self._read(search)
        rows = found.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        rows = rows.reshape(-1, self.width).astype(np.int8)
        similar = query.similarities(rows, norms_of(rows))[0]
        entries = [_entry(row) for row in found.select(COLUMNS).to_pylist()]
        order = sorted(range(len(entries)), key=lambda at: (-similar[at], entries[at].time or 0, entries[at].id))
        return [Neighbour.of(float(similar[at]), entries[at]) for at in order[:k] if similar[at] > -np.inf]

    def named(self, vectors: Any, k: int) -> list[list[tuple[str, float]]]:
        expect_k(k)
        given = self._checked(vectors)
        with _one_line(self.place):
            version = int(self.table.version)
        if self._known is None or self._known[0] != version:
            asked = partial(self.table.search().where, NAMED)
            found = self._read(lambda: asked().select([*COLUMNS, "vector"]).limit(None).to_arrow())
            rows = found.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
            known = Likenesses(self.width)
            for row, one in zip(rows.reshape(-1, self.width), found.select(COLUMNS).to_pylist(), strict=True):
                known.add(_entry(one).names, row)
            self._known = version, known
        return self._known[1].nearest(given, k)

    def some(self, most: int) -> list[Entry]:
        step = max(1, len(self) // most)  # rows by their numbers: a table of millions is not read for it
        rows = list(range(0, len(self), step))[:most]
        found = self._read(lambda: self.table.take_offsets(rows).select(COLUMNS).to_arrow()) if rows else None
        return [] if found is None else [_entry(row) for row in found.to_pylist()]

    def entries(self) -> Iterator[Entry]:
        found = self._read(lambda: self.table.search().select(COLUMNS).limit(None).to_arrow())
        for row in found.sort_by([("time", "ascending"), ("id", "ascending")]).to_pylist():
            yield _entry(row)

    def _read(self, work: Callable[[], Any]) -> Any:
        """Once more where another process removed the version that was being read."""
        try:
            return work()
        except Exception:
            with _one_line(self.place):
                self.table.checkout_latest()
                return work()

    def forget(self, ids: Collection[int]) -> int:
        """Remove entries and every byte of them: who reads an older version at that moment reads again."""
        unwanted = sorted({int(id) for id in ids})
        gone = 0
        with _one_line(self.place):
            for start in range(0, len(unwanted), 1000):
                where = f"id in ({', '.join(map(str, unwanted[start : start + 1000]))})"
                found = self.table.search().where(where).select(["_rowaddr"]).limit(None).to_arrow()
                if not len(found):
                    continue
                pieces = sorted({address >> 32 for address in found.column("_rowaddr").to_pylist()})
                self._commit(partial(self.table.delete, where))
                gone += len(found)
                for piece in pieces:  # what else lay there moves, and nothing refers to the piece any more
                    rest = f"_rowaddr >= {piece << 32} and _rowaddr < {(piece + 1) << 32}"
                    self._commit(partial(self.table.update, where=rest, values_sql={"id": "id"}))
            if gone:
                for index in self.table.list_indices():  # which holds what was made of the vectors
                    self.table.drop_index(index.name)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that others may be reading: they read again
                    self._commit(partial(self.table.optimize, cleanup_older_than=timedelta(0)))
        return gone

    def _commit(self, work: Callable[[], Any]) -> None:
        for left in reversed(range(TRIES)):
            try:
                work()
                return
            except Exception as error:
                if not left or not any(one in str(error).lower() for one in ("conflict", "not found")):
                    raise
                self.table.checkout_latest()  # others have written, or removed the version that this was about

    def build_index(self, *, always: bool = False, progress: Callable[[int], Any] | None = None) -> bool:
        """Index what is not indexed yet, where that is enough to be worth it; whether it was done."""
        with _one_line(self.place):
            (name, known), rows = self._index(), len(self)
            if not rows or (not always and rows - known < max(NOT_INDEXED, known // 10)):
                return False
            if name is None:
                from lancedb.index import IvfRq

                self.table.create_index("vector", config=IvfRq(distance_type="cosine", num_bits=8))
            else:
                self.table.optimize()
            if progress is not None:
                progress(rows)
        return True

    def _index(self) -> tuple[str | None, int]:
        """The index of the vectors, and how many rows it knows."""
        for index in self.table.list_indices():
            stats = self.table.index_stats(index.name)
            return index.name, 0 if stats is None else int(stats.num_indexed_rows)
        return None, 0


def _schema(width: int) -> Any:
    import pyarrow

    return pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("time", pyarrow.float64()),
            ("said", pyarrow.string()),
            ("vector", pyarrow.list_(pyarrow.float16(), width)),
        ]
    )


def _said(entry: Entry) -> str:
    said = {"captions": entry.captions, "names": entry.names, "source": entry.source}
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _entry(row: dict[str, Any]) -> Entry:
    said = json.loads(row["said"])
    entry = Entry(tuple(said["captions"]), tuple(said["names"]), said["source"], row["time"])
    return replace(entry, id=row["id"])


def _connect(place: str | Path) -> Any:
    try:
        import lancedb
    except ImportError:
        raise MeshcapError("this memory needs another package: pip install 'meshcap[memory-lance]'") from None
    return lancedb.connect(str(place), read_consistency_interval=timedelta(0))


@contextmanager
def _one_line(place: str | Path, more: str = "") -> Iterator[None]:
    """Whatever Lance complains of, as one line."""
    try:
        yield
    except MeshcapError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = reason.partition(", /")[0][:200]  # without names of its own sources
        raise MeshcapError(f"the memory {place} cannot be used: {reason}{'; ' * bool(more)}{more}") from error
