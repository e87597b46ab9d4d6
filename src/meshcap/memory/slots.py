"""Memory slots: learned keys and values that every picture shares.

A self-attention over regions can only relate what is in the picture. Slots are extra (key, value) pairs that belong
to the weights: they answer when a region's query asks for knowledge that the picture does not contain.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MemorySlots(nn.Module):
    """`[K; √d_head · M_k]` and `[V; √slots · M_v]`, with M_k and M_v learned.

    The square roots keep a slot as loud as a region although its parameters start small (as in the paper's own
    arithmetic, which imported checkpoints rely on).
    """

    def __init__(self, slots: int, heads: int, d_head: int):
        super().__init__()
        self.slots, self.d_head = slots, d_head
        self.keys = nn.Parameter(torch.empty(slots, heads * d_head))
        self.values = nn.Parameter(torch.empty(slots, heads * d_head))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.keys, 0, 1 / self.d_head)
        nn.init.normal_(self.values, 0, 1 / self.slots)

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the slots to keys and values (B, N, H·d_head), as yet undivided: whole rows are cheapest to copy."""
        return (
            torch.cat((keys, self._spread(self.keys, self.d_head**0.5, keys)), dim=1),  # (B, N + slots, H·d_head)
            torch.cat((values, self._spread(self.values, self.slots**0.5, values)), dim=1),
        )

    def _spread(self, parameter: Tensor, scale: float, like: Tensor) -> Tensor:
        return (scale * parameter).to(like.dtype).expand(like.shape[0], -1, -1)
