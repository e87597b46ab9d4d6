"""The files that region features are kept in, each read the same way: ids, and arrays by id.

- HDF5, as the public features of COCO come: `<id>_features` (N, F), perhaps `<id>_boxes` (N, 4) and `<id>_size`
- one safetensors file with the same names
- a folder with a file a picture: `<id>.safetensors`, `<id>.npz` or `<id>.npy`

Files are opened when first read and once in each process, so that a layout travels to workers as a path and names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from meshcap.data.features import SUFFIXES, read_features
from meshcap.errors import MeshcapError

HDF5 = (".hdf5", ".h5", ".hdf")
SETTINGS = "features.json"  # in a folder: how its features were made
Arrays = tuple[Tensor, Tensor | None, Tensor | None]  # features (N, F), boxes (N, 4), width and height of the picture


def h5py_module() -> Any:
    try:
        import h5py
    except ImportError:
        raise MeshcapError('HDF5 files need h5py: pip install "meshcap[train]"') from None
    return h5py


def as_name(id: str) -> str:
    """An id as a part of a file name: what would lead to another folder, or is refused by some system, as %2F."""
    return re.sub(r'[%/\\:*?"<>|\x00-\x1f]|^\.', lambda found: f"%{ord(found[0]):02X}", id)


class Layout(Protocol):
    """Where arrays lie, by id."""

    path: Path
    ids: frozenset[str]
    with_boxes: bool  # every picture has some
    with_sizes: bool

    def read(self, id: str) -> Arrays:
        """Raises: MeshcapError naming the file and the id."""

    def close(self) -> None: ...


class OneFile:
    """HDF5 or safetensors: all pictures in one file, arrays called `<id>_<what>`."""

    def __init__(self, path: Path):
        self.path = path
        self._file: Any = None
        self._process = 0
        names = self._named()
        self.ids = frozenset(names.get("features", {}))
        self.with_boxes = self.ids == names.get("boxes", {}).keys() & self.ids
        self.with_sizes = self.ids == names.get("size", {}).keys() & self.ids
        # Names are rarely escaped: those that are not need no table.
        self._escaped = {id: name for id, name in names.get("features", {}).items() if id != name}

    def _named(self) -> dict[str, dict[str, str]]:
        """what -> id -> id as it is written in the file"""
        found: dict[str, dict[str, str]] = {}
        for key in self._open().keys():  # noqa: SIM118 - not a dict
            name, _, what = key.rpartition("_")
            found.setdefault(what, {})[unquote(name)] = name
        return found

    def _open(self) -> Any:
        if self._file is None or self._process != os.getpid():  # a fork shares its parent's place in the file
            try:
                if self.path.suffix in HDF5:
                    self._file = h5py_module().File(self.path, "r")
                else:
                    self._file = safe_open(self.path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise MeshcapError(f"{self.path} cannot be read ({_short(error)}): truncated or corrupted?") from error
            self._process = os.getpid()
        return self._file

    def read(self, id: str) -> Arrays:
        file, name = self._open(), self._escaped.get(id, id)
        wanted = {"features": True, "boxes": self.with_boxes, "size": self.with_sizes}
        try:
            features, boxes, size = (
                self._tensor(file, f"{name}_{what}") if is_there else None for what, is_there in wanted.items()
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise MeshcapError(f"{self.path} cannot be read at {id} ({_short(error)})") from error
        assert features is not None
        if features.dim() != 2 or features.shape[0] == 0:
            raise MeshcapError(
                f"{self.path} has features of shape {tuple(features.shape)} for {id}, expected (regions ≥ 1, width)"
            )
        if boxes is not None and boxes.shape != (features.shape[0], 4):
            raise MeshcapError(
                f"{self.path} has boxes of shape {tuple(boxes.shape)} for {id}, expected {(features.shape[0], 4)}"
            )
        return features, boxes, size

    def _tensor(self, file: Any, key: str) -> Tensor:
        if self.path.suffix not in HDF5:
            return file.get_tensor(key).float()
        return torch.from_numpy(file[key][()].astype("float32"))

    def close(self) -> None:
        if self._file is not None and self._process == os.getpid() and self.path.suffix in HDF5:
            self._file.close()
        self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


class Folder:
    """A file a picture."""

    with_sizes = False

    def __init__(self, path: Path):
        self.path = path
        self._files: dict[str, str] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                if suffix not in SUFFIXES or entry.name.startswith("."):
                    continue
                if (other := self._files.setdefault(unquote(stem), entry.name)) != entry.name:
                    raise MeshcapError(f"{path} has {other} and {entry.name}, expected one file a picture")
        self.ids = frozenset(self._files)
        # Whether there are boxes is known of the first; the others are held to it when they are read.
        self.with_boxes = bool(self._files) and read_features(path / self._files[min(self._files)])[1] is not None

    def read(self, id: str) -> Arrays:
        features, boxes = read_features(self.path / self._files[id])
        if boxes is None and self.with_boxes:
            raise MeshcapError(f"{self.path / self._files[id]} has no boxes, and others have: expected all or none")
        return features, boxes if self.with_boxes else None, None

    def close(self) -> None:
        pass


def find_layout(path: str | Path) -> OneFile | Folder:
    """Raises: MeshcapError if nothing there is of a known layout."""
    path = Path(path)
    if path.is_dir():
        return Folder(path)
    if not path.is_file():
        raise MeshcapError(f"{path} is not there, expected region features: .hdf5, .safetensors or a folder")
    if path.suffix not in (*HDF5, ".safetensors"):
        raise MeshcapError(f"{path} is no file of region features, expected .hdf5, .safetensors or a folder")
    return OneFile(path)


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
