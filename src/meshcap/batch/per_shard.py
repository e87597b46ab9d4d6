"""`--per-shard`: `00000.captions.parquet` for `00000.tar`, finished as soon as that shard is.

Each shard is a job of its own, which is killed and gone on with as any other; several are open at once, so that a
cluster, or the lanes of this machine, never wait at the end of one. What is finished says so itself: how it was made
stands in the Parquet file, and a shard that has such a file is not opened again.
"""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from meshcap.batch.inputs import CAPTIONS, Picture, Share, list_pictures
from meshcap.batch.job import Blocks, Job, count, fingerprint, forget, run, state_folder
from meshcap.batch.local import BatchSettings
from meshcap.batch.output import METADATA, Delivery, Row, errors_path, read_table, write_errors, write_shard_table
from meshcap.data.parquet import need_pyarrow
from meshcap.errors import MeshcapError
from meshcap.files import remove_unfinished
from meshcap.vision.pictures import SOURCES

OPEN = 256  # shards in work at once: each holds a lock
Captions = Callable[[list[tuple[int, Sequence[Picture]]]], Blocks]
Ready = tuple[Captions, BatchSettings, int]


@dataclass(frozen=True)
class ShardJob:
    """A tar, a Parquet file or a folder of pictures, and the file for its captions."""

    source: str
    out: Path
    pictures: Sequence[Picture] = ()

    @property
    def size(self) -> int:
        """Bytes of the file, pictures of the folder: another size, another shard."""
        if os.path.isfile(self.source):
            return os.path.getsize(self.source)
        return sum(name.lower().endswith(SOURCES) for name in os.listdir(self.source or "."))


@dataclass
class Shards:
    """Which shards there are to do, and which are done.

    Args:
        facts: how captions are made, as of `Job`; a shard that was captioned otherwise is refused.
        folder: for the captions; None: beside each shard.
        restart: nothing counts as done.
    """

    facts: dict[str, Any]
    folder: Path | None = None
    restart: bool = False
    counts: dict[str, int] = field(default_factory=dict)  # of all that are done
    before: int = 0  # shards that were done already
    new: int = 0
    _sources: dict[Path, str] = field(default_factory=dict)

    def is_done(self, source: str) -> bool:
        """Whether a shard was captioned before; for `list_pictures`.

        Raises:
            MeshcapError: a file is in the way, of another job or of nobody's.
        """
        shard = ShardJob(source, self._out(source))
        counts = None if self.restart else self._counts(shard)
        if counts is None:
            return False
        self.before += 1
        add(self.counts, counts)
        return True

    def of(self, pictures: Sequence[Picture]) -> list[ShardJob]:
        """The shards of pictures that were listed."""
        found: dict[str, list[Picture]] = {}
        for picture in pictures:
            found.setdefault(picture.tar or os.path.dirname(picture.path), []).append(picture)
        return [ShardJob(source, self._out(source), those) for source, those in found.items()]

    def _out(self, source: str) -> Path:
        whole = Path(os.path.abspath(source))
        name = (whole.name if os.path.isdir(whole) else whole.stem) + CAPTIONS
        out = Path(os.path.dirname(source) if whole.name == Path(source).name else whole.parent, name)
        if self.folder is not None:
            out = self.folder / name
        first = self._sources.setdefault(Path(os.path.abspath(out)), str(whole))
        if first != str(whole):
            raise MeshcapError(f"{first} and {whole} would both get {out}: caption them in calls of their own")
        return out

    def _counts(self, shard: ShardJob) -> dict[str, int] | None:
        if not shard.out.exists():
            return None
        parquet = need_pyarrow(shard.out)
        try:
            saved = json.loads(parquet.read_schema(shard.out).metadata[METADATA.encode()])
            options, size, counts = saved["options"], saved["size"], saved["counts"]
        except (OSError, ValueError, KeyError, TypeError):
            what = "is there, and no job that wrote it"
            raise MeshcapError(f"{shard.out} {what}: give --out FOLDER, or --restart to replace it") from None
        if size != shard.size:
            return None  # these captions are of a shard that is no longer there
        for name, now in json.loads(json.dumps(self.facts)).items():
            if options.get(name) != now:
                was = f"{name} was {options.get(name)} and is {now}"
                raise MeshcapError(f"{shard.out} was made otherwise ({was}): --restart makes it again")
        return dict(counts)


