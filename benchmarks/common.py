"""What the benchmarks share: options, timing, the machine's own rates, operation counts and the table.

A benchmark is a function with a typer signature that measures rows and calls `report`; `main` runs it as a script. A
row that lacks weights or an extra on this machine says so (`optional_row`), and the others are still measured.
"""

from __future__ import annotations

import json as json_format
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from meshcap.errors import MeshcapError
from meshcap.machine import machine
from meshcap.models import M2Config

Model = Annotated[str, typer.Option(help="A model folder, or the one that comes with meshcap.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU where there is one.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="torch's choice")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Repeat = Annotated[int, typer.Option(min=1, help="Measured runs; the median counts.")]
Batches = Annotated[
    list[int] | None, typer.Option("--pictures", help="Pictures in a batch; may be given several times.")
]


def main(command: Callable[..., None], arguments: Sequence[str] | None = None) -> None:
    """Run a benchmark as a script and leave with its exit code; a MeshcapError is one line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app(args=None if arguments is None else list(arguments))
    except MeshcapError as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(error.exit_code)


def set_up(device: str = "cpu", threads: int | None = None, seed: int = 0) -> torch.device:
    """Threads and seeds for this process, and where to compute."""
    if threads is not None:
        torch.set_num_threads(threads)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    if device == "cuda" and not torch.cuda.is_available():
        raise MeshcapError("--device is cuda, and torch sees no CUDA device: use --device cpu")
    return torch.device("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))


def progress(line: str) -> None:
    """What is measured next, on standard error."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Row:
    """One measured piece of work. `floor` is the time that its operations and bytes must take on this machine."""

    work: str
    setting: str
    seconds: float | None  # None: it could not be measured here, and `missing` says why
    rate: str = ""
    memory: float = 0.0  # bytes
    floor: float | None = None
    notes: dict[str, str] = field(default_factory=dict)
    missing: str | None = None

    def cells(self) -> list[str]:
        if self.seconds is None:
            return [self.work, self.setting, "", "", "", "", self.missing or ""]
        floor = "" if self.floor is None else f"{self.floor * 1e3:.2f} ms (×{self.seconds / self.floor:.1f})"
        note = ", ".join(f"{name} {value}" for name, value in self.notes.items())
        time_taken, memory = f"{self.seconds * 1e3:.1f} ms", f"{self.memory / 2**20:,.0f} MiB" if self.memory else ""
        return [self.work, self.setting, time_taken, self.rate, memory, floor, note]


COLUMNS = ("work", "setting", "time", "rate", "memory", "floor", "notes")


class Cells(Protocol):
    """A row of any benchmark's table; the last cell of one that was not measured says why."""

    missing: str | None

    def cells(self) -> list[str]: ...


@contextmanager
def optional_row(missing: Callable[[str], object]) -> Iterator[None]:
    """Around the measurement of one row: where weights or an extra are missing, `missing` is called with the reason."""
    try:
        yield
    except (MeshcapError, ImportError) as error:
        missing(" ".join(str(error).split()))


def show(title: str, rows: Sequence[Cells], columns: Sequence[str] = COLUMNS, width: int = 150) -> None:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row.cells()))
    Console(width=width).print(table)


def report(title: str, rows: Sequence[Any], where: torch.device, json: bool, columns: Sequence[str] = COLUMNS) -> None:
    """Print the table, or JSON.

    Raises:
        MeshcapError: not one row could be measured.
    """
    if json:
        typer.echo(json_format.dumps({"machine": machine(where), "rows": [asdict(row) for row in rows]}))
    else:
        show(f"{title}: {machine(where)}", rows, columns)
    if rows and all(row.missing for row in rows):
        raise MeshcapError(f"nothing could be measured: {rows[0].missing}")


def timed(work: Callable[[], object], device: torch.device, repeat: int) -> float:
    """The median seconds of `work` after a warm-up: wall time on a GPU, CPU time of the process on a CPU.

    CPU time is what one thread had to do, whatever else the machine was busy with.
    """
    work()
    work()
    seconds = []
    for _ in range(repeat):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            work()
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
        else:
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def paced(work: Callable[[], object], device: torch.device, repeat: int) -> float:
    """The mean seconds of `work` done many times in a row after a warm-up: the host may run ahead of a GPU, as it does
    in real training."""
    for _ in range(3):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    for _ in range(repeat):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (clock() - start) / repeat


@dataclass(frozen=True)
class Rates:
    """What a machine reaches: operations a second in a large matrix product, bytes a second in a large copy."""

    operations: float
    bytes: float

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype) -> Rates:
        size = 8192 if device.type == "cuda" else 1024
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        product = timed(lambda: a @ b, device, 5)
        length = 2**32 if device.type == "cuda" else 2**28
        source = torch.empty(length, dtype=torch.uint8, device=device).random_(0, 255)
        target = torch.empty_like(source)
        copy = timed(lambda: target.copy_(source), device, 5)
        return cls(2 * size**3 / product, 2 * source.numel() / copy)

    def floor(self, operations: float, moved: float) -> float:
        """Seconds that no program of so many operations and bytes can beat."""
        return max(operations / self.operations, moved / self.bytes)


def matrices(config: M2Config) -> dict[str, int]:
    """Weights by who must multiply by them: each region, each (level, region), each word, each (level, word)."""
    d, inner, levels = (
        config.d_model,
        config.heads * config.head_width,
        config.encoder_layers if config.mesh == "full" else 1,
    )
    gates = levels * d * d if levels > 1 else 0
    feed_forward = 2 * d * config.d_ff
    return {
        "region": config.d_input * d + config.encoder_layers * (4 * d * inner + feed_forward),
        "region_level": config.decoder_layers * 2 * d * inner,
        "word": config.decoder_layers * (4 * d * inner + d * inner + gates + feed_forward) + d * config.vocab_size,
        "word_level": config.decoder_layers * (d * inner + (d * d if levels > 1 else 0)),
    }


def operations(config: M2Config, *, pictures: int, regions: int, words: int, history: int) -> float:
    """Multiplications and additions of one forward pass over `words` words of each picture.

    Args:
        history: how many earlier words each word attends to, at most.
    """
    m, inner = matrices(config), config.heads * config.head_width
    levels = config.encoder_layers if config.mesh == "full" else 1
    seen_by_region = regions + config.slots
    attention = float(config.encoder_layers * regions * seen_by_region * inner)
    attention += config.decoder_layers * words * (history / 2 + levels * regions) * inner
    weights = regions * (m["region"] + levels * m["region_level"]) + words * (m["word"] + levels * m["word_level"])
    return 2.0 * pictures * (weights + 2 * attention)


def decode_bytes(config: M2Config, *, pictures: int, regions: int, beams: int, steps: int, itemsize: int) -> float:
    """Bytes a beam search must read: the decoder's weights and the regions' keys and values at every step."""
    m, inner = matrices(config), config.heads * config.head_width
    levels = config.encoder_layers if config.mesh == "full" else 1
    looked_at = pictures * config.decoder_layers * levels * regions * 2 * inner
    said = pictures * beams * config.decoder_layers * (steps / 2) * 2 * inner
    once = m["region"] + m["region_level"] + pictures * regions * config.d_input
    weights = m["word"] + m["word_level"]
    if levels > 1:  # the gates' halves that read a level's context are one for each level; the rest is shared
        weights += (levels - 1) * config.decoder_layers * config.d_model**2
    return itemsize * (once + steps * (weights + looked_at + said))
