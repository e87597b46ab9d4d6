"""Attention over (key, value) pairs, by any score and any selection, with one head or many.

`KeyValueAttention` is the general mechanism: scores of the query with the keys, a selection, and the values so
weighed. Plain attention is the case keys = values; self-attention the case queries = keys = values.

`MultiHead` asks several such questions in parallel. With the scaled dot product and soft selection it computes what
`meshcap.attention.multi_head` computes, whose `SelfAttention` and `CrossAttention` are that one case made fast for M²:
joint projections, memory slots, a cache of the words said so far. Use those to build a Transformer, and these to
compare ways of looking. Masks differ as well: there additive and prepared by the caller, here True for what is real.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshcap.attention.multi_head import additive_mask, attend, join_heads, split_heads
from meshcap.attention.scores import Score, make_score
from meshcap.attention.select import Select, soft
from meshcap.errors import MeshcapError


class Look(NamedTuple):
    """What a query found, and where."""

    context: Tensor  # (…, Q, D_v)
    weights: Tensor  # (…, Q, N)
    log_prob: Tensor  # (…, Q): of the draw if selection draws, else 0 (`meshcap.attention.select.Selection`)


class KeyValueAttention(nn.Module):
    """Σ w_n · value_n, with w = select(score(query, keys)).

    A mask (True = real) is either (…, N), one for all queries, with an axis less than the keys; or (…, Q, N), one
    for each query, with as many. A query for which nothing is real finds zeros.
    """

    def __init__(self, score: Score, select: Select = soft):
        super().__init__()
        self.score, self.select = score, select

    def prepare(self, keys: Tensor) -> Tensor:
        """What the score can do to keys (…, N, D_k) before there is a query: once a picture, not once a word."""
        return self.score.prepare(keys)

    def look(self, query: Tensor, prepared: Tensor, values: Tensor, mask: Tensor | None = None) -> Look:
        """Query (…, Q, D_q), prepared keys (…, N, ·), values (…, N, D_v)."""
        scores = self.score(query, prepared)
        if values.shape[-2] != scores.shape[-1]:
            raise MeshcapError(f"{values.shape[-2]} values for {scores.shape[-1]} keys, expected one for each")
        weights, log_prob = self.select(scores, None if mask is None else mask_of_scores(mask, scores))
        return Look(weights.to(values.dtype) @ values, weights, log_prob)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Look:
        """`look` for keys (…, N, D_k) that are asked only once."""
        return self.look(query, self.prepare(keys), values, mask)


class MultiHead(nn.Module):
    """Several heads, each with projections and a score of its own, joined by an output projection.

    Args:
        score: a name in `meshcap.attention.SCORES`.
        d_model: width of the queries and of the result; d_source: of the keys and values, `d_model` if None.
        d_head: width of a head, d_model / heads if None.
        select: how each head selects; only `soft` with the scaled score has a fused kernel.
    """

    def __init__(
        self,
        score: str,
        d_model: int,
        heads: int,
        *,
        d_source: int | None = None,
        d_head: int | None = None,
        select: Select = soft,
    ):
        super().__init__()
        if heads < 1 or (d_head is None and d_model % heads):
            raise MeshcapError(f"{d_model} numbers cannot be divided among {heads} heads: give d_head")
        d_head = d_head or d_model // heads
        d_source = d_source or d_model
        self.heads = heads
        self.query = nn.Linear(d_model, heads * d_head)
        self.key = nn.Linear(d_source, heads * d_head)
        self.value = nn.Linear(d_source, heads * d_head)
        self.output = nn.Linear(heads * d_head, d_model)
        self.attention = KeyValueAttention(make_score(score, d_head, d_head, heads=heads), select)
        self.fused = score == "scaled" and select is soft

    def prepare(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, N, D_source) -> (B, H, N, ·) and (B, H, N, d): once a picture."""
        split = split_heads(self.key(keys), self.heads)
        return self.attention.prepare(split), split_heads(self.value(values), self.heads)

    def look(self, query: Tensor, prepared: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Query (B, Q, D), with what `prepare` returned -> (B, Q, D); mask (B, N) or (B, Q, N), True = real."""
        if not self.fused:
            return self.look_openly(query, prepared, values, mask).context
        asked = split_heads(self.query(query), self.heads)  # (B, H, Q, d)
        if mask is None:
            return self.output(join_heads(attend(asked, prepared, values)))
        visible = mask_of_scores(mask, query)[:, None]  # (B, 1, 1 or Q, N)
        nothing = ~visible.any(-1, keepdim=True)
        # What becomes of a row with nothing to see (NaN, zeros) is each kernel's own affair; torch promises nothing. So
        # show it everything, and take that away afterwards.
        found = attend(asked, prepared, values, mask=additive_mask(visible | nothing, asked.dtype))
        return self.output(join_heads(found.masked_fill(nothing, 0)))

    def look_openly(self, query: Tensor, prepared: Tensor, values: Tensor, mask: Tensor | None = None) -> Look:
        """As `look`, with the weights (B, H, Q, N) and the log-probabilities (B, H, Q)."""
        asked = split_heads(self.query(query), self.heads)
        visible = None if mask is None else mask_of_scores(mask, query)[:, None]
        found, weights, log_prob = self.attention.look(asked, prepared, values, visible)
        return Look(self.output(join_heads(found)), weights, log_prob)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Query (B, Q, D), keys and values (B, N, D_source) -> (B, Q, D). Self-attention: three times the same."""
        return self.look(query, *self.prepare(keys, values), mask)

    def openly(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Look:
        """As `forward`, with the weights."""
        return self.look_openly(query, *self.prepare(keys, values), mask)


def mask_of_scores(mask: Tensor, like: Tensor) -> Tensor:
    """A mask (…, N) as (…, 1, N), to be read by every query; one that has the axes of `like` (…, Q, ·) as it is."""
    if mask.dtype != torch.bool or mask.dim() not in (like.dim() - 1, like.dim()):
        raise MeshcapError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool with {like.dim() - 1} axes (for "
            f"all queries) or {like.dim()} (for each), True for what is real"
        )
    return mask.unsqueeze(-2) if mask.dim() == like.dim() - 1 else mask
