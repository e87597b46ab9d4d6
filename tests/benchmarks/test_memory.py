"""benchmarks/memory.py: ranks by hand, and a table of a few pictures."""

import json
from pathlib import Path

import numpy as np
import pytest

import tiny_captioner
from benchmarks import memory
from meshcap.data.scenes import draw_scene
from tiny_data import bench


def test_rank_correlation_by_hand() -> None:
    assert memory.ranks(np.array([3.0, 1.0, 3.0, 9.0])).tolist() == [1.5, 0, 1.5, 3]
    a, b = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 50])
    assert memory.rank_correlation(a, b) == pytest.approx(1 - 6 * 4 / (5 * 24))  # 1 - 6 Σd² / n(n² - 1)
    assert memory.rank_correlation(a, -b) == pytest.approx(-memory.rank_correlation(a, b))


def test_retrieval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_captioner.saved(tmp_path / "model")
    for number in range(6):
        draw_scene(number, 48).image.save(tmp_path / f"{number:012d}.jpg")
    for split in ("val", "test"):
        lines = ["image1,image2,agg_score,sampling_method"]
        for a, b, rating in ((0, 1, 1.5), (1, 2, 4.0), (2, 3, 0.5), (4, 5, 3.0), (5, 99, 5.0)):
            lines.append(f"COCO_val2014_{a:012d}.jpg,COCO_val2014_{b:012d}.jpg,{rating},x")
        (tmp_path / f"sis_{split}.csv").write_text("\n".join(lines))
    words = ("retrieval", "--cxc", tmp_path, "--pictures", tmp_path, "--model", model, "--cache", tmp_path / "c.npz")
    assert bench(memory.command, *words, "--json") == 0
    out = capsys.readouterr()
    rows = json.loads(out.out)["rows"]
    assert "test: 4 pairs of 6 pictures" in out.err  # one picture is not there
    assert [row["pooling"] for row in rows] == list(memory.POOLINGS)
    assert all(-1 <= row["val"] == row["test"] <= 1 for row in rows)
    (tmp_path / "000000000000.jpg").unlink()
    (tmp_path / "sis_val.csv").unlink()
    assert bench(memory.command, *words) == 2
    assert "sis_val.csv is not there" in capsys.readouterr().err


def test_costs_of_stores(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ADDED", 20)
    monkeypatch.setattr(memory, "WIDTH", 16)
    words = ("cost", "--entries", 30, "--entries", 50, "--engine", "exact", "--engine", "nonsense", "--json")
    assert bench(memory.command, *words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["engine"], row["entries"]) for row in rows] == [
        (e, n) for n in (30, 50) for e in ("exact", "nonsense")
    ]
    assert all(row["recall"] == 1 and row["bytes"] > 16 * row["entries"] for row in rows[::2])
    assert all("engine is 'nonsense'" in row["missing"] for row in rows[1::2])


def test_captions_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_captioner.saved(tmp_path / "model")
    for number in range(2):
        draw_scene(number, 48).image.save(tmp_path / f"{number}.jpg")
    words = ("caption", "--photos", tmp_path, "--model", model, "--entries", 40, "--json")
    assert bench(memory.command, *words) == 0
    none, *some = json.loads(capsys.readouterr().out)["rows"]
    assert [row["memory"] for row in some] == ["40 entries", "40 entries, new words"]
    assert none["more"] == 0 and all(row["seconds"] > 0 for row in some)
    monkeypatch.setattr(memory, "FRESH", 1)
    monkeypatch.setattr(memory, "DRAWS", 3)
    assert bench(memory.command, "names", "--model", model, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["by"] for row in rows] == ["1 picture of each", "3 pictures of each", "6 pictures of each"]
    assert all(0 <= row["right"] + row["wrong"] <= 1 and 0 <= row["strangers"] <= 1 for row in rows)
    assert len({row["threshold"] for row in rows}) == 1


def test_shares_by_hand() -> None:
    rows = [("Rex", "Rex", 0.9), ("Rex", "Mia", 0.8), ("Mia", "Mia", 0.4), ("", "Rex", 0.705), ("", "Mia", 0.3)]
    assert memory.shares(rows, 0.5) == (1 / 3, 1 / 3, 1 / 2)
    assert memory.threshold_of(rows) == pytest.approx(0.71)
