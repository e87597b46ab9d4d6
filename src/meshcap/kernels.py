"""Triton kernels: what decoding on a CUDA GPU spends its time on, each in one pass over its data.

    decode_attention   attention of a few queries, one for each hypothesis
    log_softmax_rows   log-softmax in float32 of half-precision logits
    top_k_rows         the k greatest of each row

Each has a twin in plain torch that is used where the kernel does not apply, and gives the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    LEAST = tl.constexpr(-3.0e38)
except ImportError:  # no CUDA build of torch, or a platform without Triton
    triton = None

MOST_WORDS, MOST_KEPT, GROUP = 32_768, 16, 128  # columns and results of `top_k_rows`, and columns it reads together


def can_decode_attention(query: Tensor, keys: Tensor) -> bool:
    """Whether `decode_attention` applies: half precision on CUDA, no gradient, few queries, heads of a usual width."""
    return (
        triton is not None
        and query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and not torch.is_grad_enabled()
        and query.shape[-2] <= 64
        and query.shape[-1] in (16, 32, 64, 128)
        and keys.stride(-1) == 1
    )


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, used: Tensor | None = None
) -> Tensor:
    """softmax(QKᵀ/√d)V for query (B, H, Q, d) and keys, values (G·B, H, N, d): each group of B is asked the same.

    Decoding has a handful of queries where training has hundreds. General kernels work in tiles of 64 or 128 queries
    and leave most of a tile idle; this one reads each key and value once and does little else.

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
    _decode_attention[(batch * heads,)](
        query, keys, values, seen, keys if used is None else used, found,
        *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *found.stride()[:3],
        seen.stride(0), seen.stride(2), seen.stride(3),
        heads, queries, count, query.shape[0], 1 if mask is None else mask.shape[0],
        tile=tile, block=64, d=width, scale=width**-0.5, masked=mask is not None, limited=used is not None, num_warps=4,
    )  # fmt: skip
    return found


def can_log_softmax(logits: Tensor, count: int) -> bool:
    """Whether `log_softmax_rows` applies."""
    return triton is not None and logits.is_cuda and not torch.is_grad_enabled() and count <= MOST_WORDS


def log_softmax_rows(logits: Tensor, count: int) -> Tensor:
    """float32 log-softmax of the first `count` columns, each row read and written once (torch converts it first)."""
    rows = logits.flatten(0, -2)
    result = rows.new_empty(rows.shape[0], count, dtype=torch.float32)
    block = triton.next_power_of_2(count)
    _log_softmax[(rows.shape[0],)](rows, result, rows.stride(0), count, block=block, num_warps=8)
    return result.view(*logits.shape[:-1], count)


def top_k_rows(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (…, k) of the k greatest of (…, V), greatest first; k is lowered to V.

    `torch.topk` is built for long rows and any k; for a handful out of ten thousand reading each row once is several
    times faster.
    """
    k = min(k, log_probs.shape[-1])
    if triton is None or not log_probs.is_cuda or log_probs.shape[-1] > MOST_WORDS or k > MOST_KEPT:
        values, ids = log_probs.topk(k, -1)
        return values, ids
    rows = log_probs.flatten(0, -2)
    values = rows.new_empty(rows.shape[0], k)
    ids = torch.empty(rows.shape[0], k, dtype=torch.long, device=rows.device)
    _top_k[(rows.shape[0],)](
        rows, values, ids, rows.stride(0), rows.shape[1],
        k=k, kept=triton.next_power_of_2(k), groups=triton.next_power_of_2(-(-rows.shape[1] // GROUP)), size=GROUP,
        num_warps=8,
    )  # fmt: skip
    return values.view(*log_probs.shape[:-1], k), ids.view(*log_probs.shape[:-1], k)


if triton is not None:

    @triton.jit
    def _decode_attention(  # type: ignore[no-untyped-def]
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

    @triton.jit
    def _log_softmax(rows, result, stride, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        x = tl.load(rows + row * stride + places, mask=places < count, other=float("-inf")).to(tl.float32)
        x = x - tl.max(x, 0)
        tl.store(result + row * count + places, x - tl.log(tl.sum(tl.exp(x), 0)), mask=places < count)

    @triton.jit
    def _top_k(  # type: ignore[no-untyped-def]
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
