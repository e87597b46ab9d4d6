"""Pictures in, captions out, for many clients at once: decoding in a pool of threads, captioning in the batcher's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from meshcap.captioner import Captioner
from meshcap.errors import FailedError, MeshcapError
from meshcap.serving.batcher import Batcher, Job, Seen
from meshcap.serving.fetch import Fetcher
from meshcap.serving.limits import Limits, Places, RefusalError, Visit
from meshcap.serving.metrics import Metrics
from meshcap.serving.wishes import Wishes, check
from meshcap.vision.pictures import read_picture

Window = tuple[float, float, float, float]
LINES = 8  # pictures fetched at once, in threads of their own: a slow host must not keep others from being decoded


@dataclass(frozen=True)
class Link:
    """A picture that lies elsewhere."""

    url: str


Given = bytes | Link | RefusalError  # the last: a picture that could not even be unwrapped


@dataclass(frozen=True)
class Found:
    """What came of one picture."""

    seen: Seen
    window: Window  # what was seen of the picture, in parts of its size


class Service:
    """A captioner at work. `start` before use, `close` at the end: it finishes what it took.

    Raises:
        MeshcapError: a captioner without a vision of its own.
    """

    def __init__(self, captioner: Captioner, name: str, limits: Limits, fetcher: Fetcher | None = None):
        if captioner.vision is None:
            raise MeshcapError(f"{name} reads region features and cannot look at pictures: expected one with a vision")
        self.captioner, self.name, self.limits, self.fetcher = captioner, name, limits, fetcher
        self.preprocess = captioner.vision.preprocess
        self.places = Places(limits)
        self.metrics = Metrics(lambda: self.places.pictures)
        self.batcher = Batcher(captioner, batch=limits.batch, wait=limits.wait, noticed=self._noticed)
        self.places.pace = lambda: self.batcher.pace
        self.pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="pictures")
        self.lines = ThreadPoolExecutor(LINES, thread_name_prefix="fetch")

    def start(self) -> None:
        """Ready once a first picture has gone all the way: libraries set themselves up on first use."""
        self.batcher.start()
        size = self.preprocess.size
        job = Job(torch.full((3, size, size), 128, dtype=torch.uint8), Wishes())
        self.batcher.put([job])
        job.result.result()

    def close(self) -> None:
        self.batcher.close()
        self.pool.shutdown()
        self.lines.shutdown()

    @property
    def ready(self) -> bool:
        return self.batcher.alive and self.places.pictures < self.limits.queue

    async def caption(self, given: Sequence[Given], wishes: Wishes, visit: Visit) -> list[Found | MeshcapError]:
        """What was found, or what went wrong, for each picture.

        Raises:
            RefusalError: 503 without room or at the end, 504 after too long, 422 for wishes that cannot be met.
        """
        visit.count(len(given))
        try:
            async with asyncio.timeout(visit.left):
                width = check(wishes, self.captioner, self.limits.hypotheses)
                prepared = await asyncio.gather(*(self._prepared(one, visit) for one in given), return_exceptions=True)
                visit.forget_bytes()
                jobs = {
                    at: Job(one[0], wishes, width)
                    for at, one in enumerate(prepared)
                    if not isinstance(one, BaseException)
                }
                self.batcher.put(jobs.values())
                waiting = (asyncio.wrap_future(job.result) for job in jobs.values())
                found = dict(zip(jobs, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
        except TimeoutError:
            self.metrics.pictures.add("late", count=len(given))
            raise RefusalError(504, f"no caption within {self.limits.seconds:g} s: try again later") from None
        return [self._told(one, found.get(at)) for at, one in enumerate(prepared)]

    def _told(
        self, prepared: tuple[Tensor, Window] | BaseException, seen: Seen | BaseException | None
    ) -> Found | MeshcapError:
        if isinstance(prepared, tuple) and isinstance(seen, Seen):
            self.metrics.pictures.add("captioned")
            return Found(seen, prepared[1])
        error = prepared if isinstance(prepared, BaseException) else seen
        assert isinstance(error, BaseException)
        if not isinstance(error, MeshcapError):
            raise error
        self.metrics.pictures.add("failed" if isinstance(error, FailedError) else "refused")
        return error

    async def _prepared(self, given: Given, visit: Visit) -> tuple[Tensor, Window]:
        loop = asyncio.get_running_loop()
        if isinstance(given, RefusalError):
            raise given
        if isinstance(given, Link):
            if self.fetcher is None:
                raise RefusalError(422, "this server fetches no URLs: send the picture itself")
            given = await loop.run_in_executor(self.lines, self.fetcher, given.url)
            visit.hold(len(given))  # in memory like what was sent
        return await loop.run_in_executor(self.pool, self._prepare, given)

    def _prepare(self, given: bytes) -> tuple[Tensor, Window]:
        """Pixels as the vision reads them: small, whatever was sent."""
        try:
            picture = read_picture(given, at_least=self.preprocess.size, most_pixels=self.limits.pixels)
        except MemoryError:
            raise RefusalError(413, "the picture does not fit into memory: make it smaller first") from None
        except MeshcapError as error:
            raise RefusalError(413 if "pixels, more than" in str(error) else 422, str(error)) from error
        width, height = picture.size
        left, top, right, bottom = self.preprocess.window(width, height)
        return self.preprocess.pixels(picture), (left / width, top / height, right / width, bottom / height)

    def _noticed(self, pictures: int, seconds: float) -> None:
        self.metrics.batches.see(pictures)
        self.metrics.work.see(seconds)
