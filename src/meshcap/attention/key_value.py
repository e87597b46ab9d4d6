"""Attention by any score and any selection: one head, many heads, or stacked in levels.

- `KeyValueAttention` is the general mechanism: scores of the query with the keys, a selection, and the values so
  weighted. Plain attention is the case keys = values; self-attention the case queries = keys = values.
- `MultiHead` runs several side by side. With the scaled dot product and soft selection it computes what
  `meshcap.attention.multi_head` computes, whose `SelfAttention` and `CrossAttention` are that case made fast for M²:
  joint projections, memory slots, a cache. Use those to build a Transformer, and these to compare mechanisms. Masks
  differ as well: there additive and prepared by the caller, here True for what is real.
- `HierarchicalAttention` attends within groups of regions, then over what each group gave, to any depth:

    regions (B, N, D) ──within each group──▶ groups (B, Q, G, D) ──within each group of these──▶ … ──▶ context (B, Q, D)

  A grouping is a list of memberships, one for each level below the top, bool (G, N) or (B, G, N) for pictures that are
  grouped differently: row g says which of the N items of that level make up group g. `members` turns group numbers
  into one, `grid_groups` and `box_groups` give such numbers. The top level needs none: it attends over what is left.
  Every level only takes weighted means, so the context is a weighted mean of the regions too; its weights, the product
  along each region's path, are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from meshcap.attention.multi_head import additive_mask, attend, join_heads, split_heads
from meshcap.attention.scores import AttentionScore, make_score
from meshcap.attention.select import Select, soft
from meshcap.errors import MeshcapError


class AttentionOutput(NamedTuple):
    """What a query found, and where."""

    context: Tensor  # (…, Q, D_v)
    weights: Tensor  # (…, Q, N)
    log_prob: Tensor  # (…, Q): of the draw if selection draws, else 0 (`meshcap.attention.select.Selection`)


class KeyValueAttention(nn.Module):
    """Σ w_n · value_n, with w = select(score(query, keys)).

    A mask (True = real) is either (…, N), one for all queries, with an axis less than the keys; or (…, Q, N), one
    for each query, with as many. A query for which nothing is real finds zeros.
    """

    def __init__(self, score: AttentionScore, select: Select = soft):
        super().__init__()
        self.score, self.select = score, select

    def prepare(self, keys: Tensor) -> Tensor:
        """What the score can do to keys (…, N, D_k) before there is a query: once a picture, not once a word."""
        return self.score.prepare(keys)

    def attend(self, query: Tensor, prepared: Tensor, values: Tensor, mask: Tensor | None = None) -> AttentionOutput:
        """Query (…, Q, D_q), prepared keys (…, N, ·), values (…, N, D_v)."""
        scores = self.score(query, prepared)
        if values.shape[-2] != scores.shape[-1]:
            raise MeshcapError(f"{values.shape[-2]} values for {scores.shape[-1]} keys, expected one for each")
        weights, log_prob = self.select(scores, None if mask is None else mask_of_scores(mask, scores))
        return AttentionOutput(weights.to(values.dtype) @ values, weights, log_prob)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> AttentionOutput:
        """`attend` for keys (…, N, D_k) that are used only once."""
        return self.attend(query, self.prepare(keys), values, mask)


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

    def attend(self, query: Tensor, prepared: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Query (B, Q, D), with what `prepare` returned -> (B, Q, D); mask (B, N) or (B, Q, N), True = real."""
        if not self.fused:
            return self.attend_with_weights(query, prepared, values, mask).context
        queries = split_heads(self.query(query), self.heads)  # (B, H, Q, d)
        if mask is None:
            return self.output(join_heads(attend(queries, prepared, values)))
        visible = mask_of_scores(mask, query)[:, None]  # (B, 1, 1 or Q, N)
        nothing = ~visible.any(-1, keepdim=True)
        # What becomes of a row with nothing to see (NaN, zeros) is each kernel's own affair; torch promises nothing. So
        # show it everything, and take that away afterwards.
        found = attend(queries, prepared, values, mask=additive_mask(visible | nothing, queries.dtype))
        return self.output(join_heads(found.masked_fill(nothing, 0)))

    def attend_with_weights(
        self, query: Tensor, prepared: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> AttentionOutput:
        """As `attend`, with the weights (B, H, Q, N) and the log-probabilities (B, H, Q)."""
        queries = split_heads(self.query(query), self.heads)
        visible = None if mask is None else mask_of_scores(mask, query)[:, None]
        found, weights, log_prob = self.attention.attend(queries, prepared, values, visible)
        return AttentionOutput(self.output(join_heads(found)), weights, log_prob)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Query (B, Q, D), keys and values (B, N, D_source) -> (B, Q, D). Self-attention: three times the same."""
        return self.attend(query, *self.prepare(keys, values), mask)

    def with_weights(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> AttentionOutput:
        """As `forward`, with the weights."""
        return self.attend_with_weights(query, *self.prepare(keys, values), mask)


def mask_of_scores(mask: Tensor, like: Tensor) -> Tensor:
    """A mask (…, N) as (…, 1, N), to be read by every query; one that has the axes of `like` (…, Q, ·) as it is."""
    if mask.dtype != torch.bool or mask.dim() not in (like.dim() - 1, like.dim()):
        raise MeshcapError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool with {like.dim() - 1} axes (for "
            f"all queries) or {like.dim()} (for each), True for what is real"
        )
    return mask.unsqueeze(-2) if mask.dim() == like.dim() - 1 else mask


class HierarchicalOutput(NamedTuple):
    """What a query found, and where, level by level."""

    context: Tensor  # (B, Q, D)
    weights: Tensor  # (B, Q, N) over regions: the product along the path; sums to one
    levels: list[Tensor]  # (B, Q, N_level) each: the weight of an item in its group; sums to one in every group


class HierarchicalAttention(nn.Module):
    """Soft attention with a score of its own at each of `depth` levels.

    Args:
        score: a name in `meshcap.attention.SCORES`.
        d_query, d_model: widths of queries and regions; d_hidden as in `meshcap.attention.AttentionScore`.
        depth: levels, the top included: 1 is plain attention, 2 takes one membership, 3 takes two.
    """

    def __init__(self, score: str, d_query: int, d_model: int, d_hidden: int | None = None, *, depth: int = 2):
        super().__init__()
        if depth < 1:
            raise MeshcapError(f"depth is {depth}, expected at least 1")
        self.scores = nn.ModuleList(make_score(score, d_query, d_model, d_hidden) for _ in range(depth))

    def score(self, level: int) -> AttentionScore:
        return cast(AttentionScore, self.scores[level])

    def prepare(self, x: Tensor) -> Tensor:
        """Regions (B, N, D) as the lowest score wants them, (B, N, ·): once a picture."""
        return self.score(0).prepare(x)

    def attend(
        self, query: Tensor, prepared: Tensor, x: Tensor, grouping: Sequence[Tensor], mask: Tensor | None = None
    ) -> HierarchicalOutput:
        """Query (B, Q, D_q), prepared and plain regions (B, N, ·), mask (B, N) with True = real.

        What has nothing real in it, a group or a picture, gets a weight of zero.
        """
        if len(grouping) != len(self.scores) - 1:
            raise MeshcapError(
                f"{len(grouping)} memberships for {len(self.scores)} levels, expected one less than levels"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            raise MeshcapError(
                f"mask is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool of shape {tuple(x.shape[:2])}"
            )
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask  # (B, N)
        queries = query[..., None, :]  # (B, Q, 1, D_q): above the lowest level, every query has items of its own
        scores = self.score(0)(query, prepared)  # (B, Q, N)
        found, path, levels = x, None, []
        for level in range(len(self.scores)):
            if level:
                score = self.score(level)
                scores = score(queries, score.prepare(found)).squeeze(-2)
            belongs = _visible(grouping, level, real)  # (B, G, N)
            weights = soft(scores[:, :, None], belongs[:, None]).weights  # (B, Q, G, N), each row over one group
            found = _gather(weights, found)  # (B, Q, G, D)
            path = weights if path is None else weights @ path  # (B, Q, G, regions)
            levels.append(weights.sum(2))  # an item is in one group: the others' rows have zeros there
            real = belongs.any(-1)
        assert path is not None
        return HierarchicalOutput(found.squeeze(2), path.squeeze(2), levels)

    def forward(
        self, query: Tensor, x: Tensor, grouping: Sequence[Tensor], mask: Tensor | None = None
    ) -> HierarchicalOutput:
        """`attend` at regions (B, N, D) that are used only once."""
        return self.attend(query, self.prepare(x), x, grouping, mask)


def members(groups: Tensor, count: int | None = None) -> Tensor:
    """Group numbers (N,) or (B, N) as a membership (G, N) or (B, G, N).

    Args:
        count: how many groups there are; as many as the highest number says if None. Groups may be empty.
    """
    if groups.dtype != torch.long or groups.dim() not in (1, 2):
        raise MeshcapError(
            f"group numbers are {groups.dtype} of shape {tuple(groups.shape)}, expected torch.long of shape "
            "(items,) or (pictures, items)"
        )
    numbers = torch.arange(int(groups.max()) + 1 if count is None else count, device=groups.device)
    return groups[..., None, :] == numbers[:, None]


def grid_groups(rows: int, columns: int, size: int) -> Tensor:
    """Group numbers (rows · columns,) of grid cells, row by row, in blocks of size × size (smaller at the far edges).

    The blocks are a grid again, of ⌈rows / size⌉ × ⌈columns / size⌉, to be grouped in the same way.
    """
    if min(rows, columns, size) < 1:
        raise MeshcapError(f"a grid of {rows} × {columns} in blocks of {size}, expected at least 1 of each")
    down, across = torch.arange(rows) // size, torch.arange(columns) // size
    return (down[:, None] * -(-columns // size) + across).flatten()


def box_groups(boxes: Tensor, size: int) -> Tensor:
    """Group numbers (B, N) of boxes (B, N, 4), x1 y1 x2 y2 in 0-1: which cell of a size × size grid has the centre."""
    x, y = ((boxes[..., :2] + boxes[..., 2:]) / 2 * size).long().clamp(0, size - 1).unbind(-1)
    return y * size + x


def _visible(grouping: Sequence[Tensor], level: int, real: Tensor) -> Tensor:
    """Which items (B, N) of a level are real members of which of its groups: (B, G, N)."""
    if level == len(grouping):
        return real[:, None]  # the top: all in one
    belongs = grouping[level]
    if belongs.dtype != torch.bool or belongs.dim() not in (2, 3) or belongs.shape[-1] != real.shape[-1]:
        raise MeshcapError(
            f"membership {level} is {belongs.dtype} of shape {tuple(belongs.shape)}, expected torch.bool of shape "
            f"(groups, {real.shape[-1]}), or one for each picture; see `members`"
        )
    return belongs & real[:, None]


def _gather(weights: Tensor, items: Tensor) -> Tensor:
    """Σ weights (B, Q, G, N) · items, which are (B, N, D) at the lowest level and (B, Q, N, D) above."""
    weights = weights.to(items.dtype)
    if items.dim() == 4:
        return weights @ items
    return (weights.flatten(1, 2) @ items).unflatten(1, weights.shape[1:3])  # no copy of the regions for each query
