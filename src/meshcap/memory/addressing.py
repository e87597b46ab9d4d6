"""How a Turing machine's heads find their rows (Graves, Wayne and Danihelka, 2014, section 3.3): four small steps.

    content      which rows look like the key
    interpolate  those, or where the head was before
    shift        and from there a little forward or back, round the end to the beginning
    sharpen      without the blur that shifting leaves behind

All of it in float32, whatever the rest computes in: a weighting is shifted and sharpened hundreds of times in a row.
B sequences, H heads, M rows of W numbers, S = 2·reach + 1 shifts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-16  # below the square of a norm that means anything
FAINT = 1e-16  # a weight that counts as none, and still has a logarithm


@dataclass
class Address:
    """What a controller tells its heads. Each is already in its range: see `meshcap.memory.turing.Memory.address`."""

    key: Tensor  # (B, H, W)
    strength: Tensor  # (B, H, 1), β ≥ 0
    gate: Tensor  # (B, H, 1), g in 0–1: 1 is content alone, 0 is the place before
    shifts: Tensor  # (B, H, S), a distribution over -reach … reach
    sharpness: Tensor  # (B, H, 1), γ ≥ 1


def find(address: Address, memory: Tensor, before: Tensor) -> Tensor:
    """Where all heads look now: memory (B, M, W) and the weights (B, H, M) of a step ago -> weights (B, H, M)."""
    similar = content(memory, address.key, address.strength)
    moved = shift(interpolate(similar, before, address.gate), address.shifts)
    return sharpen(moved, address.sharpness)


def content(memory: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    """softmax(β · cosine(key, row)) over rows: memory (B, M, W), key (B, H, W), strength (B, H, 1) -> (B, H, M)."""
    # The strength goes into the key, which is small, and the norms of the rows come after the product, for rows are
    # many: no tensor here is larger than the memory itself.
    key = key * (strength * (key.square().sum(-1, keepdim=True) + TINY).rsqrt())
    shrink = (memory.square().sum(-1) + TINY).rsqrt()  # (B, M), 1 / norm
    return (key @ memory.mT * shrink[:, None]).softmax(-1)


def interpolate(similar: Tensor, before: Tensor, gate: Tensor) -> Tensor:
    """g · content + (1 - g) · before."""
    return torch.lerp(before, similar, gate)


def shift(weights: Tensor, shifts: Tensor) -> Tensor:
    """Circular convolution: row i gets Σ shifts[s] · weights[i - s], s from -reach to reach; (B, H, M) -> the same."""
    reach = shifts.shape[-1] // 2
    parts = shifts.split(1, dim=-1)
    moved = weights * parts[reach]
    for by in range(1, reach + 1):
        moved = torch.addcmul(moved, weights.roll(by, -1), parts[reach + by])
        moved = torch.addcmul(moved, weights.roll(-by, -1), parts[reach - by])
    return moved


def sharpen(weights: Tensor, sharpness: Tensor) -> Tensor:
    """weights ** γ, brought back to a sum of 1.

    As softmax(γ · log weights), the same number: a power of a small weight may well be zero in float32, and a sum of
    zeros cannot be divided by.
    """
    return (weights.clamp_min(FAINT).log() * sharpness).softmax(-1)
