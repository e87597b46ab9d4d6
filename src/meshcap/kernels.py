"""Triton kernels: what decoding and self-critical training on a CUDA GPU spend their time on, one pass each.

    attend_history     attention of each hypothesis's new word to the words before it, in a cache that is never moved
    follow_parents     the table of who said those words, after a beam search has chosen
    add_norm           a residual and the layer norm after it
    decode_attention   attention of a few queries, one for each hypothesis
    mix_levels         the gates of a mesh, and its levels added up by them
    embed              words and their place in the caption
    log_softmax_rows   log-softmax in float32 of half-precision logits
    top_k_rows         the k greatest of each row
    top_k_logits       the k greatest log-probabilities of each row, of its logits
    forbid_words       what the rules of a search forbid set to -inf
    choose_words       the best continuations of a beam
    take_words         what was chosen written down, in the order of the hypotheses that go on
    cider_d            the reward of self-critical training

Each has a twin in plain torch that is used where the kernel does not apply, and gives the same numbers.

And of a CPU: `attend_by_products`, attention in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl

    LEAST = tl.constexpr(-3.0e38)
except ImportError:  # no CUDA build of torch, or a platform without Triton
    triton = None

MOST_WORDS, MOST_KEPT, GROUP = 32_768, 16, 128  # columns and results of `top_k_rows`, and columns it reads together
WIDEST = 4096  # numbers of a row that are read at once
MANY_KEYS = 64  # fewer are as fast in torch's fused kernel
LONGEST_CANDIDATE = 128  # words that `cider_d` compares at once


def can_attend_by_products(query: Tensor, keys: Tensor) -> bool:
    """Whether `attend_by_products` is faster than torch's fused kernel: bfloat16 on a CPU, no gradient, many keys."""
    return (
        query.device.type == "cpu"
        and query.dtype == torch.bfloat16
        and not torch.is_grad_enabled()
        and keys.shape[-2] >= MANY_KEYS
    )


