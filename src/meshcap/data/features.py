"""Region features that were computed before, by `meshcap data features` or by others.

    store = open_features("coco_detections.hdf5")
    store.require(sample.id for sample in dataset)
    regions = store.regions(["391895", "522418"])

Known layouts, each read the same way, as ids and arrays by id:

- HDF5, as the public features of COCO come: `<id>_features` (N, F), perhaps `<id>_boxes` (N, 4) and `<id>_size`
- one safetensors file with the same names
- a folder with a file a picture: `<id>.safetensors`, `<id>.npz` or `<id>.npy`

A picture without features is an error that names it: numbers made up for it would train a model on nothing. Files are
opened when first read and once in each process, so that a store travels to workers as a path and names.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.regions import Regions

SUFFIXES = (".npy", ".npz", ".safetensors")


def read_features(path: str | Path) -> tuple[Tensor, Tensor | None]:
    """Features (N, F) and boxes (N, 4) or None of one picture.

    `.npy` holds the features alone; `.npz` and `.safetensors` hold `features` and, where there are any, `boxes` (x1,
    y1, x2, y2 in 0-1 coordinates). Nothing in a file is executed.

    Raises:
        MeshcapError: another kind of file, one that cannot be read, or an array of another shape.
    """
    path = Path(path)
    if not path.is_file():
        raise MeshcapError(f"{path} is not a file, expected region features ({', '.join(SUFFIXES)})")
    if path.suffix not in SUFFIXES:
        raise MeshcapError(f"{path} is no file of region features, expected one of {', '.join(SUFFIXES)}")
    try:
        arrays = _arrays(path)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, SafetensorError) as error:
        raise MeshcapError(f"{path} cannot be read ({str(error).splitlines()[0]}): truncated or corrupted?") from error
    if "features" not in arrays:
        raise MeshcapError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}, expected an array called features")
    features, boxes = arrays["features"], arrays.get("boxes")
    if features.dim() != 2 or features.shape[0] == 0:
        raise MeshcapError(f"{path} has features of shape {tuple(features.shape)}, expected (regions ≥ 1, width)")
    if boxes is not None and boxes.shape != (features.shape[0], 4):
        raise MeshcapError(f"{path} has boxes of shape {tuple(boxes.shape)}, expected {(features.shape[0], 4)}")
    return features.float(), None if boxes is None else boxes.float()


def _arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    content = numpy.load(path, allow_pickle=False)
    if isinstance(content, numpy.ndarray):
        return {"features": _tensor(content)}
    with content:
        return {name: _tensor(content[name]) for name in content.files}


def _tensor(array: numpy.ndarray) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise ValueError(f"an array of {array.dtype} is not numbers")
    return torch.from_numpy(array.astype(numpy.float32))


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


class FeatureLayout(Protocol):
    """Where arrays lie, by id."""

    path: Path
    ids: frozenset[str]
    with_boxes: bool  # every picture has some
    with_sizes: bool

    def read(self, id: str) -> Arrays:
        """Raises: MeshcapError naming the file and the id."""

    def close(self) -> None: ...


class FeatureFile:
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


class FeatureFolder:
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


def find_layout(path: str | Path) -> FeatureFile | FeatureFolder:
    """Raises: MeshcapError if nothing there is of a known layout."""
    path = Path(path)
    if path.is_dir():
        return FeatureFolder(path)
    if not path.is_file():
        raise MeshcapError(f"{path} is not there, expected region features: .hdf5, .safetensors or a folder")
    if path.suffix not in (*HDF5, ".safetensors"):
        raise MeshcapError(f"{path} is no file of region features, expected .hdf5, .safetensors or a folder")
    return FeatureFile(path)


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


IN_PIXELS = 1.5  # a box that reaches further is not in 0-1 coordinates, even by a detector that overshoots
COCO_NAME = re.compile(r"(?:COCO_(?:train|val|test)\d{4}_)?(\d{12})")
SUFFIX = re.compile(r"\.(?:jpe?g|png|webp)$", re.IGNORECASE)
NAMED = 3  # missing pictures that an error names


def open_features(path: str | Path) -> FeatureStore:
    """Features of many pictures: an HDF5 or safetensors file, or a folder (see the top of this file).

    Boxes may be in 0-1 coordinates, or in pixels if the file has each picture's `<id>_size` (width, height). The
    public features of COCO have pixels and no sizes: their boxes are left out with a warning.

    Raises:
        MeshcapError: nothing there, a file of another kind or a broken one, or no features in it.
    """
    return FeatureStore(find_layout(path))


class FeatureStore:
    """Features by picture. Small to hand to other processes: each opens the file for itself."""

    width: int  # numbers of a region
    boxes: bool  # whether regions come with boxes

    def __init__(self, layout: FeatureLayout):
        self._layout = layout
        if not layout.ids:
            raise MeshcapError(
                f"{layout.path} holds no features, expected <id>_features in a file or files in a folder"
            )
        features, boxes, _ = layout.read(min(layout.ids))
        self.width = features.shape[1]
        self.boxes = layout.with_boxes
        if boxes is not None and _in_pixels(boxes) and not layout.with_sizes:
            self.boxes = False
            warnings.warn(
                f"{layout.path} has boxes in pixels and no sizes of pictures (<id>_size): boxes are left out",
                stacklevel=3,
            )

    @property
    def path(self) -> Path:
        return self._layout.path

    @property
    def ids(self) -> frozenset[str]:
        return self._layout.ids

    def __len__(self) -> int:
        return len(self._layout.ids)

    def __contains__(self, id: str | int) -> bool:
        return self._known_as(str(id)) is not None

    def __getitem__(self, id: str | int) -> tuple[Tensor, Tensor | None]:
        """Features (N, F) and boxes (N, 4) or None, float32.

        Raises:
            MeshcapError: there are none for this picture, or they cannot be used.
        """
        known = self._known_as(str(id))
        if known is None:
            raise MeshcapError(f"{self.path} has no features of picture {id}")
        features, boxes, size = self._layout.read(known)
        if features.shape[1] != self.width:
            raise MeshcapError(
                f"{self.path} has {features.shape[1]} numbers a region for {id}, and {self.width} before"
            )
        if not self.boxes or boxes is None:
            return features, None
        if _in_pixels(boxes):
            if size is None:
                raise MeshcapError(
                    f"{self.path} has boxes in pixels for {id}, and from 0 to 1 before: expected one kind"
                )
            if size.shape != (2,) or not bool((size > 0).all()):
                raise MeshcapError(f"{self.path} has size {size.tolist()} for {id}, expected width and height")
            boxes = boxes / size.repeat(2)
        return features, boxes.clamp(0, 1)

    def require(self, ids: Iterable[str | int]) -> None:
        """Make sure that every picture has features, before hours of work begin.

        Raises:
            MeshcapError: says how many have none, and names the first.
        """
        wanted = [str(id) for id in ids]
        missing = [id for id in wanted if self._known_as(id) is None]
        if missing:
            first = ", ".join(missing[:NAMED]) + (", …" if len(missing) > NAMED else "")
            raise MeshcapError(
                f"{len(missing):,} of {len(wanted):,} pictures have no features in {self.path} (first: {first})"
            )

    def regions(self, ids: Sequence[str | int], dtype: torch.dtype = torch.float32) -> Regions:
        """A padded batch; with a mask only where pictures have different numbers of regions.

        Raises:
            MeshcapError: a picture has no features, or they cannot be used.
        """
        pairs = [self[id] for id in ids]
        boxes = [boxes for _, boxes in pairs if boxes is not None]
        return Regions.collate([features.to(dtype) for features, _ in pairs], boxes if self.boxes else None)

    def close(self) -> None:
        self._layout.close()

    def _known_as(self, id: str) -> str | None:
        """The id in the file. COCO's pictures are known by number in some files and by file name in others."""
        if id in self._layout.ids:
            return id
        stem = SUFFIX.sub("", id)
        coco = COCO_NAME.fullmatch(stem)
        for other in (stem, str(int(coco[1])) if coco else stem):
            if other in self._layout.ids:
                return other
        return None


def _in_pixels(boxes: Tensor) -> bool:
    return bool((boxes > IN_PIXELS).any())
