"""A Neural Turing Machine learns to copy, to repeat or to recall, and is asked for sequences longer than it ever saw.

    python recipes/turing_machine.py copy --out ntm-copy      # the picture of docs/memory.md

Sequences that have more steps than --memory has rows get a longer memory: the weights do not depend on it.

The tasks cannot be done without remembering (Graves et al., 2014). A machine first receives a sequence, then answers
while it receives nothing. Every batch is made of random bits anew, by a generator with a seed; all its sequences have
the same length, so nothing is padded. Beside the bits, inputs have channels for signs such as "now answer".

B sequences, T steps; `width` bits of a vector.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

from meshcap.errors import FailedError, MeshcapError
from meshcap.files import write_file, write_text
from meshcap.memory.turing import TuringConfig, TuringMachine

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


# Training a machine on a task, and examining it on longer sequences than it was trained with.

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


PAPER, INK, SOFT = "#ffffff", "#1c2026", "#5c6470"
LOW, NONE, HIGH = torch.tensor([[212.0, 97, 28], [247, 247, 245], [31, 78, 168]])  # of -1, 0 and 1
CELL = 9  # pixels of a bit
TALL = 224  # of the rows of the memory, about
GAP, LEFT, TITLE = 14, 20, 22
MOMENTS = 6  # at which the memory is shown
TIMES = (1, 2, 4, 8)  # the longest length learned: what is asked for afterwards


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", choices=sorted(TASKS), help="what to learn")
    add("--steps", type=int, default=4000, help="batches to learn from")
    add("--batch", type=int, default=32, help="sequences of a batch")
    add("--width", type=int, default=8, help="bits of a vector")
    add("--length", type=int, default=10, help="longest sequence to learn from, in vectors or items")
    add("--memory", type=int, default=128, help="rows of the memory")
    add("--row-width", type=int, default=20, help="numbers of a row")
    add("--controller", choices=["lstm", "feed-forward"], default="feed-forward", help="with or without a memory")
    add("--units", type=int, default=64, help="of the controller")
    add("--rate", type=float, default=1e-3, help="learning rate")
    add("--out", type=Path, help="a folder for memory.png, model.safetensors, config.json and result.json")
    add("--threads", type=int, default=1, help="CPU threads")
    add("--seed", type=int, default=0, help="of everything random")
    add("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    try:
        run(given)
    except MeshcapError as error:
        sys.exit(f"error: {error}")


def run(given: argparse.Namespace) -> None:
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    task = TASKS[given.task]
    machine = TuringMachine(
        TuringConfig(
            d_input=given.width + task.heard,
            d_output=given.width + task.said,
            d_control=given.units,
            controller=given.controller,
            rows=given.memory,
            row_width=given.row_width,
        )
    )
    if given.out is not None:  # before minutes are spent on what could not be written
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MeshcapError(f"{given.out} cannot be made: {error.strerror or error}") from error
    lessons = Lessons(
        steps=given.steps, batch=given.batch, width=given.width, longest=given.length, rate=given.rate, seed=given.seed
    )
    seconds = taught(machine, task, lessons)
    found = result(task, lessons, seconds, asked(machine, task, lessons))
    if given.out is not None:
        save(given.out, machine, task, lessons, found)
    if given.json:
        print(json.dumps(found))
    else:
        show(found)
        if given.out is not None:
            print(f"{given.out}: memory.png, model.safetensors, config.json, result.json")


def taught(machine: TuringMachine, task: Task, lessons: Lessons) -> float:
    """Learn, with a bar on stderr. Returns the seconds of CPU time that it took."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[wrong]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    began, recent = time.process_time(), 0.0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"learning {task.name}", total=lessons.steps, wrong="")
        for step, _, wrong in learn(machine, task, lessons):
            recent = wrong if step == 1 else recent + (wrong - recent) / min(step, 50)
            progress.update(bar, completed=step, wrong=f"{recent:.2f} bits wrong")
    return time.process_time() - began


def asked(machine: TuringMachine, task: Task, lessons: Lessons) -> list[Answer]:
    """How answers of once, twice … the length came out."""
    lengths = [lessons.longest * times for times in TIMES]
    return [examine(machine, task, length, lessons.width, seed=lessons.seed + 1) for length in lengths]


def result(task: Task, lessons: Lessons, seconds: float, answers: list[Answer]) -> dict[str, Any]:
    return {
        "task": task.name,
        "counted": task.length,
        "lessons": asdict(lessons),
        "cpu_seconds": round(seconds, 1),
        "answers": [asdict(answer) for answer in answers],
    }


def save(folder: Path, machine: TuringMachine, task: Task, lessons: Lessons, found: dict[str, Any]) -> None:
    """Weights, what they were made with, what they came to, and a picture of one sequence of twice the length."""

    def written(name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=2) + "\n"
        write_text(folder / name, text)

    weights = {name: tensor.contiguous() for name, tensor in machine.state_dict().items()}
    write_file(folder / "model.safetensors", lambda part: save_file(weights, part))
    written("config.json", asdict(machine.config))
    written("result.json", found)
    generator = torch.Generator().manual_seed(lessons.seed + 2)
    shown = picture(machine, task.batch(1, 2 * lessons.longest, lessons.width, generator))
    write_file(folder / "memory.png", lambda part: shown.save(part, "PNG", optimize=True))


