"""benchmarks/meteor.py: its random captions, what it measures, and that it runs."""

import json
import sys
from pathlib import Path

import pytest

import tiny_data
from benchmarks.meteor import command, measured, random_pairs
from meshcap.metrics.meteor import find_data

REFERENCES = [["a dog runs", "the dog"], ["two cats sit on a mat", "cats"]]


def test_random_pairs() -> None:
    pairs = random_pairs(REFERENCES, 300, 1)
    assert pairs == random_pairs(REFERENCES, 300, 1) != random_pairs(REFERENCES, 300, 2)
    lengths = {len(one.split()) for one, _ in pairs}
    assert {0, 1, 60} <= lengths and {len(those) for _, those in pairs} == {1, 2, 5}
    assert any(one in those for one, those in pairs) and not any("|||" in one for one, _ in pairs)


def test_memory_is_the_process_own() -> None:
    held = bytearray(b"x") * (300 << 20)  # of the process that starts it
    out, seconds, wall, memory = measured([sys.executable, "-S", "-c", "print(input())"], None, b"hello\n")
    assert (out, len(held)) == ("hello\n", 300 << 20)
    assert 0 < seconds < 5 and wall > 0 and 2 << 20 < memory < 100 << 20


@pytest.mark.slow
@pytest.mark.skipif(find_data() is None, reason="pycocoevalcap is not installed")
def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    references, candidates = tmp_path / "refs.json", tmp_path / "said.json"
    references.write_text(json.dumps(dict(enumerate(REFERENCES))))
    candidates.write_text(json.dumps({0: "a dog", 1: "two cats"}))
    words = ("--references", references, "--candidates", candidates, "--json")
    assert tiny_data.bench(command, *words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["work"] for row in rows[:2]] == ["meshcap, which indexes the paraphrases", "meshcap"]
    assert all(row["memory"] < 500 << 20 for row in rows[:2]) and rows[1]["seconds"] < rows[0]["seconds"]
    assert all("0 of 2 by more than 1e-6" in row["notes"]["scores differ"] for row in rows[2:])
