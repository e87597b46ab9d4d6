"""From blocks of pictures to rows: read ahead by threads, captioned in batches that stay inside a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from queue import Empty, Queue
from threading import Event, Lock, Thread
from typing import Any

import torch

from meshcap.batch.inputs import Picture
from meshcap.batch.output import Row
from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.data.parquet import ParquetSource
from meshcap.data.shards import TarSource
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions
from meshcap.vision.readers import Readers

Block = tuple[int, Sequence[Picture]]
READERS = 4  # threads that fetch rows of Parquet; all else is the stream's own work


@dataclass(frozen=True)
class BatchSettings:
    """How pictures are read and captioned, and what rows hold."""

    options: CaptionOptions = field(default_factory=CaptionOptions)
    batch_size: int = 16
    readers: int | None = None  # threads or processes that read pictures, of each lane
    processes: bool | None = None  # whether processes read; None: with a GPU, where there are many pictures
    log_probs: bool = False  # words with the log-probability of each


class Unreadable:
    """In the place of a row that could not be fetched: reading it says why."""

    def __init__(self, error: MeshcapError):
        self.error = error

    def read(self) -> bytes:
        raise self.error


def caption_in_threads(
    captioner: Captioner, blocks: Iterable[Block], settings: BatchSettings, *, lanes: int, threads: int = 1
) -> Iterator[tuple[int, list[Row]]]:
    """Rows of each block, in the order in which they get done, by several lanes that share the model.

    Steps of a caption are too small to be cut up for several cores; whole batches are not. A lane computes with
    `threads` of them, and while it captions, threads of its own read the next pictures.
    """
    rest, taking, stop = iter(blocks), Lock(), Event()
    done: Queue[tuple[int, list[Row]] | BaseException | None] = Queue(maxsize=2 * lanes)

    def take() -> Iterator[Block]:
        while not stop.is_set():
            with taking:
                block = next(rest, None)
            if block is None:
                return
            yield block

    def lane() -> None:
        torch.set_num_threads(threads)  # of this Python thread
        try:
            for one in caption_blocks(captioner, take(), settings, stop=stop):
                done.put(one)
        except BaseException as error:  # raised again by the caller's thread
            done.put(error)
        finally:
            done.put(None)

    running = [Thread(target=lane, name=f"meshcap-lane-{number}") for number in range(lanes)]
    for thread in running:
        thread.start()
    left = lanes
    try:
        while left:
            one = done.get()
            if isinstance(one, BaseException):
                raise one
            if one is None:
                left -= 1
            else:
                yield one
    finally:
        stop.set()
        while any(thread.is_alive() for thread in running):  # a lane may be waiting to put something
            try:
                done.get(timeout=0.05)
            except Empty:
                continue


def caption_blocks(
    captioner: Captioner, blocks: Iterable[Block], settings: BatchSettings, *, stop: Event | None = None
) -> Iterator[tuple[int, list[Row]]]:
    """Rows of each block, in order. A picture that cannot be read has an `error` instead of a caption.

    A block that holds no whole batches, as the last of a job, ends with a smaller batch: then a picture always shares
    its batch with the same others, and its caption is the same to the last digit, whichever blocks were done before.
    """
    rest = iter(blocks)
    readers = captioner.readers(settings.batch_size, settings.readers, settings.processes)
    with readers or nullcontext():
        for block in rest:
            yield from _whole_batches(captioner, chain([block], rest), settings, stop, readers)


def _whole_batches(
    captioner: Captioner,
    blocks: Iterable[Block],
    settings: BatchSettings,
    stop: Event | None,
    readers: Readers | None,
) -> Iterator[tuple[int, list[Row]]]:
    """As far as batches are whole, and the first block in which they are not."""
    rows: list[Row] = []
    waiting: deque[Block] = deque()

    def pictures() -> Iterator[Picture]:
        for block in blocks:
            waiting.append(block)
            yield from block[1]
            if len(block[1]) % settings.batch_size:
                return

    sources = _sources(pictures(), 2 * settings.batch_size)
    captions = captioner.stream(
        sources,
        settings.options,
        batch_size=settings.batch_size,
        workers=settings.readers,
        processes=readers or False,
    )
    try:
        for _, result in captions:
            if stop is not None and stop.is_set():
                return
            number, members = waiting[0]
            rows.append(row_of(members[len(rows)], result, settings))
            if len(rows) == len(members):
                waiting.popleft()
                yield number, rows
                rows = []
    finally:
        captions.close()
        sources.close()


def row_of(picture: Picture, result: Caption | MeshcapError, settings: BatchSettings) -> Row:
    """A picture's row of the table. Of a withheld caption, only its confidence."""
    if isinstance(result, MeshcapError):
        # Bytes have no name of their own; the row's reader wants one.
        text = str(result)
        return {"path": picture.path, "error": text.replace("the picture", picture.path, 1) if picture.tar else text}
    row: Row = {"path": picture.path, "caption": None, "confidence": round(result.confidence, 6)}
    if result.withheld:
        return row
    row["caption"] = result.text
    if result.shortened:
        row["shortened"] = True
    if settings.log_probs:
        row |= {"words": result.words, "log_probs": [round(one, 5) for one in result.log_probs]}
    if result.warning:
        row["warning"] = result.warning
    if settings.options.tags:
        row["tags"] = [tag.to_dict() for tag in result.tags]
    others = [one for one in result.alternatives if not one.withheld]
    if others:
        row["alternatives"] = [{"caption": one.text, "confidence": round(one.confidence, 6)} for one in others]
    return row


def _sources(pictures: Iterator[Picture], ahead: int) -> Generator[Any, None, None]:
    """What the stream reads: paths, members of tars, and the content of rows of Parquet, fetched before it is asked
    for: rows are read by whole groups, once for all who read pictures.
    """

    def fetch(source: ParquetSource) -> bytes | Unreadable:
        try:
            return source.read()
        except MeshcapError as error:
            return Unreadable(error)

    waiting: deque[str | TarSource | Future[bytes | Unreadable]] = deque()
    with ThreadPoolExecutor(READERS, thread_name_prefix="meshcap-shards") as pool:
        try:
            for picture in pictures:
                source = picture.source()
                waiting.append(
                    pool.submit(fetch, source) if isinstance(source, ParquetSource) else source or picture.path
                )
                if len(waiting) > ahead:
                    yield _ready(waiting.popleft())
            while waiting:
                yield _ready(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _ready(one: str | TarSource | Future[bytes | Unreadable]) -> Any:
    return one.result() if isinstance(one, Future) else one
