"""`meshcap data features`: from drawn pictures to a store that says what the vision says."""

import json
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from meshcap.cli.data import features
from meshcap.data import feature_writer
from meshcap.data.features import open_features
from meshcap.errors import MeshcapError
from meshcap.vision import create_vision, read_picture, save_vision

NAMES = [f"scene{number}" for number in range(5)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed, name in enumerate(NAMES):
        picture(seed).save(folder / f"{name}.png")
    return folder


def picture(seed: int) -> Image.Image:
    generator = torch.Generator().manual_seed(seed)
    return Image.fromarray(torch.randint(0, 256, (40, 60, 3), generator=generator).byte().numpy())


def expected(path: Path, vision: str = "patches", **settings: object) -> torch.Tensor:
    """What the vision itself says of one picture, alone."""
    made = create_vision(vision, **settings)
    with torch.no_grad():
        return made(made.preprocess.pixels(read_picture(path))[None]).features[0]


@pytest.mark.parametrize("out", ["a.hdf5", "folder"])
def test_a_folder_of_pictures(photos: Path, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features(photos, tmp_path / out, vision="patches", batch_size=2, device="cpu", store="float32")
    assert "5 pictures, 5 of them new, 192 numbers a region" in capsys.readouterr().out
    store = open_features(tmp_path / out)
    assert store.ids == set(NAMES)
    assert store.boxes
    for name in NAMES:
        found, boxes = store[name]
        assert torch.equal(found, expected(photos / f"{name}.png"))
        assert boxes[0].tolist() == [0, 0, 1 / 8, 1 / 8]
    # Half precision is the usual, and near.
    features(photos, tmp_path / "half", vision="patches", device="cpu")
    half = open_features(tmp_path / "half")[NAMES[0]][0]
    torch.testing.assert_close(half, expected(photos / f"{NAMES[0]}.png"), rtol=1e-3, atol=1e-3)


def test_a_dataset_and_its_splits(photos: Path, tmp_path: Path) -> None:
    lines = [
        {"image": f"{name}.png", "caption": "a scene", "split": "val" if number else "train"}
        for number, name in enumerate(NAMES)
    ]
    data = tmp_path / "captions.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    features(data, tmp_path / "all.hdf5", vision="patches", pictures=photos, device="cpu")
    features(data, tmp_path / "val.hdf5", vision="patches", pictures=photos, split="val", device="cpu")
    every, val = open_features(tmp_path / "all.hdf5"), open_features(tmp_path / "val.hdf5")
    assert every.ids == {f"{name}.png" for name in NAMES}
    assert val.ids == every.ids - {"scene0.png"}
    from meshcap.data import read_dataset

    every.require(sample.id for sample in read_dataset(data, pictures=photos))
    with pytest.raises(MeshcapError, match="no pictures in the split 'test'"):
        features(data, tmp_path / "test.hdf5", vision="patches", pictures=photos, split="test", device="cpu")


def test_a_broken_picture_stops_and_the_next_run_goes_on(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = photos / "scene3.png"
    broken.write_bytes(broken.read_bytes()[:500])
    out = tmp_path / "a.hdf5"
    with pytest.raises(MeshcapError, match=r"scene3\.png: .*damaged.*--skip-broken goes on without it"):
        features(photos, out, vision="patches", batch_size=2, device="cpu")
    assert not out.exists()
    assert {file.stem for file in (tmp_path / "a.hdf5.part").glob("*.safetensors")} == {"scene0", "scene1"}

    looked: list[str] = []
    read = feature_writer.read_pixels
    monkeypatch.setattr(
        feature_writer, "read_pixels", lambda source, how: looked.append(str(source)) or read(source, how)
    )
    features(photos, out, vision="patches", batch_size=2, device="cpu", skip_broken=True, json=True)
    told, warning = capsys.readouterr()
    assert sorted(Path(path).stem for path in looked) == ["scene2", "scene3", "scene4"]  # the others were done
    assert "1 of 5 pictures left out" in warning
    assert "scene3.png" in warning
    report = json.loads(told)
    assert (report["pictures"], report["new"], report["width"], len(report["broken"])) == (4, 2, 192, 1)
    assert open_features(out).ids == set(NAMES) - {"scene3"}

    picture(3).save(broken)  # mended
    features(photos, out, vision="patches", device="cpu", json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["pictures"], report["new"]) == (5, 1)
    assert open_features(out).ids == set(NAMES)


def test_all_broken(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"nothing")
    with pytest.raises(MeshcapError, match="none of 1 pictures can be read"):
        features(tmp_path / "photos", tmp_path / "a", vision="patches", device="cpu", skip_broken=True)


def test_other_visions_do_not_mix(photos: Path, tmp_path: Path) -> None:
    """Not even two of the same kind and other weights, which settings cannot tell apart."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_vision(create_vision("small-cnn"), tmp_path / f"model{seed}")
    out = tmp_path / "a"
    features(photos, out, vision=str(tmp_path / "model0"), device="cpu")
    features(photos, out, vision=str(tmp_path / "model0"), device="cpu")
    with pytest.raises(MeshcapError, match="made with weights"):
        features(photos, out, vision=str(tmp_path / "model1"), device="cpu")
    with pytest.raises(MeshcapError, match="made with vision"):
        features(photos, out, vision="patches", device="cpu")
    with pytest.raises(MeshcapError, match="leave out size"):
        features(photos, out, vision=str(tmp_path / "model0"), size=64, device="cpu")


def test_pictures_that_cannot_be_told_apart_or_found(photos: Path, tmp_path: Path) -> None:
    picture(0).save(photos / "scene0.jpg")
    with pytest.raises(MeshcapError, match=r"scene0\.jpg and .*scene0\.png have one name"):
        features(photos, tmp_path / "a", vision="patches", device="cpu")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(MeshcapError, match="holds no captions"):
        features(tmp_path / "nothing", tmp_path / "a", vision="patches", device="cpu")
    with pytest.raises(MeshcapError, match="int8 is for captioning"):
        features(photos, tmp_path / "a", vision="patches", dtype="int8")


def test_a_detector_of_hugging_face(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from vision import tiny_hf

    folder = tiny_hf.save(tiny_hf.model("rt_detr"), tmp_path / "model", tiny_hf.SQUARE)
    features(
        photos,
        tmp_path / "a.h5",
        vision=f"hf:{folder}",
        keep=3,
        size=96,
        batch_size=5,
        device="cpu",
        dtype="float32",
        store="float32",
    )
    store = open_features(tmp_path / "a.h5")
    assert store.width == 16
    for name in NAMES:
        own = expected(photos / f"{name}.png", f"hf:{folder}", keep=3, size=96)
        torch.testing.assert_close(store[name][0], own, rtol=1e-3, atol=1e-4)


def test_as_people_call_it(photos: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(features)
    words = [
        photos,
        "--out",
        tmp_path / "a.hdf5",
        "--vision",
        "patches",
        "--batch-size",
        3,
        "--device",
        "cpu",
        "--json",
    ]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["new"] == 5
    assert len(open_features(tmp_path / "a.hdf5")) == 5


def test_reading_ahead_keeps_order_and_is_bounded() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item * item

    results = feature_writer.read_ahead(work, iter(range(100)), 8)
    assert next(results) == 0
    assert len(begun) <= 8
    assert list(results) == [number * number for number in range(1, 100)]
