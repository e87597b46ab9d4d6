"""Associative memories: whole patterns come back from parts of them.

- `Hopfield` is the classic network (Hopfield, 1982): N units of ±1, patterns stored in the connections between them.
- `retrieve` is the modern, continuous one (Ramsauer et al., 2020): patterns are stored as they are, and one step is
  softmax(β q Xᵀ) X: attention, with the stored patterns as keys and values.
- `HopfieldStore` and `HopfieldPooling` are the modern one as layers: the input retrieves from learned patterns, or a
  learned query retrieves from the input.

B cues or pictures, N units, P patterns, D model width, H heads of d numbers.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError

BALANCE = 1e-5  # a smaller field is none: what float32 leaves of a sum that should be zero must not flip a unit


class Hopfield:
    """The classic network: binary units, connections both ways, none to oneself.

        network = Hopfield.store(patterns)           # (P, N) of ±1
        recalled = network.recall(damaged)           # (B, N)

    Hebb's rule, W = XᵀX / N, knows each pattern alone and begins to fail at about 0.138·N random patterns, or at a few
    that are alike. The pseudo-inverse, W = X⁺X, makes any independent patterns stable, however alike.
    """

    def __init__(self, weights: Tensor):
        """`weights` (N, N), symmetric; the diagonal is set to zero, or energy could rise."""
        if weights.dim() != 2 or weights.shape[0] != weights.shape[1]:
            raise MeshcapError(f"the connections have shape {tuple(weights.shape)}, expected (units, units)")
        self.weights = weights.clone().fill_diagonal_(0)

    @classmethod
    def store(cls, patterns: Tensor, rule: Literal["hebb", "pseudo-inverse"] = "hebb") -> Hopfield:
        """A network that remembers patterns (P, N) of ±1.

        Raises:
            MeshcapError: the patterns are not ±1, or the rule is not known.
        """
        if patterns.dim() != 2 or not bool((patterns.abs() == 1).all()):
            raise MeshcapError(f"patterns of shape {tuple(patterns.shape)}: expected (patterns, units), all +1 or -1")
        patterns = patterns.float()
        if rule == "hebb":
            return cls(patterns.T @ patterns / patterns.shape[1])
        if rule == "pseudo-inverse":
            return cls(torch.linalg.pinv(patterns) @ patterns)
        raise MeshcapError(f"there is no rule {rule!r}, expected 'hebb' or 'pseudo-inverse'")

    def energy(self, states: Tensor) -> Tensor:
        """-½ s W sᵀ of states (…, N) -> (…)."""
        states = states.to(self.weights.dtype)
        return -0.5 * (states @ self.weights * states).sum(-1)

    def recall(
        self, cues: Tensor, *, mode: Literal["one-by-one", "at-once"] = "one-by-one", limit: int = 100, seed: int = 0
    ) -> Tensor:
        """From cues (B, N) or (N,) of ±1 to where the network settles, or to where it is after `limit` sweeps.

        `one-by-one` (asynchronous) updates unit after unit in a random order, another in each sweep: energy never
        rises, so it ends. `at-once` (synchronous) may swing between two states for ever. A unit whose inputs are in
        balance stays as it is.
        """
        if cues.shape[-1] != len(self.weights):
            raise MeshcapError(f"cues of {cues.shape[-1]} units, and the network has {len(self.weights)}")
        if mode not in ("one-by-one", "at-once"):
            raise MeshcapError(f"there is no way of recall {mode!r}, expected 'one-by-one' or 'at-once'")
        states = cues.reshape(-1, cues.shape[-1]).to(self.weights.dtype).clone()  # (B, N)
        generator = torch.Generator().manual_seed(seed)
        moving = torch.arange(len(states), device=states.device)  # the cues that have not settled yet
        for _ in range(limit):
            before = states[moving]
            if mode == "at-once":
                after = decided(before @ self.weights, before)
            else:
                after = self._sweep(before.clone(), torch.randperm(states.shape[1], generator=generator))
            states[moving] = after
            moving = moving[(after != before).any(1)]
            if not len(moving):
                break
        return states.view_as(cues).to(cues.dtype)

    def _sweep(self, states: Tensor, order: Tensor) -> Tensor:
        """Every unit once, in this order, in place; states (B, N).

        The fields of all units are kept and corrected for each unit that flips: a unit's turn costs a row of weights
        instead of a product with all of them, and all cues have theirs together.
        """
        fields = states @ self.weights  # (B, N)
        for unit in order.tolist():
            wrong = fields[:, unit] * states[:, unit] < -BALANCE
            if wrong.any():
                flipped = wrong.nonzero()[:, 0]
                new = -states[flipped, unit]
                states[flipped, unit] = new
                fields[flipped] += 2 * new[:, None] * self.weights[unit]
        return states


def decided(fields: Tensor, states: Tensor) -> Tensor:
    """The sign of the field; where there is none, the state as it was."""
    return torch.where(fields.abs() < BALANCE, states, fields.sign())


def retrieve(
    query: Tensor,
    patterns: Tensor,
    beta: float | None = None,
    *,
    values: Tensor | None = None,
    mask: Tensor | None = None,
    steps: int = 1,
) -> Tensor:
    """ξ ← softmax(β ξ Xᵀ) X, `steps` times. The last step may return something else than the patterns.

    Args:
        query: (…, Q, d), patterns: (…, P, d).
        beta: how sharply patterns are separated; without it, 1/√d, as in attention.
        values: (…, P, dᵥ), what the patterns stand for; without it, themselves.
        mask: additive, broadcasting to (…, Q, P): -inf hides a pattern.
        steps: one is enough for patterns that lie well apart.

    Returns:
        (…, Q, d), or (…, Q, dᵥ). Torch's fused attention computes it, in the dtype given.
    """
    if steps < 1:
        raise MeshcapError(f"retrieval in {steps} steps, expected at least 1")
    for _ in range(steps - 1):
        query = F.scaled_dot_product_attention(query, patterns, patterns, attn_mask=mask, scale=beta)
    last = patterns if values is None else values
    return F.scaled_dot_product_attention(query, patterns, last, attn_mask=mask, scale=beta)


def modern_energy(query: Tensor, patterns: Tensor, beta: float | None = None) -> Tensor:
    """-lse(β, X ξ) + ½ ξᵀξ + (log P)/β + ½ max‖x‖²: never negative, and no step of `retrieve` raises it.

    query (…, Q, d), patterns (…, P, d) -> (…, Q), in float32.
    """
    query, patterns = query.float(), patterns.float()
    beta = query.shape[-1] ** -0.5 if beta is None else beta
    found = (beta * query @ patterns.mT).logsumexp(-1) / beta
    longest = patterns.square().sum(-1).amax(-1)
    rest = math.log(patterns.shape[-2]) / beta + 0.5 * longest[..., None]
    return 0.5 * query.square().sum(-1) - found + rest


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(…, N, H·d) -> (…, H, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


class HopfieldStore(nn.Module):
    """Learned patterns, the same for every picture, that regions (or words) retrieve from by association.

    Args:
        d_model: width of what comes in and of what is given back.
        patterns: how many are stored, keys and values each.
        heads: associations made side by side, each with d_model / heads numbers of a pattern.
        beta: None is 1/√d; a number stays what it is; "learned" starts at 1/√d and has a value for each head.
        steps: of retrieval. The state pattern moves towards the stored keys before values are read.
    """

    def __init__(
        self,
        d_model: int,
        patterns: int,
        heads: int = 8,
        *,
        beta: float | Literal["learned"] | None = None,
        steps: int = 1,
    ):
        super().__init__()
        expect_heads(d_model, heads)
        if patterns < 1 or steps < 1:
            raise MeshcapError(f"a store of {patterns} patterns asked in {steps} steps, expected at least 1 of each")
        self.heads, self.steps = heads, steps
        self.query = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.keys = nn.Parameter(torch.empty(patterns, d_model))
        self.values = nn.Parameter(torch.empty(patterns, d_model))
        self.beta = beta if isinstance(beta, float | int) else (d_model // heads) ** -0.5
        self.sharpness = nn.Parameter(torch.zeros(heads)) if beta == "learned" else None  # log(β·√d), so β stays > 0
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Patterns as large as what comes out of a layer norm."""
        nn.init.normal_(self.keys)
        nn.init.normal_(self.values)
        for layer in (self.query, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x (…, N, D) -> what the store associates with it, (…, N, D).

        `mask` (…, N) is true at real regions; the others get zeros.
        """
        found, keys, values = self.ask(x)
        beta = self.beta
        for step in range(self.steps):
            if self.sharpness is not None:
                found = found * self.sharpness.exp().to(found.dtype)[:, None, None]
            found = F.scaled_dot_product_attention(found, keys, values if step == self.steps - 1 else keys, scale=beta)
        return hidden(self.output(found.transpose(-2, -3).flatten(-2)), mask)

    def weights(self, x: Tensor) -> Tensor:
        """Which patterns x (…, N, D) resembles at first: (…, H, N, P), in float32."""
        query, keys, _ = self.ask(x)
        scores = self.beta * (query @ keys.mT).float()
        return (scores if self.sharpness is None else scores * self.sharpness.exp()[:, None, None]).softmax(-1)

    def ask(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (…, H, N, d), stored keys and values (…, H, P, d), all in one dtype."""
        query = split_heads(self.query(x), self.heads)
        shape = (*query.shape[:-2], len(self.keys), query.shape[-1])
        keys, values = (split_heads(one.to(query.dtype), self.heads).expand(shape) for one in (self.keys, self.values))
        return query, keys, values


class HopfieldPooling(nn.Module):
    """A set to a few vectors: learned state patterns retrieve from what comes in, which is stored for the moment.

    Args:
        queries: how many vectors to give back.
        beta: as in `retrieve`.
    """

    def __init__(self, d_model: int, heads: int = 8, *, queries: int = 1, beta: float | None = None):
        super().__init__()
        expect_heads(d_model, heads)
        self.heads, self.beta = heads, beta
        self.queries = nn.Parameter(torch.empty(queries, d_model))
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.queries)
        for layer in (self.key_value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x (B, N, D) -> (B, queries, D); `mask` (B, N) is true at real regions, the others are not stored."""
        keys, values = (split_heads(one, self.heads) for one in self.key_value(x).chunk(2, dim=-1))
        query = split_heads(self.queries.to(keys.dtype), self.heads).expand(len(x), -1, -1, -1)
        visible = None if mask is None else mask[:, None, None]  # torch reads true as: may be looked at
        found = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=self.beta)
        return self.output(found.transpose(-2, -3).flatten(-2))


def expect_heads(d_model: int, heads: int) -> None:
    if heads < 1 or d_model % heads:
        raise MeshcapError(f"{heads} heads do not divide a width of {d_model}")


def hidden(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (…, N, D), with zeros where `mask` (…, N) is false."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0)
