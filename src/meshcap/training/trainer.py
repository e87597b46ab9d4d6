"""The loop that all stages share: batches, steps, validations, checkpoints, and stopping well.

Everything random in a step is seeded by the step itself, so a run that was killed and resumed computes what it would
have computed, bit by bit on a CPU.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from meshcap.errors import FailedError
from meshcap.training.checkpoint import Position, save_checkpoint
from meshcap.training.distributed import World
from meshcap.training.log import RunLog, Watch
from meshcap.training.optimizer import Average, schedule, set_rate
from meshcap.training.settings import RunSettings, SCSTSettings, StageSettings
from meshcap.training.tasks import Measures, Task, batch_of, rng
from meshcap.training.track import Tracker
from meshcap.training.validate import Validator

# Mean absolute difference of a word's log-probability between search and teacher forcing that rounding explains.
ROUNDING = {"float32": 1e-4, "bfloat16": 0.05}


class InterruptedRunError(FailedError):
    """A signal asked the run to stop, and it stopped between two steps with a checkpoint written."""

    exit_code = 143  # what a shell reports of a program that SIGTERM ended; 130 after SIGINT


@dataclass
class Trainer:
    """One stage of a run."""

    task: Task
    weights: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    average: Average
    position: Position
    pictures: int  # to learn from
    stage: StageSettings
    settings: RunSettings
    world: World
    folder: Path  # of the run
    validator: Validator
    keep: Callable[[], None]  # writes the weights of now into the model folder
    watch: Watch
    log: RunLog | None = None
    tracker: Tracker | None = None
    others: dict[str, Tensor] = field(default_factory=dict)  # of the model: saved, changing, not learned
    look_every: int = 20  # steps between looks at the loss: each look waits for a GPU
    _sums: Measures = field(default_factory=dict)
    _since: tuple[int, float] = (0, 0.0)

    @property
    def steps(self) -> int:
        assert self.stage.steps is not None
        return self.stage.steps

    @property
    def batch(self) -> int:
        assert self.stage.batch is not None
        return self.stage.batch

    def fit(self) -> None:
        """Train until the stage's last step, or until patience is out.

        Raises:
            FailedError: the loss is no longer finite, or the two passes of self-critical training disagree.
            InterruptedRunError: SIGTERM or SIGINT came; a checkpoint has been written.
        """
        position = self.position
        end = position.stage_start + self.steps
        validate_every = self.settings.validate_every or self.steps
        checkpoint_every = self.settings.checkpoint_every or validate_every
        self.task.ready()
        self._begin_count()
        with stop_signals() as asked_to_stop:
            while position.step < end and not self._out_of_patience():
                self.step(position.step)
                position.step += 1
                done = position.step - position.stage_start
                last = position.step == end
                validated = done % validate_every == 0 or last
                saved = done % checkpoint_every == 0 or validated
                # Always before something is kept: what is not finite must replace nothing that is.
                if done % self.look_every == 0 or done == 1 or saved:
                    self._look()
                if validated:
                    with self._not_counted():
                        self._validate()
                # Ranks ask each other now and then, not in every step.
                ask = self.world.size == 1 or done % self.look_every == 0 or last
                stop = ask and self.world.agree(bool(asked_to_stop))
                if stop and self._since[0] < position.step:
                    self._look()
                if saved or stop:
                    with self._not_counted():
                        self.checkpoint()
                if stop:  # after the last step too: another stage may follow
                    where = f"at step {position.step:,}"
                    error = InterruptedRunError(f"stopped {where} as asked; nothing is lost: go on with --resume")
                    if asked_to_stop:
                        error.exit_code = 128 + asked_to_stop[0]
                    raise error

    def _out_of_patience(self) -> bool:
        return 0 < (self.settings.patience or 0) <= self.position.validations_since

    def step(self, step: int) -> None:
        settings = self.settings
        in_stage = step - self.position.stage_start
        everyone = batch_of(in_stage, self.batch, self.pictures, settings.seed)
        torch.manual_seed(int(rng(settings.seed, step, self.world.rank, 7).integers(2**62)))
        measured = self.task.backward(everyone, step)
        if in_stage + 1 < self.steps:
            self.task.ahead(batch_of(in_stage + 1, self.batch, self.pictures, settings.seed))
        self.world.sum_gradients(self.weights.values())
        norm = nn.utils.clip_grad_norm_(list(self.weights.values()), self.stage.clip)
        set_rate(self.optimizer, schedule(in_stage, self.steps, self.stage.warmup, self.stage.last_rate))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update()
        for name, value in measured.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        # The norm is that of all ranks together already.
        self._sums["gradient"] = self._sums.get("gradient", torch.zeros_like(norm)) + norm / self.world.size

    @contextmanager
    def _not_counted(self) -> Iterator[None]:
        """What is no training does not count in the rate."""
        start = time.perf_counter()
        yield
        self._since = (self._since[0], self._since[1] + time.perf_counter() - start)

    def _begin_count(self) -> None:
        self._sums.clear()
        self._since = (self.position.step, time.perf_counter())

    def _look(self) -> None:
        """Read what the device measured since the last look, and report it."""
        step, stage = self.position.step, self.task.name
        steps = step - self._since[0]
        means = {name: self.world.sum(value / steps).item() for name, value in self._sums.items()}
        rate = steps * self.batch / (time.perf_counter() - self._since[1])
        lr = self.optimizer.param_groups[0]["lr"]
        self._check(means)
        self.watch.step(stage, step, loss=means["loss"], rate=rate)
        numbers = {**means, "rate": rate, "lr": lr}
        if self.log is not None:
            self.log.write("train", step, stage=stage, **numbers)
        if self.tracker is not None:
            self.tracker.scalars(step, {f"{stage}/{name}": value for name, value in numbers.items()})
        self._begin_count()

    def _check(self, means: dict[str, float]) -> None:
        if not all(math.isfinite(means[name]) for name in ("loss", "gradient")):
            raise FailedError(self._diagnosis(means))
        most = 5 * ROUNDING[self.settings.precision or "float32"]
        if isinstance(self.stage, SCSTSettings) and self.stage.search == "beam":
            return
        if means.get("disagreement", 0.0) > most:
            raise FailedError(
                f"step {self.position.step:,}: the captions' log-probabilities in the search and in the pass with "
                f"gradients differ by {means['disagreement']:.4f} a word, and rounding explains at most {most:g}: "
                "the two do not ban the same words, or dropout is on in one of them"
            )

    def _diagnosis(self, means: dict[str, float]) -> str:
        lost = [name for name, weight in self.weights.items() if not bool(torch.isfinite(weight).all())]
        text = (
            f"the loss is {means['loss']:.4g} and the gradient's norm {means['gradient']:.4g} around step "
            f"{self.position.step:,} (learning rate {self.optimizer.param_groups[0]['lr']:.2g}); "
        )
        text += f"{len(lost)} weights are no longer finite (first: {lost[0]})" if lost else "all weights are finite"
        return (
            f"{text}; the last checkpoint is from before: --resume goes on from there, or begin with a lower rate "
            f"({self.task.name}.lr)"
        )

    def _validate(self) -> None:
        position = self.position
        with self.average.applied():
            found = self.validator.validate()
            better = position.best is None or found.cider > position.best
            position.validations_since = 0 if better else position.validations_since + 1
            if better:
                position.best, position.best_step = found.cider, position.step
            if better or self.settings.keep == "last":
                position.kept, position.kept_step = found.cider, position.step
                self.keep()
        assert position.best is not None
        self.task.ready()
        self.watch.validated(
            self.task.name, position.step, found.cider, position.best, [one.text for one in found.captions[:2]]
        )
        numbers = {"CIDEr": found.cider, "best": position.best, "bad_endings": found.bad_endings, "words": found.words}
        if self.log is not None:
            samples = [one.text for one in found.captions[:8]]
            self.log.write("val", position.step, stage=self.task.name, samples=samples, **numbers)
        if self.tracker is not None:
            self.tracker.scalars(position.step, {f"val/{name}": value for name, value in numbers.items()})
            self.tracker.samples(position.step, self.validator.examples(found.captions))

    def checkpoint(self) -> None:
        """By the first rank; the others wait, lest they run ahead of what can be resumed."""
        if self.world.first:
            save_checkpoint(self.folder, self.position, self.weights, self.optimizer, self.average, self.others)
        self.world.wait()


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that is empty until SIGTERM or SIGINT comes; a second one interrupts at once."""
    got: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if got:
            raise KeyboardInterrupt
        got.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield got  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