def add(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, value in more.items():
        counts[name] = counts.get(name, 0) + value


class ShardJobs:
    """The jobs of some shards as one, for `job.run`: their blocks are numbered through.

    A shard's captions are written when its last block is, and then nothing else is left of its job.
    """

    def __init__(
        self,
        shards: Sequence[ShardJob],
        facts: dict[str, Any],
        *,
        block: int,
        model: str,
        columns: Sequence[str] = (),
        restart: bool = False,
    ):
        self.shards, self.facts, self.model, self.columns = shards, facts, model, columns
        self.jobs = [Job(state_folder(shard.out, ""), shard.pictures, facts, block=block) for shard in shards]
        self.first = list(accumulate((job.blocks for job in self.jobs), initial=0))
        self.left: dict[int, int] = {}  # blocks of each job
        self.counts: dict[str, int] = {}
        self._open = ExitStack()
        for shard in shards if restart else ():
            forget(state_folder(shard.out, ""))

    def __enter__(self) -> Self:
        for number, job in enumerate(self.jobs):
            try:
                self._open.enter_context(job)
            except BaseException:
                self._open.close()
                raise
            self.left[number] = len(job.to_do())
            if not self.left[number]:  # killed between its last block and the table
                self._finish(number)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def to_do(self) -> list[int]:
        return [
            self.first[number] + block
            for number, job in enumerate(self.jobs)
            if self.left[number]
            for block in job.to_do()
        ]

    def count_done(self) -> int:
        """Pictures that are captioned."""
        return sum(
            len(job.pictures) if not self.left[number] else job.count_done() for number, job in enumerate(self.jobs)
        )

    def pictures_of(self, block: int) -> Sequence[Picture]:
        number = self._job(block)
        return self.jobs[number].pictures_of(block - self.first[number])

    def write(self, block: int, rows: Sequence[Row]) -> None:
        number = self._job(block)
        self.jobs[number].write(block - self.first[number], rows)
        self.left[number] -= 1
        if not self.left[number]:
            self._finish(number)

    def _job(self, block: int) -> int:
        return bisect_right(self.first, block) - 1

    def _finish(self, number: int) -> None:
        shard, job = self.shards[number], self.jobs[number]
        remove_unfinished(shard.out.parent, shard.out.name)
        counts = count(job.rows())
        about = {"options": self.facts, "size": shard.size, "inputs": fingerprint(shard.pictures), "counts": counts}
        write_shard_table(shard.out, self._rows(shard, job), self.columns, about)
        write_errors(errors_path(shard.out), job.rows())
        shutil.rmtree(job.folder, ignore_errors=True)
        add(self.counts, counts)

    def _rows(self, shard: ShardJob, job: Job) -> Iterator[Row]:
        for picture, row in zip(shard.pictures, job.rows(), strict=True):
            yield {**row, "key": key_of(picture), "model": self.model, "weights_hash": self.facts["model"]}


def key_of(picture: Picture) -> str:
    """As WebDataset calls a sample: its member's name without the ending."""
    if picture.column:
        return picture.member
    return os.path.splitext(picture.member.removeprefix("./") if picture.tar else os.path.basename(picture.path))[0]


def caption_shards(
    inputs: Sequence[str],
    shards: Shards,
    ready: Callable[[], Ready],
    *,
    model: str,
    column: str | None = None,
    share: Share | None = None,
    progress: Callable[[int, int], AbstractContextManager[Callable[[int, int], None]]],
) -> None:
    """Caption the shards that are not done; `shards` counts the captions of all.

    Args:
        ready: loads the model, where there is anything to do; gives what captions blocks, with which settings, and the
            pictures of a block.
        progress: from the pictures of some shards, and how many of those are done, to what is told of more.
    """
    pictures = list_pictures(inputs, column=column, share=share, leave=shards.is_done)
    if not pictures:
        return
    caption, settings, block = ready()
    facts = shards.facts | {"batch_size": settings.batch_size}
    columns = [*(("words", "log_probs") if settings.log_probs else ())]
    columns += [name for name in ("shortened",) if settings.options.shorten]
    columns += [name for name in ("warning",) if settings.options.must]
    to_do = shards.of(pictures)
    if shards.folder is not None:
        shards.folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(to_do), OPEN):
        some = to_do[start : start + OPEN]
        with ShardJobs(some, facts, block=block, model=model, columns=columns, restart=shards.restart) as jobs:
            count = sum(len(shard.pictures) for shard in some)
            with progress(count, jobs.count_done()) as report:
                run(jobs, caption, Delivery(), report)
            shards.new += len(some)
            add(shards.counts, jobs.counts)


def captioned(
    inputs: Sequence[str], shards: Shards, *, column: str | None = None, share: Share | None = None
) -> Iterator[tuple[Picture, Row]]:
    """Every picture of finished shards with its row."""
    pictures = list_pictures(inputs, column=column, share=share, leave=lambda _: False)
    for shard in shards.of(pictures):
        yield from zip(shard.pictures, read_table(shard.out), strict=True)
