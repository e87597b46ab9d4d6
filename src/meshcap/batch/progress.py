"""How far a job is, how fast it goes and when it will be done: a bar for people, a line now and then for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

EVERY = 30  # seconds between lines


@contextmanager
def progress(total: int, done: int, every: float = EVERY) -> Iterator[Callable[[int, int], None]]:
    """A function to tell of pictures just done, and how many of them are broken; all of it goes to stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    clock = Clock(total, done)
    broken = 0
    if not console.is_terminal:
        last = time.monotonic()

        def tell(count: int, bad: int) -> None:
            nonlocal last, broken
            broken += bad
            clock.add(count)
            if time.monotonic() - last >= every:
                last = time.monotonic()
                print(f"{clock.done:,} of {total:,} pictures, {clock}{_broken(broken)}", file=sys.stderr, flush=True)

        yield tell
        if clock.done > done:
            print(clock.summary(), file=sys.stderr, flush=True)
        return
    columns = (TextColumn("captions"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total, completed=done)

        def show(count: int, bad: int) -> None:
            nonlocal broken
            broken += bad
            clock.add(count)
            bar.update(task, completed=clock.done, description=f"{clock}{_broken(broken)}")

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
        return f"{count:,} pictures in {told(round(seconds))}, {self.rate:,.1f}/s"

    def __str__(self) -> str:
        if not self.rate:
            return "starting"
        return f"{self.rate:,.1f}/s, {told(round((self.total - self.done) / self.rate))} left"


def told(seconds: int) -> str:
    """The two largest units: 3 d 4 h."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (name, size), (smaller, less) in pairwise(units):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // less} {smaller}"
    return f"{seconds} s"


def _broken(count: int) -> str:
    return f", {count:,} broken" if count else ""
