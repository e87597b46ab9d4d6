"""Work on many pictures with all cores: a parallel map in order, and pictures decoded to squares by it.

Nothing here needs torch: worker processes start faster without.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from meshcap.errors import MeshcapError
from meshcap.vision.pictures import one_thread, read_picture
from meshcap.vision.preprocess import to_square

if TYPE_CHECKING:
    from meshcap.data.dataset import Sample

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK = 16  # pictures handed over at once: enough that handing over costs nothing beside decoding
AHEAD = 4  # chunks a worker may be ahead of the reader, so that results do not pile up


def cores() -> int:
    """Those that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_in_flight(workers: int | None = None) -> int:
    """How many items, at most, `parallel_map` has begun and the reader has not got."""
    return ((cores() if workers is None else workers) * AHEAD + 1) * CHUNK


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None) -> Iterator[Result]:
    """`map(work, items)` by several processes; `work` is a function of a module, or a partial of one.

    Args:
        workers: processes; as many as there are cores by default, and with 1 everything stays in this process.

    Raises:
        MeshcapError: a worker was killed, as happens where memory runs out.
    """
    workers = cores() if workers is None else workers
    if workers < 1:
        raise MeshcapError(f"{workers} workers were asked for, expected at least 1")
    if workers == 1:
        yield from map(work, items)
        return
    # Workers start from a clean process: a fork of this one would inherit locks that torch and the progress bar hold.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload(["meshcap.vision.pictures"])  # torch is imported once, not by every worker
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=exit_with_parent)
    try:
        rest = iter(items)
        waiting = deque(pool.submit(_chunk, work, chunk) for chunk in _chunks(rest, workers * AHEAD))
        while waiting:
            yield from waiting.popleft().result()
            waiting.extend(pool.submit(_chunk, work, chunk) for chunk in _chunks(rest, 1))
    except BrokenProcessPool as error:
        raise MeshcapError(f"a worker was killed, perhaps for want of memory: try fewer than {workers}") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _chunks(items: Iterator[Item], most: int) -> Iterator[list[Item]]:
    for _ in range(most):
        if not (chunk := list(islice(items, CHUNK))):
            return
        yield chunk


def _chunk(work: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    return [work(item) for item in items]


def exit_with_parent() -> None:
    """Workers whose parent was killed would wait for more work for ever; an interrupt is handled by the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def leave() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


def read_square(sample: Sample, *, size: int, geometry: str, pre_resize: int = 0) -> bytes:
    """size · size · 3 bytes, rows from the top: what `Preprocess.pixels` makes of the picture, with channels last.

    Raises:
        MeshcapError: there is no picture, or it cannot be read.
    """
    one_thread()
    if sample.picture is None:
        raise MeshcapError(f"{sample.id} has captions but no picture: give the folder of the pictures (--pictures)")
    try:
        return to_square(read_picture(sample.picture.read(), at_least=size), size, geometry, pre_resize).tobytes()
    except MeshcapError as error:
        raise MeshcapError(f"{sample.picture}: {error} (meshcap data check lists all such pictures)") from error


def write_square(
    path: str,
    room: int,
    numbered: tuple[int, Sample],
    *,
    size: int,
    geometry: str,
    pre_resize: int,
    offset: int = 0,
) -> None:
    """Write the bytes of `read_square` to a file with room for so many pictures, later ones in the place of earlier.

    Through a pipe every picture would be copied by the one process that waits for all of them. `offset`: bytes before
    the first picture.
    """
    number, sample = numbered
    content = read_square(sample, size=size, geometry=geometry, pre_resize=pre_resize)
    file = _opened(path)
    file.seek(offset + (number % room) * len(content))
    file.write(content)


@lru_cache(maxsize=1)
def _opened(path: str) -> BinaryIO:
    return open(path, "r+b", buffering=0)  # for as long as the process lives
