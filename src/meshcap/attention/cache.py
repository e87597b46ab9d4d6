"""The words said so far, as keys and values, for several hypotheses of each picture.

A beam search keeps changing which hypothesis descends from which. Here nothing is moved when it does: every word
ever said by any of the W hypotheses keeps its place (place = step · W + hypothesis), and a small table says which
places belong to the history of which hypothesis. Reordering changes that table alone. All shapes are fixed from the
start and the current step is a tensor, so that one captured or compiled step serves all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]


def empty_history(
    *,
    layers: int,
    pictures: int,
    width: int,
    length: int,
    heads: int,
    d_head: int,
    device: torch.device,
    dtype: torch.dtype,
) -> State:
    """The tensors of an empty history for `width` hypotheses of up to `length` words."""
    places = -(-length * width // 8) * 8  # a multiple of 8 keeps masks aligned for the fused kernels
    shape = (layers, pictures, heads, places, d_head)
    return {
        "step": torch.zeros(1, dtype=torch.long, device=device),
        "keys": torch.zeros(shape, dtype=dtype, device=device),
        "values": torch.zeros(shape, dtype=dtype, device=device),
        "visible": torch.zeros(pictures, width, places, dtype=torch.bool, device=device),
    }


def reorder_history(state: State, parents: Tensor) -> None:
    """Hypothesis w of each picture goes on from the history of hypothesis parents[b, w]."""
    visible = state["visible"]  # (B, W, places)
    visible.copy_(visible.gather(1, parents[..., None].expand_as(visible)))


@dataclass(frozen=True)
class HistoryCache:
    """One step's view of a history: where the new words go, and who sees what."""

    keys: Tensor  # (layers, B, H, places, d)
    values: Tensor
    places: Tensor  # (W,) where this step's words are written
    mask: Tensor  # (B, 1, W, places), additive
    used: Tensor  # (1,) how many places have been written, this step's included

    @classmethod
    def open(cls, state: State, dtype: torch.dtype) -> HistoryCache:
        """Begin a step: each hypothesis will see its own new word."""
        visible = state["visible"]
        width = visible.shape[1]
        hypotheses = torch.arange(width, device=visible.device)
        first = state["step"] * width
        places = first + hypotheses
        own = hypotheses[:, None] == hypotheses  # (W, W)
        visible.index_copy_(2, places, own.expand(visible.shape[0], -1, -1))
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        return cls(state["keys"], state["values"], places, mask[:, None], first + width)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values (B, H, W, d) of a layer; return all of that layer's."""
        self.keys[layer].index_copy_(2, self.places, keys)
        self.values[layer].index_copy_(2, self.places, values)
        return self.keys[layer], self.values[layer]
