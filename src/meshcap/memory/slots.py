"""Memory slots: learned keys and values that every picture shares.

A self-attention over regions can only relate what is in the picture. Slots are extra (key, value) pairs that belong
to the weights: they answer when a region's query asks for knowledge that the picture does not contain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError


class MemorySlots(nn.Module):
    """`[K; √d_head · M_k]` and `[V; √slots · M_v]`, with M_k and M_v learned.

    The square roots keep a slot as large as a region although its parameters start small (as in the paper's own
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


@dataclass(frozen=True)
class SlotUse:
    """How much attention slots get, over the given pictures and heads. Best regions and pictures first."""

    share: Tensor  # (S,): of all attention of real regions; their sum is what the slots take together
    asking: Tensor  # (B, S): the same, picture by picture
    pictures: Tensor  # (S, k): those that ask a slot most
    regions: Tensor  # (S, k, 2): (picture, region) that ask it most
    weights: Tensor  # (S, k): how much each of those asks it


def slot_use(weights: Tensor, slots: int, *, mask: Tensor | None = None, top: int = 5) -> SlotUse:
    """How much each slot is used, and which regions and pictures it answers to.

    Args:
        weights: of a memory-augmented self-attention, (B, H, N, N + slots): `SelfAttention.with_weights` gives them,
            and `Encoder.forward` leaves those of every layer in its trace under "encoder". Heads are averaged; a
            single head is `weights[:, h : h + 1]`.
        slots: S, the last columns.
        mask: (B, N), true at real regions: what padding attends to does not count.
        top: k, or as many as there are.

    Raises:
        MeshcapError: the weights have another shape.
    """
    if weights.dim() != 4 or slots < 1 or weights.shape[-1] != weights.shape[-2] + slots:
        raise MeshcapError(
            f"weights of shape {tuple(weights.shape)} for {slots} slots, expected (pictures, heads, N, N + slots)"
        )
    to_slots = weights[..., -slots:].float().mean(1)  # (B, N, S)
    pictures, regions = to_slots.shape[:2]
    real = to_slots.new_ones(pictures, regions) if mask is None else mask.to(to_slots.dtype)
    asking = (to_slots * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp_min(1)  # (B, S)
    share = (to_slots * real[..., None]).sum((0, 1)) / real.sum().clamp_min(1)
    # Padding ranks behind every region, however little that asks.
    ranked = to_slots.masked_fill(real[..., None] == 0, -1).flatten(0, 1).T  # (S, B·N)
    best = ranked.topk(min(top, int(real.sum())), dim=1)
    where = torch.stack((best.indices // regions, best.indices % regions), -1)
    return SlotUse(share, asking, asking.T.topk(min(top, pictures), dim=1).indices, where, best.values)
