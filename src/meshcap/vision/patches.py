"""The simplest eyes there can be: a picture cut into cells, and the numbers of a cell are its pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.base import Vision, grid_boxes
from meshcap.vision.preprocessing import preprocess_of

SIDE = 8


class Patches(Vision):
    """A grid of cells × cells, row by row; no weights.

    Args:
        side: pixels of a cell's side. Left out, it follows from the size of the picture, or is 8.
        gain: numbers are from -gain to gain. More than 1 lets the layer above tell colours apart sooner.
    """

    name: ClassVar[str] = "patches"

    def __init__(
        self,
        cells: int = 8,
        side: int | None = None,
        gain: float = 1.0,
        preprocess: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if not isinstance(cells, int) or isinstance(cells, bool) or cells < 1:
            raise MeshcapError(f"cells is {cells!r}, expected at least 1 cell in a row")
        if not isinstance(gain, int | float) or isinstance(gain, bool) or not 0 < gain < math.inf:
            raise MeshcapError(f"gain is {gain!r}, expected a number above 0")
        self.preprocess = preprocess_of(preprocess, size=cells * (side or SIDE))
        size = self.preprocess.size
        if size % cells or side not in (None, size // cells):
            wanted = f"a multiple of cells = {cells}" if side is None else f"cells × side = {cells} × {side}"
            raise MeshcapError(f"size is {size} pixels, expected {wanted}")
        self.cells, self.side, self.gain = cells, size // cells, float(gain)
        self.width = self.side * self.side * 3

    def forward(self, pixels: Tensor) -> Regions:
        size = self.preprocess.size
        if pixels.shape[-2:] != (size, size):
            raise MeshcapError(f"pictures of {tuple(pixels.shape[-2:])} pixels were given, expected {(size, size)}")
        x = self.preprocess.normalised(pixels) * self.gain
        x = x.unflatten(3, (self.cells, self.side)).unflatten(2, (self.cells, self.side))  # (B, 3, rows, s, columns, s)
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(pixels.shape[0], self.cells * self.cells, self.width)
        return Regions(x, grid_boxes(self.cells, self.cells, pixels.device).expand(pixels.shape[0], -1, -1))

    def settings(self) -> dict[str, Any]:
        return {
            "cells": self.cells,
            "side": self.side,
            "gain": self.gain,
            "preprocess": self.preprocess.to_dict(),
        }
