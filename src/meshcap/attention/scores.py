"""How well a query and a key match: additive, dot, scaled dot and bilinear scores.

All speak the same way. `prepare(keys)` does whatever needs the keys alone, once a picture; `score(query, prepared)` is
then cheap enough for every decoding step:

    prepared = score.prepare(keys)    # keys (…, N, D_k)
    scores = score(query, prepared)   # query (…, Q, D_q) -> (…, Q, N)

The query always has its axis Q, as in a matrix product: a recurrent decoder asks with Q = 1 (or one query for each
hypothesis), never with a bare (B, D). The leading axes broadcast. Scores keep the dtype of their inputs; whoever
turns them into weights (`meshcap.attention.select`) works in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError


class AttentionScore(nn.Module):
    """What all scores share: the widths, and a look at what comes in.

    Args:
        d_query, d_key: widths of the queries and of the keys.
        d_hidden: width in which an additive score compares them, `d_query` if None; the others have no use for it.
        heads: give each of so many heads parameters of its own; queries and keys are then (…, heads, ·, ·).
    """

    def __init__(self, d_query: int, d_key: int, d_hidden: int | None = None, heads: int | None = None):
        super().__init__()
        self.d_query, self.d_key = d_query, d_key
        self.d_hidden = d_query if d_hidden is None else d_hidden
        self.each_head = () if heads is None else (heads,)
        sizes = {"d_query": d_query, "d_key": d_key, "d_hidden": self.d_hidden, "heads": 1 if heads is None else heads}
        for name, size in sizes.items():
            if size < 1:
                raise MeshcapError(f"{name} is {size}, expected at least 1")

    def prepare(self, keys: Tensor) -> Tensor:
        """Keys (…, N, D_k) as `forward` wants them, (…, N, ·): all that can be done before there is a query."""
        if keys.dim() < 2 or keys.shape[-1] != self.d_key:
            raise MeshcapError(f"keys have shape {tuple(keys.shape)}, expected (…, keys, {self.d_key})")
        return keys

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Scores (…, Q, N) of a query (…, Q, D_q) with prepared keys (…, N, ·)."""
        raise NotImplementedError

    def check(self, query: Tensor, prepared: Tensor) -> None:
        # Without the check of axes, (B, D) would pass for B queries of one picture, for all pictures.
        if query.shape[-1] != self.d_query or query.dim() != prepared.dim():
            raise MeshcapError(
                f"the query has shape {tuple(query.shape)} for keys of shape {tuple(prepared.shape)}, expected "
                f"(…, queries, {self.d_query}) with as many axes as the keys"
            )

    def extra_repr(self) -> str:
        return f"d_query={self.d_query}, d_key={self.d_key}"


class Additive(AttentionScore):
    """vᵀ tanh(W x + U q + b), of Bahdanau et al. (2015): a small network compares, so widths may differ.

    Needs (…, Q, N, d_hidden) numbers at once, where the others need no more than their result.
    """

    def __init__(self, d_query: int, d_key: int, d_hidden: int | None = None, heads: int | None = None):
        super().__init__(d_query, d_key, d_hidden, heads)
        self.key = nn.Parameter(torch.empty(*self.each_head, d_key, self.d_hidden))
        self.query = nn.Parameter(torch.empty(*self.each_head, d_query, self.d_hidden))
        self.bias = nn.Parameter(torch.empty(*self.each_head, 1, self.d_hidden))
        # A head's v must not be taken for a query's: (heads, 1, d_hidden, 1) against (…, heads, Q, N, d_hidden).
        self.v = nn.Parameter(torch.empty(*((*self.each_head, 1) if heads else ()), self.d_hidden, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight, inputs in ((self.key, self.d_key), (self.query, self.d_query), (self.v, self.d_hidden)):
            nn.init.normal_(weight, std=inputs**-0.5)  # keeps a variance of 1 at 1, before the tanh and after v
        nn.init.zeros_(self.bias)

    def prepare(self, keys: Tensor) -> Tensor:
        """(…, N, D_k) -> (…, N, d_hidden)."""
        return super().prepare(keys) @ self.key + self.bias

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        self.check(query, prepared)
        hidden_query = query @ self.query  # (…, Q, d_hidden)
        compared = torch.tanh(hidden_query[..., :, None, :] + prepared[..., None, :, :])  # (…, Q, N, d_hidden)
        return (compared @ self.v).squeeze(-1)


class Dot(AttentionScore):
    """xᵀ q: no parameters, equal widths. Its variance grows with the width (docs/attention.md), see `ScaledDot`."""

    def __init__(self, d_query: int, d_key: int, d_hidden: int | None = None, heads: int | None = None):
        super().__init__(d_query, d_key, d_hidden, heads)
        if d_query != d_key:
            raise MeshcapError(
                f"a dot product needs queries and keys of one width, and they have {d_query} and {d_key}: "
                "project one of them, or use the additive or bilinear score"
            )

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        self.check(query, prepared)
        return query @ prepared.transpose(-1, -2)


class ScaledDot(Dot):
    """xᵀ q / √D, of the Transformer: numbers of variance 1 give scores of variance 1, whatever the width."""

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return super().forward(query * self.d_query**-0.5, prepared)  # scaled first: half precision overflows later


class Bilinear(AttentionScore):
    """xᵀ W q, of Luong et al. (2015): a learned similarity. With W = AᵀB it is the dot product of A x and B q."""

    def __init__(self, d_query: int, d_key: int, d_hidden: int | None = None, heads: int | None = None):
        super().__init__(d_query, d_key, d_hidden, heads)
        self.weight = nn.Parameter(torch.empty(*self.each_head, d_key, d_query))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # D_k·D_q products make one score: with this spread its variance starts at 1, like a scaled dot product's.
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.d_key * self.d_query))

    def prepare(self, keys: Tensor) -> Tensor:
        """(…, N, D_k) -> (…, N, D_q): what remains is a dot product."""
        return super().prepare(keys) @ self.weight

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        self.check(query, prepared)
        return query @ prepared.transpose(-1, -2)


SCORES: dict[str, type[AttentionScore]] = {"additive": Additive, "dot": Dot, "scaled": ScaledDot, "bilinear": Bilinear}


def make_score(
    name: str, d_query: int, d_key: int, d_hidden: int | None = None, *, heads: int | None = None
) -> AttentionScore:
    """The score of that name in `SCORES`; the other arguments as in `AttentionScore`."""
    if name not in SCORES:
        raise MeshcapError(f"there is no score {name!r}, expected one of {', '.join(SCORES)}")
    return SCORES[name](d_query, d_key, d_hidden, heads)
