"""The loop around the steps: when it looks, keeps, saves and stops."""

import os
import signal
import threading
from pathlib import Path

import numpy
import pytest
import torch

from meshcap.errors import FailedError, MeshcapError
from meshcap.training import checkpoint
from meshcap.training.checkpoint import Position, checkpoints, latest
from meshcap.training.log import read_log
from meshcap.training.tasks import Measures
from meshcap.training.trainer import InterruptedRunError, Trainer, stop_signals
from training.made_up import parts_of, scst_task, settings_of, trainer_of, xe_task


def every(steps: int, **changes: object) -> dict:
    return {"validate_every": steps, **changes}


def at_step(trainer: Trainer, step: int, work) -> None:
    """Let `work` happen within a step of the run."""
    backward = trainer.task.backward

    def wrapped(everyone: numpy.ndarray, number: int) -> Measures:
        measured = backward(everyone, number)
        if number + 1 == step:
            work(measured)
        return measured

    trainer.task.backward = wrapped  # type: ignore[method-assign]


def test_the_loss_falls_and_the_log_tells(tmp_path: Path) -> None:
    trainer = trainer_of(xe_task(parts_of(), own := settings_of(**every(10))), tmp_path, own, steps=30, lr=1e-2)
    trainer.fit()
    records = [one for one in read_log(tmp_path / "log.jsonl") if one["kind"] == "train"]
    assert [one["step"] for one in records] == list(range(1, 31))
    assert records[-1]["loss"] < 0.8 * records[0]["loss"]
    assert max(one["lr"] for one in records) == pytest.approx(1e-2)
    assert [one["step"] for one in read_log(tmp_path / "log.jsonl") if one["kind"] == "val"] == [10, 20, 30]


def test_the_best_is_kept_and_only_the_best(tmp_path: Path) -> None:
    settings = settings_of(**every(2))
    task = xe_task(parts_of(), settings)
    trainer = trainer_of(task, tmp_path, settings, steps=12, ciders=[0.2, 0.1, 0.3, 0.3, 0.25, 0.4])
    trainer.fit()
    assert trainer.kept == [2, 6, 12]  # equally good is not better
    assert (trainer.position.best, trainer.position.best_step) == (0.4, 12)


def test_the_last_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    settings = settings_of(**every(2, keep="last", patience=3))
    task = xe_task(parts_of(), settings)
    trainer = trainer_of(task, tmp_path, settings, steps=8, ciders=[0.4, 0.1, 0.3, 0.2])
    trainer.fit()
    assert trainer.kept == [2, 4, 6, 8]
    assert (trainer.position.kept, trainer.position.kept_step) == (0.2, 8)
    assert (trainer.position.best, trainer.position.best_step) == (0.4, 2)  # the record of the best stays


def test_what_is_examined_is_the_average(tmp_path: Path) -> None:
    parts = parts_of()
    trainer = trainer_of(xe_task(parts, own := settings_of(**every(3))), tmp_path, own, steps=3, lr=1e-2)
    name, weight = next(iter(trainer.weights.items()))
    seen = []
    validate = trainer.validator.validate
    trainer.validator.validate = lambda: seen.append(weight.detach().clone()) or validate()
    trainer.fit()
    assert torch.equal(seen[0], trainer.average.mean[name])
    assert not torch.equal(seen[0], weight)


def test_patience_ends_a_stage_and_resuming_does_not_begin_it_again(tmp_path: Path) -> None:
    settings = settings_of(**every(2, patience=2))
    trainer = trainer_of(xe_task(parts_of(), settings), tmp_path, settings, steps=20, ciders=[0.3, 0.2, 0.1, 0.5])
    trainer.fit()
    assert trainer.position.step == 6
    found = latest(tmp_path)
    assert found is not None
    again = trainer_of(xe_task(parts_of(), settings), tmp_path, settings, steps=20, ciders=[0.9], position=found[0])
    again.fit()
    assert again.position.step == 6
    assert again.validator.asked == 0


def test_checkpoints_by_their_own_count(tmp_path: Path) -> None:
    settings = settings_of(**every(6, checkpoint_every=4))
    trainer = trainer_of(xe_task(parts_of(), settings), tmp_path, settings, steps=12)
    saved = []
    save = trainer.checkpoint
    trainer.checkpoint = lambda: saved.append(trainer.position.step) or save()  # type: ignore[method-assign]
    trainer.fit()
    assert saved == [4, 6, 8, 12]
    assert [path.name for path in checkpoints(tmp_path)] == ["000000008", "000000012"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_between_two_steps(tmp_path: Path, number: int) -> None:
    trainer = trainer_of(xe_task(parts_of(), own := settings_of(**every(10))), tmp_path, own, steps=10)
    before = signal.getsignal(number)
    at_step(trainer, 3, lambda measured: os.kill(os.getpid(), number))
    with pytest.raises(InterruptedRunError, match="stopped at step 3 as asked") as told:
        trainer.fit()
    assert told.value.exit_code == 128 + number
    assert "\n" not in str(told.value)
    assert latest(tmp_path)[0] == Position("xe", 3)
    assert signal.getsignal(number) is before


def test_a_signal_in_the_last_step_is_not_lost(tmp_path: Path) -> None:
    """Another stage may follow, and whoever asked would wait for hours."""
    trainer = trainer_of(xe_task(parts_of(), own := settings_of(**every(4))), tmp_path, own, steps=4)
    at_step(trainer, 4, lambda measured: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError):
        trainer.fit()
    assert latest(tmp_path)[0].step == 4


def test_a_second_signal_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), stop_signals() as got:
        os.kill(os.getpid(), signal.SIGTERM)
        assert got == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)


