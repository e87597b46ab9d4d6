"""Eyes that learn from nothing, with the captions: for drawn scenes and small datasets, on a CPU.

The first convolution reads squares of 4 × 4 pixels that do not overlap: at full size, overlapping ones would take as
long as all others together. Each further one halves the picture; the last keeps its size and lets a cell see its
neighbours. Kernels of 4 × 4 halve it such that a cell's numbers come from the middle of its box; with 3 × 3 they would
come from its corner.
Normalisation is over groups of a picture's own channels, so that no number of one picture depends on the others of
its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.base import Vision, grid_boxes
from meshcap.vision.preprocessing import preprocess_of

GROUP = 8  # channels that are normalised together


class SmallCNN(Vision):
    """A grid of cells of 16 × 16 pixels: 6 × 6 of a picture of 96 pixels.

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
