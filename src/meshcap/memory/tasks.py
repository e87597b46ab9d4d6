"""Tasks that cannot be done without remembering: copy, repeat copy, associative recall (Graves et al., 2014).

A machine first listens, then answers while it hears nothing. Every batch is made of random bits anew, by a generator
with a seed; all its sequences have the same length, so nothing is padded.

B sequences, T steps; `width` bits of a vector. Beside the bits, inputs have channels for signs such as "now answer".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import FailedError, MeshcapError
from meshcap.memory.turing import TuringMachine

ITEM = 3  # vectors of an item in associative recall, as in the paper
REPEATS = 5  # most repetitions in repeat copy, by default


@dataclass(frozen=True)
class Batch:
    """What is heard, what should be said, and when it counts."""

    inputs: Tensor  # (B, T, width + signs heard)
    targets: Tensor  # (B, T, width + signs said), zeros where nothing is asked
    mask: Tensor  # (T,), true at the steps of the answer


Make = Callable[[int, int, int, torch.Generator], Batch]


@dataclass(frozen=True)
class Task:
    """A way to make batches: `make(batch, length, width, generator)`."""

    name: str
    length: str  # what is counted by `length`
    make: Make
    heard: int  # channels beside the bits, in inputs
    said: int = 0  # and in targets
    shortest: int = 1

    def batch(self, size: int, length: int, width: int, generator: torch.Generator) -> Batch:
        """`size` sequences of this length.

        Raises:
            MeshcapError: the length or the width makes no sequence.
        """
        if length < self.shortest or width < 1 or size < 1:
            raise MeshcapError(
                f"{self.name} of {size} × length {length} × {width} bits: expected at least one sequence, "
                f"length {self.shortest} and one bit"
            )
        return self.make(size, length, width, generator)


def copy(batch: int, length: int, width: int, generator: torch.Generator) -> Batch:
    """Hear `length` vectors and a sign; say them again in the same order."""
    bits = random_bits(batch, length, width, generator)
    inputs = torch.zeros(batch, 2 * length + 1, width + 1)
    inputs[:, :length, :width] = bits
    inputs[:, length, width] = 1
    return answered(inputs, bits)


def repeat_copy(
    batch: int, length: int, width: int, generator: torch.Generator, *, repeats: int | None = None
) -> Batch:
    """Hear `length` vectors and a number; say them so many times, then a sign of your own.

    The number (1–5, by default) stands alone on its channel, brought to mean 0 and variance 1 as if 1–5 were equally
    likely, which larger ones continue.
    """
    if repeats is None:
        repeats = int(torch.randint(1, REPEATS + 1, (), generator=generator))
    bits = random_bits(batch, length, width, generator)
    mean, deviation = (REPEATS + 1) / 2, ((REPEATS**2 - 1) / 12) ** 0.5
    inputs = torch.zeros(batch, length + 1 + length * repeats + 1, width + 2)
    inputs[:, :length, :width] = bits
    inputs[:, length, width] = 1
    inputs[:, length, width + 1] = (repeats - mean) / deviation
    done = F.pad(torch.ones(batch, 1, 1), (width, 0))
    return answered(inputs, torch.cat((F.pad(bits.repeat(1, repeats, 1), (0, 1)), done), 1))


def associative_recall(batch: int, length: int, width: int, generator: torch.Generator) -> Batch:
    """Hear `length` items of three vectors, each after a sign, then one of them between two other signs; say the item
    that followed it."""
    items = random_bits(batch, length * ITEM, width, generator).view(batch, length, ITEM, width)
    asked = torch.randint(0, length - 1, (batch,), generator=generator)
    every = torch.arange(batch)
    heard = length * (ITEM + 1)
    inputs = torch.zeros(batch, heard + ITEM + 2 + ITEM, width + 2)
    listed = inputs[:, :heard].unflatten(1, (length, ITEM + 1))  # a view: what is put there is in the inputs
    listed[:, :, 0, width] = 1
    listed[:, :, 1:, :width] = items
    inputs[:, [heard, heard + ITEM + 1], width + 1] = 1
    inputs[:, heard + 1 : heard + ITEM + 1, :width] = items[every, asked]
    return answered(inputs, items[every, asked + 1])


TASKS = {
    task.name: task
    for task in (
        Task("copy", "vectors", copy, heard=1),
        Task("repeat-copy", "vectors", repeat_copy, heard=2, said=1),
        Task("associative-recall", "items", associative_recall, heard=2, shortest=2),
    )
}


def random_bits(batch: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (batch, length, width), generator=generator).float()


def answered(inputs: Tensor, answer: Tensor) -> Batch:
    """The answer is said at the end, while nothing is heard."""
    silent = inputs.shape[1] - answer.shape[1]
    return Batch(inputs, F.pad(answer, (0, 0, silent, 0)), torch.arange(inputs.shape[1]) >= silent)


def loss(logits: Tensor, batch: Batch) -> Tensor:
    """The mean binary cross-entropy of the bits that count; logits (B, T, …) as the targets."""
    return F.binary_cross_entropy_with_logits(logits[:, batch.mask].float(), batch.targets[:, batch.mask])


def wrong_bits(logits: Tensor, batch: Batch) -> Tensor:
    """How many bits of its answer each sequence gets wrong, (B,)."""
    wrong = (logits > 0) != (batch.targets > 0.5)
    return wrong[:, batch.mask].flatten(1).sum(1)


# ---- memory/learn
# Teaching a Turing machine a task, and asking it for longer sequences than it was taught with.

SPARE = 8  # rows beyond the steps of a sequence that is asked for


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """How to learn. The defaults are those that learn to copy in minutes on one core of a CPU."""

    steps: int = 4000
    batch: int = 32
    width: int = 8
    shortest: int = 1
    longest: int = 10
    rate: float = 1e-3
    clip: float = 1.0  # of the gradients' norm
    seed: int = 0


def learn(machine: TuringMachine, task: Task, lessons: Lessons) -> Iterator[tuple[int, float, float]]:
    """Train in place. Yields, after each step, its number, its loss and the wrong bits a sequence.

    Raises:
        FailedError: the loss is no longer a number.
        MeshcapError: the lengths make no sequences.
    """
    generator = torch.Generator().manual_seed(lessons.seed)
    shortest = max(lessons.shortest, task.shortest)
    if lessons.longest < shortest:
        raise MeshcapError(f"the longest {task.name} has length {lessons.longest}, expected at least {shortest}")
    # Adam divides by how large gradients have been. Once a task is learned they are tiny, and at the usual eps a single
    # odd sequence, such as a vector of zeros, makes a step so large that everything is lost.
    optimiser = torch.optim.Adam(machine.parameters(), lr=lessons.rate, eps=1e-5)
    # Down to nothing in the end: while steps are large, heads that move exactly are lost and found again all the time,
    # and only exact ones carry on beyond the lengths learned.
    decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=lessons.steps)
    for step in range(1, lessons.steps + 1):
        length = int(torch.randint(shortest, lessons.longest + 1, (), generator=generator))
        batch = task.batch(lessons.batch, length, lessons.width, generator)
        logits, _ = machine(batch.inputs)
        mistake = loss(logits, batch)
        mistake.backward()
        nn.utils.clip_grad_norm_(machine.parameters(), lessons.clip)
        optimiser.step()
        decay.step()
        optimiser.zero_grad()
        value = mistake.item()
        if not math.isfinite(value):
            raise FailedError(f"the loss is {value} at step {step}: try a smaller learning rate")
        yield step, value, wrong_bits(logits, batch).float().mean().item()


@dataclass(frozen=True)
class Answer:
    """How sequences of one length were answered."""

    length: int
    rows: int  # of the memory
    bits: int  # of an answer
    wrong: float  # bits, mean over sequences
    perfect: float  # the share of sequences without a wrong bit


@torch.no_grad()
def examine(
    machine: TuringMachine, task: Task, length: int, width: int, *, sequences: int = 200, seed: int = 1
) -> Answer:
    """Ask for so many fresh answers at one length.

    The memory is made longer where it has fewer rows than the sequences have steps: heads may well move on at every
    step, and one that comes round to the beginning would overwrite what is still to be read.
    """
    batch = task.batch(sequences, length, width, torch.Generator().manual_seed(seed))
    rows = max(machine.config.rows, batch.inputs.shape[1] + SPARE)
    logits, _ = machine(batch.inputs, machine.start(sequences, rows=rows))
    wrong = wrong_bits(logits, batch)
    bits = int(batch.mask.sum()) * batch.targets.shape[-1]
    return Answer(length, rows, bits, wrong.float().mean().item(), (wrong == 0).float().mean().item())
