"""Stores in Lance tables: the same answers as others, what was forgotten is gone, many writers, kills."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from meshcap.errors import MeshcapError
from meshcap.memory import Entry, RamStore, create_store, is_store, open_store

pytest.importorskip("lancedb", reason="no lancedb: pip install 'meshcap[memory-lance]'")

WIDTH = 24


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def entries(count: int) -> list[Entry]:
    return [Entry((f"picture {n} of a dog",), (f"Rex {n}",), f"photos/{n}.jpg", 100.0 + n) for n in range(count)]


def new(folder: Path):
    return create_store(folder / "m", vision="v", width=WIDTH, engine="lance")


def told(found) -> list[list[tuple]]:
    return [[(one.similarity, one.captions, one.names, one.source, one.time) for one in near] for near in found]


def files_with(folder: Path, content: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


def test_answers_as_others_do(tmp_path: Path) -> None:
    kept, other = new(tmp_path), RamStore("v", WIDTH)
    assert len(kept) == 0 and kept.nearest(vectors(1), 3) == [[]] and list(kept.entries()) == []
    for store in (kept, other):
        ids = store.add(vectors(300), entries(300))
        assert len(set(ids)) == len(store) == 300
    asked = vectors(20, seed=1)
    assert told(kept.nearest(asked, 7)) == told(other.nearest(asked, 7))
    for store in (kept, other):
        store.add(vectors(2, seed=3), [Entry(("Rex 7 again",), ("Rex 7", "Mia")), Entry(("grass",))])
    for found, same in zip(kept.named(asked, 9), other.named(asked, 9), strict=True):
        assert [name for name, _ in found] == [name for name, _ in same]
        assert dict(found) == pytest.approx(dict(same), abs=1e-6)
    for store in (kept, other):
        store.forget([one.id for one in store.entries() if one.captions in (("Rex 7 again",), ("grass",))])
    assert "Mia" not in dict(kept.named(asked, 999)[0])
    assert [one.captions for one in kept.some(3)] == [(f"picture {n} of a dog",) for n in (0, 100, 200)]
    assert len(kept.some(999)) == 300
    again = open_store(tmp_path / "m")
    assert is_store(tmp_path / "m") and (again.vision, again.width, again.warnings) == ("v", WIDTH, [])
    assert [(one.captions, one.time) for one in again.entries()] == [(one.captions, one.time) for one in entries(300)]
    assert [one.names for one in again.find("rex 299")] == [("Rex 299",)]
    assert told(pickle.loads(pickle.dumps(kept)).nearest(asked, 2)) == told(other.nearest(asked, 2))
    assert kept.nearest(np.zeros((1, WIDTH)), 2) == [[]]
    with pytest.raises(MeshcapError, match=r"meshcap remember .* --memory NEW"):
        kept.expect_vision("w")


@pytest.mark.slow
def test_an_index_finds_nearly_all(tmp_path: Path) -> None:
    kept, other = new(tmp_path), RamStore("v", WIDTH)
    for store in (kept, other):
        store.add(vectors(5000), entries(5000))
    assert kept.build_index(always=True) and not kept.build_index()
    kept.add(vectors(1, seed=9), [Entry(("not indexed",))])
    assert kept.nearest(vectors(1, seed=9), 1)[0][0].captions == ("not indexed",)
    asked = vectors(50, seed=1)
    pairs = zip(told(kept.nearest(asked, 10)), told(other.nearest(asked, 10)), strict=True)
    assert np.mean([len(set(map(str, a)) & set(map(str, b))) / 10 for a, b in pairs]) > 0.9
    (gone,) = [one.id for one in kept.find("picture 77 of", 1)]
    assert kept.forget([gone]) == 1 and kept.table.list_indices() == [] and len(kept) == 5000
    assert kept.build_index(always=True)


def test_forgetting_leaves_no_byte_and_loses_nothing_else(tmp_path: Path) -> None:
    kept = new(tmp_path)
    kept.add(vectors(30), entries(30))
    secret = np.arange(1, WIDTH + 1, dtype=np.float32)
    ids = kept.add(np.stack((secret, vectors(1)[0])), [Entry(("Rumpelstiltskin",)), Entry(("a goat",))])
    vector = (np.rint(secret * 127 / WIDTH)).astype(np.float16).tobytes()
    assert files_with(tmp_path, b"Rumpelstiltskin") and files_with(tmp_path, vector)
    reader = open_store(tmp_path / "m")
    assert kept.forget([ids[0], 12345]) == 1 and kept.forget([ids[0]]) == 0
    assert not files_with(tmp_path, b"Rumpelstiltskin") and not files_with(tmp_path, vector)
    kept.forget([one.id for one in kept.entries() if one.source == "photos/7.jpg"])
    assert not files_with(tmp_path, b"picture 7 of")
    for store in (kept, reader):
        left = sorted(one.captions[0] for one in store.entries())
        assert left == sorted(["a goat", *(f"picture {n} of a dog" for n in range(30) if n != 7)])
        assert ids[1] in [one.id for one in store.entries()]
        assert store.nearest(vectors(1), 1)[0][0].similarity > 0.999


def test_writers_together(tmp_path: Path) -> None:
    new(tmp_path)

    def write(seed: int) -> None:
        own = open_store(tmp_path / "m")
        for n in range(4):
            ids = own.add(vectors(2, 100 * seed + n), [Entry((f"writer {seed} number {n}",))] * 2)
            own.forget(ids[:1])

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one.captions[0] for one in open_store(tmp_path / "m").entries()) == [
        f"writer {seed} number {n}" for seed in range(2) for n in range(4)
    ]


ADD_FOR_EVER = """
import sys
import numpy as np
from meshcap.memory import Entry, open_store
kept = open_store(sys.argv[1])
number = int(sys.argv[2])
while True:
    ids = kept.add(np.random.default_rng(number).normal(size=(3, kept.width)), [Entry((str(number),))] * 3)
    if number % 5 == 3:
        kept.forget(ids[:1])
        ids = ids[1:]
    print(number, *ids, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    new(tmp_path)
    known: dict[int, int] = {}
    for turn in range(4):
        command = [sys.executable, "-c", ADD_FOR_EVER, str(tmp_path / "m"), str(1000 * turn)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        timer = threading.Timer(0.4 + 0.17 * turn, process.kill)
        timer.start()
        lines += process.stdout.readlines()
        process.wait()
        for line in lines:
            if line.endswith("\n"):
                number, *ids = map(int, line.split())
                known |= dict.fromkeys(ids, number)
        there = {one.id: one.captions for one in open_store(tmp_path / "m").entries()}
        assert all(there[id] == (str(number),) for id, number in known.items())
    assert len(known) > 20


def test_what_is_no_such_memory(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "photo.jpg").touch()
    with pytest.raises(MeshcapError, match="holds something else"):
        new(tmp_path)
    with pytest.raises(MeshcapError, match="is in object storage"):
        create_store("s3://bucket/memory", vision="v", width=WIDTH, engine="exact")
    with pytest.raises(MeshcapError, match="cannot be used") as caught:
        open_store("nonsense://bucket/memory")
    assert "\n" not in str(caught.value)
    kept = create_store(tmp_path / "n", vision="v", width=WIDTH, engine="lance")
    kept.add(vectors(2), entries(2))
    for path in (tmp_path / "n").rglob("*.lance"):
        if path.is_file():
            os.truncate(path, 40)
    with pytest.raises(MeshcapError, match="cannot be used") as caught:
        list(open_store(tmp_path / "n").entries())
    assert "\n" not in str(caught.value)
