"""Progress of long work: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

EVERY = 30  # seconds between lines
FIRST = 5  # seconds before the first one


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say in a terminal what is waited for, until it is done."""
    from rich.console import Console

    with Console(stderr=True).status(what):  # which is silent in a log
        yield


@contextmanager
def progress(total: int, done: int, every: float = EVERY) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the number of pictures just done and how many of them failed; it writes to stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    clock = Clock(total, done)
    failed = 0
    if not console.is_terminal:
        if total > done:
            print(f"{total - done:,} pictures to do" + f", {done:,} are done" * bool(done), file=sys.stderr, flush=True)
        last = time.monotonic() - max(every - FIRST, 0)

        def report(count: int, bad: int) -> None:
            nonlocal last, failed
            failed += bad
            clock.add(count)
            if time.monotonic() - last >= every:
                last = time.monotonic()
                print(f"{clock.done:,} of {total:,} pictures, {clock}{_failed(failed)}", file=sys.stderr, flush=True)

        yield report
        if clock.done > done:
            print(clock.summary(), file=sys.stderr, flush=True)
        return
    columns = (TextColumn("captions"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total, completed=done)

        def show(count: int, bad: int) -> None:
            nonlocal failed
            failed += bad
            clock.add(count)
            bar.update(task, completed=clock.done, description=f"{clock}{_failed(failed)}")

        yield show
    if clock.done > done:
        print(clock.summary(), file=sys.stderr, flush=True)


class Clock:
    """Rate and remaining time. What was done before, by a run that was stopped, does not count as speed."""

    def __init__(self, total: int, done: int, now: Callable[[], float] = time.monotonic):
        self.total, self.done, self.before = total, done, done
        self.now, self.start = now, now()

    def add(self, count: int) -> None:
        self.done += count

    @property
    def rate(self) -> float:
        return (self.done - self.before) / max(self.now() - self.start, 1e-9)

    def summary(self) -> str:
        count, seconds = self.done - self.before, self.now() - self.start
        return f"{count:,} pictures in {duration(round(seconds))}, {self.rate:,.1f}/s"

    def __str__(self) -> str:
        if not self.rate:
            return "starting"
        return f"{self.rate:,.1f}/s, {duration(round((self.total - self.done) / self.rate))} left"


def duration(seconds: int) -> str:
    """The two largest units: 3 d 4 h."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (name, size), (smaller, less) in pairwise(units):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // less} {smaller}"
    return f"{seconds} s"


def _failed(count: int) -> str:
    return f", {count:,} failed" if count else ""
