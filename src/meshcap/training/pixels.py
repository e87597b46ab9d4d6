"""The pictures of a split as pixels: decoded once and kept, or read a little ahead of the step that needs them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Literal

import numpy
import torch
from torch import Tensor

from meshcap.data.dataset import Sample
from meshcap.data.workers import cores, most_in_flight, parallel_map, write_square
from meshcap.errors import MeshcapError
from meshcap.vision.pictures import read_picture
from meshcap.vision.preprocess import Preprocess

Keep = Literal["device", "memory", "none"]
MANY = 3_000  # pictures for which it is worth a few seconds to start processes


def decoded(sample: Sample, preprocess: Preprocess) -> Tensor:
    """(3, size, size) uint8 of a sample's picture.

    Raises:
        MeshcapError: it has none, or it cannot be read.
    """
    if sample.picture is None:
        raise MeshcapError(f"{sample.id} has captions but no picture: give the folder of the pictures (--pictures)")
    try:
        return preprocess.pixels(read_picture(sample.picture.read(), at_least=preprocess.size))
    except MeshcapError as error:
        raise MeshcapError(f"{sample.picture}: {error} (meshcap data check lists all such pictures)") from error


class Pixels:
    """uint8 pictures (B, 3, size, size) on the device by their numbers.

    Threads decode, since Pillow lets go of the interpreter while it works. Kept pictures take 3 · size² bytes each.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        preprocess: Preprocess,
        *,
        keep: Keep,
        device: torch.device,
        workers: int | None = None,
        tell: Callable[[int, int], object] = lambda done, total: None,
    ):
        self.samples, self.preprocess, self.keep, self.device = samples, preprocess, keep, device
        self.pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
        self.reading: dict[bytes, list[Future[Tensor]]] = {}
        self.all: Tensor | None = None
        if keep != "none":
            side = preprocess.size
            place = device if keep == "device" else torch.device("cpu")
            self.all = torch.empty(len(samples), 3, side, side, dtype=torch.uint8, device=place)
            many = len(samples) >= MANY and cores() > 2
            (self._read_by_processes if many else self._read_all)(self.all, tell)

    def _read_by_processes(self, target: Tensor, tell: Callable[[int, int], object], block: int = 512) -> None:
        """As `_read_all`, by processes: Pillow's AVIF decoder does not let go of the interpreter.

        They leave their pictures in a file that is read here and written again, so that it never leaves memory.
        """
        count, size = len(self.samples), self.preprocess.size
        room = block + most_in_flight()  # what was told of but not read yet, and what is being decoded
        with tempfile.NamedTemporaryFile(prefix="meshcap-") as file:
            file.truncate(room * size * size * 3)
            shown = numpy.memmap(file.name, numpy.uint8, "r", shape=(room, size, size, 3))
            way = self.preprocess
            work = partial(write_square, file.name, room, size=size, geometry=way.geometry, pre_resize=way.pre_resize)
            done = parallel_map(work, enumerate(self.samples))
            for start in range(0, count, block):
                numbers = numpy.arange(start, min(start + block, count))
                for _ in islice(done, len(numbers)):
                    pass
                content = torch.from_numpy(shown[numbers % room])
                target[start : start + len(numbers)] = content.to(target.device).permute(0, 3, 1, 2)
                tell(start + len(numbers), count)
            for _ in done:  # there is none: this lets go of the processes
                pass

    def _read_all(self, target: Tensor, tell: Callable[[int, int], object], block: int = 512) -> None:
        count = len(self.samples)
        blocks = [range(start, min(start + block, count)) for start in range(0, count, block)]
        waiting: list[tuple[range, list[Future[Tensor]]]] = []
        for place in range(len(blocks) + 1):
            # One block ahead, so that threads have work while the last one is copied, and memory stays small.
            if place < len(blocks):
                waiting.append((blocks[place], [self.pool.submit(self._decode, one) for one in blocks[place]]))
            if len(waiting) > 1 or place == len(blocks):
                for numbers, jobs in waiting[: 1 if place < len(blocks) else None]:
                    target[numbers.start : numbers.stop].copy_(torch.stack([job.result() for job in jobs]))
                    tell(numbers.stop, count)
                del waiting[:1]

    def _decode(self, number: int) -> Tensor:
        return decoded(self.samples[number], self.preprocess)

    def ahead(self, pictures: Tensor) -> None:
        """Begin to read pictures that will soon be asked for, in this order."""
        if self.all is None:
            self.reading[_key(pictures)] = [self.pool.submit(self._decode, one) for one in pictures.tolist()]

    def __getitem__(self, pictures: Tensor) -> Tensor:
        """pictures (B,), on the CPU."""
        if self.all is not None:
            # A copy that is waited for would wait for everything that the device has yet to do.
            return self.all[pictures.to(self.all.device, non_blocking=True)].to(self.device, non_blocking=True)
        jobs = self.reading.pop(_key(pictures), None)
        if jobs is None:
            jobs = [self.pool.submit(self._decode, one) for one in pictures.tolist()]
        batch = torch.stack([job.result() for job in jobs])
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        return batch.to(self.device, non_blocking=True)


def _key(pictures: Tensor) -> bytes:
    return pictures.numpy().tobytes()


def where_to_keep(count: int, size: int, device: torch.device) -> Keep:
    """The nearest place with room for that many pictures, at most half of what is free there."""
    return nearest_room(count * 3 * size * size, device)


def nearest_room(needed: float, device: torch.device) -> Keep:
    """Where so many bytes may be kept."""
    if device.type == "cuda" and needed < 0.5 * torch.cuda.mem_get_info(device)[0]:
        return "device"
    return "memory" if needed < 0.5 * free_memory() else "none"


def free_memory() -> float:
    """Bytes of main memory that nobody uses; without a way to know, 4 GiB."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 4.0 * 2**30
