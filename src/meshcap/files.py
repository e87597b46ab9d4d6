"""Writing files so that nobody ever meets half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from meshcap.errors import MeshcapError


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file next to `path` under another name, then rename it: readers see the old or the new one.

    Raises:
        MeshcapError: the system refuses (no such folder, no room, no right).
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.touch()  # with the rights that this user's files have: some writers (safetensors) would give fewer
        rights = part.stat().st_mode
        part.unlink()
        write(part)
        part.chmod(rights)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise MeshcapError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
