"""Where a region is: its own box as a vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LOUDNESS = 3.0  # of the longest waves, where they are loud: a box is then about as loud as the features it is added to


class BoxEmbedding(nn.Module):
    """Centre, width and height of a box as waves of several lengths, mapped linearly to the model's width.

    Waves let a linear map tell "upper left" from "a little further down", which four raw numbers cannot. With
    `loud_long`, long waves are louder than short ones: they say what is left, right, above and below, and the short
    ones, which only tell neighbours apart, would drown them for most of a short training from nothing.
    """

    frequencies: Tensor
    loudness: Tensor

    def __init__(self, d_model: int, waves: int = 6, *, loud_long: bool = False):
        super().__init__()
        # Powers of two, which half precision holds exactly.
        self.register_buffer("frequencies", 2.0 ** torch.arange(waves), persistent=False)
        loudness = LOUDNESS * 2.0 ** -torch.arange(waves).sub(1).clamp_min(0) if loud_long else torch.ones(waves)
        self.place = LOUDNESS if loud_long else 1.0
        self.register_buffer("loudness", loudness, persistent=False)
        self.linear = nn.Linear(4 * (1 + 2 * waves), d_model)

    def forward(self, boxes: Tensor) -> Tensor:
        """boxes (B, N, 4) as x1, y1, x2, y2 in 0-1 coordinates -> (B, N, D)."""
        low, high = boxes.float().chunk(2, dim=-1)
        place = torch.cat(((low + high) / 2, high - low), dim=-1)  # (B, N, 4)
        phase = (math.pi * place[..., None] * self.frequencies.float()).flatten(-2)  # (B, N, 4·waves)
        loudness = self.loudness.float().repeat(4)
        waves = torch.cat((self.place * place, loudness * phase.sin(), loudness * phase.cos()), dim=-1)
        return self.linear(waves.to(self.frequencies.dtype))
