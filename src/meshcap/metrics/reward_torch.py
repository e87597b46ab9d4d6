"""CIDEr-D for candidates that are on a GPU: nothing leaves the device and nothing waits for it.

On CUDA one Triton kernel does it all (`meshcap.kernels.cider_d`). Elsewhere, and where Triton is missing, the same
comes from `reward_arrays` in torch's operations. Shapes depend on nothing but shapes, so both can be
captured in a CUDA graph once they ran.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy
import torch
from torch import Tensor

from meshcap.kernels import LONGEST_CANDIDATE, can_cider, cider_d
from meshcap.metrics.reward_arrays import cider_arrays, prepare
from meshcap.metrics.reward_index import SPREAD, Rarity, References

Index = TypeVar("Index", References, Rarity)


class DeviceCider:
    """The index of a `CiderReward` on one device, and the scoring there."""

    def __init__(self, references: References, rarity: Rarity, sigma: float, device: torch.device) -> None:
        self.references, self.rarity, self.sigma = _move(references, device), _move(rarity, device), sigma
        room = max(LONGEST_CANDIDATE, references.most, references.longest)
        self._places = torch.arange(room, device=device)
        # As a tensor, because Triton takes plain numbers in single precision.
        self._narrow = torch.tensor([1 / (2 * sigma**2)], dtype=torch.float64, device=device)

    def __call__(self, candidates: Tensor, pictures: Tensor) -> Tensor:
        """CIDEr-D (B, S) in float32 of candidates (B, S, T) for pictures (B,); neither's values are checked."""
        batch, samples, length = candidates.shape
        ids = candidates.reshape(batch * samples, length).contiguous()
        if can_cider(ids):
            found = self._launch(ids, pictures.contiguous(), samples)
        else:
            found = self._arrays(ids, pictures.repeat_interleave(samples, output_size=batch * samples))
        return found.view(batch, samples)

    def _arrays(self, ids: Tensor, pictures: Tensor) -> Tensor:
        known = self.references
        if ids.shape[1] > len(self._places):
            self._places = torch.arange(ids.shape[1], device=ids.device)
        batch = prepare(torch, known, ids.long(), pictures.long(), self._places, known.most, known.longest)
        return cider_arrays(torch, batch, self.rarity, self.sigma).float()

    def _launch(self, ids: Tensor, pictures: Tensor, samples: int) -> Tensor:
        known, rarity = self.references, self.rarity
        return cider_d(
            ids, pictures, known.tokens, known.starts, known.firsts, rarity.norms,
            rarity.entries, rarity.buckets, rarity.idf, self._narrow,
            samples=samples, eos=known.eos, pad=known.pad, spread=SPREAD, bits=rarity.bits, fullest=rarity.fullest,
            count_eos=known.count_eos, n=rarity.n,
        )  # fmt: skip


def _move(index: Index, device: torch.device) -> Index:
    arrays = {field.name: getattr(index, field.name) for field in fields(index)}
    tensors = {
        name: torch.from_numpy(array).to(device) for name, array in arrays.items() if isinstance(array, numpy.ndarray)
    }
    return replace(index, **tensors)  # type: ignore[arg-type]
