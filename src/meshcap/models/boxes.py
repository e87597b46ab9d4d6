"""Where a region is: its own box as a vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class BoxEmbedding(nn.Module):
    """Centre, width and height of a box as waves of several lengths, mapped linearly to the model's width.

    Waves let a linear map tell "upper left" from "a little further down", which four raw numbers cannot.
    """

    frequencies: Tensor

    def __init__(self, d_model: int, waves: int = 6):
        super().__init__()
        # Powers of two, which half precision holds exactly.
        self.register_buffer("frequencies", 2.0 ** torch.arange(waves), persistent=False)
        self.linear = nn.Linear(4 * (1 + 2 * waves), d_model)

    def forward(self, boxes: Tensor) -> Tensor:
        """boxes (B, N, 4) as x1, y1, x2, y2 in 0-1 coordinates -> (B, N, D)."""
        low, high = boxes.float().chunk(2, dim=-1)
        place = torch.cat(((low + high) / 2, high - low), dim=-1)  # (B, N, 4)
        phase = (math.pi * place[..., None] * self.frequencies.float()).flatten(-2)  # (B, N, 4·waves)
        waves = torch.cat((place, phase.sin(), phase.cos()), dim=-1)
        return self.linear(waves.to(self.frequencies.dtype))
