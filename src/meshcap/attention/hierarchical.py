"""Attention stacked on attention: within groups of regions, then over what was found in each group, to any depth.

    regions (B, N, D) ──within each group──▶ groups (B, Q, G, D) ──within each group of these──▶ … ──▶ context (B, Q, D)

A grouping is a list of memberships, one for each level below the top, bool (G, N) or (B, G, N) for pictures that are
grouped differently: row g says which of the N items of that level make up group g. `members` turns a list of group
numbers into one, `grid_groups` and `box_groups` give such numbers. The top level needs none: it attends over whatever
is left. With no membership at all this is plain attention.

Every level only takes weighted means, so the context is a weighted mean of the regions too. Its weights, the product
along each region's path, are returned: they tell where a word looked just as those of a flat attention do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from meshcap.attention.scores import Score, make_score
from meshcap.attention.select import soft
from meshcap.errors import MeshcapError


class DeepLook(NamedTuple):
    """What a query found, and where, level by level."""

    context: Tensor  # (B, Q, D)
    weights: Tensor  # (B, Q, N) over regions: the product along the path; sums to one
    levels: list[Tensor]  # (B, Q, N_level) each: the weight of an item in its group; sums to one in every group


class HierarchicalAttention(nn.Module):
    """Soft attention with a score of its own at each of `depth` levels.

    Args:
        score: a name in `meshcap.attention.SCORES`.
        d_query, d_model: widths of queries and regions; d_hidden as in `meshcap.attention.Score`.
        depth: levels, the top included: 1 is plain attention, 2 takes one membership, 3 takes two.
    """

    def __init__(self, score: str, d_query: int, d_model: int, d_hidden: int | None = None, *, depth: int = 2):
        super().__init__()
        if depth < 1:
            raise MeshcapError(f"depth is {depth}, expected at least 1")
        self.scores = nn.ModuleList(make_score(score, d_query, d_model, d_hidden) for _ in range(depth))

    def score(self, level: int) -> Score:
        return cast(Score, self.scores[level])

    def prepare(self, x: Tensor) -> Tensor:
        """Regions (B, N, D) as the lowest score wants them, (B, N, ·): once a picture."""
        return self.score(0).prepare(x)

    def look(
        self, query: Tensor, prepared: Tensor, x: Tensor, grouping: Sequence[Tensor], mask: Tensor | None = None
    ) -> DeepLook:
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
        asked = query[..., None, :]  # (B, Q, 1, D_q): above the lowest level, every query has items of its own
        scores = self.score(0)(query, prepared)  # (B, Q, N)
        found, path, levels = x, None, []
        for level in range(len(self.scores)):
            if level:
                score = self.score(level)
                scores = score(asked, score.prepare(found)).squeeze(-2)
            belongs = _visible(grouping, level, real)  # (B, G, N)
            weights = soft(scores[:, :, None], belongs[:, None]).weights  # (B, Q, G, N), each row over one group
            found = _gather(weights, found)  # (B, Q, G, D)
            path = weights if path is None else weights @ path  # (B, Q, G, regions)
            levels.append(weights.sum(2))  # an item is in one group: the others' rows have zeros there
            real = belongs.any(-1)
        assert path is not None
        return DeepLook(found.squeeze(2), path.squeeze(2), levels)

    def forward(self, query: Tensor, x: Tensor, grouping: Sequence[Tensor], mask: Tensor | None = None) -> DeepLook:
        """`look` at regions (B, N, D) that are asked only once."""
        return self.look(query, self.prepare(x), x, grouping, mask)


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
