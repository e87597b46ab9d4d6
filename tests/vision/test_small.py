"""Eyes that learn from nothing."""

import pytest
import torch

from meshcap.errors import MeshcapError
from meshcap.vision.small import SmallCNN


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (4, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_shapes(pixels: torch.Tensor) -> None:
    vision = SmallCNN()
    regions = vision(pixels)
    assert regions.features.shape == (4, 36, vision.width) == (4, 36, 128)
    assert regions.boxes[0, 7].tolist() == pytest.approx([1 / 6, 1 / 6, 2 / 6, 2 / 6])
    # Other sizes, other shapes: a cell for every 16 pixels.
    assert vision(torch.zeros(1, 3, 97, 40, dtype=torch.uint8)).features.shape == (1, 6 * 2, 128)
    assert SmallCNN((8, 16))(pixels).features.shape == (4, 12 * 12, 16)


def test_regions_begin_with_variance_one_and_differ(pixels: torch.Tensor) -> None:
    features = SmallCNN()(pixels).features
    assert 0.8 < features.std().item() < 1.2
    assert features.mean().abs() < 0.1
    assert (features[:, 0] - features[:, 20]).abs().mean() > 0.1  # cells
    assert (features[0] - features[1]).abs().mean() > 0.1  # pictures


def test_pictures_do_not_depend_on_each_other(pixels: torch.Tensor) -> None:
    vision = SmallCNN().train()
    together = vision(pixels).features
    alone = torch.cat([vision(one[None]).features for one in pixels])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_a_cell_lies_where_its_box_says(pixels: torch.Tensor) -> None:
    """Turned around, a picture gives the same cells turned around: with kernels turned too, nothing is off centre."""
    vision = SmallCNN().eval()
    spotted = pixels.clone()
    spotted[:, :, 68:76, 20:28] = 255  # row 4, column 1
    change = (vision(spotted).features - vision(pixels).features).abs().sum((0, 2)).view(6, 6)
    near = torch.zeros(6, 6, dtype=torch.bool)
    near[3:6, 0:3] = True  # a cell sees its neighbours
    assert change[near].mean() > 4 * change[~near].mean()
    expected = vision(pixels).features.unflatten(1, (6, 6)).flip(1, 2)
    for layer in vision.layers:
        if isinstance(layer, torch.nn.Conv2d):
            layer.weight.data = layer.weight.data.flip(-1, -2)
    got = vision(pixels.flip(-1, -2)).features.unflatten(1, (6, 6))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_it_learns() -> None:
    """A few steps tell noisy pictures apart by their colour; every weight is moved."""
    torch.manual_seed(0)
    colours = torch.randint(0, 3, (16,))
    pictures = torch.randint(0, 60, (16, 3, 32, 32), dtype=torch.uint8)
    pictures[torch.arange(16), colours] += 150
    vision = SmallCNN((8, 16))
    answer = torch.nn.Linear(16, 3)
    before = [p.clone() for p in vision.parameters()]
    optimiser = torch.optim.Adam([*vision.parameters(), *answer.parameters()], lr=0.01)
    for _ in range(15):
        loss = torch.nn.functional.cross_entropy(answer(vision(pictures).features.mean(1)), colours)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1
    assert all(not torch.equal(a, b) for a, b in zip(before, vision.parameters(), strict=True))


@pytest.mark.parametrize("channels", [(), (7,), (8,) * 7, "abc", [8, 16.0], [0], 32])
def test_settings_that_make_no_sense(channels: object) -> None:
    with pytest.raises(MeshcapError, match=r"channels is .*, expected one to six multiples of 8"):
        SmallCNN(channels)


def test_too_small() -> None:
    with pytest.raises(MeshcapError, match="size is 8 pixels, which cannot be halved 4 times"):
        SmallCNN(preprocess={"size": 8})
    assert SmallCNN((8, 8), {"size": 8})(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).features.shape == (1, 1, 8)


def test_in_bfloat16(pixels: torch.Tensor) -> None:
    vision = SmallCNN()
    exact = vision(pixels).features
    rough = vision.to(torch.bfloat16)(pixels)
    assert rough.features.dtype == rough.boxes.dtype == torch.bfloat16
    assert (rough.features - exact).abs().mean() < 0.05


def test_compiles_as_one_graph(pixels: torch.Tensor) -> None:
    vision = SmallCNN((8, 16)).eval()
    seen = torch.compile(vision, backend="eager", fullgraph=True)(pixels)
    torch.testing.assert_close(seen.features, vision(pixels).features)
