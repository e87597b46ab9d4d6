"""Hugging Face models as visions, against the same models called as transformers documents them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers

from meshcap.errors import MeshcapError
from meshcap.vision import create_vision, load_vision, save_vision
from meshcap.vision.hf import HFDetector, HFGrid, create_hf
from meshcap.vision.vit import ViT
from vision import tiny_hf

ALL = (*tiny_hf.GRIDS, *tiny_hf.DETECTORS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """name -> the network and the folder it was saved to, made once."""
    known: dict[str, tuple[nn.Module, str]] = {}

    def make(name: str) -> tuple[nn.Module, str]:
        if name not in known:
            network = tiny_hf.model(name)
            known[name] = network, tiny_hf.save(network, tmp_path_factory.mktemp(name), tiny_hf.SQUARE)
        return known[name]

    return make


def some_pixels(size: int = 64, pictures: int = 2) -> Tensor:
    return torch.randint(0, 256, (pictures, 3, size, size), generator=torch.Generator().manual_seed(1)).byte()


def normalised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(tiny_hf.SQUARE[name])[:, None, None] for name in ("image_mean", "image_std"))
    return (pixels / 255 - mean) / std


@pytest.mark.parametrize("name", tiny_hf.GRIDS)
@torch.no_grad()
def test_a_grid_says_what_its_network_says(made, name: str) -> None:
    network, folder = made(name)
    vision = create_hf(folder)
    assert isinstance(vision, ViT if name in ("clip", "clip-vision", "dinov2") else HFGrid)
    pixels = some_pixels()
    regions = vision(pixels)
    expected = tiny_hf.own_features(name, network, normalised(pixels))
    torch.testing.assert_close(regions.features, expected, rtol=1e-4, atol=1e-5)
    assert expected.std() > 0.01  # not a comparison of zeros
    assert regions.mask is None
    assert vision.width == 16
    side = round(expected.shape[1] ** 0.5)
    cell = side + 1  # row 1, column 1
    assert regions.boxes[1, cell].tolist() == [1 / side, 1 / side, 2 / side, 2 / side]
    assert regions.boxes[0, 1].tolist() == [1 / side, 0, 2 / side, 1 / side]  # row by row


@pytest.mark.parametrize("name", tiny_hf.DETECTORS)
@torch.no_grad()
def test_a_detector_finds_what_the_processor_finds(made, name: str) -> None:
    """Through post_process_object_detection of transformers, which scales boxes to pixels: here to 1 × 1."""
    network, folder = made(name)
    vision = create_hf(folder, keep=2)  # 2 queries × 3 classes ≤ 7, the number that RT-DETR's processor gives back
    assert isinstance(vision, HFDetector)
    pixels = some_pixels()
    regions, labels, scores = vision.detect(pixels)
    assert torch.equal(vision(pixels).features, regions.features)
    shown = normalised(pixels)
    output = network(shown)
    processor = getattr(transformers, "DetrImageProcessor" if name == "detr" else "RTDetrImageProcessor")
    told = processor.post_process_object_detection(
        processor.__new__(processor), output, threshold=0.0, target_sizes=[(1, 1), (1, 1)]
    )
    names = network.config.id2label
    for picture, found in enumerate(told):
        order = found["scores"].argsort(descending=True)
        best: dict[tuple[float, ...], tuple[float, str]] = {}  # box -> its likeliest class; a box is a query here
        for score, label, box in zip(*(found[key][order] for key in ("scores", "labels", "boxes")), strict=True):
            best.setdefault(tuple(box.clamp(0, 1).tolist()), (score.item(), names[label.item()]))
        expected = list(best.items())[:2]
        assert len(expected) == 2
        assert labels[picture] == [label for _, (_, label) in expected]
        assert scores[picture].tolist() == pytest.approx([score for _, (score, _) in expected], abs=1e-5)
        torch.testing.assert_close(
            regions.boxes[picture], torch.tensor([box for box, _ in expected]), rtol=0, atol=1e-5
        )
        # The vector of a region is that of the query whose box it has.
        x, y, width, height = output.pred_boxes[picture].unbind(-1)
        corners = torch.stack((x - width / 2, y - height / 2, x + width / 2, y + height / 2), -1).clamp(0, 1)
        for region in range(2):
            query = (corners - regions.boxes[picture, region]).abs().sum(-1).argmin()
            expected_vector = output.last_hidden_state[picture, query]
            torch.testing.assert_close(regions.features[picture, region], expected_vector, rtol=1e-4, atol=1e-5)
    assert (scores.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("name", tiny_hf.DETECTORS)
def test_keep(made, name: str) -> None:
    folder = made(name)[1]
    vision = create_hf(folder)
    assert vision.keep == 7  # all, as there are fewer than 50
    few = create_hf(folder, keep=3)
    with torch.no_grad():
        assert torch.equal(few(some_pixels()).features, vision(some_pixels()).features[:, :3])
    for keep in (0, 8, 2.5, True):
        with pytest.raises(MeshcapError, match=r"expected 1 to 7"):
            create_hf(folder, keep=keep)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_folder_gives_the_same_vision_back(made, name: str, tmp_path: Path) -> None:
    folder = made(name)[1]
    vision = create_hf(folder, size=96, geometry="crop", **({"keep": 3} if name in tiny_hf.DETECTORS else {}))
    save_vision(vision, tmp_path)
    settings = json.loads(json.dumps(vision.settings()))
    described = "vision.json" if isinstance(vision, ViT) else "config.json"
    assert {described, "model.safetensors"} <= {file.name for file in (tmp_path / "vision").iterdir()}
    again = load_vision(tmp_path)
    assert again.settings() == vision.settings()
    assert (again.preprocess.size, again.preprocess.geometry) == (96, "crop")
    regions, same = vision(some_pixels(96)), again(some_pixels(96))
    assert torch.equal(regions.features, same.features)
    assert torch.equal(regions.boxes, same.boxes)
    fresh = type(vision)(**settings)  # the same network with other weights
    assert {key: value.shape for key, value in fresh.state_dict().items()} == {
        key: value.shape for key, value in vision.state_dict().items()
    }
    assert not torch.equal(fresh(some_pixels(96)).features, regions.features)


def test_a_model_folder_keeps_it(made, tmp_path: Path) -> None:
    """By name, into a model folder, and back without what it came from."""
    for name, settings in (("siglip", {}), ("detr", {"keep": 4})):
        folder = shutil.copytree(made(name)[1], tmp_path / name)
        vision = create_vision(f"hf:{folder}", size=96, **settings)
        save_vision(vision, tmp_path / "model")
        save_vision(vision, tmp_path / "model")  # over the one that is there
        shutil.rmtree(folder)
        again = load_vision(tmp_path / "model")
        with torch.no_grad():
            assert torch.equal(again(some_pixels(96)).features, vision(some_pixels(96)).features)
    settings = {key: value for key, value in vision.settings().items() if key != "keep"}
    for wrong, message in (
        (settings, "no setting 'keep'"),
        ({**settings, "keep": 4, "depth": 3}, "unknown setting 'depth'"),
        ({**settings, "keep": 4, "config": "detr"}, "expected an object"),
        ({**settings, "keep": 4, "config": {"model_type": "vit"}}, "is a 'vit', expected one of detr"),
    ):
        with pytest.raises(MeshcapError, match=message):
            HFDetector.from_folder(tmp_path / "model" / "vision", wrong)


@pytest.mark.parametrize("name", ALL)
def test_training_reaches_what_it_should_and_leaves_statistics_alone(made, name: str) -> None:
    vision = create_hf(made(name)[1]).train()
    before = {key: value.clone() for key, value in vision.state_dict().items()}
    vision.requires_grad_(True)
    regions = vision(some_pixels())
    (regions.features.square().sum() + regions.boxes.square().sum()).backward()
    idle = [key for key, parameter in vision.named_parameters() if parameter.grad is None]
    if isinstance(vision, HFDetector):  # what chooses among queries
        assert all(any(part in key for part in ("class", "enc_score", "enc_output", "enc_bbox")) for key in idle), idle
    else:
        assert idle == []  # or training on several GPUs would wait for it for ever
    torch.optim.SGD(vision.parameters(), lr=0.1).step()
    after = vision.state_dict()
    moved = [key for key in before if not torch.equal(before[key], after[key])]
    assert moved
    assert not [key for key in moved if "running" in key or "num_batches" in key]


@pytest.mark.parametrize(
    ("name", "wrong"), [("clip", 60), ("convnext", 80), ("resnet", 72), ("dinov2", 33), ("rt_detr", 80)]
)
def test_sizes_that_do_not_divide(made, name: str, wrong: int) -> None:
    folder = made(name)[1]
    multiple = 8 if name in ("clip", "dinov2") else 32
    with pytest.raises(MeshcapError, match=f"{wrong} × {wrong}.*multiples of {multiple} pixels"):
        create_hf(folder, size=wrong)
    with pytest.raises(MeshcapError, match="multiples of"):
        create_hf(folder)(some_pixels(wrong))


@torch.no_grad()
def test_detectors_at_the_edge_of_their_sizes(made, tmp_path: Path) -> None:
    """32 pixels are 16 + 4 + 1 cells of RT-DETR's maps: 21 queries and no more."""
    for queries in (21, 22):
        config = made("rt_detr")[0].config.to_dict() | {"num_queries": queries}
        network = transformers.RTDetrForObjectDetection(transformers.RTDetrConfig.from_dict(config))
        folder = tiny_hf.save(network, tmp_path / str(queries), tiny_hf.SQUARE)
        if queries == 21:
            assert create_hf(folder, size=32)(some_pixels(32)).features.shape == (2, 21, 16)
        else:
            with pytest.raises(MeshcapError, match="needs more for its 22 queries"):
                create_hf(folder, size=32)
    assert create_hf(made("detr")[1], size=77)(some_pixels(77)).features.shape == (2, 7, 16)


