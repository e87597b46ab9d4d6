"""Checkpoints: whole or not there, the last two kept, and nothing lost on the way."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import tiny
from meshcap.errors import MeshcapError
from meshcap.training import checkpoint
from meshcap.training.checkpoint import (
    Position,
    checkpoints,
    fill_weights,
    latest,
    read_checkpoint,
    restore_optimizer,
    save_checkpoint,
)
from meshcap.training.optimizer import Average, make_optimizer, named_weights


class Learner:
    """A tiny model that learns something, with all that a checkpoint holds."""

    def __init__(self, seed: int = 0, decay: float = 0.9):
        self.model = tiny.build("m2", seed=seed)
        self.weights = named_weights(self.model, None)
        rates = {"lr": 1e-2, "lr_vision": 0.0, "weight_decay": 0.1}
        self.optimizer = make_optimizer(self.weights, **rates, device=torch.device("cpu"))
        self.average = Average(self.weights, decay)

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        ids = torch.randint(4, 10, (2, 5))
        (-self.model(tiny.pictures(3, 3), ids).clamp_min(-50).sum() / 100).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update()

    def save(self, run: Path, step: int) -> Path:
        return save_checkpoint(run, Position("xe", step), self.weights, self.optimizer, self.average)

    def load(self, run: Path) -> Position:
        position, steps, tensors, _ = latest(run)
        fill_weights(self.weights, self.average, tensors)
        restore_optimizer(self.optimizer, self.weights, tensors)
        self.average.steps = steps
        return position


@pytest.mark.parametrize("decay", [0.9, 0.0])
def test_what_follows_a_checkpoint_is_what_would_have_followed(tmp_path: Path, decay: float) -> None:
    straight, broken = Learner(decay=decay), Learner(decay=decay)
    for step in range(6):
        straight.step(step)
    for step in range(3):
        broken.step(step)
    broken.save(tmp_path, 3)
    again = Learner(seed=5, decay=decay)
    assert again.load(tmp_path) == Position("xe", 3)
    for step in range(3, 6):
        again.step(step)
    for name, weight in straight.weights.items():
        assert torch.equal(weight, again.weights[name]), name
    for name, mean in straight.average.mean.items():
        assert torch.equal(mean, again.average.mean[name]), name


def test_a_position_comes_back_whole(tmp_path: Path) -> None:
    learner = Learner()
    position = Position("scst", 70, 50, 0.25, 60, 0.2, 70, 3, True, ["one", "zwei"])
    save_checkpoint(tmp_path, position, learner.weights, learner.optimizer, learner.average)
    assert latest(tmp_path)[0] == position


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    learner = Learner()
    for step in (1, 2, 10, 9, 100):
        learner.save(tmp_path, step)
    assert [path.name for path in checkpoints(tmp_path)] == ["000000010", "000000100"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000000010", "000000100"]


def damage(path: Path, how: str) -> None:
    tensors, state = path / "state.safetensors", path / "state.json"
    content = bytearray(tensors.read_bytes())
    if how == "flip":  # a bit in the middle of the weights, which every format but a checksum would take for real
        content[len(content) // 2] ^= 1
        tensors.write_bytes(content)
    elif how == "truncate":
        tensors.write_bytes(content[: len(content) // 2])
    elif how == "no tensors":
        tensors.unlink()
    elif how == "half a state":
        state.write_bytes(state.read_bytes()[:40])
    elif how == "another state":
        state.write_text("[1, 2]")
    elif how == "a stranger's state":
        state.write_text(json.dumps({**json.loads(state.read_text()), "colour": "red"}))


DAMAGES = ["flip", "truncate", "no tensors", "half a state", "another state", "a stranger's state"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_one_is_told_and_the_one_before_serves(tmp_path: Path, how: str) -> None:
    learner = Learner()
    learner.save(tmp_path, 1)
    damage(learner.save(tmp_path, 2), how)
    position, _, _, complaints = latest(tmp_path)
    assert position.step == 1
    assert len(complaints) == 1
    assert "000000002 is damaged" in complaints[0]
    damage(tmp_path / "checkpoints" / "000000001", how)
    with pytest.raises(MeshcapError, match=r"no checkpoint of .* can be used") as told:
        latest(tmp_path)
    assert "\n" not in str(told.value)


def test_none_yet(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    (tmp_path / "checkpoints" / ".000000004.part").mkdir(parents=True)  # a run that was killed while it wrote
    assert latest(tmp_path) is None


def test_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner()
    learner.save(tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(MeshcapError, match="make room") as told:
        learner.save(tmp_path, 2)
    assert "\n" not in str(told.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000001"]
    assert latest(tmp_path)[0].step == 1


def test_the_disk_is_full_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program took the room after it was asked for."""
    learner = Learner()
    learner.save(tmp_path, 1)

    def half(weights: dict[str, torch.Tensor], path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_safetensors", half)
    with pytest.raises(MeshcapError, match="No space left on device"):
        learner.save(tmp_path, 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000001"]
    assert latest(tmp_path)[0].step == 1


def test_another_models_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    Learner().save(tmp_path, 1)
    other = tiny.build("m2", d_ff=28)
    weights = named_weights(other, None)
    before = [weight.clone() for weight in weights.values()]
    with pytest.raises(MeshcapError, match="a run of another model"):
        fill_weights(weights, Average(weights, 0.9), read_checkpoint(checkpoints(tmp_path)[0])[2])
    assert all(torch.equal(one, two) for one, two in zip(before, weights.values(), strict=True))
    more = {**weights, "vision.new": nn.Parameter(torch.zeros(2))}
    with pytest.raises(MeshcapError, match=r"nothing for vision\.new"):
        fill_weights({"vision.new": more["vision.new"]}, Average({}, 0.0), latest(tmp_path)[2])
