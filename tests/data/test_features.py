"""Files of region features: read as numbers, refused in one line."""

import pickle
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

from meshcap.data.features import read_features
from meshcap.errors import MeshcapError

FEATURES = numpy.arange(6, dtype=numpy.float64).reshape(2, 3)
BOXES = numpy.array([[0, 0, 1, 1], [0.5, 0.5, 1, 1]])


def test_every_kind_of_file(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", FEATURES)
    numpy.savez(tmp_path / "b.npz", features=FEATURES, boxes=BOXES)
    save_file({"features": torch.tensor(FEATURES), "boxes": torch.tensor(BOXES)}, tmp_path / "c.safetensors")
    for name, boxes in (("a.npy", None), ("b.npz", BOXES), ("c.safetensors", BOXES)):
        features, found = read_features(tmp_path / name)
        assert features.dtype == torch.float32
        assert features.tolist() == FEATURES.tolist()
        assert (found is None) == (boxes is None)
        assert boxes is None or found.tolist() == boxes.tolist()


class Hostile:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_nothing_in_a_file_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    numpy.save(tmp_path / "a.npy", numpy.array([Hostile(marker)], dtype=object), allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Hostile(marker)))
    for name in ("a.npy", "b.npy"):
        with pytest.raises(MeshcapError, match="cannot be read"):
            read_features(tmp_path / name)
        assert not marker.exists()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_truncated(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        numpy.save(path, FEATURES)
    elif suffix == ".npz":
        numpy.savez(path, features=FEATURES)
    else:
        save_file({"features": torch.tensor(FEATURES)}, path)
    whole = path.read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(MeshcapError) as told:
            read_features(path)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": FEATURES[0]}, r"shape \(3,\), expected \(regions ≥ 1, width\)"),
        ({"features": FEATURES[:0]}, r"shape \(0, 3\)"),
        ({"features": FEATURES, "boxes": BOXES[:1]}, r"boxes of shape \(1, 4\), expected \(2, 4\)"),
        ({"boxes": BOXES}, "holds boxes, expected an array called features"),
        ({"features": numpy.array([["a"]])}, "not numbers"),
    ],
)
def test_arrays_of_another_shape(tmp_path: Path, arrays: dict, message: str) -> None:
    numpy.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(MeshcapError, match=message):
        read_features(tmp_path / "a.npz")


def test_no_such_file_or_another_kind(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="is not a file"):
        read_features(tmp_path / "none.npy")
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(MeshcapError, match=r"expected one of \.npy"):
        read_features(tmp_path / "photo.jpg")
