"""The log of a run: nothing lost but a torn line, nothing twice after a resume."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch

from meshcap.errors import MeshcapError
from meshcap.training.log import RunLog, read_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "log.jsonl"
    with RunLog(path) as log:
        for step in (10, 20, 30):
            log.write("train", step, stage="xe", loss=step / 10)
        log.write("val", 30, stage="xe", CIDEr=0.5)
    return path


def steps(path: Path) -> list[tuple[str, int]]:
    return [(record["kind"], record["step"]) for record in read_log(path)]


def test_records_come_back_as_given_with_their_time(path: Path) -> None:
    first = read_log(path)[0]
    assert first.pop("time") > 1.7e9
    assert first == {"kind": "train", "step": 10, "stage": "xe", "loss": 1.0}
    assert steps(path) == [("train", 10), ("train", 20), ("train", 30), ("val", 30)]


def test_appends_to_what_is_there(path: Path) -> None:
    with RunLog(path) as log:
        log.write("train", 40)
    assert steps(path)[-2:] == [("val", 30), ("train", 40)]


def test_others_can_read_while_it_is_written(path: Path) -> None:
    with RunLog(path) as log:
        log.write("train", 40)
        assert steps(path)[-1] == ("train", 40)


@pytest.mark.parametrize("torn", [b'{"kind": "train", "st', b'{"kind": "train", "step": 40}', "{“".encode()[:3]])
def test_a_torn_last_line_is_dropped_and_not_continued(path: Path, torn: bytes) -> None:
    with open(path, "ab") as file:
        file.write(torn)
    assert len(steps(path)) == 4
    with RunLog(path) as log:
        log.write("train", 41)
    assert steps(path) == [("train", 10), ("train", 20), ("train", 30), ("val", 30), ("train", 41)]


def test_a_last_line_of_zeros_is_dropped(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\0\0\0\0\n")
    assert len(steps(path)) == 4


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"kind": "train"}', '{"step": 3}', '{"kind": "x", "step": "3"}'])
def test_a_bad_line_elsewhere_is_told_with_its_number(path: Path, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:], ""]))
    with pytest.raises(MeshcapError, match=r"line 2 of .*log\.jsonl is not a record"):
        read_log(path)


def test_rewind_forgets_later_steps_and_goes_on(path: Path) -> None:
    with RunLog(path) as log:
        log.rewind(20)
        assert steps(path) == [("train", 10), ("train", 20)]
        log.write("train", 30, loss=7)
    assert steps(path) == [("train", 10), ("train", 20), ("train", 30)]
    assert [record["loss"] for record in read_log(path)] == [1, 2, 7]
    assert [file.name for file in path.parent.iterdir()] == ["log.jsonl"]


def test_numbers_of_other_libraries_and_non_finite_ones_are_plain_json(path: Path) -> None:
    with RunLog(path) as log:
        log.write(
            "train",
            50,
            loss=torch.tensor(2.5),
            rate=numpy.float32(0.5),
            norm=math.inf,
            more={"nan": math.nan},
            said=["größer", 1, None, True],
        )
    line = path.read_text("utf-8").splitlines()[-1]
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (record["loss"], record["rate"], record["norm"], record["more"]) == (2.5, 0.5, None, {"nan": None})
    assert record["said"] == ["größer", 1, None, True]
    assert "größer" in line


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeshcapError, match="cannot be written"):
        RunLog(tmp_path / "file" / "log.jsonl")
    with pytest.raises(MeshcapError, match=r"log.jsonl cannot be read: No such file"):
        read_log(tmp_path / "log.jsonl")
