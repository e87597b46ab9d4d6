"""Workers that fail in the ways that real ones do. A module of its own, so that new processes can import it."""

import os
import signal
from collections.abc import Callable

from meshcap.errors import FailedError


def ready() -> Callable[[tuple[str, int]], dict]:
    return work


def work(job: tuple[str, int]) -> dict:
    name, seed = job
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "broken":
        raise RuntimeError("CUDA out of memory\nand more lines")
    if name == "failed":
        raise FailedError("weights are no longer finite")
    return {"twice": 2 * seed, "process": os.getpid()}


def never_ready() -> Callable[[tuple[str, int]], dict]:
    raise FailedError("no room")
