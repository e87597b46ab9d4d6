"""What a run writes down and what it shows: log.jsonl, and the line in the terminal."""

import io
import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from rich.console import Console

from meshcap.errors import MeshcapError
from meshcap.training.log import RunLog, Watch, read_log


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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def quiet(total: int, *, every: float = 30, terminal: bool = False) -> tuple[Watch, Clock, io.StringIO]:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, width=60, force_terminal=terminal)
    return Watch(total, console, quiet=terminal, every=every, clock=clock), clock, text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_plain_line_every_so_many_seconds_and_at_the_end(terminal: bool) -> None:
    watch, clock, text = quiet(100, every=30, terminal=terminal)
    with watch:
        for step in range(1, 101):
            watch.step("xe", step, loss=2.0, rate=812.4)
            clock.now += 1
    lines = text.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["xe 1/100", "xe 31/100", "xe 61/100", "xe 91/100", "xe 100/100"]
    assert lines[1] == "xe 31/100 · 1:09 left · loss 2.000 · 812 pictures/s"
    assert "\x1b" not in text.getvalue()


def test_the_pace_is_that_of_the_stage_and_of_this_run() -> None:
    watch, clock, text = quiet(10_000, every=0)
    with watch:
        watch.step("xe", 5000, loss=2.0, rate=1)  # resumed: 5,000 steps cost nothing here
        clock.now = 10
        watch.step("xe", 5010, loss=2.0, rate=1)
        watch.step("scst", 5011, loss=0.1, rate=1)
        clock.now = 20
        watch.step("scst", 5012, loss=0.1, rate=1)
    lines = text.getvalue().splitlines()
    assert "left" not in lines[0] and "left" not in lines[2]
    assert " 1:23:10 left " in lines[1]  # 4,990 steps of a second
    assert " 13:51:20 left " in lines[3]  # 4,988 steps of ten


def test_the_loss_is_a_running_mean_of_its_stage() -> None:
    watch, _, text = quiet(1000, every=0)
    with watch:
        watch.step("xe", 1, loss=4.0, rate=1)
        watch.step("xe", 2, loss=2.0, rate=1)
        watch.step("xe", 3, loss=math.nan, rate=1)
        watch.step("xe", 4, loss=3.0, rate=1)
        watch.step("scst", 5, loss=-0.25, rate=1)
    losses = [line.split("loss ")[1].split(" ")[0] for line in text.getvalue().splitlines()]
    assert losses == ["4.000", "2.990", "nan", "2.993", "-0.250"]


def test_the_mean_forgets_by_steps_not_by_calls() -> None:
    watch, _, text = quiet(10_000, every=0)
    with watch:
        watch.step("xe", 1, loss=9.0, rate=1)
        watch.step("xe", 1001, loss=2.0, rate=1)  # the mean of a thousand steps
    assert "loss 2.000" in text.getvalue().splitlines()[1]


def test_the_number_of_steps_may_come_late() -> None:
    watch, clock, text = quiet(0, every=30)
    watch.expect(60)
    with watch:
        for step in (1, 2, 60):
            watch.step("xe", step, loss=2.0, rate=1)
            clock.now += 1
    assert [line.split(" · ")[0] for line in text.getvalue().splitlines()] == ["xe 1/60", "xe 60/60"]


def test_validations_are_told_with_captions() -> None:
    watch, _, text = quiet(1000, every=0)
    with watch:
        watch.validated("xe", 500, cider=0.6123, best=0.6123, samples=["a [bold]man[/bold]", "a dog", "a third"])
        watch.validated("xe", 1000, cider=0.6, best=0.6123)
        watch.step("xe", 1000, loss=2, rate=1)
        watch.say("stopped by [SIGTERM] " + "x" * 80)
    assert text.getvalue().splitlines() == [
        "xe step 500: CIDEr 61.2 (best so far)",
        "    “a [bold]man[/bold]”",
        "    “a dog”",
        "xe step 1,000: CIDEr 60.0 (best 61.2)",
        "xe 1,000/1,000 · loss 2.000 · CIDEr 60.0 (best 61.2) · 1 pictures/s",
        "stopped by [SIGTERM] " + "x" * 80,
    ]


def test_a_terminal_gets_a_line_that_lives_and_goes() -> None:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    with Watch(100, console, clock=clock) as watch:
        watch.step("xe", 1, loss=3.0, rate=10)
        clock.now = 5
        watch.step("xe", 51, loss=3.0, rate=10)
        watch._progress.refresh()
        watch.say("a line that stays")
    shown = text.getvalue()
    assert "51/100 · 0:05 left · loss 3.000 · 10 pictures/s" in shown
    assert "a line that stays" in shown
    assert shown.rindex("\x1b[2K") > shown.rindex("51/100")  # erased at the end


def test_a_narrow_terminal_gets_one_line_all_the_same() -> None:
    text, clock = io.StringIO(), Clock()
    with Watch(20_000, Console(file=text, width=50, force_terminal=True, color_system=None), clock=clock) as watch:
        watch.validated("scst", 15_000, cider=1.2, best=1.2)
        watch.step("scst", 15_000, loss=-0.1, rate=205)
        watch._progress.refresh()
        [shown] = [line for line in text.getvalue().split("\r") if "15,000/20,000" in line][-1:]
    assert shown.count("\n") <= 1 and "…" in shown
