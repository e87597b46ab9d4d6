"""benchmarks/decode.py prints rows with a floor; scripts run by their file names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.decode import command
from tiny_data import bench

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(
    path.name for path in FOLDER.glob("*.py") if 'if __name__ == "__main__":\n    common.main' in path.read_text()
)


def test_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--device", "cpu", "--repeat", 1, "--length", 2, "--compare", 1, "--json")
    assert bench(command, *words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["setting"] == "float32, not packed"
    assert all(row["floor"] > 0 and row["seconds"] > 0 for row in rows)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_what_it_does(name: str, tmp_path: Path) -> None:
    """From another folder, as a person would run it."""
    assert len(SCRIPTS) >= 8
    done = subprocess.run([sys.executable, FOLDER / name, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "--json" in done.stdout, done.stderr
