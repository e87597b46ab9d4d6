"""Layer norm that stays in half precision under autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.LayerNorm):
    """`nn.LayerNorm`, with the residual stream kept as narrow as the matrix products around it.

    Autocast would return float32 from every norm, and half of a training step's memory traffic would be spent on
    that. The mean and the variance are computed in float32 inside the kernel either way.
    """

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
