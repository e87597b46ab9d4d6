"""Light falls where the region was, in the picture as it was before preprocessing."""

import numpy as np
import pytest
import torch
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.explain.heatmap import DARK, DARKEST, UNSEEN, as_grid, brightest_place, heat_field, overlay, with_overlay
from meshcap.vision.backbone import grid_boxes
from meshcap.vision.preprocess import Preprocess

CELLS = grid_boxes(4, 4)


def one_cell(number: int) -> torch.Tensor:
    return torch.eye(16)[number]


def test_a_corner_of_a_picture_that_is_not_square() -> None:
    field = heat_field(one_cell(3), CELLS, (200, 100))  # first row, last column
    assert field.shape == (100, 200)
    row, column = np.unravel_index(field.argmax(), field.shape)
    assert row < 25 and column >= 150
    assert field.max() == pytest.approx(1)
    assert np.all(field[50:] == 0) and np.all(field[:, :100] == 0)  # it does not spread beyond the next cell
    assert brightest_place(field) == "top right"


def test_a_cropped_picture_is_lit_inside_its_window() -> None:
    preprocess = Preprocess(size=32, geometry="crop")
    left, top, right, bottom = preprocess.window(200, 100)
    window = (left / 200, top / 100, right / 200, bottom / 100)
    field = heat_field(one_cell(12), CELLS, (200, 100), window)  # last row, first column of the middle square
    assert np.isnan(field[:, :50]).all() and np.isnan(field[:, 150:]).all()
    assert not np.isnan(field[:, 50:150]).any()
    row, column = np.unravel_index(np.nan_to_num(field).argmax(), field.shape)
    assert row >= 75 and 50 <= column < 75
    cover = np.asarray(overlay(field))
    assert tuple(cover[0, 0]) == (*DARK, round(255 * UNSEEN))
    assert cover[0, 149, 3] == round(255 * DARKEST) < cover[0, 0, 3]  # seen and passed over is not as dark


def test_order_of_cells_does_not_matter() -> None:
    weights, order = torch.rand(16), torch.randperm(16)
    mixed = heat_field(weights[order], CELLS[order], (80, 60))
    np.testing.assert_array_equal(mixed, heat_field(weights, CELLS, (80, 60)))
    assert as_grid(weights.numpy(), CELLS.numpy()).tolist() == weights.view(4, 4).tolist()


def test_objects_are_painted_and_add_up() -> None:
    boxes = torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.25, 0.5, 1.0, 1.0]])
    assert as_grid(np.ones(2), boxes.numpy()) is None
    field = heat_field(torch.tensor([0.6, 0.2]), boxes, (40, 20))
    assert field[0, 0] == pytest.approx(0.75)  # 0.6 of the 0.8 where both are
    assert field[19, 15] == pytest.approx(1)
    assert field[19, 39] == pytest.approx(0.25)
    assert field[0, 39] == 0


def test_an_object_smaller_than_a_pixel_is_seen() -> None:
    field = heat_field(torch.tensor([1.0, 0.0]), torch.tensor([[0.999, 0.999, 1, 1], [0, 0, 0.3, 0.3]]), (10, 10))
    assert field[9, 9] == 1 and field.sum() == 1


def test_noise_is_not_raised_to_full_light() -> None:
    assert heat_field(one_cell(0) * 0.01, CELLS, (8, 8)).max() == pytest.approx(1)
    assert heat_field(one_cell(0) * 0.01, CELLS, (8, 8), least=0.1).max() == pytest.approx(0.1, rel=0.01)
    assert np.all(heat_field(torch.zeros(16), CELLS, (8, 8)) == 0)


def test_what_was_looked_at_keeps_its_colours() -> None:
    picture = Image.new("RGB", (40, 40), (200, 150, 100))
    seen = with_overlay(picture, torch.ones(16), CELLS)
    assert seen.size == picture.size and seen.getpixel((20, 20)) == (200, 150, 100)
    against = with_overlay(picture, -torch.ones(16), CELLS).getpixel((20, 20))
    assert against[2] > against[1] > against[0]  # blue
    assert max(with_overlay(picture, one_cell(0), CELLS).getpixel((39, 39))) < 50  # night


def test_weights_need_boxes() -> None:
    with pytest.raises(MeshcapError, match="3 weights for 16 boxes"):
        heat_field(torch.ones(3), CELLS, (8, 8))
