"""The k likeliest words of each row.

`torch.topk` is built for long rows and any k. A beam search asks for a handful out of some ten thousand, at every
step: on a CUDA GPU a small kernel that reads each row once is several times faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    LEAST = tl.constexpr(-3.0e38)
except ImportError:
    triton = None

MOST_WORDS, MOST_KEPT, GROUP = 32_768, 16, 128


def likeliest(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (…, k) of the k greatest of (…, V), greatest first; k is lowered to V."""
    k = min(k, log_probs.shape[-1])
    if triton is None or not log_probs.is_cuda or log_probs.shape[-1] > MOST_WORDS or k > MOST_KEPT:
        values, ids = log_probs.topk(k, -1)
        return values, ids
    rows = log_probs.flatten(0, -2)
    values = rows.new_empty(rows.shape[0], k)
    ids = torch.empty(rows.shape[0], k, dtype=torch.long, device=rows.device)
    _likeliest[(rows.shape[0],)](
        rows, values, ids, rows.stride(0), rows.shape[1],
        k=k, kept=triton.next_power_of_2(k), groups=triton.next_power_of_2(-(-rows.shape[1] // GROUP)), size=GROUP,
        num_warps=8,
    )  # fmt: skip
    return values.view(*log_probs.shape[:-1], k), ids.view(*log_probs.shape[:-1], k)


if triton is not None:

    @triton.jit
    def _likeliest(  # type: ignore[no-untyped-def]
        rows, values, ids, stride, count,
        k: tl.constexpr, kept: tl.constexpr, groups: tl.constexpr, size: tl.constexpr,
    ):  # fmt: skip
        # One program a row. It reads the row once for the greatest word of each group; then, k times, it looks again
        # into the group with the greatest one (by now in cache) and notes what that group has left.
        row = rows + tl.program_id(0).to(tl.int64) * stride
        group, inside, slot = tl.arange(0, groups), tl.arange(0, size), tl.arange(0, kept)
        places = group[:, None] * size + inside[None, :]
        peaks = tl.max(tl.load(row + places, mask=places < count, other=float("-inf")), 1)
        # What is forbidden (-inf) still counts as a word, what lies beyond the row's end does not.
        peaks = tl.where(group * size < count, tl.maximum(peaks, LEAST), float("-inf"))
        chosen = tl.full([kept], -1, tl.int32)
        for i in range(k):
            top = tl.argmax(peaks, 0)
            here = top * size + inside
            left = tl.maximum(tl.load(row + here, mask=here < count, other=float("-inf")), LEAST)
            taken = tl.sum((here[:, None] == chosen[None, :]).to(tl.int32), 1) > 0
            left = tl.where(taken | (here >= count), float("-inf"), left)
            best, place = tl.max(left, 0, return_indices=True)
            word = top * size + place
            tl.store(values + tl.program_id(0) * k + i, tl.where(best <= LEAST, float("-inf"), best))
            tl.store(ids + tl.program_id(0) * k + i, word.to(tl.int64))
            chosen = tl.where(slot == i, word, chosen)
            peaks = tl.where(group == top, tl.max(tl.where(inside == place, float("-inf"), left), 0), peaks)
