"""A Transformer with modern Hopfield retrieval in the encoder (Ramsauer et al., 2020).

    ξ = W_q x                                        the region as a cue, for each head
    ξ ← softmax(β ξ Kᵀ) K   (steps - 1 times)        nearer to what is stored
    m(x) = W_o softmax(β ξ Kᵀ) V                     what is associated with it
    layer: LN(x + self-attention(x)), LN(x + m(x)), LN(x + feed-forward(x))

- K and V are `patterns` learned vectors of each layer, the same for every picture. M²'s slots stand among the regions'
  keys, and a region divides its attention between both; here a region asks the store in a question of its own, and
  always gets an answer.
- `beta` says how sharply patterns are separated: null is 1/√d, a number is fixed, "learned" is one for each head.
- `self_attention=False` leaves the store alone: a region then knows itself and the patterns, and no other region.
- The decoder is the plain Transformer's, which looks at the last layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from meshcap.attention import SelfAttention
from meshcap.errors import MeshcapError
from meshcap.memory import HopfieldStore
from meshcap.models.layers import Norm
from meshcap.models.m2 import M2, FeedForward, Trace, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class HopfieldConfig(TransformerConfig):
    """Every setting of a HopfieldCaptioner."""

    patterns: int = 64
    beta: float | Literal["learned"] | None = None
    retrieval_steps: int = 1
    self_attention: bool = True

    def check(self) -> None:
        super().check()
        self.expect_at_least(patterns=1, retrieval_steps=1)
        number = isinstance(self.beta, int | float) and not isinstance(self.beta, bool) and 0 < self.beta < float("inf")
        if not (number or self.beta in (None, "learned")):
            raise MeshcapError(f"beta is {self.beta!r}, expected a number above 0, 'learned' or null for 1/√d")
        if not isinstance(self.self_attention, bool):
            raise MeshcapError(f"self_attention is {self.self_attention!r}, expected true or false")
        if self.d_model % self.heads:
            raise MeshcapError(f"d_model is {self.d_model}, expected a multiple of heads = {self.heads}")


class HopfieldLayer(nn.Module):
    """Self-attention over regions, retrieval from the stored patterns, a feed-forward."""

    def __init__(self, config: HopfieldConfig):
        super().__init__()
        self.attention, self.attention_norm = None, None
        if config.self_attention:
            self.attention = SelfAttention(config.d_model, config.heads, config.head_width)
            self.attention_norm = Norm(config.d_model)
        self.store = HopfieldStore(
            config.d_model, config.patterns, config.heads, beta=config.beta, steps=config.retrieval_steps
        )
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor | None, trace: Trace | None = None) -> Tensor:
        """x (B, N, D), mask additive."""
        if self.attention is not None and self.attention_norm is not None:
            x = self.attention_norm(x + self.dropout(self.attention(x, mask=mask)))
        if trace is not None:
            trace.setdefault("patterns", []).append(self.store.weights(x).mean(1))  # (B, N, P)
        return self.feed_forward(self.norm(x + self.dropout(self.store(x))))


class HopfieldCaptioner(M2):
    """A Transformer with a store of patterns in every encoder layer."""

    name = "hopfield"
    config_class = HopfieldConfig
    config: HopfieldConfig
    encoder_layer = HopfieldLayer
