"""A file in the place of another: whole, with the rights that the old one had.

Not by `files.write_beside`, whose unfinished files have random names: after a kill they would stay beside people's
pictures for ever. Here a place has one name for them, and the job that goes on writes over what was left. No two jobs
write to one place at a time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from meshcap.errors import MeshcapError


def replace(path: Path, content: bytes) -> None:
    """Write a file beside and rename it. Folders are made where they lack.

    Raises:
        MeshcapError: the system refuses.
    """
    part = path.with_name(f".{path.name}.meshcap.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "wb") as file:
                if path.exists():
                    shutil.copymode(path, part)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise MeshcapError(f"{path} cannot be written: {error.strerror or error}") from error
