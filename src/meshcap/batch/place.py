"""A file in the place of another: whole, with the rights that the old one had."""

from __future__ import annotations

import shutil
from pathlib import Path

from meshcap.errors import MeshcapError
from meshcap.files import write_beside


def replace(path: Path, content: bytes) -> None:
    """Write a file beside and rename it. Folders are made where they lack.

    Raises:
        MeshcapError: the system refuses.
    """

    def write(part: Path) -> None:
        part.write_bytes(content)
        if path.exists():
            shutil.copymode(path, part)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{path} cannot be written: {error.strerror or error}") from error
    write_beside(path, write)
