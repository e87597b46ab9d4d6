"""Attention of a few queries to one picture's keys, on a CUDA GPU.

Decoding asks with a handful of queries (one for each hypothesis) where training asks with hundreds. The general
kernels work in tiles of 64 or 128 queries and leave most of a tile idle; this one reads each key and value once and
does little else. Where it does not apply (`fits` says so) torch's own kernel is used instead, with the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of torch, or a platform without Triton
    triton = None


def fits(query: Tensor, keys: Tensor) -> bool:
    """Half precision on a CUDA GPU, no gradient wanted, few queries with heads of a plain size."""
    return (
        triton is not None
        and query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and not torch.is_grad_enabled()
        and query.shape[-2] <= 64
        and query.shape[-1] in (16, 32, 64, 128)
        and keys.stride(-1) == 1
    )


def attend_few(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, used: Tensor | None = None
) -> Tensor:
    """softmax(QKᵀ/√d)V for query (B, H, Q, d) and keys, values (G·B, H, N, d): each group of B is asked the same.

    Args:
        mask: additive, broadcastable to (G·B, 1, Q, N), or (B, 1, Q, N) for every group.
        used: a tensor of one number; keys from there on are hidden by the mask and need not be read.

    Returns:
        (G·B, H, Q, d), laid out so that joining the heads copies nothing.
    """
    batch, heads, count, width = keys.shape
    queries = query.shape[-2]
    found = query.new_empty(batch, queries, heads, width).transpose(1, 2)
    tile = max(16, triton.next_power_of_2(queries))
    seen = query if mask is None else mask.expand(-1, 1, queries, count)
    _attend_few[(batch * heads,)](
        query, keys, values, seen, keys if used is None else used, found,
        *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *found.stride()[:3],
        seen.stride(0), seen.stride(2), seen.stride(3),
        heads, queries, count, query.shape[0], 1 if mask is None else mask.shape[0],
        tile=tile, block=64, d=width, scale=width**-0.5, masked=mask is not None, limited=used is not None, num_warps=4,
    )  # fmt: skip
    return found


if triton is not None:

    @triton.jit
    def _attend_few(  # type: ignore[no-untyped-def]
        query, keys, values, mask, used, found,
        q_b, q_h, q_q, k_b, k_h, k_n, v_b, v_h, v_n, f_b, f_h, f_q, m_b, m_q, m_n,
        heads, queries, count, query_batch, mask_batch,
        tile: tl.constexpr, block: tl.constexpr, d: tl.constexpr, scale: tl.constexpr,
        masked: tl.constexpr, limited: tl.constexpr,
    ):  # fmt: skip
        # One program for each head of each picture (and level). Softmax goes along the keys block by block.
        b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
        rows, columns, places = tl.arange(0, tile), tl.arange(0, d), tl.arange(0, block)
        own = rows[:, None] < queries
        q = tl.load(
            query + (b % query_batch) * q_b + h * q_h + rows[:, None] * q_q + columns[None, :], mask=own, other=0.0
        )
        highest = tl.full([tile], float("-inf"), tl.float32)
        total = tl.zeros([tile], tl.float32)
        result = tl.zeros([tile, d], tl.float32)
        if limited:
            count = tl.minimum(count, tl.load(used).to(tl.int32))
        for start in range(0, count, block):
            n = start + places
            here = n[:, None] < count
            k = tl.load(keys + b * k_b + h * k_h + n[:, None] * k_n + columns[None, :], mask=here, other=0.0)
            v = tl.load(values + b * v_b + h * v_h + n[:, None] * v_n + columns[None, :], mask=here, other=0.0)
            scores = tl.dot(q, tl.trans(k)) * scale
            if masked:
                at = mask + (b % mask_batch) * m_b + rows[:, None] * m_q + n[None, :] * m_n
                scores += tl.load(at, mask=own & (n[None, :] < count), other=0.0).to(tl.float32)
            scores = tl.where(n[None, :] < count, scores, float("-inf"))
            now = tl.maximum(highest, tl.max(scores, 1))
            base = tl.where(now == float("-inf"), 0.0, now)  # nothing visible so far: exp(-inf) is still 0
            shrink = tl.exp(highest - base)
            weights = tl.exp(scores - base[:, None])
            total = total * shrink + tl.sum(weights, 1)
            result = result * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
            highest = now
        result = result / total[:, None]
        tl.store(found + b * f_b + h * f_h + rows[:, None] * f_q + columns[None, :], result.to(q.dtype), mask=own)
