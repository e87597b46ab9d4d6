"""Workers that fail in the ways that real ones do. A module of its own, so that new processes can import it."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from meshcap.errors import FailedError
from meshcap.vision.pictures import Stored


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


@dataclass(frozen=True)
class Crash(Stored):
    """A picture that ends the process that reads it, as a decoder with a mistake does."""

    def read(self) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@dataclass(frozen=True)
class CrashOnce(Stored):
    """A picture that ends the first process that reads it: memory was short at that moment."""

    path: str

    def read(self) -> bytes:
        try:
            os.close(os.open(self.path + ".crashed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            with open(self.path, "rb") as file:
                return file.read()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError
