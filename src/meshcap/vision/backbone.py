"""Backbones: modules from pixels to Regions, one vector with a box for each region.

`Vision` is their base. Each holds its own preprocessing, so that pictures are shown to it at captioning exactly as they
were at training. Here are also the two that need no pretrained weights: `Patches` (a cell's pixels) and `SmallCNN`.
`meshcap.vision.registry` makes, saves and loads backbones by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.preprocess import Preprocess, preprocess_of


class Vision(nn.Module):
    """Base of all backbones.

    Subclasses name themselves, set `preprocess` and `width`, and say in `settings` what, beside weights, rebuilds them:
    `type(vision)(**vision.settings())` is the same network with other weights.
    """

    name: ClassVar[str]
    preprocess: Preprocess
    width: int  # numbers of a region
    sets: ClassVar[bool] = False  # whether sources have regions of their own number, as scores have bars

    def stack(self, read: Sequence[np.ndarray]) -> Tensor:
        """What `forward` takes, of what `preprocess.read` gave for several sources."""
        return torch.from_numpy(np.stack([np.asarray(one) for one in read]))

    def forward(self, pixels: Tensor) -> Regions:
        """Regions with boxes of pictures (B, 3, H, W): uint8, or floats from 0 to 255."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def stages(self) -> list[list[nn.Parameter]]:
        """The weights in groups, from the pixels up, for layer-wise rates and to freeze the first ones; empty: this
        vision learns as a whole.
        """
        return []

    def first_stages(self, count: int) -> list[nn.Parameter]:
        """Weights of the stages nearest to the pixels, for who wants to train only what comes after.

        Raises:
            MeshcapError: there are not so many stages, or this vision learns as a whole.
        """
        stages = self.stages()
        if count and not stages:
            raise MeshcapError(f"frozen_stages is {count}, and {self.name} learns as a whole or not at all: expected 0")
        if count > len(stages):
            raise MeshcapError(f"frozen_stages is {count}, and {self.name} has {len(stages)} stages")
        return [weight for stage in stages[:count] for weight in stage]

    def fold(self) -> None:
        """Optimise for inference, in place, where there is anything to optimise: see `EfficientNetLite.fold`."""

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        return next((t.device for t in (*self.parameters(), *self.buffers())), torch.device("cpu"))


def grid_boxes(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """(rows · columns, 4) boxes of a grid's cells, row by row: x1, y1, x2, y2 from 0 to 1.

    Made where it is used: a copy to a GPU would wait for it, in every batch.
    """
    y = (torch.arange(rows, device=device) / rows)[:, None].expand(rows, columns)
    x = (torch.arange(columns, device=device) / columns).expand(rows, columns)
    return torch.stack((x, y, x + 1 / columns, y + 1 / rows), -1).view(-1, 4)


SIDE = 8


class Patches(Vision):
    """A picture cut into cells × cells, row by row; the numbers of a cell are its pixels. No weights.

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
        if side is not None and (not isinstance(side, int) or isinstance(side, bool)):
            raise MeshcapError(f"side is {side!r}, expected a number of pixels")
        if not isinstance(gain, int | float) or isinstance(gain, bool) or not 0 < gain < 1e30:
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


GROUP = 8  # channels that are normalised together


class SmallCNN(Vision):
    """A grid of cells of 16 × 16 pixels (6 × 6 of a picture of 96 pixels), trained from scratch with the captions.

    For drawn scenes and small datasets, on a CPU. The first convolution reads squares of 4 × 4 pixels that do not
    overlap: at full size, overlapping ones would take as long as all others together. Each further one halves the
    picture; the last keeps its size and lets a cell see its neighbours. Kernels of 4 × 4 halve it such that a cell's
    numbers come from the middle of its box; with 3 × 3 they would come from its corner. Normalisation is over groups
    of a picture's own channels, so that no number of one picture depends on the others of its batch.

    Args:
        channels: after the first convolution and after each halving; the last is the width of a region.
    """

    name: ClassVar[str] = "small-cnn"

    def __init__(self, channels: Sequence[int] = (32, 64, 128), preprocess: Mapping[str, Any] | None = None):
        super().__init__()
        if (
            not isinstance(channels, list | tuple)
            or not 1 <= len(channels) <= 6
            or not all(type(n) is int and n > 0 and n % GROUP == 0 for n in channels)
        ):
            raise MeshcapError(f"channels is {channels!r}, expected one to six multiples of {GROUP}")
        self.channels = tuple(channels)
        self.preprocess = preprocess_of(preprocess, size=96)
        self.width = self.channels[-1]
        halvings = 1 + len(channels)
        if self.preprocess.size < 2**halvings:
            raise MeshcapError(f"size is {self.preprocess.size} pixels, which cannot be halved {halvings} times")
        layers: list[nn.Module] = []
        widths = (3, *self.channels, self.width)
        for index, (given, made) in enumerate(pairwise(widths)):
            kernel, stride, around = (4, 4, 0) if index == 0 else (4, 2, 1) if index < len(channels) else (3, 1, 1)
            convolution = nn.Conv2d(given, made, kernel, stride, around, bias=False)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, nn.GroupNorm(made // GROUP, made), nn.GELU()]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(self.width)  # whatever the layers do, regions begin with variance 1
        # Faster on CPUs and GPUs, and the cells' numbers then lie in memory as Regions have them.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pixels: Tensor) -> Regions:
        x = self.preprocess.normalised(pixels, self.dtype).contiguous(memory_format=torch.channels_last)
        x = self.layers(x)  # (B, width, rows, columns)
        rows, columns = x.shape[-2:]
        boxes = grid_boxes(rows, columns, x.device).to(x.dtype)
        return Regions(self.norm(x.flatten(2).transpose(1, 2)), boxes.expand(x.shape[0], -1, -1))

    def settings(self) -> dict[str, Any]:
        return {"channels": list(self.channels), "preprocess": self.preprocess.to_dict()}
