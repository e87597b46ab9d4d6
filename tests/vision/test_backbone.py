"""How pictures are shown, and where the cells of a grid lie."""

import numpy as np
import pytest
import torch
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.vision import Preprocess
from meshcap.vision.backbone import Patches, SmallCNN, grid_boxes
from meshcap.vision.preprocess import preprocess_of


def stripes(width: int, height: int) -> Image.Image:
    """Red by column, green by row."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack((x, y, x * 0 + 9), -1).round().astype(np.uint8))


def test_squash_shows_all_and_crop_the_middle() -> None:
    assert Preprocess(geometry="squash").window(300, 200) == (0, 0, 300, 200)
    assert Preprocess(geometry="crop").window(300, 200) == (50, 0, 250, 200)
    assert Preprocess(geometry="crop").window(201, 300) == (0, 49.5, 201, 250.5)


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (64, 64), (20, 31)])
@pytest.mark.parametrize("geometry", ["squash", "crop"])
def test_pixels(size: tuple[int, int], geometry: str) -> None:
    preprocess = Preprocess(size=64, geometry=geometry)
    got = preprocess.pixels(stripes(*size))
    assert got.shape == (3, 64, 64)
    assert got.dtype == torch.uint8
    x1, y1, x2, y2 = preprocess.window(*size)
    # A ramp stays a ramp: what it is at the middle of every new pixel.
    middles = (torch.arange(64) + 0.5) / 64
    red = ((x1 + middles * (x2 - x1)) - 0.5) / (size[0] - 1) * 255
    green = ((y1 + middles * (y2 - y1)) - 0.5) / (size[1] - 1) * 255
    inside = slice(4, -4)  # edges are repeated beyond the picture
    assert (got[0].float() - red[None, :])[inside, inside].abs().max() < 3
    assert (got[1].float() - green[:, None])[inside, inside].abs().max() < 3
    assert (got[2] == 9).all()


def test_normalised() -> None:
    preprocess = Preprocess(mean=(0.5, 0.4, 0.2), std=(0.5, 0.25, 0.1))
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    expected = torch.tensor([-1.0, 0.6 / 0.25, 0.0])
    torch.testing.assert_close(preprocess.normalised(pixels).flatten(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(preprocess.normalised(pixels.float()).flatten(), expected, atol=1e-6, rtol=1e-6)
    assert preprocess.normalised(pixels, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"size": 4}, "size is 4, expected"),
        ({"size": 64.0}, "size is 64.0"),
        ({"size": True}, "size is True"),
        ({"geometry": "stretch"}, "geometry is 'stretch', expected squash or crop"),
        ({"std": (1, 0, 1)}, "std above 0"),
        ({"mean": (0.5, 0.5)}, "expected three numbers"),
        ({"mean": 7}, "preprocess is"),
        ({"mean": ["a", "b", "c"]}, "preprocess is"),
        ({"colour": "red"}, "unknown setting 'colour', expected size, geometry, pre_resize, mean, std"),
        ([96], "expected an object"),
    ],
)
def test_settings_that_make_no_sense(settings: object, told: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        preprocess_of(settings)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_over_the_usual_ones() -> None:
    got = preprocess_of({"size": 32, "mean": [0.1, 0.2, 0.3]}, size=96, geometry="crop")
    assert got == Preprocess(size=32, geometry="crop", mean=(0.1, 0.2, 0.3))
    assert preprocess_of(got.to_dict()) == got


def test_grid_boxes() -> None:
    expected = [[c / 3, r / 2, (c + 1) / 3, (r + 1) / 2] for r in range(2) for c in range(3)]
    torch.testing.assert_close(grid_boxes(2, 3), torch.tensor(expected))
    assert grid_boxes(1, 1).tolist() == [[0, 0, 1, 1]]


# The pixels of a cell are its numbers.


def test_cells_are_cut_row_by_row() -> None:
    vision = Patches(cells=3, side=4)
    pixels = torch.randint(0, 256, (2, 3, 12, 12), dtype=torch.uint8)
    regions = vision(pixels)
    assert regions.features.shape == (2, 9, vision.width) == (2, 9, 48)
    picture = pixels[1].permute(1, 2, 0).numpy()  # as people see it: rows, columns, colours
    for row in range(3):
        for column in range(3):
            cell = picture[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4].astype(np.float64)
            got = regions.features[1, row * 3 + column].numpy()
            np.testing.assert_allclose(got, (cell / 127.5 - 1).ravel(), atol=1e-6)
            box = regions.boxes[1, row * 3 + column].tolist()
            assert box == pytest.approx([column / 3, row / 3, (column + 1) / 3, (row + 1) / 3])


def test_gain() -> None:
    ends = torch.tensor([0, 255], dtype=torch.uint8).repeat(32).view(1, 1, 8, 8).expand(1, 3, 8, 8)
    assert set(Patches(cells=2, side=4, gain=2.5)(ends).features.flatten().tolist()) == {-2.5, 2.5}


def test_cells_and_size_go_together() -> None:
    assert Patches().preprocess.size == 64
    assert Patches(cells=4, side=6).preprocess.size == 24
    assert Patches(cells=4, preprocess={"size": 40}).side == 10
    assert list(Patches().parameters()) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"cells": 0}, "cells is 0"),
        ({"cells": 2.0}, "cells is 2.0"),
        ({"gain": 0}, "gain is 0"),
        ({"cells": 5, "preprocess": {"size": 64}}, "size is 64 pixels, expected a multiple of cells = 5"),
        ({"cells": 4, "side": 8, "preprocess": {"size": 64}}, "size is 64 pixels, expected cells × side = 4 × 8"),
        ({"cells": 4, "side": -2}, "size is -8"),
    ],
)
def test_patches_settings_that_make_no_sense(settings: dict[str, object], told: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        Patches(**settings)
    assert told in str(caught.value)


def test_another_size_is_refused() -> None:
    with pytest.raises(MeshcapError, match=r"\(60, 64\) pixels were given, expected \(64, 64\)"):
        Patches()(torch.zeros(1, 3, 60, 64, dtype=torch.uint8))


# Visions that learn from nothing.


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
def test_small_settings_that_make_no_sense(channels: object) -> None:
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
