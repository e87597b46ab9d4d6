"""`meshcap ntm`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.memory.learn import Answer, Lessons
    from meshcap.memory.tasks import Task
    from meshcap.memory.turing import TuringMachine

TIMES = (1, 2, 4, 8)  # the longest length learned: what is asked for afterwards


def ntm(
    task: Annotated[
        Literal["copy", "repeat-copy", "associative-recall"], typer.Argument(help="What to learn.", show_default=False)
    ],
    steps: Annotated[int, typer.Option(min=1, help="Batches to learn from.")] = 4000,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a batch.")] = 32,
    width: Annotated[int, typer.Option(min=1, help="Bits of a vector.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Longest sequence to learn from, in vectors or items.")] = 10,
    memory: Annotated[int, typer.Option(min=3, help="Rows of the memory.")] = 128,
    row_width: Annotated[int, typer.Option(min=1, help="Numbers of a row.")] = 20,
    controller: Annotated[
        Literal["lstm", "feed-forward"], typer.Option(help="With or without a memory of its own.")
    ] = "feed-forward",
    units: Annotated[int, typer.Option(min=1, help="Of the controller.")] = 64,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    out: Annotated[
        Path | None, typer.Option(help="A folder for memory.png, model.safetensors, config.json and result.json.")
    ] = None,
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Teach a Neural Turing Machine a task, then ask it for sequences longer than it ever saw.

    Those that have more steps than --memory has rows get a longer memory: the weights do not depend on it.

    Example: meshcap ntm copy --out ntm-copy
    """
    import torch

    from meshcap.memory.learn import Lessons
    from meshcap.memory.tasks import TASKS
    from meshcap.memory.turing import TuringConfig, TuringMachine

    seed = torch.seed() % 2**32 if seed is None else seed
    options.apply("cpu", "float32", threads, seed)
    chosen = TASKS[task]
    machine = TuringMachine(
        TuringConfig(
            d_input=width + chosen.heard,
            d_output=width + chosen.said,
            d_control=units,
            controller=controller,
            rows=memory,
            row_width=row_width,
        )
    )
    if out is not None:
        made(out)
    lessons = Lessons(steps=steps, batch=batch, width=width, longest=length, rate=rate, seed=seed)
    seconds = taught(machine, chosen, lessons)
    answers = asked(machine, chosen, lessons)
    told = result(chosen, lessons, seconds, answers)
    if out is not None:
        save(out, machine, chosen, lessons, told)
    if json:
        typer.echo(json_format.dumps(told))
    else:
        show(told)
        if out is not None:
            typer.echo(f"{out}: memory.png, model.safetensors, config.json, result.json")


def made(folder: Path) -> None:
    """Before minutes are spent on what could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be made: {error.strerror or error}") from error


def taught(machine: TuringMachine, task: Task, lessons: Lessons) -> float:
    """Learn, with a bar on stderr. Returns the seconds of CPU time that it took."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from meshcap.memory.learn import learn

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
    from meshcap.memory.learn import examine

    lengths = [lessons.longest * times for times in TIMES]
    return [examine(machine, task, length, lessons.width, seed=lessons.seed + 1) for length in lengths]


def result(task: Task, lessons: Lessons, seconds: float, answers: list[Answer]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "task": task.name,
        "counted": task.length,
        "lessons": asdict(lessons),
        "cpu_seconds": round(seconds, 1),
        "answers": [asdict(answer) for answer in answers],
    }


def save(folder: Path, machine: TuringMachine, task: Task, lessons: Lessons, told: dict[str, Any]) -> None:
    """Weights, what they were made with, what they came to, and a picture of one sequence of twice the length."""
    from dataclasses import asdict

    import torch
    from safetensors.torch import save_file

    from meshcap.cli.ntm_picture import picture
    from meshcap.files import write_file, write_text

    def written(name: str, content: dict[str, Any]) -> None:
        text = json_format.dumps(content, indent=2) + "\n"
        write_text(folder / name, text)

    weights = {name: tensor.contiguous() for name, tensor in machine.state_dict().items()}
    write_file(folder / "model.safetensors", lambda part: save_file(weights, part))
    written("config.json", asdict(machine.config))
    written("result.json", told)
    generator = torch.Generator().manual_seed(lessons.seed + 2)
    shown = picture(machine, task.batch(1, 2 * lessons.longest, lessons.width, generator))
    write_file(folder / "memory.png", lambda part: shown.save(part, "PNG", optimize=True))


def show(told: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    lessons = told["lessons"]
    learned = f"{lessons['shortest']}-{lessons['longest']} {told['counted']} of {lessons['width']} bits"
    table = Table(
        title=f"{told['task']}: learned with {learned}, {lessons['steps']:,} batches of {lessons['batch']}, "
        f"{told['cpu_seconds']:.0f} s of CPU",
        title_justify="left",
    )
    for name in (told["counted"], "rows", "bits of an answer", "wrong, mean", "answers without a mistake"):
        table.add_column(name, justify="right")
    for one in told["answers"]:
        table.add_row(
            str(one["length"]), str(one["rows"]), str(one["bits"]), f"{one['wrong']:.2f}", f"{one['perfect']:.1%}"
        )
    Console(width=110).print(table)
