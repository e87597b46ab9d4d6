"""recipes/turing_machine.py, with a machine so small that it learns nothing in no time."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from recipes import turing_machine

TINY = ("--steps", 3, "--batch", 2, "--width", 2, "--length", 2, "--memory", 6, "--row-width", 3, "--units", 5)


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = 0
    try:
        turing_machine.main([str(word) for word in words])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("task", ["copy", "repeat-copy", "associative-recall"])
@pytest.mark.parametrize("controller", ["lstm", "feed-forward"])
def test_it_writes_weights_that_can_be_loaded_and_a_picture(
    task: str, controller: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    from meshcap.memory import TuringConfig, TuringMachine
    from recipes.turing_machine import TASKS, examine

    code, out, err = call(capsys, task, *TINY, "--controller", controller, "--out", tmp_path / "a" / "b", "--json")
    assert (code, err) == (0, "")
    folder = tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "memory.png", "model.safetensors", "result.json",
    ]  # fmt: skip
    told = json.loads(out)
    assert told == json.loads((folder / "result.json").read_text())
    assert [one["length"] for one in told["answers"]] == [2, 4, 8, 16]
    assert Image.open(folder / "memory.png").size > (100, 100)
    machine = TuringMachine(TuringConfig(**json.loads((folder / "config.json").read_text())))
    machine.load_state_dict(load_file(folder / "model.safetensors"))
    first = told["answers"][0]
    answer = examine(machine, TASKS[task], 2, 2, seed=1)
    assert answer.wrong == pytest.approx(first["wrong"]) and answer.rows == first["rows"]


def test_table_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "copy", *TINY)
    assert code == 0
    assert "answers without a mistake" in out and "1-2 vectors of 2 bits" in out

    def answers(seed: int) -> list[dict]:
        return json.loads(call(capsys, "copy", *TINY, "--seed", seed, "--json")[1])["answers"]

    assert answers(3) == answers(3) != answers(4)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, "copy", *TINY, "--out", tmp_path / "file")
    assert code == 1 and "cannot be made" in err
    code, _, err = call(capsys, "associative-recall", "--length", 1, "--steps", 1)
    assert code == 1 and err.startswith("error: ") and "at least 2" in err
    assert call(capsys, "sorting")[0] == 2
