"""Region features that somebody computed before: one file a picture."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from meshcap.errors import MeshcapError

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
