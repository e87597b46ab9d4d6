"""The pixels of a cell are its numbers."""

import numpy as np
import pytest
import torch

from meshcap.errors import MeshcapError
from meshcap.vision.patches import Patches


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
def test_settings_that_make_no_sense(settings: dict[str, object], told: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        Patches(**settings)
    assert told in str(caught.value)


def test_another_size_is_refused() -> None:
    with pytest.raises(MeshcapError, match=r"\(60, 64\) pixels were given, expected \(64, 64\)"):
        Patches()(torch.zeros(1, 3, 60, 64, dtype=torch.uint8))
