"""A run that was killed and resumed is the run that was never killed, bit by bit."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_data
from meshcap.captioner import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.training.log import read_log
from meshcap.training.trainer import Trainer

XE, SCST = 8, 6
# Whatever a run does at random is on: the order of pictures and captions, dropout, other views, the words drawn.
RANDOM = {"dropout": 0.1, "augment": 0.3, "region_dropout": 0.2, "ema": 0.9, "captions": 2, "checkpoint_every": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"))


def go_on(data: Path, run: Path) -> list[str]:
    """Nothing but --resume: everything else is in the run."""
    return ["train", str(data), "--out", str(run), "--resume", "--device", "cpu"]


def words(data: Path, out: Path, *more: object, **settings: object) -> list[str]:
    return tiny_data.train_words(data, out, *more, xe=XE, scst=SCST, **{**RANDOM, **settings})


@pytest.fixture(scope="module")
def straight(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    run = tmp_path_factory.mktemp("straight") / "run"
    assert tiny_data.call(words(data, run)) == 0
    return run


class Killed(BaseException):
    """Nobody catches it, nothing is tidied up."""


def kill_at(step: int, patch: pytest.MonkeyPatch, method: str = "step") -> None:
    real = getattr(Trainer, method)

    def dying(self: Trainer, *given: object) -> None:
        if self.position.step == step:
            raise Killed
        real(self, *given)

    patch.setattr(Trainer, method, dying)


def assert_same_run(one: Path, other: Path) -> None:
    assert tiny_data.losses(one) == tiny_data.losses(other)
    scores = [[r["CIDEr"] for r in read_log(run / "log.jsonl") if r["kind"] == "val"] for run in (one, other)]
    assert scores[0] == scores[1]
    last = f"checkpoints/{XE + SCST:09d}/state.safetensors"
    for name in ("model.safetensors", last):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first), name
    for name in ("captions-val.json", "vocabulary.json", "config.json"):
        assert (one / name).read_text() == (other / name).read_text()


@pytest.mark.parametrize("step", [0, 5, 8, 13])
def test_killed_in_a_step(step: int, data: Path, straight: Path, tmp_path: Path) -> None:
    """Before the first checkpoint, inside the first stage, between the stages, inside the second."""
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(step, patch)
        tiny_data.call(words(data, run))
    assert tiny_data.call(["train", str(data), "--out", str(run), "--resume", "--device", "cpu", "--threads", "1"]) == 0
    assert_same_run(straight, run)


@pytest.mark.parametrize("step", [4, 12])
def test_killed_before_a_checkpoint(step: int, data: Path, straight: Path, tmp_path: Path) -> None:
    """A validation has just written the model and the log is ahead of the last checkpoint."""
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(step, patch, "checkpoint")
        tiny_data.call(words(data, run))
    assert tiny_data.call(words(data, run, "--resume")) == 0
    assert_same_run(straight, run)


def test_killed_again_and_again(data: Path, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number, step in enumerate((2, 5, 8, 11)):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            kill_at(step, patch)
            tiny_data.call(words(data, run, *["--resume"] * (number > 0)))
    assert tiny_data.call(words(data, run, "--resume")) == 0
    assert_same_run(straight, run)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="frozen later"),
        pytest.param({"scst_lr_vision": 1e-3}, id="learning to the end", marks=pytest.mark.slow),
    ],
)
def test_a_vision_that_learns(settings: dict, data: Path, tmp_path: Path) -> None:
    """What the first stage taught them is in the folder of the best model, or in the checkpoints of the second."""
    small = {"vision": "small-cnn", "lr": 1e-2, **settings}
    more = ("--size", 32)
    assert tiny_data.call(words(data, tmp_path / "straight", *more, **small)) == 0
    for step in (5, 10):
        run = tmp_path / str(step)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            kill_at(step, patch)
            tiny_data.call(words(data, run, *more, **small))
        assert tiny_data.call(go_on(data, run)) == 0
        assert_same_run(tmp_path / "straight", run)
        first, second = (load_file(one / "vision" / "model.safetensors") for one in (tmp_path / "straight", run))
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_hard_attention_keeps_its_baseline(data: Path, tmp_path: Path) -> None:
    """What changes without being learned goes on too: the running mean that draws are judged by."""
    hard = ("--arch", "show-attend-tell", "--set", "model.attention=hard")
    sizes = {"heads": None, "d_ff": None, "encoder_layers": None, "decoder_layers": None, "slots": None}
    assert tiny_data.call(words(data, tmp_path / "straight", *hard, **sizes)) == 0
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(5, patch)
        tiny_data.call(words(data, tmp_path / "run", *hard, **sizes))
    assert tiny_data.call(go_on(data, tmp_path / "run")) == 0
    assert_same_run(tmp_path / "straight", tmp_path / "run")


def test_killed_after_the_second_stage_has_replaced_the_model(data: Path, tmp_path: Path) -> None:
    """It began with the best of the first stage, and that is no longer in the folder: a checkpoint must have it."""
    validate = Trainer._validate

    def always_better(self: Trainer) -> None:
        self.position.best = None
        validate(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_validate", always_better)
        settings = {"checkpoint_every": 4, "scst_lr": 0.01}
        assert tiny_data.call(words(data, tmp_path / "straight", **settings)) == 0
        with pytest.MonkeyPatch.context() as inner, pytest.raises(Killed):
            kill_at(12, inner, "checkpoint")
            tiny_data.call(words(data, tmp_path / "run", **settings))
        assert tiny_data.call(go_on(data, tmp_path / "run")) == 0
    assert_same_run(tmp_path / "straight", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_sigkill(seed: int, data: Path, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    step = random.Random(seed).choice(range(1, XE) if seed else range(XE + 1, XE + SCST))
    code, _ = tiny_data.signal_at(words(data, run), run / "log.jsonl", step)
    assert code == -signal.SIGKILL
    assert tiny_data.call(words(data, run, "--resume")) == 0
    assert_same_run(straight, run)


@pytest.mark.slow
def test_sigterm(data: Path, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, told = tiny_data.signal_at(words(data, run), run / "log.jsonl", 2, signal.SIGTERM)
    assert code == 143
    errors = [line for line in told.splitlines() if "error" in line]
    assert len(errors) == 1
    assert errors == [told.splitlines()[-1]]
    assert "go on with --resume" in errors[0]
    assert tiny_data.call(words(data, run, "--resume")) == 0
    assert_same_run(straight, run)


@pytest.fixture
def half(data: Path, tmp_path: Path) -> Path:
    """A run that was killed in its second stage, with two checkpoints."""
    run = tmp_path / "half"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(12, patch)
        tiny_data.call(words(data, run))
    return run


def damage(run: Path, place: int) -> None:
    path = sorted((run / "checkpoints").iterdir())[place] / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 255
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_told_and_passed_over(
    data: Path, straight: Path, half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = sorted((half / "checkpoints").iterdir())[-1].name
    damage(half, -1)
    assert tiny_data.call(words(data, half, "--resume")) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "is damaged" in line]
    assert len(told) == 1
    assert newest in told[0]
    assert "going on from the one before" in told[0]
    assert_same_run(straight, half)


def test_no_whole_checkpoint(data: Path, half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(half, -1)
    damage(half, -2)
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    assert tiny_data.call(words(data, half, "--resume")) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: no checkpoint of ")
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


def test_the_log_has_nothing_twice(data: Path, half: Path) -> None:
    assert tiny_data.call(words(data, half, "--resume")) == 0
    records = read_log(half / "log.jsonl")
    assert [one["step"] for one in records] == sorted(one["step"] for one in records)
    for kind in ("train", "val"):
        steps = [one["step"] for one in records if one["kind"] == kind]
        assert len(set(steps)) == len(steps)
    assert tiny_data.steps_of(half / "log.jsonl") == list(range(1, XE + SCST + 1))


def test_at_most_two_checkpoints_and_nothing_half_written(straight: Path) -> None:
    assert len(list((straight / "checkpoints").iterdir())) == 2
    assert not [path for path in straight.rglob("*") if path.name.endswith(".part")]


def test_the_folder_is_a_model_whenever_it_is_looked_at(data: Path, half: Path) -> None:
    scene = draw_scene(77, 48)
    assert Captioner.from_pretrained(half).caption(scene.image).text


def test_resuming_a_finished_run_changes_nothing(data: Path, straight: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    assert tiny_data.call(words(data, run, "--resume")) == 0
    assert_same_run(straight, run)


def refused(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    capsys.readouterr()
    assert tiny_data.call(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert message in err


def test_changed_data(data: Path, half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(data.parent, other)
    lines = tiny_data.read_lines(data)
    lines[0]["captions"][0] += " indeed"
    changed = tiny_data.write_lines(other / "captions.jsonl", lines)
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    assert tiny_data.call(words(changed, half, "--resume")) == 2
    assert "is not what" in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


def test_moved_data_is_the_same_data(data: Path, straight: Path, half: Path, tmp_path: Path) -> None:
    other = tmp_path / "moved"
    shutil.copytree(data.parent, other)
    assert tiny_data.call(words(other / "captions.jsonl", half, "--resume")) == 0
    assert_same_run(straight, half)


def test_nothing_to_resume(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, words(data, tmp_path / "none", "--resume"), "holds no run")
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    refused(capsys, words(data, tmp_path / "empty", "--resume"), "holds no run")


def test_damaged_settings(data: Path, half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (half / "training.json").write_text("{")
    refused(capsys, words(data, half, "--resume"), "cannot be read")
    (half / "training.json").write_text(json.dumps({"data": {"path": "x", "colour": "red"}, "run": {"out": "y"}}))
    refused(capsys, words(data, half, "--resume"), "colour")


def test_another_models_checkpoint(data: Path, half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads((half / "training.json").read_text())
    settings["model"]["d_ff"] = 48
    (half / "training.json").write_text(json.dumps(settings))
    assert tiny_data.call(go_on(data, half)) == 2
    assert "a run of another model" in capsys.readouterr().err.splitlines()[-1]
