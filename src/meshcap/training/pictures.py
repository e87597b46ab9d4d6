"""How the pictures of a split reach a training step: as pixels for a vision that looks anew, or as Regions kept.

`Pixels` decodes pictures once and keeps them, or reads them a little ahead of the step that needs them. A frozen vision
sees the same in a picture every time, so its Regions are computed once (`CachedRegions`); where the vision learns or
pictures are augmented, it looks anew in every step (`PixelViews`). `FeatureViews` reads precomputed features.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Literal, Protocol

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap.data.dataset import Sample
from meshcap.data.features import FeatureStore
from meshcap.data.workers import cores, most_in_flight, parallel_map, write_square
from meshcap.evaluation.evaluation import read_sample
from meshcap.regions import Regions
from meshcap.training.augment import augment, compress_some
from meshcap.vision.backbone import Vision
from meshcap.vision.pictures import read_picture
from meshcap.vision.preprocess import Preprocess

Keep = Literal["device", "memory", "none"]
Progress = Callable[[int, int], object]  # done, of how many
MANY = 3_000  # pictures for which it is worth a few seconds to start processes


def _no_progress(done: int, total: int) -> None:
    pass


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
        progress: Progress = _no_progress,
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
            (self._read_by_processes if many else self._read_all)(self.all, progress)

    def _read_by_processes(self, target: Tensor, progress: Progress, block: int = 512) -> None:
        """As `_read_all`, by processes: Pillow's AVIF decoder does not let go of the interpreter.

        They leave their pictures in a file that is read here and written again, so that it never leaves memory.
        """
        count, size = len(self.samples), self.preprocess.size
        room = block + most_in_flight()  # what is done but not read yet, and what is being decoded
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
                progress(start + len(numbers), count)
            for _ in done:  # there is none: this lets go of the processes
                pass

    def _read_all(self, target: Tensor, progress: Progress, block: int = 512) -> None:
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
                    progress(numbers.stop, count)
                del waiting[:1]

    def _decode(self, number: int) -> Tensor:
        return read_sample(self.samples[number], self._pixels)

    def _pixels(self, content: bytes) -> Tensor:
        return self.preprocess.pixels(read_picture(content, at_least=self.preprocess.size))

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


View = Regions | Tensor  # Regions, or pixels that the vision has yet to look at


class Views(Protocol):
    """Numbers of pictures (B,), on the CPU, to what the model's step begins with."""

    def __len__(self) -> int: ...

    def ahead(self, pictures: Tensor) -> None:
        """These will be asked for next."""

    def view(self, pictures: Tensor, *, training: bool) -> View: ...


def regions_of(vision: Vision | None, view: View) -> Regions:
    """Regions of a view; pixels need the vision."""
    if isinstance(view, Regions):
        return view
    assert vision is not None
    return vision(view)


class PixelViews:
    """Pixels, augmented while training."""

    def __init__(
        self,
        pixels: Pixels,
        mirror: Tensor,
        strength: float,
        compress: float = 0.0,
        turn: float = 0.0,
        *,
        size: int | None = None,
        compiled: bool = False,
    ):
        """
        Args:
            size: pixels along a side of a view; None: as many as the pictures have.
        """
        self.size = size or pixels.preprocess.size
        self.pixels, self.mirror, self.strength, self.compress, self.turn = pixels, mirror, strength, compress, turn
        self.augment: Any = torch.compile(augment, dynamic=False) if compiled else augment

    def __len__(self) -> int:
        return len(self.pixels.samples)

    def ahead(self, pictures: Tensor) -> None:
        self.pixels.ahead(pictures)

    def view(self, pictures: Tensor, *, training: bool) -> Tensor:
        found = self.pixels[pictures]
        if training and self.strength:
            mirror = self.mirror[pictures].to(found.device, non_blocking=True)
            found = self.augment(found, mirror, self.strength, self.turn, self.size)
        elif found.shape[-1] != self.size:
            found = F.interpolate(found.float(), (self.size, self.size), mode="bilinear", antialias=True)
        if training and self.compress:
            found = compress_some(found.float(), self.compress)
        return found


