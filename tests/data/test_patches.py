"""Pictures cut into cells."""

import pytest
import torch
from PIL import Image

from meshcap.data.patches import SIDE, patches
from meshcap.errors import MeshcapError
from meshcap.regions import Regions


def test_shapes_and_boxes() -> None:
    features, boxes = patches(Image.new("RGB", (96, 96)), 4)
    assert features.shape == (16, SIDE * SIDE * 3)
    assert boxes.shape == (16, 4)
    assert boxes[0].tolist() == [0, 0, 0.25, 0.25]
    assert boxes[1].tolist() == [0.25, 0, 0.5, 0.25]  # row by row
    assert boxes[-1].tolist() == [0.75, 0.75, 1, 1]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert float(area.sum()) == pytest.approx(1)
    Regions(features[None], boxes[None])  # is what a captioner reads


def test_black_is_minus_one_and_white_is_one() -> None:
    assert patches(Image.new("L", (50, 50), 0))[0].unique().tolist() == [-1]
    assert patches(Image.new("RGB", (50, 50), (255, 255, 255)))[0].unique().tolist() == [1]


@pytest.mark.parametrize("cell", [0, 5, 10, 15])
def test_a_cell_holds_what_its_box_shows(cell: int) -> None:
    picture = Image.new("RGB", (64, 64))
    _, boxes = patches(picture, 4)
    x1, y1, x2, y2 = (round(float(edge) * 64) for edge in boxes[cell])
    picture.paste((255, 0, 0), (x1, y1, x2, y2))
    features, _ = patches(picture, 4)
    red = features.view(16, -1, 3)
    assert red[cell].unique(dim=0).tolist() == [[1, -1, -1]]
    others = torch.arange(16) != cell
    assert red[others].unique().tolist() == [-1]


def test_pixels_are_in_reading_order() -> None:
    side = 2 * SIDE
    picture = Image.frombytes("L", (side, side), bytes(x + 10 * y for y in range(side) for x in range(side)))
    first = patches(picture, 2)[0].view(4, SIDE, SIDE, 3)[3, :, :, 0]  # the lower right cell
    wanted = torch.tensor([[x + 10 * y for x in range(SIDE, side)] for y in range(SIDE, side)]) / 127.5 - 1
    assert torch.allclose(first, wanted)


def test_no_cells_is_an_error() -> None:
    with pytest.raises(MeshcapError, match="0 cells"):
        patches(Image.new("RGB", (9, 9)), 0)