@torch.no_grad()
def test_pictures_need_not_be_square(made) -> None:
    for name, (rows, columns) in (("clip", (4, 12)), ("dinov2", (4, 12)), ("resnet", (1, 3))):
        regions = create_hf(made(name)[1])(some_pixels(96)[:, :, :32])
        assert regions.features.shape[1] == rows * columns
        assert regions.boxes[0, -1].tolist() == pytest.approx([1 - 1 / columns, 1 - 1 / rows, 1, 1])


# What the hub's files say, and what it comes to: size, geometry, mean of red, std of red.
FILES = {
    "CLIP": (
        {"do_center_crop": True, "crop_size": 32, "size": 40, "image_mean": [0.48] * 3, "image_std": [0.26] * 3},
        (32, "crop", 0.48, 0.26),
    ),
    "DINOv2": (
        {
            "do_center_crop": True,
            "crop_size": {"height": 32, "width": 32},
            "size": {"shortest_edge": 40},
            "rescale_factor": 1 / 255,
            "image_mean": [0.485] * 3,
            "image_std": [0.229] * 3,
        },
        (32, "crop", 0.485, 0.229),
    ),
    "ViT": ({"size": 64, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, (64, "squash", 0.5, 0.5)),
    "ConvNeXt": (
        {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "image_mean": [0.4] * 3, "image_std": [0.2] * 3},
        (224, "crop", 0.4, 0.2),
    ),
    "ConvNeXt, large": (
        {"size": {"shortest_edge": 384}, "crop_pct": None, "image_mean": [0.4] * 3, "image_std": [0.2] * 3},
        (384, "squash", 0.4, 0.2),
    ),
    "DETR": (
        {"size": {"shortest_edge": 800, "longest_edge": 1333}, "image_mean": [0.4] * 3, "image_std": [0.2] * 3},
        (800, "squash", 0.4, 0.2),
    ),
    "-1 to 1": (
        {"size": 64, "rescale_factor": 2 / 255, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
        (64, "squash", 0.5, 0.5),
    ),
    "0 to 1": ({"size": 64, "do_normalize": False, "image_mean": [9.0] * 3}, (64, "squash", 0.0, 1.0)),
}


@pytest.mark.parametrize("name", FILES)
def test_preprocessing_is_read_from_its_file(made, name: str, tmp_path: Path) -> None:
    told, expected = FILES[name]
    folder = Path(tiny_hf.save(made("vit")[0], tmp_path / "vit", told))
    seen = create_hf(str(folder)).preprocess
    assert (seen.size, seen.geometry) == expected[:2]
    assert (seen.mean[0], seen.std[0]) == pytest.approx(expected[2:])
    other = create_hf(str(folder), size=128, geometry="squash").preprocess
    assert (other.size, other.geometry, other.mean) == (128, "squash", seen.mean)
    # transformers 5 keeps the same under another name
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": told}), encoding="utf-8")
    assert create_hf(str(folder)).preprocess == seen


def test_preprocessing_that_says_too_little(made, tmp_path: Path) -> None:
    network = made("vit")[0]
    path = tmp_path / "preprocessor_config.json"
    for told, message in (
        ({**tiny_hf.SQUARE, "size": {"height": 64, "width": 32}}, "expected a square"),
        ({**tiny_hf.SQUARE, "size": None}, "expected a square"),
        ({"size": 64}, "no image_mean"),
    ):
        folder = tiny_hf.save(network, tmp_path, told)
        with pytest.raises(MeshcapError, match=message):
            create_hf(folder)
    path.unlink()
    with pytest.raises(MeshcapError, match=r"has no preprocessor_config\.json"):
        create_hf(str(tmp_path))


def test_rt_detr_reads_colours_as_they_are(made, tmp_path: Path) -> None:
    folder = tiny_hf.save(made("rt_detr")[0], tmp_path, {"size": {"height": 64, "width": 64}})
    assert create_hf(folder).preprocess.mean == (0, 0, 0)


def test_half_precision_keeps_boxes_exact(made) -> None:
    for name in ("clip", "rt_detr"):
        vision = create_hf(made(name)[1]).to(torch.bfloat16)
        with torch.no_grad():
            regions = vision(some_pixels())
        assert regions.features.dtype == torch.bfloat16
        assert regions.boxes.dtype == torch.float32


def test_half_precision_weights_are_read_as_float32(made, tmp_path: Path) -> None:
    folder = tiny_hf.save(tiny_hf.model("vit").half(), tmp_path, tiny_hf.SQUARE)
    assert create_hf(folder).dtype == torch.float32


def test_names_that_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing-at-all", "nobody/nothing@some-revision", "not a name", "a/b/c/d"):
        with pytest.raises(MeshcapError, match="neither a folder here nor found on the hub") as told:
            create_hf(name)
        assert "\n" not in str(told.value)


def test_an_architecture_we_do_not_read(made, tmp_path: Path) -> None:
    config = {"model_type": "siglip2", "auto_map": {"AutoModel": "evil.Evil"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(MeshcapError, match=r"'siglip2', expected a backbone \(clip, .*detector \(detr, rt_detr"):
        create_hf(str(tmp_path))
    with pytest.raises(MeshcapError, match="is a backbone"):
        create_hf(made("vit")[1], keep=5)


def test_a_backbone_of_timm(tmp_path: Path) -> None:
    for config in ({}, {"use_timm_backbone": True, "backbone": "resnet50", "backbone_config": None}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "detr", **config}), encoding="utf-8")
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(tiny_hf.SQUARE), encoding="utf-8")
        with pytest.raises(MeshcapError, match="timm, which meshcap does not use"):
            create_hf(str(tmp_path))


def test_weights_that_do_not_fit(made, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(tiny_hf.save(made("vit")[0], tmp_path / "vit", tiny_hf.SQUARE))
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "layernorm" in key)
    lacking = {key: value for key, value in weights.items() if key != name}
    for wrong, message in (
        (lacking, r"lack 1 of a ViTModel"),
        ({**lacking, name: torch.zeros(3)}, "cannot be read"),
    ):
        save_file(wrong, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(MeshcapError, match=message) as told:
            create_hf(str(folder))
        assert "\n" not in str(told.value)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(MeshcapError, match="cannot be read"):
        create_hf(str(folder))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(MeshcapError, match=r"no model\.safetensors: pickled weights"):
        create_hf(str(folder))


def test_settings_that_make_no_sense(made, tmp_path: Path) -> None:
    folder = Path(tiny_hf.save(made("vit")[0], tmp_path, tiny_hf.SQUARE))
    config = folder / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"patch_size": 8', '"patch_size": "eight"'), "utf-8")
    with pytest.raises(MeshcapError) as told:
        create_hf(str(folder))
    assert "\n" not in str(told.value)
    config.write_text("{", "utf-8")
    with pytest.raises(MeshcapError, match="not readable JSON"):
        create_hf(str(folder))


def test_without_transformers() -> None:
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "from meshcap.errors import MeshcapError\n"
        "from meshcap.vision.hf_files import make_config\n"  # hf.py itself imports without transformers
        "import meshcap.vision.hf\n"
        "try: make_config('ViTConfig', {})\n"
        "except MeshcapError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install "meshcap[hf]"' in done.stdout


@pytest.mark.parametrize("name", tiny_hf.GRIDS)
def test_stages_from_the_pixels_up(made, name: str) -> None:
    """Embeddings, then every layer; each weight once, and what lies in a first stage does not depend on a later."""
    vision = create_hf(made(name)[1])
    stages = vision.stages()
    if isinstance(vision, HFGrid):
        config = vision.config
        layers = len(config.depths) if hasattr(config, "depths") else config.num_hidden_layers
        assert len(stages) == 1 + layers
    together = [id(weight) for stage in stages for weight in stage]
    assert sorted(together) == sorted(id(weight) for weight in vision.parameters())
    names = {id(weight): name for name, weight in vision.named_parameters()}
    if isinstance(vision, HFGrid):
        assert all("embed" in names[id(weight)] or "pre_layrnorm" in names[id(weight)] for weight in stages[0])
    for weight in vision.first_stages(2):
        weight.requires_grad_(False)
    vision(some_pixels(pictures=1)).features.sum().backward()
    for place, stage in enumerate(stages):
        assert all((weight.grad is None) == (place < 2) for weight in stage if names[id(weight)])
    with pytest.raises(MeshcapError, match=f"has {len(stages)} stages"):
        vision.first_stages(len(stages) + 1)
