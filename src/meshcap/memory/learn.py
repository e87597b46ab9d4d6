"""Teaching a Turing machine a task, and asking it for longer sequences than it was taught with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from meshcap.errors import FailedError, MeshcapError
from meshcap.memory.tasks import Task, loss, wrong_bits
from meshcap.memory.turing import TuringMachine

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