class CachedRegions:
    """Regions of every picture, computed before. Boxes that are the same for all pictures are kept once."""

    def __init__(self, regions: Regions, device: torch.device, *, count: int):
        self.regions, self.device, self.count = regions, device, count

    def __len__(self) -> int:
        return self.count

    def ahead(self, pictures: Tensor) -> None:
        pass

    def view(self, pictures: Tensor, *, training: bool) -> Regions:
        numbers = pictures.to(self.regions.features.device, non_blocking=True)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[numbers].to(self.device, non_blocking=True)

        return self.regions.each(pick)

    @classmethod
    @torch.no_grad()
    def compute(
        cls,
        vision: Vision,
        pixels: Pixels,
        *,
        dtype: torch.dtype,
        place: torch.device | None = None,
        batch: int = 256,
        progress: Progress = _no_progress,
    ) -> CachedRegions:
        """The Regions of every picture by a frozen vision, in the precision `dtype`, kept on the device `place`."""
        count = len(pixels.samples)
        place = place or pixels.device
        blocks = torch.arange(count).split(batch)
        pixels.ahead(blocks[0])
        kept: list[Tensor | None] = [None, None, None]
        was_training = vision.training
        vision.eval()
        for start, numbers in zip(range(0, count, batch), blocks, strict=True):
            if start + batch < count:
                pixels.ahead(blocks[start // batch + 1])
            with torch.autocast(pixels.device.type, dtype, enabled=dtype != torch.float32):
                found = vision(pixels[numbers])
            if start == 0:
                kept = [None if part is None else _room(part, count, place, dtype) for part in found.parts()]
            for target, part in zip(kept, found.parts(), strict=True):
                if target is not None and part is not None and not _shared(target):
                    target[start : start + len(part)] = part
            progress(start + len(numbers), count)
        vision.train(was_training)
        assert kept[0] is not None
        return cls(Regions(kept[0], kept[1], kept[2]), pixels.device, count=count)


def _shared(tensor: Tensor) -> bool:
    """Whether all pictures have the very same numbers: the boxes of a grid."""
    return len(tensor) > 1 and tensor.stride(0) == 0


def _room(part: Tensor, count: int, place: torch.device, dtype: torch.dtype) -> Tensor:
    if _shared(part):
        return part[:1].to(place).expand(count, *part.shape[1:])
    kind = dtype if part.dim() == 3 and part.shape[-1] != 4 else part.dtype  # boxes keep their precision
    return torch.empty(count, *part.shape[1:], dtype=kind, device=place)


@torch.no_grad()
def bytes_of_regions(vision: Vision, dtype: torch.dtype) -> int:
    """What the Regions of one picture take to keep."""
    side = vision.preprocess.size
    found = vision(torch.zeros(1, 3, side, side, dtype=torch.uint8, device=vision.device))
    return found.features.numel() * dtype.itemsize + 16 * found.features.shape[1]


class SetViews:
    """Sources with regions of their own number, as scores have bars: read once, kept, filled up in each batch."""

    def __init__(
        self,
        vision: Vision,
        samples: Sequence[Sample],
        device: torch.device,
        *,
        workers: int | None = None,
        progress: Progress = _no_progress,
    ):
        self.vision, self.device = vision, device
        self.read: list[numpy.ndarray] = []
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            for one in pool.map(lambda sample: read_sample(sample, vision.preprocess.read), samples):
                self.read.append(numpy.asarray(one, numpy.float16))
                progress(len(self.read), len(samples))

    def __len__(self) -> int:
        return len(self.read)

    def ahead(self, pictures: Tensor) -> None:
        pass

    def view(self, pictures: Tensor, *, training: bool) -> Tensor:
        return self.vision.stack([self.read[one] for one in pictures.tolist()]).to(self.device)


class FeatureViews:
    """Features that somebody computed before, read from their files in every step."""

    def __init__(self, store: FeatureStore, ids: Sequence[str], device: torch.device):
        store.require(ids)
        self.store, self.ids, self.device = store, ids, device

    def __len__(self) -> int:
        return len(self.ids)

    def ahead(self, pictures: Tensor) -> None:
        pass

    def view(self, pictures: Tensor, *, training: bool) -> Regions:
        return self.store.regions([self.ids[one] for one in pictures.tolist()]).to(self.device)