def show(found: dict[str, Any]) -> None:
    lessons = found["lessons"]
    learned = f"{lessons['shortest']}-{lessons['longest']} {found['counted']} of {lessons['width']} bits"
    table = Table(
        title=f"{found['task']}: learned with {learned}, {lessons['steps']:,} batches of {lessons['batch']}, "
        f"{found['cpu_seconds']:.0f} s of CPU",
        title_justify="left",
    )
    for name in (found["counted"], "rows", "bits of an answer", "wrong, mean", "answers without a mistake"):
        table.add_column(name, justify="right")
    for one in found["answers"]:
        table.add_row(
            str(one["length"]), str(one["rows"]), str(one["bits"]), f"{one['wrong']:.2f}", f"{one['perfect']:.1%}"
        )
    Console(width=110).print(table)


class Panel(NamedTuple):
    title: str
    values: Tensor  # (rows, columns), -1 … 1
    cell: tuple[int, int]  # pixels across and down


@torch.no_grad()
def picture(machine: TuringMachine, batch: Batch) -> Image.Image:
    """The first sequence of a batch: heard, wanted, said; where heads wrote and read; the memory on the way.

    The memory has a row for each step, and no more, for nobody wants to see blank ones.
    """
    steps = batch.inputs.shape[1]
    rows = max(steps, 2 * machine.config.reach + 1)
    outputs, trace = machine.trace(batch.inputs[:1], machine.start(1, rows=rows))
    tall = max(2, TALL // rows)
    weights = trace["weights"][0]  # (T, H, M)
    said = outputs[0].float().sigmoid() * batch.mask[:, None]
    bits = (CELL, CELL)
    panels = [
        Panel("heard: bits, and signs below", batch.inputs[0].T / batch.inputs[0].abs().max(), bits),
        Panel("wanted", batch.targets[0].T, bits),
        Panel("said", said.T, bits),
    ]
    for head in range(machine.config.reads + machine.config.writes):
        reads = head < machine.config.reads
        number = head if reads else head - machine.config.reads
        many = machine.config.reads > 1 if reads else machine.config.writes > 1
        title = ("reading" if reads else "writing") + " weights" + f", head {number + 1}" * many
        panels.append(Panel(f"{title}: {rows} rows over time", weights[:, head].T, (CELL, tall)))
    memory = trace["memory"][0]  # (T, M, W)
    loudest = memory.abs().max().clamp_min(1e-6)
    width = max(2, (steps * CELL - (MOMENTS - 1) * GAP) // MOMENTS // memory.shape[-1])
    moments = [round((moment + 1) * steps / MOMENTS) for moment in range(MOMENTS)]
    snapshots = [Panel(f"step {m}", memory[max(m, 1) - 1] / loudest, (width, tall)) for m in moments]
    return laid_out(panels, snapshots)


def laid_out(panels: list[Panel], snapshots: list[Panel]) -> Image.Image:
    """Panels under each other, which share the time; snapshots beside each other below."""
    pictures = [painted(panel) for panel in panels]
    strip = [painted(panel) for panel in snapshots]
    across = max(max(one.width for one in pictures), sum(one.width + GAP for one in strip) - GAP)
    down = sum(one.height + TITLE + GAP for one in pictures) + 2 * TITLE + strip[0].height + 2 * GAP
    paper = Image.new("RGB", (across + 2 * LEFT, down), PAPER)
    pen, large, small = ImageDraw.Draw(paper), ImageFont.load_default(size=14), ImageFont.load_default(size=12)
    top = GAP
    for panel, one in zip(panels, pictures, strict=True):
        pen.text((LEFT, top), panel.title, INK, large)
        paper.paste(one, (LEFT, top + TITLE))
        top += one.height + TITLE + GAP
    pen.text((LEFT, top), "the memory itself, rows by numbers, after", INK, large)
    left = LEFT
    for panel, one in zip(snapshots, strip, strict=True):
        pen.text((left, top + TITLE), panel.title, SOFT, small)
        paper.paste(one, (left, top + 2 * TITLE))
        left += one.width + GAP
    return paper


def painted(panel: Panel) -> Image.Image:
    """Orange below zero, blue above."""
    values = panel.values.float().clamp(-1, 1)[..., None]
    colours = torch.where(values < 0, NONE + (LOW - NONE) * -values, NONE + (HIGH - NONE) * values)
    rows, columns = panel.values.shape
    picture = Image.frombytes("RGB", (columns, rows), colours.round().byte().contiguous().numpy().tobytes())
    return picture.resize((columns * panel.cell[0], rows * panel.cell[1]), Image.Resampling.NEAREST)


if __name__ == "__main__":
    main()
