"""Running a job: what is not done yet is captioned, delivered and handed in; at the end it becomes one file."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from meshcap.batch.deliver import Delivery
from meshcap.batch.pages import fill
from meshcap.batch.parts import ERRORS, Parts, Row, sweep
from meshcap.batch.pictures import Picture
from meshcap.batch.tables import errors_path, write_errors, write_table
from meshcap.errors import FailedError
from meshcap.models.pretrained import WEIGHTS, find_file, find_optional
from meshcap.vision.folder import FOLDER

Blocks = Iterable[tuple[int, list[Row]]]
WAITING = 4  # blocks that are being written while others are captioned


def run(
    parts: Parts,
    caption: Callable[[list[tuple[int, Sequence[Picture]]]], Blocks],
    deliver: Delivery,
    progress: Callable[[int, int], None],
) -> None:
    """Do all blocks that are to do, in any order that they come back in.

    Args:
        caption: from numbered blocks to their rows.
        progress: is told of pictures that were just done, and how many of them are broken.
    """
    to_do = [(block, parts.pictures_of(block)) for block in parts.to_do()]
    if not to_do:
        return
    left = {block for block, _ in to_do}
    writing: deque[Future[tuple[int, int]]] = deque()

    def write(block: int, rows: list[Row]) -> tuple[int, int]:
        deliver(parts.pictures_of(block), rows)
        parts.write(block, rows)  # last: from here on nobody does it again
        return len(rows), sum("error" in row for row in rows)

    with ThreadPoolExecutor(1, thread_name_prefix="meshcap-write") as pool:
        captioned = caption(to_do)
        try:
            for block, rows in captioned:
                if block not in left:  # somebody died after handing it in, and another did it again
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


def finish(parts: Parts, table: Path | None, *, words: bool, alternatives: bool) -> dict[str, int]:
    """The blocks as one table and a list of errors, and how many there are of what."""
    if table is not None:
        sweep(table.parent, table.name)
        write_table(table, parts.rows(), words=words, alternatives=alternatives)
    write_errors(errors_file(parts.folder, table), parts.rows())
    counts = {"captions": 0, "withheld": 0, "errors": 0}
    for row in parts.rows():
        counts["captions"] += row.get("caption") is not None
        counts["withheld"] += "caption" in row and row["caption"] is None
        counts["errors"] += "error" in row
    return counts


def fill_pages(parts: Parts, pages: Sequence[str], folder: Path | None, *, overwrite: bool) -> int:
    """Captions into the pages, or into copies in a folder; how many."""
    keys = (picture.key for picture in parts.pictures)
    captions = {key: row["caption"] for key, row in zip(keys, parts.rows(), strict=True) if row.get("caption")}
    places = [Path(os.path.realpath(page)) if folder is None else Picture(page).below(folder) for page in pages]
    return sum(fill(page, place, captions, overwrite=overwrite) for page, place in zip(pages, places, strict=True))


def state_folder(table: Path | None, inputs: str) -> Path:
    """Where a job remembers what it has done; without a table, a hidden folder here, which goes when all is done."""
    return table.with_name(f"{table.name}.parts") if table is not None else Path(f".meshcap-batch-{inputs[:12]}.parts")


def errors_file(state: Path, table: Path | None) -> Path:
    return state / ERRORS if table is None else errors_path(table)


def weights_of(model: str) -> str:
    """Which model it is, whatever its folder is called: going on with another one would mix their captions."""
    digest = hashlib.blake2b(digest_size=12)
    for path in (find_file(model, WEIGHTS), find_optional(model, f"{FOLDER}/{WEIGHTS}")):
        digest.update(b"" if path is None else path.read_bytes())
    return digest.hexdigest()
