"""How much a server takes in, and how it refuses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from meshcap.errors import MeshcapError

MIB = 2**20
BODIES = 8  # as many of the largest requests may be in memory at once, before their pictures are decoded


class RefusalError(MeshcapError):
    """Answered instead of a caption: an HTTP status and one sentence."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request: bytes, pixels of a picture, pictures, seconds. Of the server: pictures inside, and together."""

    bytes: int = 32 * MIB
    pixels: int = 64_000_000
    pictures: int = 32
    seconds: float = 60.0
    queue: int = 256  # pictures taken and not answered yet
    batch: int = 32  # pictures captioned together
    wait: float = 0.005  # seconds that the first of a batch waits for others
    hypotheses: int = 160  # of one picture, where many words are required
    decode_seconds: float = 10.0  # of one picture; after that its decoder is killed

    def __post_init__(self) -> None:
        for name in ("bytes", "pixels", "pictures", "seconds", "queue", "batch", "hypotheses", "decode_seconds"):
            if getattr(self, name) <= 0:
                raise MeshcapError(f"{name} is {getattr(self, name)}, expected more than 0")
        if not 0 <= self.wait <= 1:
            raise MeshcapError(f"wait is {self.wait} seconds, expected 0 to 1")
        if self.pictures > self.queue:
            raise MeshcapError(
                f"{self.pictures} pictures of a request can never fit into a queue of {self.queue}: "
                "expected a queue at least as long"
            )


@dataclass
class Capacity:
    """Pictures and bytes in memory. Only touched on the event loop, so no lock is needed."""

    limits: Limits
    seconds_per_picture: Callable[[], float] = lambda: 0.0
    pictures: int = 0
    bytes: int = 0

    def reserve_pictures(self, pictures: int) -> None:
        if self.pictures + pictures > self.limits.queue:
            raise self.full()
        self.pictures += pictures

    def reserve_bytes(self, count: int) -> None:
        if self.bytes + count > BODIES * self.limits.bytes:
            raise self.full()
        self.bytes += count

    def full(self) -> RefusalError:
        wait = max(1, math.ceil(self.pictures * self.seconds_per_picture()))
        return RefusalError(503, f"the server is busy: try again in {wait} s", retry_after=wait)


@dataclass
class Reservation:
    """What one request holds: bytes as they come, pictures once they are here; all given back at the end."""

    capacity: Capacity
    until: float = math.inf  # when its time is over, by the monotonic clock
    pictures: int = 0
    bytes: int = 0

    @property
    def left(self) -> float | None:
        """Seconds that are left, for `asyncio.timeout`."""
        return None if self.until == math.inf else max(0.0, self.until - time.monotonic())

    def __enter__(self) -> Self:
        """Refuse at once where there is no room. A place is taken only when the picture is here: clients that are slow
        to send theirs keep nobody out.
        """
        if self.capacity.pictures >= self.capacity.limits.queue:
            raise self.capacity.full()
        return self

    def reserve_pictures(self, pictures: int) -> None:
        """So many pictures in all; fewer than held already changes nothing."""
        more = max(0, pictures - self.pictures)
        self.capacity.reserve_pictures(more)
        self.pictures += more

    def reserve_bytes(self, count: int) -> None:
        self.capacity.reserve_bytes(count)
        self.bytes += count

    def release_bytes(self) -> None:
        """What was sent has been decoded."""
        self.capacity.bytes -= self.bytes
        self.bytes = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release_bytes()
        self.capacity.pictures -= self.pictures
        self.pictures = 0