def attend_by_products(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(QKᵀ/√d)V, query (…, Q, d), keys and values (…, N, d): two products and a softmax.

    Torch's fused kernel cuts the work into blocks, which is slow for oneDNN's products in bfloat16: these take half
    the time for the 197 patches of a ViT-B/16.
    """
    scores = (query * query.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    return scores.softmax(-1) @ values


def _in_half_on_cuda(x: Tensor) -> bool:
    """Whether a kernel for inference may read x: half precision on CUDA, no gradient, no compiler that does its own."""
    return (
        triton is not None
        and x.is_cuda
        and x.dtype in (torch.bfloat16, torch.float16)
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def can_embed(table: Tensor, positions: Tensor) -> bool:
    """Whether `embed` applies."""
    return _in_half_on_cuda(table) and table.dtype == positions.dtype and table.shape[-1] <= WIDEST


def embed(ids: Tensor, table: Tensor, gain: float, positions: Tensor, step: Tensor) -> Tensor:
    """gain · table[ids] + positions[step + 1] for ids (…) -> (…, D); step is a tensor of one number."""
    count = table.shape[-1]
    result = table.new_empty(*ids.shape, count)
    block = triton.next_power_of_2(count)
    _embed[(ids.numel(),)](
        ids.contiguous(), table, positions, step, result, count, gain,
        block=block, num_warps=1 if block <= 1024 else 4,
    )  # fmt: skip
    return result


def can_linear_relu(x: Tensor, linear: nn.Module) -> bool:
    """Whether `linear_relu` applies."""
    return _in_half_on_cuda(x) and isinstance(linear, nn.Linear) and x.dtype == linear.weight.dtype


def linear_relu(x: Tensor, linear: nn.Linear) -> Tensor:
    """relu(W x + b), the bias and the ReLU at the end of the product itself."""
    return torch._addmm_activation(linear.bias, x.flatten(0, -2), linear.weight.t()).view(*x.shape[:-1], -1)


def can_add_norm(x: Tensor, added: Tensor) -> bool:
    """Whether `add_norm` applies."""
    return _in_half_on_cuda(x) and x.dtype == added.dtype and x.shape[-1] <= WIDEST and x.numel() > 0


def add_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LN(x + added) of x (…, D) and added (…, D), or (L, …, D) for L levels beside the same x."""
    count = x.shape[-1]
    x, added = x.contiguous(), added.contiguous()
    result = torch.empty_like(added)
    block = triton.next_power_of_2(count)
    _add_norm[(added.numel() // count,)](
        x, added, weight, bias, result, x.numel() // count, count, eps,
        block=block, num_warps=1 if block <= 1024 else 4,
    )  # fmt: skip
    return result


def can_mix_levels(x: Tensor) -> bool:
    """Whether `mix_levels` applies to levels like x."""
    return _in_half_on_cuda(x) and x.shape[-1] <= WIDEST


def mix_levels(query: Tensor, halves: Tensor, context: Tensor, *, kind: str, scale: float) -> Tensor:
    """scale · Σ α_i ⊙ context_i, α the `kind` ("sigmoid", or "softmax" over levels) of query_i + halves_i.

    Args:
        query: (…, L·D), rows may lie apart; halves, context: (L, …, D).
    """
    levels, count = context.shape[0], context.shape[-1]
    rows, halves, context = query.flatten(0, -2), halves.contiguous(), context.contiguous()
    result = torch.empty_like(context[0])
    block = triton.next_power_of_2(count)
    _mix_levels[(rows.shape[0],)](
        rows, halves, context, result, rows.shape[0], count, rows.stride(0), scale,
        levels=levels, softmax=kind == "softmax", block=block, num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return result


def can_attend_history(like: Tensor) -> bool:
    """Whether `attend_history` applies to heads like those of keys (…, H, N, d)."""
    return _in_half_on_cuda(like) and like.shape[-1] in (8, 16, 32, 64, 128)


def attend_history(new: Tensor, keys: Tensor, values: Tensor, ancestors: Tensor, step: Tensor) -> Tensor:
    """What each hypothesis's new word finds among its own words so far; the new key and value join the cache.

    Args:
        new: (B, W, 3·H·d), the word's query, key and value.
        keys, values: (B, H, places, d), the word of place t of hypothesis w at t · W + w.
        ancestors: (B, W, T) which hypothesis said word t of hypothesis w.
        step: a tensor of one number, the new word's t.

    Returns:
        (B, W, H·d).
    """
    pictures, heads, places, d = keys.shape
    width, length = ancestors.shape[1:]
    new = new.contiguous()
    found = new.new_empty(pictures, width, heads * d)
    _attend_history[(pictures * width, heads)](
        new, keys, values, ancestors, step, found, width, length, heads, places,
        d=d, block=32, scale=d**-0.5, num_warps=2,
    )  # fmt: skip
    return found


def can_follow_parents(ancestors: Tensor) -> bool:
    """Whether `follow_parents` applies: a picture's table is moved at once."""
    width, length = ancestors.shape[1:]
    return triton is not None and triton.next_power_of_2(width) * triton.next_power_of_2(length) <= WIDEST


def follow_parents(ancestors: Tensor, parents: Tensor, step: Tensor) -> None:
    """In place, ancestors (B, W, T) of the first `step` words are those of hypotheses parents (B, W)."""
    pictures, width, length = ancestors.shape
    _follow_parents[(pictures,)](
        ancestors, parents.contiguous(), step, width, length,
        rows=triton.next_power_of_2(width), columns=triton.next_power_of_2(length), num_warps=1,
    )  # fmt: skip


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
    # Rows that begin at multiples of 16 are read several numbers at a time by whoever comes next.
    result = rows.new_empty(rows.shape[0], -(-count // 16) * 16, dtype=torch.float32)
    block = triton.next_power_of_2(count)
    _log_softmax[(rows.shape[0],)](rows, result, rows.stride(0), result.stride(0), count, block=block, num_warps=8)
    return result[:, :count].unflatten(0, logits.shape[:-1])


def can_top_k(log_probs: Tensor, k: int) -> bool:
    """Whether `top_k_rows` applies."""
    return triton is not None and log_probs.is_cuda and log_probs.shape[-1] <= MOST_WORDS and k <= MOST_KEPT


def top_k_rows(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and ids (…, k) of the k greatest of (…, V), greatest first.

    `torch.topk` is built for long rows and any k; for a handful out of ten thousand reading each row once is several
    times faster.
    """
    return _greatest(log_probs, k, None, logits=False)


def can_top_k_logits(like: Tensor, count: int) -> bool:
    """Whether `top_k_logits` and `log_totals` apply to `count` logits of the dtype and device of `like`."""
    return _in_half_on_cuda(like) and count <= MOST_WORDS


def top_k_logits(logits: Tensor, k: int, totals: Tensor | None) -> tuple[Tensor, Tensor]:
    """`top_k_rows` of the log-probabilities that logits (…, V) stand for, which nobody writes out.

    Args:
        totals: (…), `log_totals` of the logits; None: of these as they are.
    """
    return _greatest(logits, k, totals, logits=True)


def log_totals(logits: Tensor) -> Tensor:
    """log Σ exp of each row (…, V), in float32: what lies between logits and log-probabilities."""
    rows = logits.flatten(0, -2)
    totals = rows.new_empty(rows.shape[0], dtype=torch.float32)
    block = triton.next_power_of_2(rows.shape[1])
    _log_totals[(rows.shape[0],)](rows, totals, rows.stride(0), rows.shape[1], block=block, num_warps=8)
    return totals.view(logits.shape[:-1])


def _greatest(rows: Tensor, k: int, totals: Tensor | None, *, logits: bool) -> tuple[Tensor, Tensor]:
    shape, rows = rows.shape[:-1], rows.flatten(0, -2)
    values = rows.new_empty(rows.shape[0], k, dtype=torch.float32 if logits else rows.dtype)
    ids = torch.empty(rows.shape[0], k, dtype=torch.long, device=rows.device)
    _top_k[(rows.shape[0],)](
        rows, values if totals is None else totals, values, ids, rows.stride(0), rows.shape[1],
        k=k, kept=triton.next_power_of_2(k), groups=triton.next_power_of_2(-(-rows.shape[1] // GROUP)), size=GROUP,
        logits=logits, known=totals is not None, chunk=2048, num_warps=8,
    )  # fmt: skip
    return values.view(*shape, k), ids.view(*shape, k)


def can_forbid_words(most: int, device: torch.device) -> bool:
    """Whether `forbid_words` applies to so many words of a caption, or of a list."""
    return triton is not None and device.type == "cuda" and most <= WIDEST


def forbid_words(
    log_probs: Tensor, ids: Tensor, last: Tensor, step: Tensor, banned: Tensor, endings: Tensor, phrases: Tensor, *,
    min_length: int, max_length: int, no_repeat_ngram: int, end_in_time: bool, eos: int,
) -> None:  # fmt: skip
    """In place, log-probabilities (B, W, V) of what rules forbid to -inf: `meshcap.decoding.search.filters` at once.

    Args:
        ids, last: (B, W, T) and (B, W), the words so far; step: a tensor of one number, how many.
        banned, endings: (n,) ids of words that are never said, and of those that no caption may end after.
        phrases: (P, L) those of phrases, filled up with -1 in front.
    """
    rows = log_probs.view(-1, log_probs.shape[-1])
    blocks = (triton.next_power_of_2(len(one)) if len(one) else 0 for one in (banned, endings, phrases))
    _forbid_words[(len(rows),)](
        rows, ids, last, step, banned, endings, phrases,
        rows.stride(0), rows.shape[1], ids.shape[-1], eos, min_length, max_length - 1,
        len(banned), len(endings), len(phrases), *blocks,
        longest=phrases.shape[-1], n=no_repeat_ngram, in_time=end_in_time,
        columns=triton.next_power_of_2(ids.shape[-1]), size=1024, num_warps=1,
    )  # fmt: skip


def can_choose_words(gained: Tensor) -> bool:
    """Whether `choose_words` applies to candidates (B, W, k)."""
    return triton is not None and gained.is_cuda and gained.shape[1] <= MOST_KEPT and gained.shape[2] <= MOST_KEPT


def choose_words(
    gained: Tensor, words: Tensor, finished: Tensor, scores: Tensor, pad: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of W hypotheses with k candidate words each, the W best sums of scores: parents, words, gains and scores (B, W).

    Args:
        gained, words: (B, W, k) log-probabilities and ids.
        finished: (B, W) which have ended and stay as they are, with `pad` for a word.
        scores: (B, W) so far.
    """
    pictures, width, k = gained.shape
    parents, chosen = (torch.empty_like(scores, dtype=torch.long) for _ in range(2))
    gains, totals = torch.empty_like(scores), torch.empty_like(scores)
    _choose_words[(pictures,)](
        gained.contiguous(), words.contiguous(), finished.view(torch.uint8), scores,
        parents, chosen, gains, totals, pad,
        width=width, k=k, block=triton.next_power_of_2(width * k), num_warps=1,
    )  # fmt: skip
    return parents, chosen, gains, totals


def can_take_words(ids: Tensor) -> bool:
    """Whether `take_words` applies to captions (B, W, T)."""
    width, length = ids.shape[1:]
    fits = triton is not None and triton.next_power_of_2(width) * triton.next_power_of_2(length) <= WIDEST
    return fits and ids.is_cuda and not torch.compiler.is_compiling()


def take_words(
    parents: Tensor | None, words: Tensor, gains: Tensor, scores: Tensor,
    ids: Tensor, log_probs: Tensor, totals: Tensor, lengths: Tensor, finished: Tensor, last: Tensor, step: Tensor,
    *, pad: int, eos: int,
) -> None:  # fmt: skip
    """In place, what `meshcap.decoding.choose.Search.take` does: a choice (B, W each) written into a search."""
    pictures, width, length = ids.shape
    given = (one.contiguous() for one in (words if parents is None else parents, words, gains, scores))
    _take_words[(pictures,)](
        *given, ids, log_probs, totals, lengths, finished.view(torch.uint8), last, step, width, length, pad, eos,
        moved=parents is not None,
        rows=triton.next_power_of_2(width), columns=triton.next_power_of_2(length), num_warps=1,
    )  # fmt: skip


def can_cider(ids: Tensor) -> bool:
    """Whether `cider_d` applies to candidates (rows, T)."""
    return triton is not None and ids.is_cuda and 0 < ids.shape[1] <= LONGEST_CANDIDATE and len(ids) > 0


def cider_d(
    ids: Tensor, pictures: Tensor, tokens: Tensor, starts: Tensor, firsts: Tensor, norms: Tensor,
    entries: Tensor, buckets: Tensor, idf: Tensor, narrow: Tensor, *,
    samples: int, eos: int, pad: int, spread: int, bits: int, fullest: int, count_eos: bool, n: int,
) -> Tensor:  # fmt: skip
    """CIDEr-D (rows,) of candidates ids (rows, T), `samples` rows for each of the pictures.

    The other tensors are the index of `meshcap.metrics.reward_kernels`: references, document frequencies, norms.
    """
    found = torch.empty(len(ids), dtype=torch.float32, device=ids.device)
    width = max(16, triton.next_power_of_2(ids.shape[1]))
    _cider[(len(ids),)](
        ids, pictures, found, tokens, starts, firsts, norms, entries, buckets, idf, narrow,
        samples, ids.shape[1], eos, pad, spread, bits, fullest,
        count_eos=count_eos, n=n, width=width, block=32, num_warps=max(1, width // 32),
    )  # fmt: skip
    return found


if triton is not None:

    @triton.jit(do_not_specialize=["rows"])  # one program for any number of pictures
    def _add_norm(x, added, weight, bias, result, rows, count, eps, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        here = places < count
        own = tl.load(x + (row % rows) * count + places, mask=here, other=0.0).to(tl.float32)
        total = own + tl.load(added + row * count + places, mask=here, other=0.0).to(tl.float32)
        total = tl.where(here, total - tl.sum(total, 0) / count, 0.0)
        total = total / tl.sqrt(tl.sum(total * total, 0) / count + eps)
        total = total * tl.load(weight + places, mask=here, other=0.0).to(tl.float32)
        total += tl.load(bias + places, mask=here, other=0.0).to(tl.float32)
        tl.store(result + row * count + places, total.to(result.dtype.element_ty), mask=here)

    @triton.jit
    def _embed(ids, table, positions, step, result, count, gain, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        here = places < count
        word = tl.load(table + tl.load(ids + row) * count + places, mask=here, other=0.0).to(tl.float32)
        place = tl.load(positions + (tl.load(step) + 1) * count + places, mask=here, other=0.0).to(tl.float32)
        tl.store(result + row * count + places, (word * gain + place).to(result.dtype.element_ty), mask=here)

    @triton.jit(do_not_specialize=["rows"])  # one program for any number of pictures
    def _mix_levels(  # type: ignore[no-untyped-def]
        query, halves, context, result, rows, count, stride, scale,
        levels: tl.constexpr, softmax: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        here = places < count
        highest = tl.full([block], float("-inf"), tl.float32)
        total = tl.zeros([block], tl.float32)
        found = tl.zeros([block], tl.float32)
        for i in tl.static_range(levels):
            at = (i * rows + row) * count + places
            score = tl.load(query + row * stride + i * count + places, mask=here, other=0.0).to(tl.float32)
            score += tl.load(halves + at, mask=here, other=0.0).to(tl.float32)
            value = tl.load(context + at, mask=here, other=0.0).to(tl.float32)
            if softmax:
                now = tl.maximum(highest, score)
                shrink, weight = tl.exp(highest - now), tl.exp(score - now)
                total = total * shrink + weight
                found = found * shrink + weight * value
                highest = now
            else:
                found += value / (1 + tl.exp(-score))
        if softmax:
            found = found / total
        tl.store(result + row * count + places, (found * scale).to(result.dtype.element_ty), mask=here)

    @triton.jit
    def _attend_history(  # type: ignore[no-untyped-def]
        new, keys, values, ancestors, step, found, width, length, heads, places,
        d: tl.constexpr, block: tl.constexpr, scale: tl.constexpr,
    ):  # fmt: skip
        # One program for each head of each hypothesis. Nobody else reads what is new, so nothing waits for it.
        row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        now = tl.load(step).to(tl.int32)
        columns, along = tl.arange(0, d), tl.arange(0, block)
        at = new + row * 3 * heads * d + head * d + columns
        query = tl.load(at).to(tl.float32) * scale
        key, value = tl.load(at + heads * d), tl.load(at + 2 * heads * d)
        cache = ((row // width) * heads + head) * places * d
        own = cache + (now * width + row % width) * d + columns
        tl.store(keys + own, key)
        tl.store(values + own, value)
        highest = tl.sum(query * key.to(tl.float32), 0)
        total = tl.full([], 1.0, tl.float32)
        result = value.to(tl.float32)
        for start in range(0, now, block):
            t = start + along
            here = t < now
            speaker = tl.load(ancestors + row * length + t, mask=t < length, other=0).to(tl.int32)
            said = cache + (t * width + speaker)[:, None] * d + columns[None, :]
            k = tl.load(keys + said, mask=here[:, None], other=0.0).to(tl.float32)
            v = tl.load(values + said, mask=here[:, None], other=0.0).to(tl.float32)
            scores = tl.where(here, tl.sum(k * query[None, :], 1), float("-inf"))
            top = tl.maximum(highest, tl.max(scores, 0))
            shrink, weights = tl.exp(highest - top), tl.exp(scores - top)
            total = total * shrink + tl.sum(weights, 0)
            result = result * shrink + tl.sum(v * weights[:, None], 0)
            highest = top
        tl.store(found + row * heads * d + head * d + columns, (result / total).to(found.dtype.element_ty))

    @triton.jit
    def _follow_parents(  # type: ignore[no-untyped-def]
        ancestors, parents, step, width, length, rows: tl.constexpr, columns: tl.constexpr
    ):
        own = ancestors + tl.program_id(0).to(tl.int64) * width * length
        w, t = tl.arange(0, rows), tl.arange(0, columns)
        parent = tl.load(parents + tl.program_id(0).to(tl.int64) * width + w, mask=w < width, other=0).to(tl.int32)
        past = (w < width)[:, None] & (t < tl.minimum(tl.load(step).to(tl.int32), length))[None, :]
        before = tl.load(own + parent[:, None] * length + t[None, :], mask=past, other=0)
        tl.debug_barrier()  # all is read before anything is written
        tl.store(own + w[:, None] * length + t[None, :], before, mask=past)

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
    def _log_softmax(rows, result, stride, spread, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        x = tl.load(rows + row * stride + places, mask=places < count, other=float("-inf")).to(tl.float32)
        x = x - tl.max(x, 0)
        tl.store(result + row * spread + places, x - tl.log(tl.sum(tl.exp(x), 0)), mask=places < count)

    @triton.jit
    def _log_totals(rows, totals, stride, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.arange(0, block)
        row = rows + tl.program_id(0).to(tl.int64) * stride
        x = tl.load(row + places, mask=places < count, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(tl.max(x, 0), LEAST)
        tl.store(totals + tl.program_id(0), highest + tl.log(tl.sum(tl.exp(x - highest), 0)))

    @triton.jit
    def _top_k(  # type: ignore[no-untyped-def]
        rows, totals, values, ids, stride, count,
        k: tl.constexpr, kept: tl.constexpr, groups: tl.constexpr, size: tl.constexpr,
        logits: tl.constexpr, known: tl.constexpr, chunk: tl.constexpr,
    ):  # fmt: skip
        # One program a row. It reads the row once for the greatest word of each group; then, k times, it looks again
        # into the group with the greatest one (by now in cache) and notes what that group has left.
        row = rows + tl.program_id(0).to(tl.int64) * stride
        group, inside, slot = tl.arange(0, groups), tl.arange(0, size), tl.arange(0, kept)
        places = group[:, None] * size + inside[None, :]
        x = tl.load(row + places, mask=places < count, other=float("-inf"))
        if logits:
            x = x.to(tl.float32)
        peaks = tl.max(x, 1)
        less = 0.0
        if known:
            less = tl.load(totals + tl.program_id(0))
        elif logits:
            highest = tl.maximum(tl.max(peaks, 0), LEAST)
            # Read again, from the nearest cache, rather than kept in registers: so more rows are under way at once.
            along = tl.arange(0, chunk)
            total = tl.zeros([chunk], tl.float32)
            for start in range(0, count, chunk):
                again = tl.load(row + start + along, mask=start + along < count, other=float("-inf")).to(tl.float32)
                total += tl.exp(again - highest)
            less = highest + tl.log(tl.sum(total, 0))
        # What is forbidden (-inf) still counts as a word, what lies beyond the row's end does not.
        peaks = tl.where(group * size < count, tl.maximum(peaks, LEAST), float("-inf"))
        chosen = tl.full([kept], -1, tl.int32)
        for i in range(k):
            top = tl.argmax(peaks, 0)
            here = top * size + inside
            left = tl.load(row + here, mask=here < count, other=float("-inf"))
            if logits:
                left = left.to(tl.float32)
            left = tl.maximum(left, LEAST)
            taken = tl.sum((here[:, None] == chosen[None, :]).to(tl.int32), 1) > 0
            left = tl.where(taken | (here >= count), float("-inf"), left)
            best, place = tl.max(left, 0, return_indices=True)
            word = top * size + place
            tl.store(values + tl.program_id(0) * k + i, tl.where(best <= LEAST, float("-inf"), best - less))
            tl.store(ids + tl.program_id(0) * k + i, word.to(tl.int64))
            chosen = tl.where(slot == i, word, chosen)
            peaks = tl.where(group == top, tl.max(tl.where(inside == place, float("-inf"), left), 0), peaks)

    @triton.jit
    def _forbid_words(  # type: ignore[no-untyped-def]
        rows, ids, last, step, banned, endings, phrases, stride, vocab, length, eos, shortest, last_place,
        banned_count, ending_count, phrase_count,
        banned_block: tl.constexpr, ending_block: tl.constexpr, phrase_block: tl.constexpr,
        longest: tl.constexpr, n: tl.constexpr, in_time: tl.constexpr, columns: tl.constexpr, size: tl.constexpr,
    ):  # fmt: skip
        number = tl.program_id(0).to(tl.int64)
        row, said = rows + number * stride, ids + number * length
        now = tl.load(step).to(tl.int32)
        may_end = now + 1 >= shortest
        if banned_block > 0:
            at = tl.arange(0, banned_block)
            word = tl.load(banned + at, mask=at < banned_count, other=0)
            tl.store(row + word, tl.full([banned_block], float("-inf"), tl.float32), mask=at < banned_count)
        if ending_block > 0:
            at = tl.arange(0, ending_block)
            word = tl.load(endings + at, mask=at < ending_count, other=-1)
            may_end = may_end & (tl.sum((word == tl.load(last + number)).to(tl.int32), 0) == 0)
            if in_time:  # the last word of all may be none of these
                final = (at < ending_count) & (now == last_place - 1)
                tl.store(row + word, tl.full([ending_block], float("-inf"), tl.float32), mask=final)
        if phrase_block > 0:
            at = tl.arange(0, phrase_block)
            begun = at < phrase_count
            for i in tl.static_range(longest - 1):
                want = tl.load(phrases + at * longest + i, mask=at < phrase_count, other=-1)
                place = now - (longest - 1) + i
                begun = begun & ((want == -1) | ((place >= 0) & (want == tl.load(said + tl.maximum(place, 0)))))
            word = tl.load(phrases + at * longest + longest - 1, mask=at < phrase_count, other=0)
            tl.store(row + word, tl.full([phrase_block], float("-inf"), tl.float32), mask=begun)
        if n > 0:
            # Every n words so far whose first n - 1 are the latest n - 1 forbid their last.
            start = tl.arange(0, columns)
            repeats = start + n <= now
            for i in tl.static_range(n - 1):
                latest = tl.load(said + tl.maximum(now - (n - 1) + i, 0))
                repeats = repeats & (tl.load(said + start + i, mask=start + n <= now, other=-1) == latest)
            word = tl.load(said + start + n - 1, mask=start + n <= now, other=0)
            tl.store(row + word, tl.full([columns], float("-inf"), tl.float32), mask=repeats)
        end = tl.arange(0, 1)
        tl.store(row + eos + end, tl.full([1], float("-inf"), tl.float32), mask=(end == 0) & (may_end == 0))
        if in_time:
            for begin in range(0, tl.where(now >= last_place, vocab, 0), size):
                other = begin + tl.arange(0, size)
                tl.store(row + other, tl.full([size], float("-inf"), tl.float32), mask=(other < vocab) & (other != eos))

    @triton.jit
    def _choose_words(  # type: ignore[no-untyped-def]
        gained, words, finished, scores, parents, chosen, gains, totals, pad,
        width: tl.constexpr, k: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        # One program a picture: all its candidates side by side, the best of them taken `width` times.
        picture = tl.program_id(0).to(tl.int64)
        slot = tl.arange(0, block)
        real = slot < width * k
        row = slot // k
        ended = tl.load(finished + picture * width + row, mask=real, other=0) != 0
        gain = tl.load(gained + picture * width * k + slot, mask=real, other=float("-inf"))
        gain = tl.where(ended, tl.where(slot % k == 0, 0.0, float("-inf")), gain)
        word = tl.load(words + picture * width * k + slot, mask=real, other=0)
        word = tl.where(ended, pad, word)
        total = tl.load(scores + picture * width + row, mask=real, other=float("-inf")) + gain
        left = tl.where(real, tl.maximum(total, LEAST), float("-inf"))
        for i in range(width):
            best = tl.argmax(left, 0)
            here = slot == best
            at = picture * width + i
            tl.store(parents + at, (best // k).to(tl.int64))
            tl.store(chosen + at, tl.sum(tl.where(here, word, 0), 0))
            tl.store(gains + at, tl.max(tl.where(here, gain, float("-inf")), 0))
            tl.store(totals + at, tl.max(tl.where(here, total, float("-inf")), 0))
            left = tl.where(here, float("-inf"), left)

    @triton.jit
    def _take_words(  # type: ignore[no-untyped-def]
        parents, words, gains, scores, ids, log_probs, totals, lengths, finished, last, step, width, length, pad, eos,
        moved: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    ):  # fmt: skip
        first = tl.program_id(0).to(tl.int64) * width
        w, t = tl.arange(0, rows), tl.arange(0, columns)
        real = w < width
        score = tl.load(scores + first + w, mask=real, other=0.0)
        alive = score > float("-inf")
        word = tl.where(alive, tl.load(words + first + w, mask=real, other=0), pad)
        gain = tl.where(alive, tl.load(gains + first + w, mask=real, other=0.0), 0.0)
        parent = w
        if moved:
            parent = tl.load(parents + first + w, mask=real, other=0).to(tl.int32)
        here = real[:, None] & (t < length)[None, :]
        before = (first + parent)[:, None] * length + t[None, :]
        said = tl.load(ids + before, mask=here, other=0)
        likely = tl.load(log_probs + before, mask=here, other=0.0)
        long = tl.load(lengths + first + parent, mask=real, other=0)
        ended = tl.load(finished + first + parent, mask=real, other=0) != 0
        now = (t == tl.load(step))[None, :]
        tl.debug_barrier()  # all is read before anything is written
        own = (first + w)[:, None] * length + t[None, :]
        tl.store(ids + own, tl.where(now, word[:, None], said), mask=here)
        tl.store(log_probs + own, tl.where(now, gain[:, None], likely), mask=here)
        tl.store(totals + first + w, score, mask=real)
        tl.store(last + first + w, word, mask=real)
        tl.store(lengths + first + w, long + (alive & (ended == 0)).to(tl.int64), mask=real)
        tl.store(finished + first + w, (ended | (word == eos)).to(tl.uint8), mask=real)

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
