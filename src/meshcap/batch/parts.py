"""What a job has done so far, on disk: one file for each finished block, and what the job is.

`job.json` says which pictures and options the blocks belong to. A block's file is written beside and renamed, so it is
there whole or not at all, whenever the process is killed; going on is doing the blocks that have none. A block always
holds the same pictures, and batches never reach over its edge: what is done later says the same, to the byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import Any, Self

from meshcap.batch.pictures import Picture
from meshcap.errors import FailedError, MeshcapError
from meshcap.files import write_beside

JOB, PAGES, ERRORS = "job.json", "pages.json", "errors.jsonl"
SHELF = 1000  # blocks in a folder: file systems dislike a hundred thousand files in one

Row = dict[str, Any]


class Parts:
    """The folder of a job. Use it as a context: it is locked meanwhile."""

    def __init__(self, folder: Path, pictures: Sequence[Picture], options: dict[str, Any], *, block: int):
        self.folder = folder
        self.pictures = pictures
        self.block = block
        self.job: dict[str, Any] = {
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
        """Begin, or go on.

        Raises:
            MeshcapError: the folder belongs to a job with other pictures or options, or one that is running.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.folder)
        except OSError as error:
            raise MeshcapError(f"{self.folder} cannot be written: {error.strerror or error}") from error
        sweep(self.folder)
        try:
            self._agree()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # which unlocks
            self._lock = None

    def _agree(self) -> None:
        path = self.folder / JOB
        if not path.exists():
            self._save()
            return
        try:
            told = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
            was = {name: told[name] for name in self.job}
        except (OSError, ValueError, KeyError, TypeError):
            raise MeshcapError(f"{path} cannot be read: give --restart to begin anew") from None
        if was["inputs"] != self.job["inputs"]:
            raise MeshcapError(
                f"{self.folder} was begun with {was['pictures']:,} pictures, and these {len(self.pictures):,} are "
                "others: give the same to go on, another --out, or --restart to begin anew"
            )
        if was != json.loads(json.dumps(self.job)):
            before, now = ({"block": told["block"], **told["options"]} for told in (was, self.job))
            names = sorted(name for name in before | now if before.get(name) != now.get(name))
            what = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in names[:3])
            raise MeshcapError(f"{self.folder} was begun otherwise ({what}): --restart begins anew")
        self.done = told.get("done")

    def _save(self) -> None:
        text = json.dumps(self.job | ({"done": self.done} if self.done else {}), indent=1, ensure_ascii=False) + "\n"
        path = self.folder / JOB
        write_beside(path, lambda part: part.write_text(text, encoding="utf-8", errors="surrogateescape"))

    def finish(self, counts: dict[str, int]) -> None:
        """Remember that all is done and written, and let go of the blocks."""
        self.done = counts
        self._save()
        _remove_blocks(self.folder)

    def path(self, block: int) -> Path:
        return self.folder / f"{block // SHELF:04}" / f"{block:07}.jsonl"

    def pictures_of(self, block: int) -> Sequence[Picture]:
        return self.pictures[block * self.block : (block + 1) * self.block]

    def to_do(self) -> list[int]:
        """Numbers of the blocks that have no file yet."""
        done: set[str] = set()
        for shelf in range(-(-self.blocks // SHELF)):
            folder = self.path(shelf * SHELF).parent
            if folder.is_dir():
                done.update(os.listdir(folder))
        return [block for block in range(self.blocks) if self.path(block).name not in done]

    def write(self, block: int, rows: Sequence[Row]) -> None:
        """Hand in a block. From then on it is done."""
        if [row["path"] for row in rows] != [picture.path for picture in self.pictures_of(block)]:
            raise FailedError(f"block {block} came back with {len(rows)} rows that are not those of its pictures")
        path = self.path(block)
        path.parent.mkdir(exist_ok=True)
        write_beside(path, lambda part: part.write_text(lines(rows), encoding="utf-8", errors="surrogateescape"))

    def rows(self) -> Iterator[Row]:
        """All of a finished job, in the order of its pictures."""
        for block in range(self.blocks):
            try:
                with open(self.path(block), encoding="utf-8", errors="surrogateescape") as file:
                    for line in file:
                        yield json.loads(line)
            except (OSError, ValueError) as error:
                raise FailedError(f"{self.path(block)} cannot be read: remove it and start again") from error


def sweep(folder: Path, name: str = "") -> None:
    """Take away what a killed job was writing, of all files or of one. Only for whoever holds the lock."""
    for left in folder.glob(f".{escape(name) + '.' if name else ''}*.part"):
        left.unlink(missing_ok=True)


def lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def fingerprint(pictures: Iterable[Picture]) -> str:
    """Of the list, not of the content: writing a description into a picture does not make it another one."""
    digest = hashlib.blake2b(digest_size=16)
    for picture in pictures:
        digest.update(f"{picture.path}\0{picture.offset}\0{picture.size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def restart(folder: Path) -> None:
    """Forget what a job has done. What is not a job's folder is left alone."""
    if not (folder / JOB).exists():
        return
    lock = _locked(folder)
    try:
        _remove_blocks(folder)
        for name in (JOB, PAGES):
            (folder / name).unlink(missing_ok=True)
    finally:
        os.close(lock)


def _remove_blocks(folder: Path) -> None:
    for shelf in folder.iterdir():
        if shelf.is_dir() and shelf.name.isdecimal():
            shutil.rmtree(shelf)


def _locked(folder: Path) -> int:
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
