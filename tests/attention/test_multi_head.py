"""Multi-head attention against torch's own and against sums written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from meshcap.attention import (
    CrossAttention,
    HistoryCache,
    SelfAttention,
    additive_mask,
    attend,
    attend_with_weights,
    empty_history,
    join_heads,
    reorder_history,
    split_heads,
)
from meshcap.memory import MemorySlots

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def by_hand(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> tuple[list, list]:
    """softmax(qk/√d)v for every head and query, one number at a time; visible (Q, N)."""
    found, weights = [], []
    for q, row in zip(query.tolist(), visible.tolist(), strict=True):
        scores = [
            math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / len(q) ** 0.5) if seen else 0.0
            for k, seen in zip(keys.tolist(), row, strict=True)
        ]
        weights.append([score / sum(scores) for score in scores])
        found.append([sum(w * v[i] for w, v in zip(weights[-1], values.tolist(), strict=True)) for i in range(len(q))])
    return found, weights


@given(seed=st.integers(0, 1000), sizes=st.tuples(*[st.integers(1, 4)] * 4), masked=st.booleans(), causal=st.booleans())
def test_attend(seed: int, sizes: tuple[int, int, int, int], masked: bool, causal: bool) -> None:
    torch.manual_seed(seed)
    batch, queries, count, width = sizes
    if causal:
        count, masked = queries, False
    query = torch.randn(batch, 2, queries, width)
    keys, values = torch.randn(2, batch, 2, count, width)
    visible = torch.ones(batch, 1, queries, count, dtype=torch.bool)
    if masked:
        visible = torch.rand(visible.shape) < 0.6
        visible[..., 0] = True
    mask = additive_mask(visible, torch.float32) if masked else None
    if causal:
        visible = visible.tril()
    found = attend(query, keys, values, mask=mask, causal=causal)
    spelled_out, weights = attend_with_weights(query, keys, values, mask=mask, causal=causal)
    torch.testing.assert_close(found, spelled_out, **CLOSE)
    for b in range(batch):
        for h in range(2):
            expected = by_hand(query[b, h], keys[b, h], values[b, h], visible[b, 0])
            torch.testing.assert_close(spelled_out[b, h], torch.tensor(expected[0]), **CLOSE)
            torch.testing.assert_close(weights[b, h], torch.tensor(expected[1]), **CLOSE)


def test_heads_are_neighbouring_numbers() -> None:
    x = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    heads = split_heads(x, 4)
    assert heads.shape == (2, 4, 3, 2)
    assert heads[1, 2, 0].tolist() == x[1, 0, 4:6].tolist()
    assert torch.equal(join_heads(heads), x)


def test_additive_mask() -> None:
    mask = additive_mask(torch.tensor([[True, False]]), torch.bfloat16)
    assert mask.dtype == torch.bfloat16
    assert mask.tolist() == [[0, -math.inf]]


def torch_attention(width: int, heads: int, parts: list[nn.Linear], output: nn.Linear) -> nn.MultiheadAttention:
    """torch's own module with our weights."""
    theirs = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(output.weight)
        theirs.out_proj.bias.copy_(output.bias)
    return theirs


@pytest.mark.parametrize(("causal", "padded"), [(False, False), (True, False), (False, True)])
def test_self_attention_is_torchs(causal: bool, padded: bool) -> None:
    ours = SelfAttention(12, 3, 4)
    theirs = torch_attention(12, 3, [ours.qkv], ours.output)
    x = torch.randn(2, 5, 12)
    visible = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if padded else None
    mask = None if visible is None else additive_mask(visible, x.dtype)[:, None, None]
    later = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    with torch.no_grad():
        expected, weights = theirs(
            x, x, x, key_padding_mask=None if visible is None else ~visible, attn_mask=later, average_attn_weights=False
        )
        torch.testing.assert_close(ours(x, mask=mask, causal=causal), expected, **CLOSE)
        found, seen = ours.with_weights(x, mask=mask, causal=causal)
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(seen, weights, **CLOSE)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_cross_attention_is_torchs_for_each_source(groups: int, padded: bool) -> None:
    ours = CrossAttention(12, 3, 4)
    theirs = torch_attention(12, 3, [ours.query, ours.key_value], ours.output)
    x, sources = torch.randn(2, 4, 12), torch.randn(groups, 2, 5, 12)
    visible = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if padded else None
    mask = None if visible is None else additive_mask(visible, x.dtype)[:, None, None].repeat(groups, 1, 1, 1)
    with torch.no_grad():
        keys, values = ours.project(sources.flatten(0, 1))
        found = ours(x, keys, values, mask=mask)
        spelled_out, seen = ours.with_weights(x, keys, values, mask=mask)
        assert found.shape == (groups, 2, 4, 12)
        for group in range(groups):
            expected, weights = theirs(
                x, sources[group], sources[group],
                key_padding_mask=None if visible is None else ~visible, average_attn_weights=False,
            )  # fmt: skip
            torch.testing.assert_close(found[group], expected, **CLOSE)
            torch.testing.assert_close(spelled_out[group], expected, **CLOSE)
            torch.testing.assert_close(seen[group], weights, **CLOSE)


