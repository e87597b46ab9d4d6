"""benchmarks/decode.py prints rows with a floor; scripts run by their file names."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import decode
from tiny_data import bench

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(
    path.name for path in FOLDER.glob("*.py") if 'if __name__ == "__main__":\n    common.main' in path.read_text()
)


def test_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"vocab_size": 50, "d_model": 32, "heads": 2, "d_ff": 64, "slots": 4}
    monkeypatch.setattr(decode, "random_model", partial(decode.random_model, **sizes))
    words = ("--device", "cpu", "--repeat", 1, "--length", 2, "--compare", 1, "--json")
    assert bench(decode.command, *words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["setting"] == "float32, not packed"
    assert all(row["floor"] > 0 and row["seconds"] > 0 for row in rows)


# Scripts one after the other, each with what Python itself would give it: its own path, none of the others' modules.
ALL = """
import runpy, sys
paths, modules = list(sys.path), set(sys.modules)
for script in sys.argv[1:]:
    sys.argv, sys.path[:] = [script, "--help"], [str(script.rpartition("/")[0]), *paths[1:]]
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]
    print("script", script, flush=True)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        print("left with", left.code, flush=True)
"""


def test_every_script_says_what_it_does(tmp_path: Path) -> None:
    """From another folder, as a person would run it."""
    assert len(SCRIPTS) >= 8
    words = [sys.executable, "-c", ALL, *(str(FOLDER / name) for name in SCRIPTS)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    helps = done.stdout.split("script ")[1:]
    assert len(helps) == len(SCRIPTS)
    for name, text in zip(SCRIPTS, helps, strict=True):
        assert text.splitlines()[0].endswith(f"/{name}")
        assert "--json" in text and text.endswith("left with 0\n"), text
