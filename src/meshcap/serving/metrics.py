"""Counts for Prometheus, in its text format (version 0.0.4)."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PICTURES = (1, 2, 4, 8, 16, 32, 64)


@dataclass
class Counter:
    name: str
    about: str
    labels: tuple[str, ...] = ()
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *labels: str, count: float = 1) -> None:
        with self.lock:
            self.values[labels] = self.values.get(labels, 0) + count

    def lines(self) -> list[str]:
        with self.lock:
            values = dict(self.values) or ({} if self.labels else {(): 0.0})
        return [f"{self.name}{_labels(self.labels, given)} {value:.15g}" for given, value in sorted(values.items())]


@dataclass
class Gauge:
    """A number that is computed when it is read."""

    name: str
    about: str
    read: Callable[[], float]

    def lines(self) -> list[str]:
        return [f"{self.name} {self.read():.15g}"]


@dataclass
class Histogram:
    name: str
    about: str
    ends: Sequence[float]
    counts: list[int] = field(default_factory=list)  # of each bucket alone; the last is of everything above
    total: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.ends) + 1)

    def observe(self, value: float) -> None:
        with self.lock:
            self.counts[bisect_left(self.ends, value)] += 1
            self.total += value

    def lines(self) -> list[str]:
        with self.lock:
            counts, total = list(self.counts), self.total
        below, lines = 0, []
        for end, count in zip((*(f"{end:g}" for end in self.ends), "+Inf"), counts, strict=True):
            below += count
            lines.append(f'{self.name}_bucket{{le="{end}"}} {below}')
        return [*lines, f"{self.name}_sum {total:.15g}", f"{self.name}_count {below}"]


class Metrics:
    """Everything that is counted while serving."""

    def __init__(self, queued: Callable[[], float]):
        self.requests = Counter("meshcap_requests_total", "Requests answered.", ("path", "status"))
        self.pictures = Counter("meshcap_pictures_total", "Pictures, by what became of them.", ("result",))
        self.seconds = Histogram("meshcap_caption_seconds", "Seconds from request to captions.", SECONDS)
        self.batches = Histogram("meshcap_batch_pictures", "Pictures captioned together.", PICTURES)
        self.work = Histogram("meshcap_batch_seconds", "Seconds of the model for a batch.", SECONDS)
        self.queued = Gauge("meshcap_pictures_in_flight", "Pictures taken and not answered yet.", queued)
        self.memory = Gauge("process_resident_memory_bytes", "Resident memory size in bytes.", resident_memory)

    def text(self) -> str:
        kinds = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}
        lines = []
        for one in (self.requests, self.pictures, self.seconds, self.batches, self.work, self.queued, self.memory):
            lines += [f"# HELP {one.name} {one.about}", f"# TYPE {one.name} {kinds[type(one)]}", *one.lines()]
        return "\n".join(lines) + "\n"


def resident_memory() -> float:
    """Bytes of this process in memory; 0 where the system has no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return 0.0


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    escaped = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in values)
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)) + "}"
