"""Files of region features: read as numbers, refused in one line."""

import json
import multiprocessing
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from meshcap.data.feature_writer import FeatureWriter, write_features
from meshcap.data.features import FeatureStore, open_features, read_features
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


# Features that were computed before: every layout, what is missing, and runs that were killed.

h5py = pytest.importorskip("h5py")

COUNTS = {"391895": 3, "7": 2, "522418": 3}  # regions of each picture


def numbers(id: str) -> tuple[Tensor, Tensor]:
    """Features of 5 numbers, exact in half precision, and boxes."""
    count = COUNTS[id]
    features = torch.arange(count * 5).view(count, 5) / 8 + int(id) % 11
    corner = torch.arange(count)[:, None] / 8 * torch.ones(1, 2)
    return features, torch.cat((corner, corner + 0.25), 1)


def write_hdf5(path: Path, *, boxes: bool = True, pixels: tuple[int, int] | None = None, sizes: bool = False) -> Path:
    with h5py.File(path, "w") as file:
        for id in COUNTS:
            features, places = numbers(id)
            file[f"{id}_features"] = features.numpy()
            if boxes:
                file[f"{id}_boxes"] = (places * torch.tensor((pixels or (1, 1)) * 2)).numpy()
            if sizes:
                file[f"{id}_size"] = numpy.array(pixels)
            file[f"{id}_cls_prob"] = numpy.zeros(4)  # as the public file has
    return path


def write_safetensors(path: Path) -> Path:
    arrays = {f"{id}_features": numbers(id)[0] for id in COUNTS} | {f"{id}_boxes": numbers(id)[1] for id in COUNTS}
    save_file(arrays, path)
    return path


def write_folder(path: Path, suffix: str) -> Path:
    path.mkdir()
    for id in COUNTS:
        features, boxes = numbers(id)
        if suffix == ".safetensors":
            save_file({"features": features, "boxes": boxes}, path / f"{id}.safetensors")
        elif suffix == ".npz":
            numpy.savez(path / f"{id}.npz", features=features.numpy(), boxes=boxes.numpy())
        else:
            numpy.save(path / f"{id}.npy", features.numpy())
    (path / "readme.txt").write_text("not features", "utf-8")
    return path


