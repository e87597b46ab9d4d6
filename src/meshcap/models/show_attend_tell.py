"""Show, Attend and Tell (Xu et al., 2015): an LSTM that looks at the regions anew for every word.

    e_tn = score(h_{t-1}, x_n)               how well a region answers what was said so far (setting `score`)
    α_t = softmax(e_t)
    z_t = β_t Σ_n α_tn x_n                   soft: the mean under α, or
    z_t = β_t x_n, n drawn from α_t          hard: one region; the likeliest when not training
    β_t = σ(w h_{t-1} + b)                   the gate: how much the picture matters for this word
    h_t = LSTM(y_{t-1}, [h_{t-1}, z_t]),     h_0, c_0 = tanh(W mean(x) + b)
    p(y_t) ∝ exp(W_o (y_{t-1} + W_h h_t + W_z z_t))

What its attention adds to the loss (settings `doubly_stochastic` and `entropy`) is `meshcap.training.losses`.

When not training, hard attention takes the likeliest region: the same in every search and every reading. There its
gradient is that of soft attention (straight-through), so that self-critical training still moves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from meshcap.attention import (
    SCORES,
    HierarchicalAttention,
    State,
    box_groups,
    make_score,
    members,
    sample,
    soft,
    straight_through,
)
from meshcap.errors import MeshcapError
from meshcap.memory import Memory
from meshcap.models.recurrent import (
    Carry,
    Cell,
    Looks,
    RecurrentCaptioner,
    RecurrentConfig,
    for_each,
    mean_region,
)
from meshcap.regions import Regions


@dataclass(frozen=True, kw_only=True)
class ShowAttendTellConfig(RecurrentConfig):
    """Every setting of a ShowAttendTell."""

    attention: Literal["soft", "hard"] = "soft"
    score: Literal["additive", "dot", "scaled", "bilinear"] = "additive"
    doubly_stochastic: float = 0.0
    entropy: float = 0.0  # of hard attention

    def check(self) -> None:
        super().check()
        self.expect_one_of("attention", ("soft", "hard"))
        self.expect_one_of("score", tuple(SCORES))
        self.expect_share_of_loss("doubly_stochastic", "entropy")


class Attended(NamedTuple):
    """What one word attended to."""

    context: Tensor  # (B, W, D)
    looks: Looks  # `words` (B, W, N) and what else a mechanism reports


class ShowAttendTell(RecurrentCaptioner):
    """A recurrent captioner with spatial attention. Other mechanisms build on it."""

    name = "show-attend-tell"
    config_class = ShowAttendTellConfig
    config: ShowAttendTellConfig

    def __init__(self, config: ShowAttendTellConfig, *, d_recalled: int = 0):
        """`d_recalled`: numbers that a subclass has the LSTM recall besides its hidden state and the context."""
        super().__init__(config)
        width = config.d_model
        self.first = nn.Linear(width, 2 * width)
        self.gate = nn.Linear(width, 1)
        self.cell = Cell(width, 2 * width + d_recalled, width)
        self.deep = nn.Linear(2 * width + d_recalled, width)
        self.make_attention()
        self.reset_parameters()

    def make_attention(self) -> None:
        self.score = make_score(self.config.score, self.config.d_model, self.config.d_model)

    def remember(self, x: Tensor, regions: Regions) -> State:
        kept = {"regions": x, "first": self.first(mean_region(x, regions.mask)).tanh()}
        if regions.mask is not None:
            kept["visible"] = regions.mask
        return kept | self.prepare(x, regions)

    def prepare(self, x: Tensor, regions: Regions) -> State:
        """What can be done for `attend` once a picture."""
        return {"prepared": self.score.prepare(x)}

    def begin(self, kept: State, width: int) -> Carry:
        hidden, cell = for_each(kept["first"], width).chunk(2, -1)
        return {"hidden": hidden, "cell": cell.float()}

    def attend(self, query: Tensor, kept: State) -> Attended:
        """Where the state h_{t-1}, query (B, W, D), looks."""
        scores = self.score(query, kept["prepared"])  # (B, W, N)
        visible = kept["visible"][:, None] if "visible" in kept else None
        weights = soft(scores, visible).weights
        if self.config.attention == "soft":
            looks = {"words": weights}
        else:
            chosen, log_prob = (sample if self.training else straight_through)(scores, visible)
            looks = {"words": chosen, "odds": weights, "log_prob": log_prob}
        return Attended(looks["words"].to(kept["regions"].dtype) @ kept["regions"], looks)

    def gated_attend(self, query: Tensor, kept: State) -> Attended:
        """`attend`, of which β passes."""
        context, looks = self.attend(query, kept)
        gate = self.gate(query).sigmoid()  # (B, W, 1)
        return Attended(gate * context, looks | {"gate": gate[..., 0]})

    def advance(self, projected: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        context, looks = self.gated_attend(carry["hidden"], kept)
        hidden, cell = self.cell(projected, torch.cat((carry["hidden"], context), -1), carry["cell"])
        return torch.cat((hidden, context), -1), {"hidden": hidden, "cell": cell}, looks

    def readout(self, x: Tensor, found: Tensor) -> Tensor:
        return self.dropout(x + self.deep(found))


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
    """Hierarchical attention: first where in a part of the picture, then which part; otherwise Show, Attend and Tell.

        α_n = softmax of score(h, x_n) over the regions n of one group     c_g = Σ_{n in g} α_n x_n
        γ_g = softmax of score'(h, c_g) over the groups                    z = β Σ_g γ_g c_g

    - Neighbours make a group: the picture is cut into `groups` × `groups` cells, and a region belongs to the cell that
      holds the middle of its box. Cells without regions get no weight. Where boxes are not read, all regions are one
      group, and this is plain attention.
    - The weight of a region is γ_g α_n, which sums to one over a picture: `words`. The levels are `within` (α, one in
      each group) and `groups` (γ).
    """

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

    def attend(self, query: Tensor, kept: State) -> Attended:
        found = self.deep_attention.attend(
            query, kept["prepared"], kept["regions"], [kept["membership"]], kept.get("visible")
        )
        within, groups = found.levels  # (B, W, N), (B, W, G)
        return Attended(found.context, {"words": found.weights, "within": within, "groups": groups})


NOTED = ("memory", "weights", "reads")  # the state of a `Memory`


@dataclass(frozen=True, kw_only=True)
class NTMConfig(ShowAttendTellConfig):
    """Every setting of an NTM."""

    memory_rows: int = 24
    memory_width: int = 32
    read_heads: int = 1
    write_heads: int = 1

    def check(self) -> None:
        super().check()
        self.expect_at_least(memory_rows=3, memory_width=1, read_heads=1, write_heads=1)


class NTM(ShowAttendTell):
    """A Neural Turing Machine that captions: Show, Attend and Tell with an external memory that it reads and writes.

        z_t = β Σ_n α_n x_n                              soft attention by h_{t-1}
        h_t = LSTM(y_{t-1}, [h_{t-1}, z_t, r_{t-1}])     the controller: word, picture, memory
        M_t, r_t = heads(h_t, M_{t-1})                   erase and add where the writing heads are, then read
        p(y_t) ∝ exp(W_o (y_{t-1} + W [h_t, z_t, r_t]))

    - `meshcap.memory.Memory` is the memory: heads find rows by content and by shifting from where they were.
    - Every caption begins with a blank memory of `memory_rows` rows of `memory_width` numbers.
    - The memory is part of the carry, (B, W, rows, width): a beam search reorders it with its hypotheses.
    """

    name = "ntm"
    config_class = NTMConfig
    config: NTMConfig

    def __init__(self, config: NTMConfig):
        super().__init__(config, d_recalled=config.read_heads * config.memory_width)
        self.memory = Memory(
            config.d_model,
            rows=config.memory_rows,
            row_width=config.memory_width,
            reads=config.read_heads,
            writes=config.write_heads,
        )

    def begin(self, kept: State, width: int) -> Carry:
        carry = super().begin(kept, width)
        blank = self.memory.start(kept["first"].shape[0] * width)  # of any size where this is traced
        return carry | {name: blank[name].unflatten(0, (-1, width)) for name in NOTED}

    def advance(self, projected: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        context, looks = self.gated_attend(carry["hidden"], kept)
        recalled = torch.cat((carry["hidden"], context, carry["reads"]), -1)
        hidden, cell = self.cell(projected, recalled, carry["cell"])
        # The memory knows sequences, not pictures: every hypothesis is one.
        noted = self.memory(hidden.flatten(0, 1), {name: carry[name].flatten(0, 1) for name in NOTED})
        after = {name: noted[name].unflatten(0, hidden.shape[:2]) for name in NOTED}
        reading, writing = after["weights"].split((self.memory.reads, self.memory.writes), dim=2)  # (B, W, heads, rows)
        looks |= {"memory_reads": reading, "memory_writes": writing}
        found = torch.cat((hidden, context, after["reads"]), -1)
        return found, {"hidden": hidden, "cell": cell} | after, looks
