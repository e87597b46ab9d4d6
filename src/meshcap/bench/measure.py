"""Timing, the machine's own rates, and the table that all benchmarks print."""

from __future__ import annotations

import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One measured piece of work. `floor` is the time that its operations and bytes must take on this machine."""

    work: str
    setting: str
    seconds: float
    rate: str
    memory: float  # bytes
    floor: float | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def cells(self) -> list[str]:
        floor = "" if self.floor is None else f"{self.floor * 1e3:.2f} ms (×{self.seconds / self.floor:.1f})"
        note = ", ".join(f"{name} {value}" for name, value in self.notes.items())
        return [
            self.work,
            self.setting,
            f"{self.seconds * 1e3:.1f} ms",
            self.rate,
            f"{self.memory / 2**20:,.0f} MiB",
            floor,
            note,
        ]


def show(title: str, rows: list[Row], console: Console | None = None) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("work", "setting", "time", "rate", "memory", "floor", "notes"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row.cells())
    (console or Console(width=150)).print(table)


def machine(device: torch.device) -> str:
    """What the figures were measured on, in words."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = platform.processor() or platform.machine()
        cpuinfo = Path("/proc/cpuinfo")
        if cpuinfo.exists():
            models = [
                line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
            ]
            name = models[0] if models else name
        name += f", {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    return f"{name}; torch {torch.__version__}"


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


def peak_memory(device: torch.device) -> float:
    """Bytes: of the GPU's allocator, or of the whole process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


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
        source = torch.empty(2**32 if device.type == "cuda" else 2**28, dtype=torch.uint8, device=device).random_(
            0, 255
        )
        target = torch.empty_like(source)
        copy = timed(lambda: target.copy_(source), device, 5)
        return cls(2 * size**3 / product, 2 * source.numel() / copy)

    def floor(self, operations: float, moved: float) -> float:
        """Seconds that no program of so many operations and bytes can beat."""
        return max(operations / self.operations, moved / self.bytes)