LAYOUTS = {
    "hdf5": lambda folder: write_hdf5(folder / "a.hdf5"),
    "hdf5 in pixels": lambda folder: write_hdf5(folder / "a.hdf5", pixels=(640, 480), sizes=True),
    "hdf5 without boxes": lambda folder: write_hdf5(folder / "a.h5", boxes=False),
    "safetensors": lambda folder: write_safetensors(folder / "a.safetensors"),
    "folder of safetensors": lambda folder: write_folder(folder / "a", ".safetensors"),
    "folder of npz": lambda folder: write_folder(folder / "a", ".npz"),
    "folder of npy": lambda folder: write_folder(folder / "a", ".npy"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, tmp_path: Path) -> None:
    store = open_features(LAYOUTS[layout](tmp_path))
    boxes = layout not in ("hdf5 without boxes", "folder of npy")
    assert (store.width, store.boxes, len(store), store.ids) == (5, boxes, 3, frozenset(COUNTS))
    for id in COUNTS:
        features, places = store[id]
        assert features.dtype == torch.float32
        assert torch.equal(features, numbers(id)[0])
        if boxes:
            torch.testing.assert_close(places, numbers(id)[1])
        else:
            assert places is None
    store.require(["7", 391895])  # numbers will do
    regions = store.regions(["7", 391895])
    assert regions.mask.tolist() == [[True, True, False], [True, True, True]]
    assert torch.equal(regions.features[0, :2], numbers("7")[0])
    assert (regions.boxes is not None) == boxes
    same = store.regions(["391895", "522418"], dtype=torch.float16)
    assert same.mask is None
    assert same.features.dtype == torch.float16
    assert torch.equal(same.features[1].float(), numbers("522418")[0])


def test_missing_pictures_are_counted_and_named(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5")
    store = open_features(path)
    with pytest.raises(
        MeshcapError, match=r"^1,200 of 1,203 pictures have no features in .*a\.hdf5 \(first: x0, x1, x2, …\)$"
    ):
        store.require([*COUNTS, *(f"x{number}" for number in range(1200))])
    with pytest.raises(MeshcapError, match=r"1 of 1 pictures .*\(first: x\)$"):
        store.require(["x"])
    with pytest.raises(MeshcapError, match="no features of picture x"):
        store.regions(["7", "x"])
    assert "x" not in store
    assert 7 in store


def test_names_of_coco(tmp_path: Path) -> None:
    store = open_features(write_hdf5(tmp_path / "a.hdf5"))
    for id in ("COCO_val2014_000000391895.jpg", "COCO_train2014_000000391895", "000000391895.jpg", "391895.jpg"):
        assert torch.equal(store[id][0], numbers("391895")[0])
    for id in ("000391895", "flickr_000000391895.jpg", "391895.txt"):  # might be another picture
        assert id not in store


def test_boxes_in_pixels_need_sizes(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="boxes in pixels and no sizes") as told:
        store = open_features(write_hdf5(tmp_path / "a.hdf5", pixels=(640, 480)))
    assert len(told) == 1
    assert not store.boxes
    assert store["7"][1] is None
    assert store.regions(["7"]).boxes is None


def test_boxes_of_two_kinds(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file["7_boxes"][:] = 99
    with pytest.raises(MeshcapError, match="boxes in pixels for 7, and from 0 to 1 before"):
        open_features(path).regions(list(COUNTS))
    path = write_hdf5(tmp_path / "b.hdf5", pixels=(640, 480), sizes=True)
    with h5py.File(path, "r+") as file:
        file["7_size"][:] = 0
    with pytest.raises(MeshcapError, match="expected width and height"):
        open_features(path)["7"]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        del file["7_features"]
        file["7_features"] = numpy.zeros((2, 4))
        file["8_features"] = numpy.zeros(5)
    store = open_features(path)
    with pytest.raises(MeshcapError, match="4 numbers a region for 7, and 5 before"):
        store["7"]
    with pytest.raises(MeshcapError, match=r"shape \(5,\) for 8"):
        store["8"]
    whole = path.read_bytes()
    for length in (0, 100, len(whole) // 2):
        broken = tmp_path / f"broken{length}.hdf5"
        broken.write_bytes(whole[:length])
        with pytest.raises(MeshcapError, match="cannot be read") as told:
            open_features(broken)
        assert "\n" not in str(told.value)
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none.hdf5", "is not there"),
        ("empty", "holds no features"),
        ("a.pkl", r"expected \.hdf5"),
    ):
        (tmp_path / "a.pkl").touch()
        with pytest.raises(MeshcapError, match=message):
            open_features(tmp_path / name)
    folder = write_folder(tmp_path / "twice", ".npy")
    shutil.copy(folder / "7.npy", folder / "8.npy")
    save_file({"features": numbers("7")[0]}, folder / "7.safetensors")
    with pytest.raises(MeshcapError, match="expected one file a picture"):
        open_features(folder)


def ask(store: FeatureStore) -> list[float]:
    return store.regions(["7", "391895"]).features.flatten().tolist()


@pytest.mark.parametrize("layout", ["hdf5", "safetensors", "folder of npz"])
def test_other_processes(layout: str, tmp_path: Path) -> None:
    store = open_features(LAYOUTS[layout](tmp_path))
    expected = ask(store)  # the file is open now
    assert ask(pickle.loads(pickle.dumps(store))) == expected
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(ask, [store] * 8, chunksize=1) == [expected] * 8


# Writing


def items() -> list[tuple[str, Tensor, Tensor]]:
    return [(id, *numbers(id)) for id in COUNTS]


@pytest.mark.parametrize("out", ["a.hdf5", "folder", "npy"])
@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("boxes", [True, False])
def test_what_is_written_is_read(out: str, precision: str, boxes: bool, tmp_path: Path) -> None:
    path = tmp_path / out
    format = "npy" if out == "npy" else None
    given = [(id, features, places if boxes else None) for id, features, places in items()]
    write_features(path, given, format=format, precision=precision)
    store = open_features(path)
    assert (store.ids, store.boxes) == (frozenset(COUNTS), boxes)
    for id, features, places in given:
        assert torch.equal(store[id][0], features)
        assert store[id][1] is None if places is None else torch.equal(store[id][1], places)
    if out == "a.hdf5":
        assert [file.name for file in tmp_path.iterdir()] == ["a.hdf5"]
        with h5py.File(path) as file:
            assert file["7_features"].dtype == precision
    elif out == "folder":
        assert load_file(path / "7.safetensors")["features"].dtype == getattr(torch, precision)
    else:
        assert (numpy.load(path / "7.npz")["features"] if boxes else numpy.load(path / "7.npy")).dtype == precision


@pytest.mark.parametrize("out", ["a.hdf5", "folder"])
def test_odd_ids(out: str, tmp_path: Path) -> None:
    ids = ["train/a.jpg", "a_b", "../up", "50%2F", "été", ".hidden", 'a:b*c?"d"', "_", "x_features"]
    write_features(tmp_path / out, [(id, torch.full((1, 2), float(place)), None) for place, id in enumerate(ids)])
    store = open_features(tmp_path / out)
    assert store.ids == frozenset(ids)
    assert [store[id][0][0, 0].item() for id in ids] == list(range(len(ids)))
    assert {file.name for file in tmp_path.iterdir()} == {out}  # nothing went up


@pytest.mark.parametrize("out", ["a.hdf5", "folder"])
def test_a_second_run_adds_what_is_missing(out: str, tmp_path: Path) -> None:
    path = tmp_path / out
    write_features(path, items()[:1], settings={"vision": "x"})
    before = path.stat().st_mtime_ns

    with FeatureWriter(path, settings={"vision": "x"}) as writer:
        assert writer.done == {"391895"}
    assert path.stat().st_mtime_ns == before  # nothing new, nothing written

    write_features(path, [("391895", torch.zeros(1, 5), None), *items()[1:]], settings={"vision": "x"})
    store = open_features(path)
    assert store.ids == frozenset(COUNTS)
    assert torch.equal(store["391895"][0], numbers("391895")[0])  # not written again


@pytest.mark.parametrize("out", ["a.hdf5", "folder"])
def test_other_settings_do_not_mix(out: str, tmp_path: Path) -> None:
    path = tmp_path / out
    write_features(path, items()[:1], settings={"vision": "x", "size": 256})
    with pytest.raises(MeshcapError, match=r"made with size 256, now it is 288: remove it or write elsewhere"):
        FeatureWriter(path, settings={"vision": "x", "size": 288})
    with pytest.raises(MeshcapError, match=r'made with precision "float16", now it is "float32"'):
        FeatureWriter(path, settings={"vision": "x", "size": 256}, precision="float32")
    with pytest.raises(MeshcapError, match=r"made with size 256, now it is null"):
        FeatureWriter(path, settings={"vision": "x"})
    assert open_features(path).ids == {"391895"}


KILLED = """
import sys, time, torch
from meshcap.data.feature_writer import FeatureWriter
with FeatureWriter(sys.argv[1], settings={"vision": "x"}) as writer:
    for number in range(2000):
        writer.add(str(number), torch.full((2, 3), float(number)), None)
        if number == 20:
            print("go", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("out", ["a.hdf5", "folder"])
def test_a_killed_run_goes_on(out: str, tmp_path: Path) -> None:
    path = tmp_path / out
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"go\n"
    time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    folder = tmp_path / "a.hdf5.part" if out == "a.hdf5" else path
    for name in (".5.safetensors.abcd.part", ".tmpoSp3vj"):
        (folder / name).write_bytes(b"half of a file")
    if out == "a.hdf5":
        assert not path.exists()
    with FeatureWriter(path, settings={"vision": "x"}) as writer:
        done = len(writer.done)
        assert done > 20
        for number in range(done, done + 5):
            writer.add(str(number), torch.full((2, 3), float(number)), None)
    store = open_features(path)
    assert len(store) == done + 5
    assert all(store[id][0].tolist() == [[float(id)] * 3] * 2 for id in store.ids)
    assert not folder.exists() or not list(folder.glob(".*"))


def test_a_run_killed_between_packing_and_tidying(tmp_path: Path) -> None:
    """The file is whole and the folder is still there: nothing is lost and nothing is written twice."""
    path = tmp_path / "a.hdf5"
    writer = FeatureWriter(path)
    for id, features, boxes in items():
        writer.add(id, features, boxes)
    shutil.copytree(writer.folder, tmp_path / "kept")
    writer.finish()
    shutil.copytree(tmp_path / "kept", writer.folder)
    write_features(path, items())
    store = open_features(path)
    assert store.ids == frozenset(COUNTS)
    assert torch.equal(store["7"][1], numbers("7")[1])
    assert not writer.folder.exists()


def test_an_error_keeps_what_was_done(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with pytest.raises(RuntimeError), FeatureWriter(path) as writer:
        writer.add("7", *numbers("7"))
        raise RuntimeError
    assert not path.exists()
    assert FeatureWriter(path).done == {"7"}


def test_numbers_that_cannot_be_stored(tmp_path: Path) -> None:
    with FeatureWriter(tmp_path / "a") as writer:
        for features, message in (
            (torch.full((1, 2), 1e5), "too large for float16: write float32"),
            (torch.full((1, 2), torch.nan), "NaN or infinite"),
            (torch.zeros(0, 2), r"shape \(0, 2\)"),
            (torch.zeros(2), r"shape \(2,\)"),
        ):
            with pytest.raises(MeshcapError, match=message):
                writer.add("x", features)
        with pytest.raises(MeshcapError, match=r"boxes of shape \(3, 4\), expected \(1, 4\)"):
            writer.add("x", torch.zeros(1, 2), torch.zeros(3, 4))
        assert writer.done == set()


def test_places_that_are_taken(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "public.hdf5")
    with pytest.raises(MeshcapError, match="was not written by meshcap"):
        FeatureWriter(tmp_path / "public.hdf5")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(MeshcapError, match="expected a new or an empty folder"):
        FeatureWriter(tmp_path / "photos")
    (tmp_path / "file").touch()
    for name in ("file", "a.safetensors", "a.npz"):
        with pytest.raises(MeshcapError, match=r"is one file: expected \.hdf5, or a folder"):
            FeatureWriter(tmp_path / name)
    (tmp_path / "spoiled").mkdir()
    (tmp_path / "spoiled" / "features.json").write_text("{", "utf-8")
    with pytest.raises(MeshcapError, match="not readable JSON"):
        FeatureWriter(tmp_path / "spoiled")


def test_the_settings_are_kept_beside(tmp_path: Path) -> None:
    write_features(tmp_path / "a", items(), settings={"vision": "x"})
    write_features(tmp_path / "a.hdf5", items(), settings={"vision": "x"})
    told = json.loads((tmp_path / "a" / "features.json").read_text("utf-8"))
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert json.loads(file.attrs["settings"]) == told == {"precision": "float16", "vision": "x"}


def test_without_h5py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    for call in (open_features, FeatureWriter):
        with pytest.raises(MeshcapError, match=r'pip install "meshcap\[train\]"'):
            call(tmp_path / "a.hdf5")
