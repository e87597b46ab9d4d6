"""Runs in turn or side by side: one that fails, or a worker that dies, does not lose the others.

A small captioner keeps a GPU waiting for its next kernel most of the time, so several processes that share it finish
several times sooner. The main process hands out one job at a time through a pipe of each worker: nothing is shared
that a killed worker could hold locked.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from meshcap.data.workers import exit_with_parent
from meshcap.errors import MeshcapError

Job = tuple[str, int]  # a case's name and a seed
Work = Callable[[Job], dict[str, Any]]
Finished = Callable[[Job, dict[str, Any]], object]
Lost = Callable[[Job, str], object]

LEAVE = 10.0  # seconds that a worker may take to leave


def in_turn(work: Work, jobs: Sequence[Job], finished: Finished, lost: Lost) -> dict[Job, str]:
    """Do jobs in this process, one after the other. Returns why jobs failed, for those that did."""
    failed: dict[Job, str] = {}
    for job in jobs:
        try:
            line = work(job)
        except Exception as error:
            failed[job] = reason(error)
            lost(job, failed[job])
        else:
            finished(job, line)
    return failed


def side_by_side(
    prepare: Callable[[], Work], jobs: Sequence[Job], count: int, finished: Finished, lost: Lost
) -> dict[Job, str]:
    """Do jobs in `count` processes, the first ones first. Returns why jobs failed, for those that did.

    Args:
        prepare: makes a worker ready, once; it has to be picklable, what it returns does not.
        finished, lost: one of them is called in this process when a job ends.
    """
    waiting, failed = deque(jobs), dict[Job, str]()
    workers: list[_Worker] = []
    everyone: list[_Worker] = []
    why = "no worker is left"  # of jobs that nobody takes

    def start() -> None:
        workers.append(_Worker.start(prepare))
        everyone.append(workers[-1])

    try:
        for _ in range(min(count, len(jobs))):
            start()
        while workers:
            wait([end for worker in workers for end in (worker.pipe, worker.process.sentinel)])
            for worker in list(workers):
                if (news := worker.news()) is None:
                    continue
                word, told = news
                if worker.job is not None:
                    if word == "done":
                        finished(worker.job, told)
                    else:
                        failed[worker.job] = told
                        lost(worker.job, told)
                elif word != "ready":
                    why = told  # and nobody takes its place, who would fare no better
                if word in ("ready", "done", "failed"):
                    worker.give(waiting.popleft() if waiting else None)
                if worker.job is None:
                    workers.remove(worker)
                elif word in ("broken", "died"):
                    workers.remove(worker)
                    if waiting:
                        start()
        for worker in everyone:
            worker.process.join(LEAVE)
    finally:
        for worker in everyone:
            worker.end()
    return failed | dict.fromkeys(waiting, why)


@dataclass
class _Worker:
    """A process, as the main one sees it."""

    process: SpawnProcess
    pipe: Connection
    job: Job | None = None

    @classmethod
    def start(cls, prepare: Callable[[], Work]) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a fork could not use CUDA
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(prepare, theirs))
        process.start()
        theirs.close()  # so that its death is the end of the pipe
        return cls(process, ours)

    def give(self, job: Job | None) -> None:
        self.job = job
        with suppress(OSError):  # if it died, `news` finds out
            self.pipe.send(job)

    def news(self) -> tuple[str, Any] | None:
        """What it says, "died" with the cause if it never will again, None if it is at work."""
        try:
            if self.pipe.poll():
                word, told = self.pipe.recv()
                return str(word), told
        except (EOFError, OSError):
            self.process.join(LEAVE)
        else:
            if self.process.is_alive() or self.pipe.poll():  # its last words may have come since
                return None
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return "died", f"its process {how}, perhaps for want of memory: try fewer jobs"

    def end(self) -> None:
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(LEAVE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _serve(prepare: Callable[[], Work], pipe: Connection) -> None:
    """A worker's life: get ready, then jobs until there are none."""
    exit_with_parent()
    try:
        work = prepare()
    except Exception as error:
        pipe.send(("broken", f"a worker could not begin: {reason(error)}"))
        return
    pipe.send(("ready", None))
    while (job := pipe.recv()) is not None:
        try:
            news = ("done", work(job))
        except MeshcapError as error:
            pipe.send(("failed", reason(error)))
        except Exception as error:  # after an error of CUDA every later job would fail too: leave to a new process
            pipe.send(("broken", reason(error)))
            return
        else:
            pipe.send(news)


def reason(error: Exception) -> str:
    """Why, in one line."""
    told = " ".join(str(error).split("\n")[0].split())
    return told if isinstance(error, MeshcapError) else f"{type(error).__name__}: {told}"


def failures(failed: dict[Job, str], of: int) -> str:
    """Which runs failed and why, in one line; those with the same cause together."""
    causes: dict[str, list[str]] = {}
    for (case, seed), why in failed.items():
        causes.setdefault(why, []).append(f"{case} (seed {seed})")
    named = "; ".join(f"{', '.join(runs)}: {why}" for why, runs in causes.items())
    return f"{len(failed)} of {of} runs failed: {named}; what is done is kept, the same command goes on"
