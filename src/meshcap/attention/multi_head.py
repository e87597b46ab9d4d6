"""Multi-head scaled dot-product attention: self-attention, cross-attention, and the cache that decoding uses.

`SelfAttention` and `CrossAttention` share `attend`, which runs torch's fused kernel. Where the weights are wanted,
`with_weights` computes the same numbers step by step. Neither adds residuals or norms: the layers that use them do.

The cache (`empty_history`, `reorder_history`, `HistoryCache`) holds keys and values of the words so far for the W
hypotheses of each picture. A beam search keeps changing which hypothesis descends from which. Nothing is moved when it
does: every word of any hypothesis keeps its place (place = step · W + hypothesis), and a small table says which places
belong to the history of which hypothesis. Reordering changes that table alone. All shapes are fixed from the start and
the current step is a tensor, so that one captured or compiled step serves all steps.

The table is `visible`, which places each hypothesis sees; where a kernel reads the history (`attend_history`), it is
`ancestors`, which hypothesis said each of its words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshcap.kernels import (
    attend_by_products,
    attend_history,
    can_attend_by_products,
    can_attend_history,
    can_decode_attention,
    can_follow_parents,
    decode_attention,
    follow_parents,
)

# Captions and sets of regions are short, and for them the kernel that torch tries last is the fastest to train with:
# forward and backward take two thirds of cuDNN's time and a third to two thirds of flash attention's (docs/LOG.md).
FOR_SHORT_SEQUENCES = [
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.MATH,
]

State = dict[str, Tensor]


def attend(query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """softmax(QKᵀ/√d)V by the fused kernel.

    Args:
        query: (B, H, Q, d); keys, values: (B, H, N, d).
        mask: additive, in the query's dtype, that broadcasts to (B, H, Q, N): 0 to look, -inf to look away.
        causal: a query sees the keys up to its own place (Q = N).
    """
    if mask is None and not causal and can_attend_by_products(query, keys):
        return attend_by_products(query, keys, values)
    if query.is_cuda and torch.is_grad_enabled():
        with sdpa_kernel(FOR_SHORT_SEQUENCES, set_priority=True):
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)


def attend_groups(
    query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, used: Tensor | None = None
) -> Tensor:
    """`attend` with one query (B, H, Q, d) for each of G groups of keys and values (G·B, H, N, d).

    `used`, a tensor of one number, may say that keys from there on are all masked.
    """
    if query.is_cuda and can_decode_attention(query, keys):
        return decode_attention(query, keys, values, mask, used)
    return attend(repeat_groups(query, keys), keys, values, mask=mask)


def repeat_groups(query: Tensor, keys: Tensor) -> Tensor:
    groups = keys.shape[0] // query.shape[0]
    return query.repeat(groups, 1, 1, 1) if groups > 1 else query  # (G·B, H, Q, d)


def attend_with_weights(
    query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The arithmetic of `attend` in the open, with the weights (B, H, Q, N) as second result."""
    scores = query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5  # (B, H, Q, N)
    if mask is not None:
        scores = scores + mask
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    weights = scores.float().softmax(-1).to(query.dtype)
    return weights @ values, weights


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `visible`, -inf elsewhere: made once a step, read by every layer."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, H·d) -> (B, H, N, d), without copying."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, N, d) -> (B, N, H·d)."""
    return x.transpose(-2, -3).flatten(-2)


def empty_history(like: Tensor, *, layers: int, pictures: int, width: int, length: int) -> State:
    """The tensors of an empty history for `width` hypotheses of up to `length` words.

    Args:
        like: keys (…, H, N, d) of the same heads and width, dtype and device.
    """
    places = -(-length * width // 8) * 8  # a multiple of 8 keeps masks aligned for the fused kernels
    shape = (layers, pictures, like.shape[-3], places, like.shape[-1])
    step = torch.zeros(1, dtype=torch.long, device=like.device)
    if can_attend_history(like):  # which reads what has been written alone
        own = torch.arange(width, dtype=torch.int32, device=like.device)
        ancestors = own[:, None].repeat(pictures, 1, length)
        return {"step": step, "keys": like.new_empty(shape), "values": like.new_empty(shape), "ancestors": ancestors}
    return {
        "step": step,
        "keys": like.new_zeros(shape),
        "values": like.new_zeros(shape),
        "visible": torch.zeros(pictures, width, places, dtype=torch.bool, device=like.device),
    }


def reorder_history(state: State, parents: Tensor) -> None:
    """Hypothesis w of each picture goes on from the history of hypothesis parents[b, w]."""
    if "ancestors" in state:
        ancestors, step = state["ancestors"], state["step"]  # (B, W, T)
        if can_follow_parents(ancestors):
            follow_parents(ancestors, parents, step)
        else:
            said = torch.arange(ancestors.shape[-1], device=step.device) < step
            followed = ancestors.gather(1, parents[..., None].expand_as(ancestors))
            ancestors.copy_(torch.where(said, followed, ancestors))
        return
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

    def look(self, attention: SelfAttention, x: Tensor, layer: int) -> Tensor:
        """What x (B, W, D) finds, (B, W, H·d)."""
        query, keys, values = attention.project(x)
        keys, values = self.append(layer, keys, values)
        return join_heads(attend_groups(query, keys, values, mask=self.mask, used=self.used))


@dataclass(frozen=True)
class AncestorCache:
    """As `HistoryCache`, of a history with ancestors."""

    keys: Tensor  # (layers, B, H, places, d)
    values: Tensor
    ancestors: Tensor  # (B, W, T)
    step: Tensor  # (1,)

    def look(self, attention: SelfAttention, x: Tensor, layer: int) -> Tensor:
        new = attention.qkv(x).to(self.keys.dtype)
        return attend_history(new, self.keys[layer], self.values[layer], self.ancestors, self.step)


def open_history(state: State, dtype: torch.dtype) -> HistoryCache | AncestorCache:
    """Begin a step."""
    if "ancestors" in state:
        return AncestorCache(state["keys"], state["values"], state["ancestors"], state["step"])
    return HistoryCache.open(state, dtype)


class SelfAttention(nn.Module):
    """Queries, keys and values from one sequence or set, by one matrix product.

    `memory` may extend the keys and values (B, N, H·d), as `meshcap.memory.MemorySlots` does.
    """

    def __init__(self, d_model: int, heads: int, d_head: int, *, memory: nn.Module | None = None):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * heads * d_head)
        self.output = nn.Linear(heads * d_head, d_model)
        self.memory = memory

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> query (B, H, N, d); keys and values (B, H, N + slots, d)."""
        query, keys, values = self.qkv(x).chunk(3, dim=-1)
        if self.memory is not None:
            keys, values = self.memory(keys, values)
        return split_heads(query, self.heads), split_heads(keys, self.heads), split_heads(values, self.heads)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend over x (B, N, D); `mask` as in `attend`, over all keys, slots included."""
        return self.output(join_heads(attend(*self.project(x), mask=mask, causal=causal)))

    def with_weights(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> tuple[Tensor, Tensor]:
        """As `forward`, with the weights (B, H, N, N + slots)."""
        found, weights = attend_with_weights(*self.project(x), mask=mask, causal=causal)
        return self.output(join_heads(found)), weights

    def cached(self, x: Tensor, cache: HistoryCache | AncestorCache, layer: int) -> Tensor:
        """One new word for each hypothesis, x (B, W, D), against the words remembered in `cache`."""
        return self.output(cache.look(self, x, layer))


class CrossAttention(nn.Module):
    """Queries from one side; keys and values from another, projected once and used as often as needed."""

    def __init__(self, d_model: int, heads: int, d_head: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, heads * d_head)
        self.key_value = nn.Linear(d_model, 2 * heads * d_head)
        self.output = nn.Linear(heads * d_head, d_model)

    def project(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, N, d) of a source (B, N, D)."""
        keys, values = self.key_value(source).chunk(2, dim=-1)
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """What x (B, Q, D) finds at each of G sources: keys and values (G·B, H, N, d) -> (G, B, Q, D)."""
        return self.ask(self.query(x), keys, values, mask=mask)

    def ask(self, query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """As `forward`, with the query (B, Q, H·d) projected already."""
        found = attend_groups(split_heads(query, self.heads), keys, values, mask=mask)
        return self.output(join_heads(found)).unflatten(0, (-1, query.shape[0]))

    def with_weights(
        self, x: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, with the weights (G, B, H, Q, N)."""
        query = repeat_groups(split_heads(self.query(x), self.heads), keys)
        found, weights = attend_with_weights(query, keys, values, mask=mask)
        groups = (-1, x.shape[0])
        return self.output(join_heads(found)).unflatten(0, groups), weights.unflatten(0, groups)
