"""benchmarks/batch.py: the work is done and counted; no time is judged."""

import json
import os
from pathlib import Path

import pytest

from batch.seeing import captioner
from benchmarks.batch import command, make_pictures
from meshcap.vision import read_picture
from tiny_data import bench


def test_jobs_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captioner().save_pretrained(tmp_path)
    words = ["--pictures", "64", "--repeat", "1", "--listed", "1000", "--model", str(tmp_path)]
    assert bench(command, *words, "--beams", "1", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    steps = [(name, "16 pictures") for name in (f"read, {os.cpu_count()} threads", "see", "search", "say")]
    assert [(row["work"], row["setting"]) for row in rows] == [
        ("reading alone", "1 thread"), *steps, ("this process", "2 lanes"), ("listing", "1,000 paths, 16 blocks")
    ]  # fmt: skip
    assert all(row["seconds"] > 0 for row in rows)


def test_pictures_are_as_large_as_photos(tmp_path: Path) -> None:
    make_pictures(tmp_path, 2)
    for path in tmp_path.iterdir():
        assert read_picture(path).size == (640, 480) and 40_000 < path.stat().st_size < 200_000
