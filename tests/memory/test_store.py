"""The long-term store: the same answers as plain arithmetic, kills, damage, two writers, a full disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from meshcap.errors import MeshcapError
from meshcap.memory import search, store
from meshcap.memory.search import Query, nearest_rows, norms_of, quantize
from meshcap.memory.store import Entry, FolderStore, RamStore, Store

WIDTH = 24


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def entries(count: int, first: int = 0) -> list[Entry]:
    return [Entry((f"picture {n} of a dog",), (f"Rex {n}",), f"photos/{n}.jpg", 100.0 + n) for n in range(first, count)]


def filled(folder: Path, count: int = 20) -> FolderStore:
    kept = FolderStore.create(folder, vision="v", width=WIDTH)
    kept.add(vectors(count), entries(count))
    return kept


def file_of(folder: Path, kind: str) -> Path:
    (path,) = folder.glob(f"{kind}-*")
    return path


# The search itself.


def test_similarities_are_cosines_of_the_rounded_directions() -> None:
    rows = quantize(vectors(500))
    query = vectors(3, seed=1)
    places, similar = nearest_rows(Query(query), rows, norms_of(rows), 7)
    exact = query / np.linalg.norm(query, axis=1, keepdims=True) @ (
        rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    ).T
    order = np.argsort(-exact, axis=1)[:, :7]
    assert (places == order).all()
    assert np.allclose(similar, np.take_along_axis(exact, order, 1), atol=2e-4)


def test_rounding_keeps_directions() -> None:
    given = np.random.default_rng(0).normal(size=(50, 768)).astype(np.float32)
    rows = quantize(given).astype(np.float32)
    cosine = (rows * given).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(given, axis=1)
    assert cosine.min() > 0.9999


def test_int8_kernel_and_float32_agree_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(-127, 128, (300, 768)).astype(np.int8)
    query = Query(np.random.default_rng(1).normal(size=(2, 768)))
    assert search._int8_kernel() is not None
    fast = query.similarities(rows, norms_of(rows))
    monkeypatch.setattr(search, "_kernel", [None])
    assert (query.similarities(rows, norms_of(rows)) == fast).all()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = quantize(vectors(300))
    one = nearest_rows(Query(vectors(4, 1)), rows, norms_of(rows), 5)
    monkeypatch.setattr(search, "BLOCK", 64)
    again = nearest_rows(Query(vectors(4, 1)), rows, norms_of(rows), 5)
    assert (one[0] == again[0]).all() and (one[1] == again[1]).all()


def test_rows_that_hardly_differ_are_told_apart() -> None:
    random = np.random.default_rng(0)
    rows = random.integers(-127, 128, (1, 768)) + random.integers(-1, 2, (400, 768))
    rows = np.clip(rows, -127, 127).astype(np.int8)
    rows[7] = rows[3]  # of equal ones, the first
    norms = norms_of(rows)
    norms[[11, 300]] = np.inf  # lost
    query = Query(rows[:2] + random.normal(size=(2, 768)))
    all_similar, there = query.similarities(rows, norms), norms < np.inf
    assert (abs(query.roughly(rows, norms)[:, there] - all_similar[:, there]) <= query.slack).all()
    order = np.lexsort((np.broadcast_to(np.arange(400), (2, 400)), -all_similar), axis=1)[:, :12]
    places, similar = nearest_rows(query, rows, norms, 12)
    assert (places == order).all() and (similar == np.take_along_axis(all_similar, order, 1)).all()


# What every store promises.


@pytest.fixture(params=["ram", "folder"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "ram":
        return RamStore("v", WIDTH)
    return FolderStore.create(tmp_path / "memory", vision="v", width=WIDTH)


def test_what_was_added_is_nearest_to_itself(kept: Store) -> None:
    assert kept.nearest(vectors(2), 3) == [[], []]
    ids = kept.add(vectors(10), entries(10))
    assert ids == list(range(1, 11)) and len(kept) == 10
    found = kept.nearest(vectors(10), 3)
    assert [one[0].id for one in found] == ids
    assert found[4][0].captions == ("picture 4 of a dog",) and found[4][0].names == ("Rex 4",)
    assert found[4][0].source == "photos/4.jpg" and found[4][0].time == 104.0
    assert all(one[0].similarity > 0.999 > one[1].similarity >= one[2].similarity for one in found)
    assert len(kept.nearest(vectors(1), 50)[0]) == 10


def test_forgetting(kept: Store) -> None:
    kept.add(vectors(10), entries(10))
    assert kept.forget([3, 4, 99]) == 2
    assert [one.id for one in kept.entries()] == [1, 2, 5, 6, 7, 8, 9, 10]
    assert kept.nearest(vectors(10)[2:3], 1)[0][0].id != 3
    assert kept.add(vectors(1, 5), entries(1)) == [11]  # an id never means something else
    assert kept.forget([11]) == 1 and kept.add(vectors(1, 5), entries(1)) == [12]


def test_a_name_is_as_near_as_the_mean_of_its_pictures(kept: Store) -> None:
    assert kept.named(vectors(2), 3) == [[], []]
    given = vectors(6)
    kept.add(given[:1], [Entry(("Rex",), ("Rex",))])
    assert kept.named(given[:1], 3)[0] == [("Rex", pytest.approx(1, abs=1e-4))]
    others = [Entry(("Rex and Mia",), ("Rex", "Mia")), Entry(("a dog",)), Entry(('a sign "names":["Bo"',), ("Mia",))]
    ids = kept.add(given[1:4], others)
    kept.add(given[4:], [Entry(("grass",)), Entry(("Rex again",), ("Rex",))])
    rows = quantize(given).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    asked = vectors(4, seed=2)
    for without, rex, mia in ((None, [0, 1, 5], [1, 3]), (ids[0], [0, 5], [3])):
        if without is not None:
            kept.forget([without])
        for query, found in zip(asked, kept.named(asked, 5), strict=True):
            expected = {}
            for name, places in (("Rex", rex), ("Mia", mia)):
                mean = rows[places].mean(0)
                expected[name] = float(query @ mean / np.linalg.norm(query) / np.linalg.norm(mean))
            assert [name for name, _ in found] == sorted(expected, key=lambda name: -expected[name])
            assert dict(found) == pytest.approx(expected, abs=1e-5)
    assert [len(one) for one in kept.named(asked, 1)] == [1] * 4


def test_names_that_others_add_are_known(tmp_path: Path) -> None:
    writer = filled(tmp_path / "m", 5)
    reader = FolderStore(tmp_path / "m")
    assert len(reader.named(vectors(1), 99)[0]) == 5
    writer.add(vectors(1, seed=9), [Entry(("Zoe",), ("Zoe",))])
    assert reader.named(vectors(1, seed=9), 1)[0] == [("Zoe", pytest.approx(1, abs=1e-4))]
    content = bytearray(file_of(tmp_path / "m", "vectors").read_bytes())
    content[2 * WIDTH] ^= 0xFF  # the third picture is damaged
    file_of(tmp_path / "m", "vectors").write_bytes(content)
    again = FolderStore(tmp_path / "m")
    assert {name for name, _ in again.named(vectors(1), 99)[0]} == {"Zoe", "Rex 0", "Rex 1", "Rex 3", "Rex 4"}


def test_so_many_names_and_no_more(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_NAMES", 3)
    kept.add(vectors(5), entries(5))
    assert {name for name, _ in kept.named(vectors(1), 99)[0]} == {"Rex 0", "Rex 1", "Rex 2"}


def test_some_of_the_entries_evenly(kept: Store) -> None:
    assert kept.some(3) == []
    kept.add(vectors(10), entries(10))
    assert [one.id for one in kept.some(3)] == [1, 4, 7]
    assert kept.some(99) == list(kept.entries())


def test_searching_what_was_said(kept: Store) -> None:
    kept.add(vectors(3), [Entry(("A beach at dusk",)), Entry(("a dog",), ("Rex",)), Entry(("Rex on the beach",))])
    assert [one.id for one in kept.find("Beach")] == [3, 1]
    assert [one.id for one in kept.find("rex beach")] == [3]
    assert [one.id for one in kept.find("rex", limit=1)] == [3]
    kept.add(vectors(1), [Entry(('say "AH\\BÉ" to Straße',))])
    assert [one.id for one in kept.find('"ah\\bé" STRASSE')] == [4] and not kept.find("captions")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Entry(("  ", "")), "empty caption"),
        (Entry(("x" * 3000,)), "too long"),
        (Entry(("x",), ("n",) * 101), "too many"),
        (Entry(("a \ud800",)), "UTF-8"),  # JSON of a request may say so
        (Entry(("x",), ("\udc80",)), "UTF-8"),
        (Entry(("x",), source="\ud800.jpg"), "UTF-8"),
        (Entry(("x",), time=math.nan), "time is nan"),
        (Entry(("x",), time=1e300), "time is 1e"),
    ],
)
def test_entries_that_say_nothing_or_too_much(kept: Store, given: Entry, message: str) -> None:
    with pytest.raises(MeshcapError, match=message):
        kept.add(vectors(1), [given])
    assert len(kept) == 0


def test_vectors_that_do_not_fit(kept: Store) -> None:
    for wrong in (np.zeros((1, WIDTH)), np.full((1, WIDTH), np.nan), np.ones((1, WIDTH + 1)), np.ones((2, WIDTH))):
        with pytest.raises(MeshcapError):
            kept.add(wrong, entries(1))
    with pytest.raises(MeshcapError, match="k is 0"):
        kept.nearest(vectors(1), 0)


def test_another_vision_is_refused_with_what_to_do(kept: Store) -> None:
    kept.expect_vision("v")
    with pytest.raises(MeshcapError, match=r"meshcap remember .* --memory NEW"):
        kept.expect_vision("w")


# A folder.


def test_a_folder_is_read_again(tmp_path: Path) -> None:
    filled(tmp_path / "m")
    again = FolderStore(tmp_path / "m")
    assert len(again) == 20 and again.vision == "v" and again.warnings == [] and again.check() == []
    assert list(again.entries()) == [
        Entry(one.captions, one.names, one.source, one.time, n + 1) for n, one in enumerate(entries(20))
    ]


def test_readers_see_what_others_add_and_forget(tmp_path: Path) -> None:
    writer = filled(tmp_path / "m", 5)
    reader = FolderStore(tmp_path / "m")
    writer.add(vectors(1, seed=9), [Entry(("a cat",))])
    assert reader.nearest(vectors(1, seed=9), 1)[0][0].captions == ("a cat",)
    writer.forget([6])
    assert reader.nearest(vectors(1, seed=9), 1)[0][0].id != 6 and len(reader) == 5


def test_forgetting_leaves_no_byte(tmp_path: Path) -> None:
    kept = filled(tmp_path / "m", 3)
    secret = np.arange(1, WIDTH + 1, dtype=np.float32)
    (id,) = kept.add(secret[None], [Entry(("the secret of Rumpelstiltskin",), ("Rumpelstiltskin",))])
    vector = quantize(secret[None]).tobytes()
    there = [one.read_bytes() for one in (tmp_path / "m").iterdir()]
    assert any(b"Rumpel" in one for one in there) and any(vector in one for one in there)
    kept.forget([id])
    there = [one.read_bytes() for one in (tmp_path / "m").iterdir()]
    assert not any(b"Rumpel" in one or vector in one for one in there)
    assert sorted(one.name for one in (tmp_path / "m").iterdir()) == [
        "end-2", "entries-2.log", "lock", "store.json", "vectors-2.i8",
    ]  # fmt: skip


def test_folders_that_are_no_memories(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="is no memory"):
        FolderStore(tmp_path)
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(MeshcapError, match="holds other files"):
        FolderStore.create(tmp_path, vision="v", width=3)
    with pytest.raises(MeshcapError, match="cannot be made"):
        FolderStore.create(tmp_path / "photo.jpg" / "m", vision="v", width=3)
    kept = filled(tmp_path / "m")
    text = (kept.folder / "store.json").read_text()
    (kept.folder / "store.json").write_text(text.replace('"version": 1', '"version": 9'))
    with pytest.raises(MeshcapError, match="version 9"):
        FolderStore(kept.folder)


# Damage.


def test_a_flipped_byte_anywhere_loses_one_entry_at_most(tmp_path: Path) -> None:
    kept = filled(tmp_path / "m", 6)
    said = {one.id: one for one in kept.entries()}
    for kind in ("entries", "vectors"):
        path = file_of(kept.folder, kind)
        content = path.read_bytes()
        for place in range(0, len(content), 5 if kind == "vectors" else 13):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
            again = FolderStore(kept.folder)
            warnings = again.check()
            left = list(again.entries())
            assert len(left) == 5 and all(said[one.id] == one for one in left), (kind, place)
            assert len(warnings) == 1 and "1 of its entries is lost" in warnings[0]
            assert len(again.nearest(vectors(6), 6)[0]) == 5
        path.write_bytes(content)
    assert FolderStore(kept.folder).check() == []


@pytest.mark.parametrize("kind", ["entries", "vectors"])
def test_a_file_that_was_cut_keeps_what_is_whole(tmp_path: Path, kind: str) -> None:
    kept = filled(tmp_path / "m", 6)
    path = file_of(kept.folder, kind)
    content = path.read_bytes()
    for length in range(0, len(content), 11):
        path.write_bytes(content[:length])
        again = FolderStore(kept.folder)
        left = [one.id for one in again.entries()]
        assert left == list(range(1, len(left) + 1))
        assert f"{6 - len(left)} of its entries" in again.warnings[0]
        assert [one.id for one in again.nearest(vectors(6)[:1], 1)[0]] == left[:1]
    path.write_bytes(content[: len(content) // 2])
    again = FolderStore(kept.folder)
    half = len(again)
    assert again.add(vectors(1, 7), [Entry(("new",))]) == [7]  # not an id of those that are lost
    assert len(FolderStore(kept.folder)) == half + 1 and FolderStore(kept.folder).warnings


def test_a_damaged_vector_that_would_be_nearest_is_left_out(tmp_path: Path) -> None:
    kept = filled(tmp_path / "m", 6)
    path = file_of(kept.folder, "vectors")
    content = bytearray(path.read_bytes())
    content[2 * WIDTH : 3 * WIDTH] = quantize(vectors(1, 99)).tobytes()
    path.write_bytes(content)
    again = FolderStore(kept.folder)
    assert again.warnings == []
    found = again.nearest(vectors(1, 99), 2)[0]
    assert len(found) == 2 and 3 not in [one.id for one in found]
    assert "1 of its entries is lost" in again.warnings[0]


# Kills, writers, no room.

ADD_FOR_EVER = """
import sys
import numpy as np
from meshcap.memory.store import Entry, FolderStore
kept = FolderStore(sys.argv[1])
number = int(sys.argv[2])
while True:
    count = number % 5 + 1
    rows = np.random.default_rng(number).normal(size=(count, kept.width))
    ids = kept.add(rows, [Entry((f"{number} " + "word " * (number % 50),))] * count)
    if number % 7 == 3:
        kept.forget([ids[0]])
        ids = ids[1:]
    print(number, *ids, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    kept = FolderStore.create(tmp_path / "m", vision="v", width=WIDTH)
    known: dict[int, int] = {}  # id -> number
    for turn in range(10):
        command = [sys.executable, "-c", ADD_FOR_EVER, str(kept.folder), str(1000 * turn)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        timer = threading.Timer(0.05 + 0.013 * turn, lambda one=process: one.send_signal(signal.SIGKILL))
        timer.start()
        lines += process.stdout.readlines()
        process.wait()
        for line in lines:
            if line.endswith("\n"):
                number, *ids = map(int, line.split())
                known |= dict.fromkeys(ids, number)
        again = FolderStore(kept.folder)
        there = {one.id: one for one in again.entries()}
        assert not set(known) - set(there)
        assert all(there[id].captions[0].split()[0] == str(number) for id, number in known.items())
        assert again.check() == []
        number = next(reversed(known.values()))
        nearest = again.nearest(np.random.default_rng(number).normal(size=(number % 5 + 1, WIDTH))[-1:], 1)
        assert nearest[0][0].captions[0].split()[0] == str(number)
    assert len(known) > 50


def test_a_torn_end_is_no_damage_and_is_written_over(tmp_path: Path) -> None:
    kept = filled(tmp_path / "m", 4)
    for kind, end in (("entries", b"\xf1mem\x50\x00"), ("vectors", b"\x01" * (WIDTH + 3))):
        with open(file_of(kept.folder, kind), "ab") as file:
            file.write(end)
    again = FolderStore(kept.folder)
    assert again.check() == [] and len(again) == 4
    assert again.add(vectors(1, 8), [Entry(("after",))]) == [5]
    once_more = FolderStore(kept.folder)
    assert once_more.check() == [] and [one.id for one in once_more.entries()] == [1, 2, 3, 4, 5]
    assert kept.nearest(vectors(1, 8), 1)[0][0].captions == ("after",)  # a reader that saw the torn end


def _add_many(folder: str, seed: int) -> None:
    kept = FolderStore(folder)
    for n in range(20):
        kept.add(vectors(2, seed * 100 + n), [Entry((f"writer {seed} number {n}",))] * 2)


def test_a_torn_end_as_long_as_the_next_entry_hides_none(tmp_path: Path) -> None:
    """The log is then as long as before; who takes it for unchanged writes over what was acknowledged."""
    kept = filled(tmp_path / "m")
    log, before = file_of(tmp_path / "m", "entries"), file_of(tmp_path / "m", "entries").stat().st_size
    kept.add(vectors(1, seed=3), [Entry(("new a",), time=1.5)])
    length = log.stat().st_size - before
    with open(log, "ab") as file:
        file.write(bytes(length))
    mine, other = FolderStore(tmp_path / "m"), FolderStore(tmp_path / "m")
    os.utime(log, ns=(0, 0))
    assert (len(mine), len(other)) == (21, 21)
    written = [mine.add(vectors(1, seed=4), [Entry(("new b",), time=1.5)])]
    assert log.stat().st_size == before + 2 * length
    os.utime(log, ns=(0, 0))  # within the time that a file system tells apart
    assert mine.find("new b") and len(mine) == 22
    written += [other.add(vectors(1, seed=5), [Entry(("new c",), time=1.5)])]
    written += [mine.add(vectors(1, seed=6), [Entry(("new d",), time=1.5)])]
    there = FolderStore(tmp_path / "m")
    assert [one.captions for one in there.find("new")] == [("new d",), ("new c",), ("new b",), ("new a",)]
    assert len({id for (id,) in written}) == 3 and there.check() == []


def test_writers_take_turns(tmp_path: Path) -> None:
    kept = FolderStore.create(tmp_path / "m", vision="v", width=WIDTH)
    threads = [threading.Thread(target=_add_many, args=(str(kept.folder), seed)) for seed in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(kept) == 120 and kept.check() == []
    assert sorted(one.id for one in kept.entries()) == list(range(1, 121))
    for seed in range(3):
        for n in range(20):
            assert kept.nearest(vectors(1, seed * 100 + n), 1)[0][0].captions == (f"writer {seed} number {n}",)


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_a_writer_that_does_not_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    kept = filled(tmp_path / "m", 2)
    monkeypatch.setattr(store, "PATIENCE", 0.05)
    with open(kept.folder / "lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for work in (lambda: kept.add(vectors(1), entries(1)), lambda: kept.forget([1])):
            with pytest.raises(MeshcapError, match="being written by another process"):
                work()
        assert len(kept.nearest(vectors(1), 5)[0]) == 2  # readers do not wait
    kept.add(vectors(1), entries(1))


@pytest.mark.parametrize("room", [0, 10, 30])
@pytest.mark.parametrize("file", ["vectors", "entries"])
def test_no_room_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, room: int
) -> None:
    kept = filled(tmp_path / "m", 4)
    before = {one.name: one.read_bytes() for one in kept.folder.iterdir()}
    real, left = os.write, [room]
    full = os.stat(file_of(kept.folder, file)).st_ino

    def write(to: int, content: bytes) -> int:
        if os.fstat(to).st_ino != full:
            return real(to, content)
        if left[0] <= 0:
            raise OSError(28, "No space left on device")
        done = real(to, bytes(content)[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(MeshcapError, match=r"No space left on device; nothing was added"):
        kept.add(vectors(3, 5), entries(3))
    monkeypatch.undo()
    assert len(kept) == 4 and kept.check() == []
    now = {one.name: one.read_bytes() for one in kept.folder.iterdir()}
    now["vectors-1.i8"] = now["vectors-1.i8"][: len(before["vectors-1.i8"])]
    assert now == before
    assert kept.add(vectors(3, 5), entries(3)) == [5, 6, 7] and FolderStore(kept.folder).check() == []


def test_no_room_to_forget_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = filled(tmp_path / "m", 4)

    def refuse(path: Path, text: str) -> None:
        raise MeshcapError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(store, "write_text", refuse)
    with pytest.raises(MeshcapError, match="No space"):
        kept.forget([1])
    assert len(FolderStore(kept.folder)) == 4
    assert not list(kept.folder.glob("*-2*"))


def test_other_processes_open_it_themselves(tmp_path: Path) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(filled(tmp_path / "m", 3)))
    assert len(again) == 3


# Stores that somebody made to do harm.


def frame(payload: bytes, *, id: int = 99, row: int = 20, length: int | None = None) -> bytes:
    """A frame whose checksum is right, whatever it says."""
    rest = struct.pack("<QQI", id, row, 0)
    checksum = zlib.crc32(payload, zlib.crc32(rest))
    return store.FRAME.pack(store.MARK, len(payload) if length is None else length, checksum, id, row, 0) + payload


SAID = b'{"captions": ["a"], "names": [], "source": null, "time": 1}'


@pytest.mark.parametrize(
    "added",
    [
        frame(SAID, row=2**63), frame(SAID, row=10**9), frame(SAID, id=2**64 - 1),
        *(frame(text, row=5) for text in (b"[]", b"null", b"{", b"[" * 9**5, b"9" * 5000, b"\xff", b'{"captions": 3}')),
        frame(SAID.replace(b'["a"]', b"[1]"), row=5), frame(SAID.replace(b'"time": 1', b'"time": "x"'), row=5),
        frame(SAID.replace(b'["a"]', b'["\\ud800"]'), row=5),
        frame(SAID.replace(b'"time": 1', b'"time": 1e400'), row=5),
        store.FRAME.pack(store.MARK, 0, 1, 1, 1, 1) * 1000,
    ],
    ids=lambda one: str(zlib.crc32(one)),
)  # fmt: skip
def test_frames_that_lie_are_lost_and_others_are_kept(tmp_path: Path, added: bytes) -> None:
    filled(tmp_path / "m")
    with open(file_of(tmp_path / "m", "entries"), "ab") as file:
        file.write(added)
    kept = FolderStore(tmp_path / "m")
    for one in kept.entries():  # whatever is given can be shown
        json.dumps(vars(one), ensure_ascii=False, allow_nan=False).encode()
    kept.check()
    assert len(kept) >= 19 and all(found[0].id in range(1, 21) for found in kept.nearest(vectors(3, seed=2), 2))
    (id,) = kept.add(vectors(1, seed=9), [Entry(("new",))])
    assert kept.nearest(vectors(1, seed=9), 1)[0][0].id == id <= 100
    assert kept.forget([id]) == 1 and len(FolderStore(tmp_path / "m")) >= 19


def test_a_log_of_marks_and_long_frames_does_not_keep_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "m")
    monkeypatch.setattr(store, "MOST_HOLES", 1000)
    file_of(tmp_path / "m", "entries").write_bytes(store.MARK * 10_000)
    with pytest.raises(MeshcapError, match="damaged in too many places"):
        FolderStore(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "value"),
    [("width", 10**18), ("width", 0), ("vision", 5), ("engine", ["exact"]), ("generation", -1), ("generation", "../x"),
     ("next_id", None), ("next_id", 2**70)],
)  # fmt: skip
def test_settings_that_lie(tmp_path: Path, name: str, value: object) -> None:
    filled(tmp_path / "m")
    path = tmp_path / "m" / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(MeshcapError, match=name):
        FolderStore(tmp_path / "m").add(vectors(1), entries(1))


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")
@pytest.mark.parametrize("name", ["end-1", "lock", "entries-1.log", "vectors-1.i8"])
def test_links_and_pipes_in_a_store(tmp_path: Path, name: str) -> None:
    victim, new = tmp_path / "victim", tmp_path / "new"
    for target in (victim, new, None):
        victim.write_bytes(b"precious")
        folder = tmp_path / f"m{target and target.name}"
        filled(folder)
        place = folder / name
        place.unlink()
        if target is None:
            os.mkfifo(place)  # nobody ever writes to it
        else:
            place.symlink_to(target)
        with contextlib.suppress(MeshcapError):
            FolderStore(folder).add(vectors(1), entries(1))
        assert victim.read_bytes() == b"precious" and not new.exists()


# An index.


def test_an_index_of_usearch(tmp_path: Path) -> None:
    pytest.importorskip("usearch", reason="no usearch: pip install 'meshcap[memory]'")
    kept = FolderStore.create(tmp_path / "m", vision="v", width=WIDTH, engine="usearch")
    other = RamStore("v", WIDTH)
    for one in (kept, other):
        one.add(vectors(3000), entries(3000))
    asked = vectors(50, seed=1)
    assert kept.nearest(asked, 10) == other.nearest(asked, 10)  # without an index yet
    assert kept.build_index(always=True) and not kept.build_index()
    found, exact = kept.nearest(asked, 10), other.nearest(asked, 10)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)]) > 0.9
    for one in (kept, other):
        one.add(vectors(1, seed=9), [Entry(("after the index",), time=1.0)])
    assert kept.nearest(vectors(1, seed=9), 1) == other.nearest(vectors(1, seed=9), 1)
    added: list[int] = []
    assert kept.build_index(always=True, progress=added.append) and added == [1]  # it grows
    again = kept.nearest(asked, 10)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(again, exact, strict=True)]) > 0.9
    index = file_of(tmp_path / "m", "index")
    content = index.read_bytes()
    index.write_bytes(content[: len(content) // 2])  # damaged: all are compared
    assert FolderStore(tmp_path / "m").nearest(asked, 10) == other.nearest(asked, 10)
    kept.forget([5])
    other.forget([5])
    assert not list((tmp_path / "m").glob("index-*")) and kept.nearest(asked, 10) == other.nearest(asked, 10)

    def meanwhile(_: int) -> None:
        """Another process adds, and forgets what the index is being made of."""
        assert FolderStore(tmp_path / "m").add(vectors(1), entries(1)) and FolderStore(tmp_path / "m").forget([6])

    assert not kept.build_index(always=True, progress=meanwhile)
    assert not list((tmp_path / "m").glob("index-*")) and len(kept) == 3000
