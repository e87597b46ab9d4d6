"""Tables, as other readers read them."""

import csv
import json
from pathlib import Path

import pytest

from meshcap import MeshcapError
from meshcap.batch.tables import check_table, write_errors, write_table

ROWS = [
    {"path": 'a, "b".jpg', "caption": "Zürich,\n“x”", "confidence": 0.25, "words": ["zürich"], "log_probs": [-0.5]},
    {"path": "broken.jpg", "error": "broken.jpg is no picture"},
    {"path": "c.jpg", "caption": None, "confidence": 0.125, "words": ["x"], "log_probs": [-1.0]},
    {"path": "d.jpg", "caption": "D", "confidence": 0.5, "words": ["d"], "log_probs": [-2.0], "error": "no room"},
]
PATHS = ['a, "b".jpg', "c.jpg", "d.jpg"]


def test_jsonl(tmp_path: Path) -> None:
    write_table(tmp_path / "t.jsonl", ROWS, words=True, alternatives=False)
    read = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert read == [ROWS[0], ROWS[2], {name: value for name, value in ROWS[3].items() if name != "error"}]


def test_csv(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ROWS, words=True, alternatives=False)
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["path"] for row in read] == PATHS
    assert [row["caption"] for row in read] == ["Zürich,\n“x”", "", "D"]
    assert [float(row["confidence"]) for row in read] == [0.25, 0.125, 0.5]
    assert json.loads(read[0]["words"]) == ["zürich"]


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "alternatives": [{"caption": "e", "confidence": 0.5}]} if "caption" in row else row for row in ROWS]
    write_table(tmp_path / "t.parquet", rows, words=True, alternatives=True)
    read = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["path"] for row in read] == PATHS
    assert [row["caption"] for row in read] == ["Zürich,\n“x”", None, "D"]
    assert read[0]["log_probs"] == [-0.5] and read[0]["alternatives"] == [{"caption": "e", "confidence": 0.5}]


def test_parquet_without_any_caption_has_its_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "t.parquet", [ROWS[1]], words=False, alternatives=False)
    assert parquet.read_table(tmp_path / "t.parquet").schema.names == ["path", "caption", "confidence"]


def test_errors(tmp_path: Path) -> None:
    path = tmp_path / "t.errors.jsonl"
    write_errors(path, ROWS)
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert read == [{"path": "broken.jpg", "error": "broken.jpg is no picture"}, {"path": "d.jpg", "error": "no room"}]
    write_errors(path, ROWS[:1])  # those of an earlier job do not stay
    assert not path.exists()


def test_paths_that_are_no_unicode(tmp_path: Path) -> None:
    name = b"\xff.jpg".decode("utf-8", "surrogateescape")
    row = {"path": name, "caption": "x", "confidence": 0.5}
    write_table(tmp_path / "t.csv", [row], words=False, alternatives=False)
    assert b"\n\xff.jpg,x," in (tmp_path / "t.csv").read_bytes()
    pytest.importorskip("pyarrow")
    write_table(tmp_path / "t.parquet", [row], words=False, alternatives=False)


def test_what_cannot_be_written_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeshcapError, match=r"ends in '.xlsx', expected one of .jsonl, .csv, .parquet"):
        write_table(tmp_path / "t.xlsx", ROWS, words=False, alternatives=False)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MeshcapError, match="pip install pyarrow"):
        check_table(Path("t.parquet"))
