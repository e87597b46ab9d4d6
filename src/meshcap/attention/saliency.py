"""Bottom-up attention: some regions stand out by themselves; there is no query.

Everything here takes regions (B, N, D) and a mask (B, N), True = real, or None, and returns a context (B, D) and
weights (B, N). A picture with nothing real in it gives zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError


class MaxPool(nn.Module):
    """Each number of the context is the highest that any region has there.

    The weight of a region is the share of the D numbers that it won (the first of equals wins); the context is not
    the sum of regions so weighed, since every number has a winner of its own.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        real = _real(x, mask)
        highest, winner = x.masked_fill(~real[..., None], float("-inf")).max(1)  # (B, D)
        nothing = ~real.any(1, keepdim=True)
        shares = torch.zeros(x.shape[:2], dtype=torch.float32, device=x.device)
        shares = shares.scatter_add(1, winner, torch.full_like(winner, 1 / x.shape[-1], dtype=torch.float32))
        return highest.masked_fill(nothing, 0), shares.masked_fill(nothing, 0).to(x.dtype)


class Gate(nn.Module):
    """Every region has a gate of its own, g = σ(wᵀx + b), and what passes is summed.

    Args:
        normalised: divide by the sum of the gates, so that the weights sum to one and the context stays as large
            as one region. Otherwise the gates are the weights: nothing, or everything, may pass.
    """

    def __init__(self, d_model: int, *, normalised: bool = True):
        super().__init__()
        self.salience = nn.Linear(d_model, 1)
        self.normalised = normalised

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        gates = _gates(self.salience(x), _real(x, mask))
        return _weighed(x, _shares(gates) if self.normalised else gates)


class WinnerTakeAll(nn.Module):
    """Regions inhibit one another until few are left: iterated lateral inhibition, as in a MAXNET.

    Activities start as those of `Gate`, a = σ(wᵀx + b), as shares of their sum. In each round every region is held
    down by all others, a ← max(0, a - (1 - a) / K) where K regions are still active, and shares are taken again. The
    leader never falls silent, its lead grows with every round (about K + 1 times while all are close), and soon it is
    alone. Equals stay equal.

    Args:
        rounds: 0 is `Gate`. Few leave several regions, graded, which can be trained; once a single one is left its
            weight is 1 whatever the saliences, and they learn nothing more.
    """

    def __init__(self, d_model: int, *, rounds: int = 2):
        super().__init__()
        if rounds < 0:
            raise MeshcapError(f"rounds is {rounds}, expected 0 or more")
        self.salience = nn.Linear(d_model, 1)
        self.rounds = rounds

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        active = _shares(_gates(self.salience(x), _real(x, mask)))  # (B, N)
        for _ in range(self.rounds):
            count = (active > 0).sum(1, keepdim=True).clamp_min(1)
            active = _shares(F.relu(active - (active.sum(1, keepdim=True) - active) / count))
        return _weighed(x, active)


SALIENCIES: dict[str, Callable[[int], nn.Module]] = {
    "max": lambda d_model: MaxPool(),
    "gate": Gate,
    "winner-take-all": WinnerTakeAll,
}


def make_saliency(name: str, d_model: int) -> nn.Module:
    """The bottom-up attention of that name in `SALIENCIES`, with its default settings."""
    if name not in SALIENCIES:
        raise MeshcapError(f"there is no saliency {name!r}, expected one of {', '.join(SALIENCIES)}")
    return SALIENCIES[name](d_model)


def _real(x: Tensor, mask: Tensor | None) -> Tensor:
    if x.dim() != 3:
        raise MeshcapError(f"regions have shape {tuple(x.shape)}, expected (pictures, regions, width)")
    if mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        raise MeshcapError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool of shape {tuple(x.shape[:2])}"
        )
    return mask


def _gates(salience: Tensor, real: Tensor) -> Tensor:
    """Saliences (B, N, 1) -> gates (B, N), float32 or wider: sums of many are to come."""
    wide = torch.promote_types(salience.dtype, torch.float32)
    return salience.squeeze(-1).to(wide).sigmoid().masked_fill(~real, 0)


def _shares(active: Tensor) -> Tensor:
    total = active.sum(1, keepdim=True)
    return active / torch.where(total > 0, total, 1)  # zeros stay zeros, and their gradient finite


def _weighed(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    weights = weights.to(x.dtype)
    return (weights[:, None] @ x).squeeze(1), weights
