"""CIDEr-D for candidates that are on a GPU: nothing leaves the device and nothing waits for it.

On CUDA one Triton kernel does it all. Elsewhere, and where Triton is missing, the same comes from `reward_arrays` in
torch's operations. Shapes depend on nothing but shapes, so both can be captured in a CUDA graph once they ran.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy
import torch
from torch import Tensor

from meshcap.metrics.reward_arrays import cider_arrays, prepare
from meshcap.metrics.reward_index import SPREAD, Rarity, References

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of torch, or a platform without Triton
    triton = None

LONGEST = 128  # words of a candidate that the kernel compares at once

Index = TypeVar("Index", References, Rarity)


class DeviceCider:
    """The index of a `CiderReward` on one device, and the scoring there."""

    def __init__(self, references: References, rarity: Rarity, sigma: float, device: torch.device) -> None:
        self.references, self.rarity, self.sigma = _move(references, device), _move(rarity, device), sigma
        room = max(LONGEST, references.most, references.longest)
        self._places = torch.arange(room, device=device)
        # As a tensor, because Triton takes plain numbers in single precision.
        self._narrow = torch.tensor([1 / (2 * sigma**2)], dtype=torch.float64, device=device)

    def __call__(self, candidates: Tensor, pictures: Tensor) -> Tensor:
        """CIDEr-D (B, S) in float32 of candidates (B, S, T) for pictures (B,); neither's values are checked."""
        batch, samples, length = candidates.shape
        ids = candidates.reshape(batch * samples, length).contiguous()
        if triton is not None and ids.is_cuda and 0 < length <= LONGEST and len(ids):
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
        found = torch.empty(len(ids), dtype=torch.float32, device=ids.device)
        width = max(16, triton.next_power_of_2(ids.shape[1]))
        _cider[(len(ids),)](
            ids, pictures, found, known.tokens, known.starts, known.firsts, rarity.norms,
            rarity.entries, rarity.buckets, rarity.idf, self._narrow,
            samples, ids.shape[1], known.eos, known.pad,
            SPREAD, rarity.bits, rarity.fullest,
            count_eos=known.count_eos, n=rarity.n,
            width=width, block=32, num_warps=max(1, width // 32),
        )  # fmt: skip
        return found


def _move(index: Index, device: torch.device) -> Index:
    arrays = {field.name: getattr(index, field.name) for field in fields(index)}
    tensors = {
        name: torch.from_numpy(array).to(device) for name, array in arrays.items() if isinstance(array, numpy.ndarray)
    }
    return replace(index, **tensors)  # type: ignore[arg-type]


if triton is not None:

    @triton.jit
    def _cider(  # type: ignore[no-untyped-def]
        ids, pictures, found, tokens, starts, firsts, norms, entries, buckets, idf, narrow,
        samples, length, eos, pad, spread, bits, fullest,
        count_eos: tl.constexpr, n: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        # One program a candidate. Words are compared all with all, a tile of `block` words of a reference at a time;
        # shifted by one, two, three words they are simply read again, which finds them in the nearest cache.
        row = tl.program_id(0)
        candidate = ids + row.to(tl.int64) * length
        at, along = tl.arange(0, width), tl.arange(0, block)
        words = tl.load(candidate + at, mask=at < length, other=-2)
        end = tl.min(tl.where((words == pad) | (words == eos), at, length), 0)
        if count_eos:
            end += tl.sum(((at == end) & (words == eos)).to(tl.int32), 0)
        picture = tl.load(pictures + row // samples)
        first, last = tl.load(firsts + picture), tl.load(firsts + picture + 1)
        total = tl.zeros([1], tl.float64)
        key = tl.zeros([width], tl.int64)
        half = tl.full([1], 1, tl.int64) << (bits - 1)
        own_same = (at[:, None] < end) & (at[None, :] < end)
        for k in tl.static_range(n):
            here = tl.load(candidate + at + k, mask=at + k < end, other=-1).to(tl.int64)
            there = tl.load(candidate + at + k, mask=at + k < end, other=-2).to(tl.int64)
            own_same = own_same & (here[:, None] == there[None, :])
            own = tl.sum(own_same.to(tl.int32), 1)  # 0 for grams that would reach beyond the end
            key = (key << 16) | (here + 1)
            spread_key = key * spread
            bucket = (spread_key >> (64 - bits)) + half
            begin, until = tl.load(buckets + bucket), tl.load(buckets + bucket + 1)
            frequency = tl.zeros([width], tl.int64)
            for step in range(fullest):
                inside = begin + step < until
                number = tl.load(entries + begin + step, mask=inside, other=0) ^ (spread_key << bits)
                frequency = tl.where(inside & (number >= 0) & (number < 2 * half), number, frequency)
            weight = tl.load(idf + frequency)
            square = tl.where(own > 0, weight * weight, 0.0)
            norm = tl.sqrt(tl.sum(own * square, 0))
            square = square / tl.maximum(own, 1)
            for caption in range(first, last):
                start = tl.load(starts + caption)
                size = tl.load(starts + caption + 1) - start
                same = tl.zeros([width], tl.int32)
                for base in range(0, size, block):
                    equal = (at[:, None] < end) & (base + along[None, :] < size)
                    for m in tl.static_range(k + 1):
                        left = tl.load(candidate + at + m, mask=at + m < end, other=-1).to(tl.int32)
                        reach = base + along + m
                        right = tl.load(tokens + start + reach, mask=reach < size, other=-2)
                        equal = equal & (left[:, None] == right[None, :])
                    same += tl.sum(equal.to(tl.int32), 1)
                product = tl.sum((tl.minimum(own, same) * same) * square, 0)
                scale = norm * tl.load(norms + caption * n + k)
                cosine = tl.where(scale > 0, product / tl.where(scale > 0, scale, 1.0), 0.0)
                apart = (end - size).to(tl.float64)
                total += cosine * tl.exp(-apart * apart * tl.load(narrow))
        mean = total * 10.0 / (n * (last - first)).to(tl.float64)
        tl.store(found + row + tl.arange(0, 1), mean.to(tl.float32))