def test_heads_may_be_wider_than_the_model_divides() -> None:
    ours = SelfAttention(6, 4, 5)
    assert ours(torch.randn(2, 3, 6)).shape == (2, 3, 6)
    assert ours.qkv.out_features == 3 * 4 * 5


@pytest.mark.parametrize("padded", [False, True])
def test_slots_are_seen_by_everyone_and_never_hidden(padded: bool) -> None:
    """`forward` and `with_weights` with slots, against keys and values joined by hand."""
    memory = MemorySlots(3, 2, 4)
    ours = SelfAttention(8, 2, 4, memory=memory)
    x = torch.randn(2, 5, 8)
    visible = torch.ones(2, 5 + 3, dtype=torch.bool)
    if padded:
        visible[1, 2:5] = False
    mask = additive_mask(visible, x.dtype)[:, None, None] if padded else None
    with torch.no_grad():
        query, keys, values = (part.view(2, 5, 2, 4) for part in ours.qkv(x).split(8, -1))
        slot_keys, slot_values = 4**0.5 * memory.keys.view(3, 2, 4), 3**0.5 * memory.values.view(3, 2, 4)
        found, weights = ours.with_weights(x, mask=mask)
        torch.testing.assert_close(ours(x, mask=mask), found, **CLOSE)
        for b in range(2):
            heads = []
            for h in range(2):
                all_keys = torch.cat((keys[b, :, h], slot_keys[:, h]))
                all_values = torch.cat((values[b, :, h], slot_values[:, h]))
                head, seen = by_hand(query[b, :, h], all_keys, all_values, visible[b].expand(5, -1))
                torch.testing.assert_close(weights[b, h], torch.tensor(seen), **CLOSE)
                heads.append(torch.tensor(head))
            torch.testing.assert_close(found[b], ours.output(torch.cat(heads, -1)), **CLOSE)
    assert (weights[..., 5:] > 0).all()


# The history of a beam search against lists that are copied at every step.

LAYERS, HEADS, D = 2, 2, 3


@given(
    pictures=st.integers(1, 3), width=st.integers(1, 5), length=st.integers(1, 7), spare=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_against_lists(pictures: int, width: int, length: int, spare: int, seed: int) -> None:
    torch.manual_seed(seed)
    like = torch.zeros(HEADS, 1, D)
    state = empty_history(like, layers=LAYERS, pictures=pictures, width=width, length=length + spare)
    # said[layer][picture][hypothesis] is a list of (keys, values), one pair for each word
    said = [[[[] for _ in range(width)] for _ in range(pictures)] for _ in range(LAYERS)]
    for _ in range(length):
        cache = HistoryCache.open(state, torch.float32)
        for layer in range(LAYERS):
            query, new_keys, new_values = torch.randn(3, pictures, HEADS, width, D)
            keys, values = cache.append(layer, new_keys, new_values)
            found = attend(query, keys, values, mask=cache.mask)
            for b in range(pictures):
                for w in range(width):
                    said[layer][b][w].append((new_keys[b, :, w], new_values[b, :, w]))
                    own_keys, own_values = (torch.stack(one, 1) for one in zip(*said[layer][b][w], strict=True))
                    scores = (own_keys @ query[b, :, w, :, None])[..., 0] / D**0.5  # (H, words)
                    expected = (scores.softmax(-1)[..., None] * own_values).sum(1)
                    torch.testing.assert_close(found[b, :, w], expected, atol=1e-5, rtol=1e-5)
        state["step"] += 1
        parents = torch.randint(width, (pictures, width))
        reorder_history(state, parents)
        said = [[[list(one[parent]) for parent in row] for one, row in zip(layer, parents.tolist(), strict=True)]
                for layer in said]  # fmt: skip


def test_cached_self_attention_is_causal_self_attention() -> None:
    """Three sequences, a word at a time without changing places, against reading them at once."""
    attention = SelfAttention(8, 2, 4)
    x = torch.randn(3, 5, 8)  # (W, T, D)
    state = empty_history(torch.zeros(2, 1, 4), layers=1, pictures=1, width=3, length=5)
    with torch.no_grad():
        expected = attention(x, causal=True)
        for step in range(5):
            found = attention.cached(x[None, :, step], HistoryCache.open(state, torch.float32), 0)
            state["step"] += 1
            torch.testing.assert_close(found[0], expected[:, step], atol=1e-5, rtol=1e-5)