def test_threads_may_train_too() -> None:
    """Only the main thread may set signal handlers; elsewhere there are none, and no error."""
    found: list[object] = []

    def work() -> None:
        with stop_signals() as got:
            found.append(list(got))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[]]


@pytest.mark.parametrize("look_every", [1, 20])
def test_a_loss_that_is_not_finite_stops_the_run_before_anything_is_saved(tmp_path: Path, look_every: int) -> None:
    """Also where the loss is looked at now and then only: a checkpoint must not be of weights that are lost."""
    settings = settings_of(**every(50, checkpoint_every=2))
    trainer = trainer_of(xe_task(parts_of(), settings), tmp_path, settings, steps=50, look_every=look_every)

    def spoil(measured: Measures) -> None:
        measured["loss"] *= float("nan")
        for weight in trainer.weights.values():
            weight.grad.mul_(float("nan"))

    at_step(trainer, 7, spoil)
    with pytest.raises(FailedError, match=r"the loss is nan .* around step [78]") as told:
        trainer.fit()
    assert told.value.exit_code == 1
    assert "no longer finite" in str(told.value)
    assert "\n" not in str(told.value)
    position, _, tensors, complaints = latest(tmp_path)
    assert (position.step, complaints) == (6, [])
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_a_run_asked_to_stop_does_not_save_what_is_lost(tmp_path: Path) -> None:
    settings = settings_of(**every(50, checkpoint_every=4))
    trainer = trainer_of(xe_task(parts_of(), settings), tmp_path, settings, steps=50, look_every=6)

    def spoil_and_stop(measured: Measures) -> None:
        measured["loss"] *= float("nan")
        os.kill(os.getpid(), signal.SIGTERM)

    at_step(trainer, 5, spoil_and_stop)
    with pytest.raises(FailedError, match="the loss is nan"):
        trainer.fit()
    assert latest(tmp_path)[0].step == 4


def test_an_endless_gradient_is_no_better(tmp_path: Path) -> None:
    trainer = trainer_of(xe_task(parts_of(), own := settings_of(**every(4))), tmp_path, own)

    def spoil(measured: Measures) -> None:
        next(iter(trainer.weights.values())).grad.fill_(float("inf"))

    at_step(trainer, 2, spoil)
    with pytest.raises(FailedError, match="gradient's norm inf"):
        trainer.fit()


def test_passes_that_disagree_stop_the_run_with_the_cause(tmp_path: Path) -> None:
    parts = parts_of()
    settings = settings_of(**every(4))
    task = scst_task(parts, settings)
    # The search speaks without the word 5, which the model may say: the mistake that made captions worse for years.
    with torch.no_grad():
        task.sampler.copy.decoder.output.suppression[5] = float("-inf")
    trainer = trainer_of(task, tmp_path, settings)
    with pytest.raises(FailedError, match="do not ban the same words") as told:
        trainer.fit()
    assert told.value.exit_code == 1
    assert latest(tmp_path) is None


def test_dropout_in_one_pass_stops_the_run_too(tmp_path: Path) -> None:
    parts = parts_of(dropout=0.2)
    settings = settings_of(**every(4))
    task = scst_task(parts, settings)
    task.ready = lambda: parts.model.train()  # type: ignore[method-assign]
    with pytest.raises(FailedError, match="dropout is on in one of them"):
        trainer_of(task, tmp_path, settings).fit()


def test_scst_raises_the_reward(tmp_path: Path) -> None:
    settings = settings_of(**every(60), samples=5)
    trainer = trainer_of(scst_task(parts_of(), settings), tmp_path, settings, steps=60, lr=5e-3)
    trainer.fit()
    rewards = [one["reward"] for one in read_log(tmp_path / "log.jsonl") if one["kind"] == "train"]
    assert numpy.mean(rewards[-10:]) > 1.5 * numpy.mean(rewards[:10])
    gaps = [one["disagreement"] for one in read_log(tmp_path / "log.jsonl") if one["kind"] == "train"]
    assert max(gaps) < 1e-5


def test_a_full_disk_ends_the_run_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(xe_task(parts_of(), own := settings_of(**every(2))), tmp_path, own)
    usage = checkpoint.shutil.disk_usage(tmp_path)

    def fill_disk(measured: Measures) -> None:
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=10))

    at_step(trainer, 3, fill_disk)
    with pytest.raises(MeshcapError, match="make room"):
        trainer.fit()
    assert latest(tmp_path)[0].step == 2


def test_gradients_are_clipped(tmp_path: Path) -> None:
    trainer = trainer_of(xe_task(parts_of(), own := settings_of(**every(4), clip=1e-3)), tmp_path, own)
    norms = []
    step = trainer.optimizer.step

    def noted() -> None:
        norms.append(torch.stack([w.grad.norm() for w in trainer.weights.values() if w.grad is not None]).norm())
        step()

    trainer.optimizer.step = noted
    trainer.fit()
    assert max(norms).item() == pytest.approx(1e-3, rel=1e-3)
    # The log tells the norm before it was clipped, which is what a person wants to see explode.
    assert min(one["gradient"] for one in read_log(tmp_path / "log.jsonl") if one["kind"] == "train") > 0.01
