"""Captions for as many pictures as there are: threads read them a little ahead of the model.

for source, caption in stream(captioner, Path("holiday").glob("*.jpg")):
    print(source, caption if isinstance(caption, MeshcapError) else caption.text)
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from threading import Lock
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from meshcap.captioner import Caption, Captioner
from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.pictures import Source, read_picture
from meshcap.vision.preprocess import Preprocess

AHEAD = 2  # batches that are being read while one is captioned

Told = tuple[Source, Caption | MeshcapError]
Read = tuple[Source, Future[Tensor | MeshcapError]]


def together(device: torch.device, dtype: torch.dtype) -> int:
    """How many pictures are best captioned together: more take memory and save nothing.

    With weights of 8 bits a CPU still reads numbers of 32, and most of its memory is what it keeps of a batch.
    """
    if device.type == "cuda":
        return 64
    return 4 if dtype == torch.int8 else 8


def stream(
    captioner: Captioner, sources: Iterable[Source], *, batch: int = 16, workers: int | None = None, **options: Any
) -> Generator[Told, None, None]:
    """Captions in the order of the sources; of a picture that cannot be read, the error that says why.

    Sources are taken as they are needed, up to three batches before their captions come: a million of them take no
    more memory than a few. Closing the generator ends its threads.

    Args:
        sources: paths, Pillow images, arrays, the bytes of files or open files, in any mixture.
        batch: pictures captioned together.
        workers: threads that read pictures; as many as there are CPUs unless said otherwise.
        options: those of `Captioner.describe`.

    Raises:
        MeshcapError: this captioner has no vision, or options have no sense. (The first is raised here, the others
            with the first captions.)
    """
    if captioner.vision is None:
        raise MeshcapError("this captioner has no vision of its own: give it Regions instead of pictures")
    if batch < 1 or (workers is not None and workers < 1):
        raise MeshcapError(f"batch is {batch} and workers is {workers}, expected at least 1")
    return _stream(captioner, sources, batch, min(workers or os.cpu_count() or 1, AHEAD * batch), options)


def _stream(
    captioner: Captioner, sources: Iterable[Source], batch: int, workers: int, options: dict[str, Any]
) -> Generator[Told, None, None]:
    assert captioner.vision is not None
    reader = Reader(captioner.vision.preprocess)
    rest = iter(sources)
    reading: deque[list[Read]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="meshcap-stream")
    try:
        while True:
            while len(reading) <= AHEAD and (block := list(islice(rest, batch))):
                reading.append([(source, pool.submit(reader.read, source)) for source in block])
            if not reading:
                return
            yield from _captions(captioner, reading.popleft(), options)
    finally:  # also where the generator is closed, or thrown away, in the middle
        pool.shutdown(cancel_futures=True)


def _captions(captioner: Captioner, block: list[Read], options: dict[str, Any]) -> list[Told]:
    """Every picture of a block with its caption or its error."""
    read = [(source, job.result()) for source, job in block]
    pixels = [one for _, one in read if isinstance(one, Tensor)]
    captions = iter(captioner.describe(_look(captioner, pixels), **options) if pixels else ())
    return [(source, next(captions) if isinstance(one, Tensor) else one) for source, one in read]


@torch.no_grad()
def _look(captioner: Captioner, pixels: list[Tensor]) -> Regions:
    assert captioner.vision is not None
    return captioner.vision(torch.stack(pixels).to(captioner.vision.device))


class Reader:
    """From a source to the pixels (3, size, size) that a vision reads, in any thread."""

    def __init__(self, preprocess: Preprocess):
        self.preprocess = preprocess
        self.one_at_a_time = Lock()

    def read(self, source: Source) -> Tensor | MeshcapError:
        # The same image or file may have been given twice, and both have a place where reading has got to.
        shared = isinstance(source, Image.Image) or hasattr(source, "read")
        try:
            with self.one_at_a_time if shared else nullcontext():
                return self.preprocess.pixels(read_picture(source, at_least=self.preprocess.size))
        except MeshcapError as error:
            return error
