"""Pictures in, captions out, for many clients at once; knows nothing of HTTP.

Pictures are decoded in processes that can be killed (see `decoders`). One thread captions what waits, pictures of many
clients together: a model captions eight pictures in far less than eight times the time of one. So the first picture of
a batch waits a few milliseconds for others; while a batch is computed, the next one gathers by itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.errors import FailedError, MeshcapError
from meshcap.memory import Entry, Neighbour
from meshcap.music.features import Bars
from meshcap.options import CaptionOptions
from meshcap.serving.decoders import WHOLE, Decoders, Window
from meshcap.serving.fetch import Fetcher
from meshcap.serving.limits import Capacity, Limits, RefusalError, Reservation
from meshcap.serving.metrics import Metrics
from meshcap.vision.score import ReadScore

TOGETHER = 640  # hypotheses that are decoded at once: 128 pictures with 5 beams, fewer where many words are required
MAX_MUST, MAX_MUST_NOT, MAX_ENTRY = 8, 100, 800  # entries of a request, and letters of one
SMOOTHING = 0.1  # weight of the latest batch in the mean time of a picture
# Remembered pictures that are shown beside a caption: so many, and at least so similar. People rate pairs of COCO's val
# pictures that are 0.5 to 0.6 similar 3.1 of 5 on the mean, and 0.2 to 0.3 similar 2.4.
MOST_SIMILAR, SIMILAR = 3, 0.5
FETCHES = 8  # at once, in threads of their own: a slow host must not keep others from being decoded


@dataclass(frozen=True)
class Link:
    """A picture that lies elsewhere."""

    url: str


Prepared = tuple[np.ndarray, Window, Captioner | None]  # what was read, what of it, and whose it is
Given = bytes | Link | RefusalError  # the last: a picture that could not even be unwrapped


@dataclass(frozen=True)
class CaptionedPicture:
    """A caption, and where the regions of its attention lie."""

    caption: Caption
    boxes: np.ndarray | None  # (N, 4) from 0 to 1 within the window; None: attention was not asked for
    window: Window  # the part of the picture that the model saw, as a share of its size
    roll: str | None = None  # of a score, its picture as a data: URL
    similar: Sequence[Neighbour] = ()  # remembered pictures, nearest first


@dataclass(eq=False)
class PendingPicture:
    """A picture that waits for its caption, or to be remembered."""

    pixels: np.ndarray  # (3, size, size) uint8
    options: CaptionOptions
    width: int = 5  # hypotheses that its search keeps
    window: Window = WHOLE
    captioner: Captioner | None = None  # None: the batcher's own; scores have another
    entry: Entry | None = None  # what to remember of it; then its result is the entry's id
    result: Future[Any] = field(default_factory=Future)

    @property
    def kind(self) -> Hashable:
        """Pictures of one kind are decoded together. Samples from a seed depend on the batch, so these go alone."""
        alone = self.options.strategy == "sample" and self.options.seed is not None
        return id(self) if alone else self.options


class Batcher:
    """`put` pictures from any thread; results come as futures. One that is cancelled before its turn is skipped."""

    def __init__(
        self,
        captioner: Captioner,
        *,
        batch: int,
        wait: float,
        begun: Callable[[int], None] = lambda pictures: None,
        done: Callable[[float], None] = lambda seconds: None,
    ):
        """
        Args:
            begun: told how many pictures a batch has, before any of them is answered.
            done: told how many seconds a batch took, after all of them were.
        """
        self.captioner, self.batch, self.wait, self.begun, self.done = captioner, batch, wait, begun, done
        self.seconds_per_picture = 0.0  # a running mean
        self.waiting: deque[PendingPicture] = deque()
        self.changed = threading.Condition()
        self.closing = False
        self.since: float | None = None  # when the batch in work began
        self.thread = threading.Thread(target=self._run, name="captions", daemon=True)

    def start(self) -> None:
        self.thread.start()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive() and not self.closing

    def put(self, jobs: Iterable[PendingPicture]) -> None:
        """
        Raises:
            RefusalError: 503: the server is about to stop.
        """
        with self.changed:
            if self.closing:
                raise RefusalError(503, "the server is stopping: try again in a few seconds", retry_after=5)
            self.waiting.extend(jobs)
            self.changed.notify()

    def close(self, seconds: float | None = None) -> None:
        """Take no more jobs, finish those that were taken, for at most so long."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        if self.thread.ident is not None:
            self.thread.join(seconds)

    def late(self, seconds: float) -> bool:
        """Whether one batch has been in work for longer than that."""
        since = self.since
        return since is not None and time.monotonic() - since > seconds

    def _run(self) -> None:
        while jobs := self._next():
            start = self.since = time.monotonic()
            pictures = self._caption(jobs)
            self.since = None
            if pictures:
                seconds = time.monotonic() - start
                latest = seconds / pictures
                self.seconds_per_picture = (
                    latest
                    if self.seconds_per_picture == 0
                    else (1 - SMOOTHING) * self.seconds_per_picture + SMOOTHING * latest
                )
                self.done(seconds)

    def _next(self) -> list[PendingPicture]:
        """The next batch; empty once the batcher is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closing)
            if self.wait and self.waiting:
                self.changed.wait_for(lambda: len(self.waiting) >= self.batch or self.closing, timeout=self.wait)
            return [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]

    def _caption(self, jobs: Sequence[PendingPicture]) -> int:
        """Caption these pictures; returns how many had not been cancelled."""
        jobs = [job for job in jobs if job.result.set_running_or_notify_cancel()]
        if not jobs:
            return 0
        self.begun(len(jobs))
        for captioner in dict.fromkeys(job.captioner for job in jobs):
            self._caption_by(captioner or self.captioner, [job for job in jobs if job.captioner is captioner])
        return len(jobs)

    def _caption_by(self, captioner: Captioner, jobs: Sequence[PendingPicture]) -> None:
        try:
            seen: Any = captioner.see([job.pixels for job in jobs])
        except Exception as error:
            self._one_by_one(jobs, error)
            return
        kinds: dict[Hashable, list[int]] = {}
        for at, job in enumerate(jobs):
            if job.entry is None:
                kinds.setdefault(job.kind, []).append(at)
            else:
                self._remember(job, job.entry, seen[[at]])
        for group in kinds.values():
            together = max(1, TOGETHER // jobs[group[0]].width)
            for start in range(0, len(group), together):
                part = group[start : start + together]
                members = [jobs[at] for at in part]
                if len(part) == len(jobs):
                    self._describe(members, seen)
                elif hasattr(seen, "__getitem__"):
                    self._describe(members, seen[part])
                else:  # what an exported graph keeps of pictures cannot be taken apart
                    self._describe(members, captioner.see([job.pixels for job in members]))

    def _remember(self, job: PendingPicture, entry: Entry, seen: Any) -> None:
        try:
            (id,) = self.captioner.memory.add(self.captioner.embed(seen), [entry])
            job.result.set_result(id)
        except Exception as error:
            if not isinstance(error, MeshcapError):
                logging.getLogger("meshcap").error("a picture was not remembered", exc_info=error)
            known = str(error) if isinstance(error, MeshcapError) else "the picture could not be remembered"
            job.result.set_exception(FailedError(known))

    def _similar(self, seen: Any) -> list[list[Neighbour]]:
        """What is remembered of pictures like each."""
        found = self.captioner.memory.nearest(self.captioner.embed(seen), MOST_SIMILAR)
        return [[one for one in near if one.similarity >= SIMILAR] for near in found]

    def _describe(self, jobs: Sequence[PendingPicture], seen: Any) -> None:
        options, captioner = jobs[0].options, jobs[0].captioner or self.captioner
        try:
            captions = captioner.describe(seen, options, pixels=[job.pixels for job in jobs])
            similar: list[list[Neighbour]] = [[]] * len(jobs)
            if captioner is self.captioner and captioner.memory is not None:
                similar = self._similar(seen)
            boxes = getattr(seen, "boxes", None) if options.attention else None
            boxes = None if boxes is None else np.asarray(boxes.float().cpu())
        except Exception as error:
            self._one_by_one(jobs, error)
            return
        for at, (job, caption) in enumerate(zip(jobs, captions, strict=True)):
            roll = getattr(job.pixels, "roll", None) if options.attention else None
            own = None if boxes is None else boxes[at, : len(job.pixels)] if roll else boxes[at]  # others are longer
            job.result.set_result(CaptionedPicture(caption, own, job.window, roll, similar[at]))

    def _one_by_one(self, jobs: Sequence[PendingPicture], error: Exception) -> None:
        """A failure must not spoil the rest of the batch: each picture is tried alone, and only the bad one fails."""
        if len(jobs) == 1:
            if not isinstance(error, MeshcapError):
                logging.getLogger("meshcap").error("a caption failed", exc_info=error)
                error = FailedError("the captioner failed at this picture")
            jobs[0].result.set_exception(error)
            return
        for job in jobs:
            try:
                seen = (job.captioner or self.captioner).see([job.pixels])
                if job.entry is None:
                    self._describe([job], seen)
                else:
                    self._remember(job, job.entry, seen)
            except Exception as own:  # of `see`; `_describe` sets its own
                self._one_by_one([job], own)


class Service:
    """A captioner at work. `start` before use, `close` at the end: it finishes what it took.

    Raises:
        MeshcapError: a captioner without a vision of its own.
    """

    def __init__(
        self,
        captioner: Captioner,
        name: str,
        limits: Limits,
        fetcher: Fetcher | None = None,
        defaults: Mapping[str, Any] | None = None,
        *,
        remember: bool = False,
    ):
        """
        Args:
            remember: clients may add to the captioner's memory.
            fetcher: fetches pictures by URL; None: URLs are refused.
            defaults: fields of `CaptionOptions` for requests that do not give them.
        """
        preprocess = captioner.backend.preprocess
        if preprocess is None:
            raise MeshcapError(f"{name} reads region features and cannot see pictures: expected one with a vision")
        self.captioner, self.name, self.limits, self.fetcher = captioner, name, limits, fetcher
        self.preprocess, self.remembers = preprocess, remember and captioner.memory is not None
        self.defaults = {name: value for name, value in (defaults or {}).items() if value is not None}
        self.check(self.options({}))
        self.capacity = Capacity(limits)
        self.metrics = Metrics(lambda: self.capacity.pictures)
        self.batcher = Batcher(
            captioner, batch=limits.batch, wait=limits.wait,
            begun=self.metrics.batches.observe, done=self.metrics.work.observe,
        )  # fmt: skip
        self.capacity.seconds_per_picture = lambda: self.batcher.seconds_per_picture
        count, preprocess = min(4, os.cpu_count() or 1), self.preprocess
        self.decoders = Decoders(
            count, size=preprocess.size, geometry=preprocess.geometry, pre_resize=preprocess.pre_resize,
            pixels=limits.pixels, seconds=limits.decode_seconds,
        )  # fmt: skip
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="pictures")
        self.fetchers = ThreadPoolExecutor(FETCHES, thread_name_prefix="fetch")

    def start(self) -> None:
        """Ready once a first picture has gone all the way: libraries set themselves up on first use."""
        self.batcher.start()
        pixels, _ = self.decoders(self.preprocess.example())
        job = PendingPicture(pixels, self.options({}))
        self.batcher.put([job])
        job.result.result()

    def close(self) -> None:
        """Finish what was taken, within the time that a request has; what takes longer is given up."""
        self.batcher.close(self.limits.seconds)
        self.decoders.close()
        for pool in (self.pool, self.fetchers):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def alive(self) -> bool:
        """Whether captions can still come: False calls for a restart."""
        return self.batcher.thread.is_alive() and not self.batcher.late(2 * self.limits.seconds)

    @property
    def ready(self) -> bool:
        """Whether a picture that comes now has a chance to be captioned in time."""
        return (
            self.batcher.alive
            and self.capacity.pictures < self.limits.queue
            and not self.decoders.stuck
            and not self.batcher.late(self.limits.seconds)
        )

    def options(self, given: Mapping[str, Any]) -> CaptionOptions:
        """The options of a request over the server's defaults.

        Raises:
            MeshcapError: an option without sense.
        """
        return CaptionOptions.parse({**self.defaults, **given})

    def check(self, options: CaptionOptions) -> int:
        """How many hypotheses a picture needs; what the captioner would refuse is refused before anything waits.

        Raises:
            MeshcapError: unknown words, options that contradict each other or need too many hypotheses.
        """
        for name, entries, most in (("must", options.must, MAX_MUST), ("must_not", options.must_not, MAX_MUST_NOT)):
            if len(entries) > most or any(len(entry) > MAX_ENTRY for entry in entries):
                raise RefusalError(422, f"{name} has {len(entries)} entries, expected at most {most} short ones")
        width = self.captioner.plan(options).strategy.width
        if width > self.limits.hypotheses:
            raise RefusalError(
                422,
                f"this search keeps {width} hypotheses, expected at most {self.limits.hypotheses}: "
                "ask for fewer required words, captions or beams",
            )
        return width

    async def caption(
        self, given: Sequence[Given], options: CaptionOptions, reservation: Reservation
    ) -> list[CaptionedPicture | MeshcapError]:
        """For each picture its caption, or what went wrong.

        Raises:
            RefusalError: 503 without room or at the end, 504 after too long, 422 for options that cannot be met.
        """
        reservation.reserve_pictures(len(given))
        try:
            async with asyncio.timeout(reservation.left):
                width = self.check(options)
                prepared = await asyncio.gather(
                    *(self._prepared(one, reservation) for one in given), return_exceptions=True
                )
                reservation.release_bytes()
                jobs = {
                    at: PendingPicture(one[0], options, width, one[1], one[2])
                    for at, one in enumerate(prepared)
                    if not isinstance(one, BaseException)
                }
                self.batcher.put(jobs.values())
                waiting = (asyncio.wrap_future(job.result) for job in jobs.values())
                found = dict(zip(jobs, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
        except TimeoutError:
            self.metrics.pictures.add("late", count=len(given))
            raise RefusalError(504, f"no caption within {self.limits.seconds:g} s: try again later") from None
        return [self._result(one, found.get(at)) for at, one in enumerate(prepared)]

    async def remember(self, given: Given, entry: Entry, reservation: Reservation) -> int:
        """Take a picture and what is said of it into the memory; returns the entry's id.

        Raises:
            MeshcapError: an empty caption, a broken picture, no room; clients may not add to the memory.
        """
        if not self.remembers:
            raise RefusalError(403, "this server takes nothing into a memory: start it with --memory and --remember")
        entry = entry.checked()
        reservation.reserve_pictures(1)
        try:
            async with asyncio.timeout(reservation.left):
                pixels, window, other = await self._prepared(given, reservation)
                reservation.release_bytes()
                if other is not None:
                    raise RefusalError(422, "this is a score, and pictures are remembered")
                job = PendingPicture(pixels, self.options({}), 1, window, entry=entry)
                self.batcher.put([job])
                return int(await asyncio.wrap_future(job.result))
        except TimeoutError:
            raise RefusalError(504, f"not remembered within {self.limits.seconds:g} s: try again later") from None

    def _result(
        self, prepared: Prepared | BaseException, found: CaptionedPicture | BaseException | None
    ) -> CaptionedPicture | MeshcapError:
        if isinstance(found, CaptionedPicture):
            self.metrics.pictures.add("captioned")
            return found
        error = prepared if isinstance(prepared, BaseException) else found
        assert isinstance(error, BaseException)
        if not isinstance(error, MeshcapError):
            raise error
        self.metrics.pictures.add("failed" if isinstance(error, FailedError) else "refused")
        return error

    async def _prepared(self, given: Given, reservation: Reservation) -> Prepared:
        loop = asyncio.get_running_loop()
        if isinstance(given, RefusalError):
            raise given
        if isinstance(given, Link):
            if self.fetcher is None:
                raise RefusalError(422, "this server fetches no URLs: send the picture itself")
            given = await loop.run_in_executor(self.fetchers, self.fetcher, given.url)
            reservation.reserve_bytes(len(given))  # in memory like what was sent
        return await loop.run_in_executor(self.pool, self._decode, given, reservation)

    def _decode(self, content: bytes, reservation: Reservation) -> Prepared:
        left = reservation.left
        read, window = self.decoders(content, min(self.limits.decode_seconds, math.inf if left is None else left))
        captioner = self.captioner.of_scores() if isinstance(read, Bars) else self.captioner
        if isinstance(captioner.backend.preprocess, ReadScore) != isinstance(read, Bars):
            kinds = ("score", "pictures") if isinstance(read, Bars) else ("picture", "scores (MIDI)")
            raise RefusalError(422, f"this is a {kinds[0]}, and {self.name} reads {kinds[1]}")
        return read, window, None if captioner is self.captioner else captioner
