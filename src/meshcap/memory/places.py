"""Where a memory lies, and which engine is for which place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from meshcap.errors import MeshcapError
from meshcap.memory.lance import LanceStore, has_table
from meshcap.memory.store import SETTINGS, FolderStore, Store

ENGINES = ("exact", "usearch", "lance")


def is_address(place: str | Path) -> bool:
    """Whether a place is in object storage: s3://bucket/memory."""
    return "://" in str(place)


def is_store(place: str | Path) -> bool:
    """Whether a memory is there."""
    return (not is_address(place) and (Path(place) / SETTINGS).is_file()) or has_table(place)


def open_store(place: str | Path) -> Store:
    """The memory in a folder or in object storage.

    Raises:
        MeshcapError: there is none, or one of another version.
    """
    return LanceStore(place) if is_address(place) or has_table(place) else FolderStore(place)


def create_store(place: str | Path, *, vision: str, width: int, engine: str | None = None) -> Store:
    """The memory in a folder or in object storage, made where there is none.

    Args:
        engine: of a new one, how near entries are found. "exact" compares with all, fast to about a million; "usearch"
            has an index, for millions; "lance" lies in a folder or in object storage and is for many machines. None:
            exact in a folder, lance in object storage.

    Raises:
        MeshcapError: no such engine, or it is not installed, or not for this place.
    """
    if engine not in (None, *ENGINES):
        raise MeshcapError(f"engine is {engine!r}, expected {', '.join(ENGINES)}")
    if is_address(place) and engine not in (None, "lance"):
        raise MeshcapError(f"{place} is in object storage, where the engine is lance: leave {engine} out")
    if is_store(place):
        return open_store(place)
    if is_address(place) or engine == "lance":
        return LanceStore.create(place, vision=vision, width=width)
    return FolderStore.create(place, vision=vision, width=width, engine="usearch" if engine == "usearch" else "exact")


def default_place() -> Path:
    """The folder of a user's own memory: below $XDG_DATA_HOME, or where the system keeps what programs know."""
    home = os.environ.get("XDG_DATA_HOME")
    if home and os.path.isabs(home):
        base = Path(home)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".local" / "share"
    return base / "meshcap" / "memory"
