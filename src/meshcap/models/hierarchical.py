"""Hierarchical attention: first where in a part of the picture, then which part; otherwise Show, Attend and Tell.

    α_n = softmax of score(h, x_n) over the regions n of one group     c_g = Σ_{n in g} α_n x_n
    γ_g = softmax of score'(h, c_g) over the groups                    z = β Σ_g γ_g c_g

- Neighbours make a group: the picture is cut into `groups` × `groups` cells, and a region belongs to the cell that the
  middle of its box lies in. Cells without regions are never looked at. Where boxes are not read, nothing is known of
  neighbours, all regions are one group, and this is plain attention.
- A region is looked at by γ_g α_n, which sums to one over a picture: `words`. The levels are told apart by `within`
  (α, one in each group) and `groups` (γ).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshcap.attention import HierarchicalAttention, State, box_groups, members
from meshcap.errors import MeshcapError
from meshcap.models.show_attend_tell import Found, ShowAttendTell, ShowAttendTellConfig
from meshcap.regions import Regions


@dataclass(frozen=True, kw_only=True)
class HierarchicalConfig(ShowAttendTellConfig):
    """Every setting of a Hierarchical."""

    groups: int = 3  # along a side

    def check(self) -> None:
        super().check()
        self.expect_at_least(groups=1)
        if self.attention != "soft":
            raise MeshcapError("hierarchical attention takes means of means: attention is soft")


class Hierarchical(ShowAttendTell):
    """Show, Attend and Tell with attention on attention."""

    name = "hierarchical"
    config_class = HierarchicalConfig
    config: HierarchicalConfig

    def make_attention(self) -> None:
        self.deep_attention = HierarchicalAttention(self.config.score, self.config.d_model, self.config.d_model)

    def prepare(self, x: Tensor, regions: Regions) -> State:
        if self.config.boxes and regions.boxes is not None:
            groups = box_groups(regions.boxes.float(), self.config.groups)  # (B, N)
        else:
            groups = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        return {"prepared": self.deep_attention.prepare(x), "membership": members(groups, self.config.groups**2)}

    def look(self, query: Tensor, kept: State) -> Found:
        found = self.deep_attention.look(
            query, kept["prepared"], kept["regions"], [kept["membership"]], kept.get("visible")
        )
        within, groups = found.levels  # (B, W, N), (B, W, G)
        return Found(found.context, {"words": found.weights, "within": within, "groups": groups})
