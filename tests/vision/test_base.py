"""How pictures are shown, and where the cells of a grid lie."""

import numpy as np
import pytest
import torch
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.vision import Preprocess
from meshcap.vision.base import grid_boxes
from meshcap.vision.preprocessing import preprocess_of


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
        ({"colour": "red"}, "unknown setting 'colour', expected size, geometry, through, mean, std"),
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
