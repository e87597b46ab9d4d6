"""One thread that captions what waits, pictures of many clients together.

A model captions eight pictures in far less than eight times the time of one. So the first picture waits a few
milliseconds for company; while a batch is at work, the next one gathers by itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from meshcap.captioner import Caption, Captioner
from meshcap.errors import FailedError, MeshcapError
from meshcap.regions import Regions
from meshcap.serving.limits import RefusalError
from meshcap.serving.wishes import Wishes

TOGETHER = 640  # hypotheses that are decoded at once: 128 pictures with 5 beams, fewer where many words are required
MEMORY = 0.1  # how much the latest batch counts in the pace


@dataclass(frozen=True)
class Seen:
    """A caption, and where the regions that its attention speaks of lie."""

    caption: Caption
    boxes: Tensor | None  # (N, 4) from 0 to 1 within what was seen


@dataclass(eq=False)
class Job:
    """One picture that waits for its caption."""

    pixels: Tensor  # (3, size, size) uint8
    wishes: Wishes
    width: int = 5  # hypotheses that its search keeps
    result: Future[Seen] = field(default_factory=Future)

    @property
    def kind(self) -> Hashable:
        """Jobs of one kind are decoded together. Draws from a seed depend on the company, so these go alone."""
        alone = self.wishes.strategy == "sample" and self.wishes.seed is not None
        return id(self) if alone else self.wishes


class Batcher:
    """`put` jobs from any thread; their results come as futures. A job that is cancelled before its turn is skipped."""

    def __init__(
        self,
        captioner: Captioner,
        *,
        batch: int,
        wait: float,
        noticed: Callable[[int, float], None] = lambda pictures, seconds: None,
    ):
        self.captioner, self.batch, self.wait, self.noticed = captioner, batch, wait, noticed
        self.pace = 0.0  # seconds that a picture takes of late
        self.waiting: deque[Job] = deque()
        self.changed = threading.Condition()
        self.closing = False
        self.thread = threading.Thread(target=self._work, name="captions", daemon=True)

    def start(self) -> None:
        self.thread.start()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive() and not self.closing

    def put(self, jobs: Iterable[Job]) -> None:
        """
        Raises:
            RefusalError: 503: the server is about to stop.
        """
        with self.changed:
            if self.closing:
                raise RefusalError(503, "the server is stopping: try again in a few seconds", retry_after=5)
            self.waiting.extend(jobs)
            self.changed.notify()

    def close(self) -> None:
        """Take no more jobs, finish those that were taken."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        if self.thread.ident is not None:
            self.thread.join()

    def _work(self) -> None:
        while jobs := self._next():
            start = time.monotonic()
            pictures = self._caption(jobs)
            if pictures:
                seconds = time.monotonic() - start
                latest = seconds / pictures
                self.pace = latest if self.pace == 0 else (1 - MEMORY) * self.pace + MEMORY * latest
                self.noticed(pictures, seconds)

    def _next(self) -> list[Job]:
        """A batch; nothing once it is time to leave."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closing)
            if self.wait and self.waiting:
                self.changed.wait_for(lambda: len(self.waiting) >= self.batch or self.closing, timeout=self.wait)
            return [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]

    def _caption(self, jobs: Sequence[Job]) -> int:
        """Keep the promises of these jobs, and say how many there were to keep."""
        jobs = [job for job in jobs if job.result.set_running_or_notify_cancel()]
        if not jobs:
            return 0
        try:
            regions = self._look(jobs)
        except Exception as error:
            self._one_by_one(jobs, error)
            return len(jobs)
        kinds: dict[Hashable, list[int]] = {}
        for at, job in enumerate(jobs):
            kinds.setdefault(job.kind, []).append(at)
        for group in kinds.values():
            together = max(1, TOGETHER // jobs[group[0]].width)
            for start in range(0, len(group), together):
                part = group[start : start + together]
                self._describe([jobs[at] for at in part], regions[torch.tensor(part, device=regions.features.device)])
        return len(jobs)

    @torch.no_grad()
    def _look(self, jobs: Sequence[Job]) -> Regions:
        vision = self.captioner.vision
        assert vision is not None
        regions: Regions = vision(torch.stack([job.pixels for job in jobs]).to(vision.device))
        return regions

    def _describe(self, jobs: Sequence[Job], regions: Regions) -> None:
        wishes = jobs[0].wishes
        seed = secrets.randbits(62) if wishes.seed is None else wishes.seed
        try:
            captions = self.captioner.describe(regions, **wishes.described(seed))
            boxes = None if regions.boxes is None or not wishes.attention else regions.boxes.float().cpu()
        except Exception as error:
            self._one_by_one(jobs, error)
            return
        for at, (job, caption) in enumerate(zip(jobs, captions, strict=True)):
            job.result.set_result(Seen(caption, None if boxes is None else boxes[at]))

    def _one_by_one(self, jobs: Sequence[Job], error: Exception) -> None:
        """One picture must not spoil the others of its batch: each is tried alone, and alone told what is wrong."""
        if len(jobs) == 1:
            if not isinstance(error, MeshcapError):
                logging.getLogger("meshcap").error("a caption failed", exc_info=error)
                error = FailedError("the captioner failed at this picture")
            jobs[0].result.set_exception(error)
            return
        for job in jobs:
            try:
                self._describe([job], self._look([job]))
            except Exception as own:  # of looking; describing tells the job itself
                self._one_by_one([job], own)
