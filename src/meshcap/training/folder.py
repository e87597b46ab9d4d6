"""Where a run lives: whether it may, and the folder itself."""

from __future__ import annotations

import os
from pathlib import Path

from meshcap.errors import MeshcapError
from meshcap.training.settings import SETTINGS, TrainSettings


def check_folder(folder: Path, *, resume: bool) -> None:
    """Whether a run may live there; nothing is made yet.

    Raises:
        MeshcapError: it holds a run or something else already.
    """
    if resume:
        TrainSettings.load(folder)
    elif (folder / SETTINGS).exists():
        raise MeshcapError(f"{folder} holds a run already: go on with --resume, or choose another --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise MeshcapError(f"{folder} is not empty and holds no run: choose another --out")
    elif folder.exists() and not folder.is_dir():
        raise MeshcapError(f"{folder} is a file, expected a folder for the run: choose another --out")


def make_folder(folder: Path) -> None:
    """A place for a run.

    Raises:
        MeshcapError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise MeshcapError(f"{folder} cannot be written to: choose another --out")
