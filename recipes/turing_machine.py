"""A Neural Turing Machine learns to copy, to repeat or to recall, and is asked for sequences longer than it ever saw.

    python recipes/turing_machine.py copy --out ntm-copy      # the picture of docs/memory.md

Sequences that have more steps than --memory has rows get a longer memory: the weights do not depend on it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.files import write_file, write_text
from meshcap.memory.tasks import TASKS, Answer, Batch, Lessons, Task, examine, learn
from meshcap.memory.turing import TuringConfig, TuringMachine

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
