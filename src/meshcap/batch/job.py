"""A batch job: which pictures, with which options, and what is done so far; kept on disk so that a killed job goes on.

`job.json` names the pictures and options. Each finished block of pictures is one file of rows, written whole or not at
all; going on means captioning the blocks without a file. A block always holds the same pictures and batches never cross
its edge, so that captions are equal to the last digit whenever they are made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

from meshcap.batch.alt_text import fill
from meshcap.batch.inputs import Picture
from meshcap.batch.local import BatchSettings
from meshcap.batch.output import Delivery, Row, errors_path, json_lines, write_errors, write_table
from meshcap.errors import FailedError, MeshcapError
from meshcap.files import remove_unfinished, write_text
from meshcap.folders import VISION_FOLDER, WEIGHTS, find_file, find_optional

JOB, PAGES = "job.json", "pages.json"
PARTS = ".parts"  # the end of the name of a job's folder
PER_FOLDER = 1000  # block files in one folder
Blocks = Iterable[tuple[int, list[Row]]]
WAITING = 4  # blocks that are being written while others are captioned


class Job:
    """A job and its folder. As a context manager it holds the folder's lock."""

    def __init__(
        self,
        folder: Path,
        pictures: Sequence[Picture],
        options: dict[str, Any],
        *,
        block: int,
        record: Path | None = None,
        asked: str = "",
    ):
        """
        Args:
            record: what stays of a finished job: a file that says what was done; None: nothing stays.
            asked: a fingerprint of what the job was asked for, for `finished_before`.
        """
        self.folder, self.record, self.asked = folder, record, asked
        self.pictures = pictures
        self.block = block
        self.facts: dict[str, Any] = {
            "pictures": len(pictures),
            "inputs": fingerprint(pictures),
            "block": block,
            "options": options,
        }
        self.done: dict[str, int] | None = None  # counts of a finished job, whose blocks are gone
        self._lock: int | None = None

    @property
    def blocks(self) -> int:
        return -(-len(self.pictures) // self.block)

    def __enter__(self) -> Self:
        """Start the job, or go on with it.

        Raises:
            MeshcapError: the folder belongs to a job with other pictures or options, or one that is running.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock_folder(self.folder)
        except OSError as error:
            raise MeshcapError(f"{self.folder} cannot be written: {error.strerror or error}") from error
        remove_unfinished(self.folder)
        try:
            self._check_same()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            if self.done is not None and self.record is not None:
                shutil.rmtree(self.folder, ignore_errors=True)  # a finished job leaves nothing behind but its record
            os.close(self._lock)  # which unlocks
            self._lock = None

    def _check_same(self) -> None:
        path = self.folder / JOB
        if not path.exists() and self.record is not None and self.record.exists():
            path = self.record
        if not path.exists():
            self._save(path)
            return
        try:
            saved = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
            was = {name: saved[name] for name in self.facts}
        except (OSError, ValueError, KeyError, TypeError):
            raise MeshcapError(f"{path} cannot be read: give --restart to start anew") from None
        if was["inputs"] != self.facts["inputs"]:
            raise MeshcapError(
                f"{self._name} was started with {was['pictures']:,} pictures, and these {len(self.pictures):,} are "
                "others: give the same to go on, another --out, or --restart to start anew"
            )
        facts = json.loads(json.dumps(self.facts))  # as they were written: tuples are lists there
        if was != facts:
            before, now = ({"block": one["block"], **one["options"]} for one in (was, facts))
            names = sorted(name for name in before | now if before.get(name) != now.get(name))
            what = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in names[:3])
            raise MeshcapError(f"{self._name} was started otherwise ({what}): --restart starts anew")
        self.done = saved.get("done")

    @property
    def _name(self) -> str:
        """What a person knows the job by: its table."""
        return str(self.folder).removesuffix(PARTS)

    def _save(self, path: Path, **more: Any) -> None:
        text = json.dumps(self.facts | more, indent=1, ensure_ascii=False) + "\n"
        write_text(path, text, errors="surrogateescape")

    def finish(self, counts: dict[str, int], **more: Any) -> None:
        """Remember that all is done and written, with more for `finished_before`, and let go of the blocks."""
        self._save(self.record or self.folder / JOB, done=counts, asked=self.asked, **more)
        self.done = counts
        _delete_blocks(self.folder)

    def path(self, block: int) -> Path:
        return self.folder / f"{block // PER_FOLDER:04}" / f"{block:07}.jsonl"

    def pictures_of(self, block: int) -> Sequence[Picture]:
        return self.pictures[block * self.block : (block + 1) * self.block]

    def to_do(self) -> list[int]:
        """Numbers of the blocks that have no file yet."""
        done: set[str] = set()
        for shelf in range(-(-self.blocks // PER_FOLDER)):
            folder = self.path(shelf * PER_FOLDER).parent
            if folder.is_dir():
                done.update(os.listdir(folder))
        return [block for block in range(self.blocks) if self.path(block).name not in done]

    def count_done(self) -> int:
        """Pictures whose rows are saved."""
        return len(self.pictures) - sum(len(self.pictures_of(block)) for block in self.to_do())

    def write(self, block: int, rows: Sequence[Row]) -> None:
        """Save the rows of a block. From then on it is done."""
        if [row["path"] for row in rows] != [picture.path for picture in self.pictures_of(block)]:
            raise FailedError(f"block {block} came back with {len(rows)} rows that are not those of its pictures")
        path = self.path(block)
        path.parent.mkdir(exist_ok=True)
        write_text(path, json_lines(rows), errors="surrogateescape")

    def rows(self) -> Iterator[Row]:
        """All of a finished job, in the order of its pictures."""
        for block in range(self.blocks):
            try:
                with open(self.path(block), encoding="utf-8", errors="surrogateescape") as file:
                    for line in file:
                        yield json.loads(line)
            except (OSError, ValueError) as error:
                raise FailedError(f"{self.path(block)} cannot be read: remove it and start again") from error


def fingerprint(pictures: Iterable[Picture]) -> str:
    """Of the list, not of the content: writing a description into a picture does not make it another one."""
    digest = hashlib.blake2b(digest_size=16)
    for picture in pictures:
        digest.update(f"{picture.path}\0{picture.offset}\0{picture.size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def finished_before(record: Path, asked: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a finished job, if it was asked for the same; None: there is none, or another.

    Args:
        options: those that must be the same; more are not compared.
    """
    try:
        saved = json.loads(record.read_text(encoding="utf-8", errors="surrogateescape"))
        known = saved["options"]
        same = all(name in known and known[name] == value for name, value in json.loads(json.dumps(options)).items())
        return saved if same and saved["asked"] == asked and isinstance(saved["done"], dict) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def forget(folder: Path) -> None:
    """Forget what a job has done. What is not a job's folder is left alone."""
    if not (folder / JOB).exists():
        return
    lock = _lock_folder(folder)
    try:
        _delete_blocks(folder)
        for name in (JOB, PAGES):
            (folder / name).unlink(missing_ok=True)
    finally:
        os.close(lock)


def _delete_blocks(folder: Path) -> None:
    for shelf in folder.iterdir():
        if shelf.is_dir() and shelf.name.isdecimal():
            shutil.rmtree(shelf)


def _lock_folder(folder: Path) -> int:
    """Two processes on one job would do everything twice. The system unlocks for whoever is killed."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise MeshcapError(f"{folder} is in use: another meshcap is at this job") from None
    except (ImportError, OSError):  # a system, or a network drive, without locks
        pass
    return handle


class Work(Protocol):
    """What `run` needs of a job, or of several."""

    def to_do(self) -> list[int]: ...
    def pictures_of(self, block: int) -> Sequence[Picture]: ...
    def write(self, block: int, rows: Sequence[Row]) -> None: ...


def run(
    job: Work,
    caption: Callable[[list[tuple[int, Sequence[Picture]]]], Blocks],
    deliver: Delivery,
    progress: Callable[[int, int], None],
) -> None:
    """Do all blocks that are to do, in any order that they come back in.

    Args:
        caption: from numbered blocks to their rows.
        progress: called with how many pictures were just done, and how many of them failed.
    """
    to_do = [(block, job.pictures_of(block)) for block in job.to_do()]
    if not to_do:
        return
    deliver.remove_unfinished([picture for _, pictures in to_do for picture in pictures])
    left = {block for block, _ in to_do}
    writing: deque[Future[tuple[int, int]]] = deque()

    def write(block: int, rows: list[Row]) -> tuple[int, int]:
        deliver(job.pictures_of(block), rows)
        job.write(block, rows)  # last: from here on nobody does it again
        return len(rows), sum("error" in row for row in rows)

    with ThreadPoolExecutor(1, thread_name_prefix="meshcap-write") as pool:
        captioned = caption(to_do)
        try:
            for block, rows in captioned:
                if block not in left:  # a worker died after returning it, and another repeated it
                    continue
                left.remove(block)
                writing.append(pool.submit(write, block, rows))
                while writing and (len(writing) > WAITING or writing[0].done()):
                    progress(*writing.popleft().result())
            while writing:
                progress(*writing.popleft().result())
        finally:  # at once, and not when somebody cleans up: its threads would keep the process alive
            if isinstance(captioned, Generator):
                captioned.close()
    if left:
        raise FailedError(f"{len(left):,} blocks never came back: start again to go on with them")


def finish(job: Job, table: Path | None, settings: BatchSettings, *, excel: bool = False) -> dict[str, int]:
    """The blocks as one table and a list of errors, and how many there are of what."""
    if table is not None:
        remove_unfinished(table.parent, table.name)
        options = settings.options
        write_table(
            table,
            job.rows(),
            words=settings.log_probs,
            alternatives=options.n > 1,
            warnings=bool(options.must),
            tags=options.tags,
            shortened=options.shorten,
            excel=excel,
        )
        write_errors(errors_path(table), job.rows())
    return count(job.rows())


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many there are of what."""
    counts = {"captions": 0, "withheld": 0, "errors": 0}
    for row in rows:
        counts["captions"] += row.get("caption") is not None
        counts["withheld"] += "caption" in row and row["caption"] is None
        counts["errors"] += "error" in row
    return counts


def fill_pages(job: Job, pages: Sequence[str], folder: Path | None, *, overwrite: bool) -> int:
    """Captions into the pages, or into copies in a folder; how many."""
    keys = (picture.key for picture in job.pictures)
    captions = {key: row["caption"] for key, row in zip(keys, job.rows(), strict=True) if row.get("caption")}
    places = [Path(os.path.realpath(page)) if folder is None else Picture(page).path_in(folder) for page in pages]
    return sum(fill(page, place, captions, overwrite=overwrite) for page, place in zip(pages, places, strict=True))


def record_file(table: Path | None, words: Sequence[str]) -> Path:
    """What stays of a finished job: beside its table, or without one a hidden file here, one for the same words."""
    if table is not None:
        return table.with_name(f".{table.name}.job.json")
    digest = hashlib.blake2b("\0".join(words).encode("utf-8", "surrogateescape"), digest_size=6)
    return Path(f".meshcap-batch-{digest.hexdigest()}.job.json")


def state_folder(table: Path | None, inputs: str) -> Path:
    """Where a job remembers what it has done; without a table, a hidden folder here, which goes when all is done."""
    return table.with_name(table.name + PARTS) if table is not None else Path(f".meshcap-batch-{inputs[:12]}{PARTS}")


def weights_of(model: str) -> str:
    """Which model it is, whatever its folder is called: going on with another one would mix their captions."""
    digest = hashlib.blake2b(digest_size=12)
    for path in (find_file(model, WEIGHTS), find_optional(model, f"{VISION_FOLDER}/{WEIGHTS}")):
        digest.update(b"" if path is None else path.read_bytes())
    return digest.hexdigest()
