"""Writing files and folders whole: readers see the old one or the new one, never half of either. Reading text.

Everything that meshcap writes goes through here. A file is written under an unpredictable name beside its place,
flushed to the disk and renamed. The name is created exclusively and never through a link: in a folder that others can
write to, nobody can redirect the output. What a killed process leaves behind ends in `.part`: see `remove_unfinished`.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from meshcap.errors import MeshcapError

UNFINISHED = ".part"  # the end of the names of files and folders that are being written


def write_text(path: str | Path, text: str, *, errors: str = "strict") -> None:
    """Write a UTF-8 text file, line ends as they are in the text."""
    write_bytes(path, text.encode("utf-8", errors))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file; one that is there is replaced and keeps its rights.

    Raises:
        MeshcapError: the system refuses (no such folder, no room, no right).
    """
    path = Path(path)
    part = _unfinished_name(path)
    with _reporting(path):
        try:
            _write_new(part, content)
            _put_in_place(part, path)
        finally:
            part.unlink(missing_ok=True)


def _write_new(part: Path, content: bytes) -> None:
    """A file where none is, not even a link, flushed to the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(part, flags, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def edit_bytes(path: Path, content: bytes, *, keep_times: bool = True) -> None:
    """As `write_bytes`, for a file of somebody's: the new one has the owner, rights, attributes and times of the old.

    Raises:
        MeshcapError: the system refuses; the owner cannot be kept; or the file has other names (hard links), which
            would go on to hold the old content.
    """
    part = _unfinished_name(path)
    with _reporting(path):
        old = path.stat()
        if old.st_nlink > 1:
            names = f"{old.st_nlink} names (hard links)"
            raise MeshcapError(f"{path} has {names}, which would no longer be one file: copy it first")
        try:
            _write_new(part, content)
            new = part.stat()
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                try:
                    os.chown(part, old.st_uid, old.st_gid)
                except PermissionError:
                    raise MeshcapError(f"{path} belongs to another user or group, which cannot be kept") from None
            shutil.copystat(path, part)
            if not keep_times:
                os.utime(part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_file(path: str | Path, write: Callable[[Path], object]) -> None:
    """As `write_bytes`, for writers that want a name: `write(part)` makes the file `part`.

    `part` lies in a folder that only this user can enter.

    Raises:
        MeshcapError: the system refuses, or `write` made no file.
    """
    path = Path(path)
    folder = _unfinished_name(path)
    with _reporting(path):
        folder.mkdir(mode=0o700)  # fails where anything is, links included
        try:
            usual = folder / "rights"
            usual.touch()  # new files have the rights that this user's files have: safetensors would give fewer
            part = folder / path.name
            write(part)
            part.chmod(usual.stat().st_mode)
            _flush(part)
            _put_in_place(part, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def write_files(folder: str | Path, write: Callable[[Path], object]) -> None:
    """As `write_file`, for writers that fill a folder: each file that `write(part)` makes is moved into `folder`.

    Raises:
        MeshcapError: the system refuses.
    """
    folder = Path(folder)
    part = _unfinished_name(folder / folder.name)
    with _reporting(folder):
        part.mkdir(mode=0o700)
        try:
            write(part)
            for file in part.iterdir():
                _flush(file)
                _put_in_place(file, folder / file.name)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill, which appears under `path` when the block ends, and not at all when it fails.

    Raises:
        MeshcapError: `path` exists and is not an empty folder, or the system refuses.
    """
    expect_free(path)
    place = Path(path).resolve()
    part = _unfinished_name(place)
    with _reporting(path):
        try:
            part.mkdir(parents=True)
            yield part
            for file in part.rglob("*"):
                if file.is_file():
                    _flush(file)
            if place.exists():
                place.rmdir()
            os.replace(part, place)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def expect_free(path: str | Path) -> None:
    """Refuse a place for a new folder that is taken, before the work that would fill it.

    Raises:
        MeshcapError: `path` exists and is not an empty folder.
    """
    place = Path(path)
    if (place.is_symlink() or place.exists()) and (not place.is_dir() or any(place.iterdir())):
        raise MeshcapError(f"{path} exists and is not an empty folder: choose another one")


def remove_unfinished(folder: str | Path, name: str | None = None) -> None:
    """Delete what killed processes left in a folder: of one file or folder called `name`, or of all.

    Only for folders in which nobody else is writing.
    """
    owner = "*" if name is None else glob.escape(name)
    for left in Path(folder).glob(f".{owner}.*{UNFINISHED}"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _unfinished_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{UNFINISHED}")


@contextmanager
def _reporting(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MeshcapError(f"{path} cannot be written: {error.strerror or error}") from error


def _put_in_place(part: Path, path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        part.chmod(stat.S_IMODE(path.stat().st_mode))
    os.replace(part, path)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read. Pipes, sockets and devices, which may never end or never answer, are refused.

    Raises:
        MeshcapError: it is no regular file.
        OSError: it cannot be opened.
    """
    if stat.S_ISREG(os.stat(path).st_mode):
        # What was put there since is opened without waiting, and looked at again.
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    raise MeshcapError(f"{os.fspath(path)} is a folder, pipe, socket or device, expected a regular file")


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of what `open_regular` opens."""
    with open_regular(path) as file:
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: str | os.PathLike[str]) -> str:
    """A UTF-8 text file, gzipped or not, without its byte order mark.

    Raises:
        MeshcapError: it cannot be read, is damaged, or is not UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from None
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise MeshcapError(f"{path} is a damaged gzip file ({error}): truncated?") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {raw[error.start]:#04x} at {error.start:,}"
        raise MeshcapError(f"{path} is not UTF-8 text ({found}), expected UTF-8") from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in a file, gzipped or not.

    Raises:
        MeshcapError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, MeshcapError):
            raise
        raise MeshcapError(f"{path} is not JSON ({why_not_json(error)})") from None


def why_not_json(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
