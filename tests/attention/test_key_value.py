"""Key-value and multi-head attention against torch's own, and against each other."""

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meshcap.attention import (
    SCORES,
    HierarchicalAttention,
    KeyValueAttention,
    MultiHead,
    Sampled,
    SelfAttention,
    additive_mask,
    box_groups,
    grid_groups,
    hardest,
    make_score,
    members,
    score_function_loss,
    soft,
)
from meshcap.errors import MeshcapError

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
NAMES = sorted(SCORES)
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def torchs(ours: MultiHead, heads: int) -> nn.MultiheadAttention:
    d_model, d_source = ours.query.in_features, ours.key.in_features
    theirs = nn.MultiheadAttention(d_model, heads, kdim=d_source, vdim=d_source, batch_first=True).eval()
    with torch.no_grad():
        parts = [ours.query, ours.key, ours.value]
        if d_source == d_model:
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        else:
            for mine, part in zip(
                (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight), parts, strict=True
            ):
                mine.copy_(part.weight)
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("d_source", [12, 7])
def test_multi_head_is_torchs(d_source: int, padded: bool) -> None:
    ours = MultiHead("scaled", 12, 3, d_source=d_source)
    query, keys, values = torch.randn(2, 4, 12), torch.randn(2, 5, d_source), torch.randn(2, 5, d_source)
    mask = MASK if padded else None
    with torch.no_grad():
        expected, weights = torchs(ours, 3)(
            query, keys, values, key_padding_mask=~MASK if padded else None, average_attn_weights=False
        )
        torch.testing.assert_close(ours(query, keys, values, mask), expected, **CLOSE)
        look = ours.with_weights(query, keys, values, mask)
    torch.testing.assert_close(look.context, expected, **CLOSE)
    torch.testing.assert_close(look.weights, weights, **CLOSE)


def test_fused_kernel_is_used_only_for_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or real(*a, **k))
    x = torch.randn(2, 5, 12)
    for name, select, expected in (
        ("scaled", soft, 1),
        ("scaled", partial(soft, temperature=0.1), 0),
        ("scaled", hardest, 0),
        ("dot", soft, 0),
        ("additive", soft, 0),
    ):
        calls.clear()
        attention = MultiHead(name, 12, 3, select=select)
        torch.testing.assert_close(attention(x, x, x, MASK), attention.with_weights(x, x, x, MASK).context, **CLOSE)
        assert len(calls) == expected, (name, select)


def test_self_attention_is_that_of_m2() -> None:
    general, special = MultiHead("scaled", 12, 3), SelfAttention(12, 3, 4)
    with torch.no_grad():
        parts = (general.query, general.key, general.value)
        special.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        special.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        special.output.load_state_dict(general.output.state_dict())
    x = torch.randn(2, 5, 12)
    earlier = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(general(x, x, x, earlier), special(x, causal=True), **CLOSE)
    mask = additive_mask(MASK, x.dtype)[:, None, None]
    torch.testing.assert_close(general(x, x, x, MASK), special(x, mask=mask), **CLOSE)


def test_scaled_soft_is_torchs_kernel() -> None:
    attention = KeyValueAttention(make_score("scaled", 8, 8))
    query, keys, values = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)
    visible = torch.rand(2, 3, 4, 5) < 0.7
    visible[..., 0] = True
    expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
    torch.testing.assert_close(attention(query, keys, values, visible).context, expected, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_are_values_are_plain_attention(name: str) -> None:
    score = make_score(name, 4, 4)
    query, x = torch.randn(2, 1, 4), torch.randn(2, 5, 4)
    look = KeyValueAttention(score)(query, x, x, MASK)
    scores = score(query, score.prepare(x))
    for b, count in enumerate((5, 3)):
        weights = scores[b, 0, :count].softmax(-1)
        torch.testing.assert_close(look.context[b, 0], sum(w * r for w, r in zip(weights, x[b], strict=False)), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), sizes=st.tuples(*[st.integers(1, 4)] * 3))
def test_order_of_pairs_and_padding_change_nothing(name: str, seed: int, sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    batch, queries, count = sizes
    attention = MultiHead(name, 8, 2)
    query, keys, values = torch.randn(batch, queries, 8), *torch.randn(2, batch, count, 8)
    order = torch.randperm(count)
    look, moved = (
        attention.with_weights(query, keys, values),
        attention.with_weights(query, keys[:, order], values[:, order]),
    )
    torch.testing.assert_close(moved.context, look.context, **CLOSE)
    torch.testing.assert_close(moved.weights, look.weights[..., order], **CLOSE)
    padded = [torch.cat([part, torch.randn(batch, 2, 8)], 1) for part in (keys, values)]
    mask = (torch.arange(count + 2) < count).expand(batch, -1)
    torch.testing.assert_close(attention(query, *padded, mask), look.context, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_prepared_once_and_asked_often(name: str) -> None:
    single, many = KeyValueAttention(make_score(name, 12, 12)), MultiHead(name, 12, 3)
    query, x = torch.randn(2, 6, 12), torch.randn(2, 5, 12)
    whole, prepared = single(query, x, x, MASK), single.prepare(x)
    steps = [single.attend(query[:, t : t + 1], prepared, x, MASK).context for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole.context, **CLOSE)
    ready = many.prepare(x, x)
    steps = [many.attend(query[:, t : t + 1], *ready, MASK) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), many(query, x, x, MASK), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_real_gives_zeros_and_finite_gradients(name: str) -> None:
    mask = torch.tensor([[True] * 5, [False] * 5])
    attention = MultiHead(name, 12, 3)
    query, x = torch.randn(2, 4, 12, requires_grad=True), torch.randn(2, 5, 12, requires_grad=True)
    look = attention.with_weights(query, x, x, mask)
    assert not look.weights[1].any()
    for found in (look.context, attention(query, x, x, mask)):
        torch.testing.assert_close(found[1], attention.output.bias.expand(4, -1))
        gradients = torch.autograd.grad(found.square().sum(), (query, x, *attention.parameters()), retain_graph=True)
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not gradients[0][1].any() and not gradients[1][1].any()


def test_hard_attention_learns_where_to_look() -> None:
    """The reward is for looking at the second of three places: REINFORCE must find it from the rewards alone."""
    torch.manual_seed(0)
    attention = KeyValueAttention(make_score("bilinear", 2, 3), Sampled())
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
    query, keys = torch.ones(64, 1, 2), torch.eye(3).expand(64, -1, -1)
    for _ in range(60):
        look = attention(query, keys, keys)
        reward = look.context[:, 0, 1]
        loss = score_function_loss(look.log_prob, reward, reward.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = attention.score(query[:1], attention.prepare(keys[:1]))
    assert soft(scores).weights[0, 0, 1] > 0.9
    assert attention.eval()(query, keys, keys).context[:, 0, 1].all()


def test_half_precision_under_autocast() -> None:
    for name in NAMES:
        attention = MultiHead(name, 64, 4)
        x = torch.randn(2, 5, 64)
        with torch.no_grad():
            exact = attention(x, x, x, MASK)
            with torch.autocast("cpu", torch.bfloat16):
                rough = attention(x, x, x, MASK)
                spelled_out = attention.with_weights(x, x, x, MASK).context
        assert rough.dtype == torch.bfloat16
        for found in (rough, spelled_out):
            assert (found.float() - exact).abs().max() < 0.03, name


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    attention = MultiHead(name, 4, 2, d_source=3).double()
    query = torch.randn(2, 2, 4, dtype=torch.double, requires_grad=True)
    source = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)

    def found(q: Tensor, s: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        look = attention.with_weights(q, s, s, MASK)
        return look.context, look.weights

    assert torch.autograd.gradcheck(found, (query, source, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    attention = MultiHead(name, 12, 3)
    x = torch.randn(2, 5, 12)
    traced = torch.compile(lambda x, m: (attention(x, x, x, m), attention.with_weights(x, x, x, m)), fullgraph=True,
                           backend="eager")  # fmt: skip
    found, look = traced(x, MASK)
    torch.testing.assert_close(found, attention(x, x, x, MASK))
    torch.testing.assert_close(look.weights, attention.with_weights(x, x, x, MASK).weights)


def test_mistakes_are_told() -> None:
    with pytest.raises(MeshcapError, match="12 numbers cannot be divided among 5 heads"):
        MultiHead("dot", 12, 5)
    attention = KeyValueAttention(make_score("dot", 4, 4))
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with pytest.raises(MeshcapError, match="4 values for 5 keys"):
        attention(query, keys, keys[:, 1:])
    with pytest.raises(MeshcapError, match=r"mask is torch\.float32"):
        attention(query, keys, keys, torch.zeros(2, 5))
    with pytest.raises(MeshcapError, match=r"expected torch\.bool with 2 axes"):
        attention(query, keys, keys, torch.ones(5, dtype=torch.bool))


# Attention on attention, against flat attention and against levels put together by hand.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_group_is_flat_attention(name: str, depth: int) -> None:
    attention = HierarchicalAttention(name, 4, 4, depth=depth)
    query, x = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    all_in_one = [members(torch.zeros(5, dtype=torch.long)), torch.ones(1, 1, dtype=torch.bool)][: depth - 1]
    look = attention(query, x, all_in_one, mask)
    flat = KeyValueAttention(attention.score(0))(query, x, x, mask)
    torch.testing.assert_close(look.context, flat.context, **CLOSE)
    torch.testing.assert_close(look.weights, flat.weights, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_two_levels_by_hand(name: str) -> None:
    """Each group apart through plain attention, then the results through plain attention again."""
    attention = HierarchicalAttention(name, 4, 4, 6)
    query, x = torch.randn(2, 3, 4), torch.randn(2, 6, 4)
    groups = torch.tensor([1, 0, 1, 2, 0, 1])
    look = attention(query, x, [members(groups)])
    low, high = (KeyValueAttention(attention.score(level)) for level in range(2))
    for q in range(3):
        asked = query[:, q : q + 1]
        found = torch.cat([low(asked, x[:, groups == g], x[:, groups == g]).context for g in range(3)], 1)  # (B, 3, D)
        expected = high(asked, found, found)
        torch.testing.assert_close(look.context[:, q : q + 1], expected.context, **CLOSE)
        torch.testing.assert_close(look.levels[1][:, q : q + 1], expected.weights, **CLOSE)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), name=st.sampled_from(NAMES), depth=st.integers(1, 4), per_picture=st.booleans())
def test_weights_sum_to_one_and_explain_the_context(seed: int, name: str, depth: int, per_picture: bool) -> None:
    torch.manual_seed(seed)
    attention = HierarchicalAttention(name, 4, 4, depth=depth)
    sizes = [7, 4, 3, 2][:depth]
    numbers = [torch.randint(above, (2, below) if per_picture else (below,)) for below, above in pairwise(sizes)]
    grouping = [members(n, above) for n, above in zip(numbers, sizes[1:], strict=True)]  # some groups are empty
    query, x, mask = torch.randn(2, 3, 4), torch.randn(2, 7, 4), torch.rand(2, 7) < 0.7
    look = attention(query, x, grouping, mask)
    something = mask.any(1, keepdim=True).float().expand(-1, 3)
    torch.testing.assert_close(look.weights.sum(-1), something, **CLOSE)
    torch.testing.assert_close(look.weights @ x, look.context, **CLOSE)  # what the levels did, in one step
    assert not look.weights[~mask[:, None].expand_as(look.weights)].any()
    real = mask
    for weights, belongs in zip(look.levels, [*grouping, torch.ones(1, sizes[-1], dtype=torch.bool)], strict=True):
        inside = belongs.expand(2, -1, -1) & real[:, None]  # (B, G, N)
        real = inside.any(-1)
        sums = weights @ inside.transpose(1, 2).float()  # (B, Q, G)
        torch.testing.assert_close(sums, real[:, None].float().expand_as(sums), **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_path_is_the_product_of_levels(name: str) -> None:
    attention = HierarchicalAttention(name, 4, 4, depth=3)
    first, second = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 1])
    look = attention(torch.randn(2, 3, 4), torch.randn(2, 6, 4), [members(first), members(second)])
    low, middle, top = look.levels
    product = low * middle[..., first] * top[..., second[first]]
    torch.testing.assert_close(look.weights, product, **CLOSE)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), name=st.sampled_from(NAMES))
def test_order_of_regions_and_of_groups_changes_nothing(seed: int, name: str) -> None:
    torch.manual_seed(seed)
    attention = HierarchicalAttention(name, 4, 4)
    query, x, groups = torch.randn(2, 3, 4), torch.randn(2, 6, 4), torch.randint(3, (6,))
    order, renamed = torch.randperm(6), torch.randperm(3)
    look = attention(query, x, [members(groups, 3)])
    moved = attention(query, x[:, order], [members(renamed[groups[order]], 3)])
    torch.testing.assert_close(moved.context, look.context, **CLOSE)
    torch.testing.assert_close(moved.weights, look.weights[..., order], **CLOSE)


def test_hierarchical_prepared_once_and_asked_often() -> None:
    attention = HierarchicalAttention("additive", 5, 4, 6)
    query, x, grouping = torch.randn(2, 3, 5), torch.randn(2, 6, 4), [members(grid_groups(2, 3, 2))]
    prepared = attention.prepare(x)
    steps = [attention.attend(query[:, t : t + 1], prepared, x, grouping).context for t in range(3)]
    torch.testing.assert_close(torch.cat(steps, 1), attention(query, x, grouping).context, **CLOSE)


def test_hierarchical_nothing_real_gives_zeros_and_finite_gradients() -> None:
    mask = torch.tensor([[True] * 3 + [False] * 3, [False] * 6])  # the second group is empty in both pictures
    for name in NAMES:
        attention = HierarchicalAttention(name, 4, 4)
        query, x = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 6, 4, requires_grad=True)
        look = attention(query, x, [members(torch.tensor([0, 0, 0, 1, 1, 1]))], mask)
        assert not look.context[1].any() and not look.weights[1].any()
        (look.context.square().sum() + look.weights.square().sum()).backward()
        for part in (query, x, *attention.parameters()):
            assert part.grad is not None and part.grad.isfinite().all()
        assert x.grad is not None and not x.grad[~mask].any()


def test_grid_groups() -> None:
    assert grid_groups(2, 5, 2).tolist() == [0, 0, 1, 1, 2, 0, 0, 1, 1, 2]
    assert grid_groups(3, 4, 2).view(3, 4).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3]]
    levels = [members(grid_groups(7, 7, 2)), members(grid_groups(4, 4, 2))]  # 49 cells, 16 blocks, 4 quarters
    assert [tuple(level.shape) for level in levels] == [(16, 49), (4, 16)]
    assert all((level.sum(0) == 1).all() for level in levels)
    attention = HierarchicalAttention("scaled", 8, 8, depth=3)
    assert attention(torch.randn(2, 3, 8), torch.randn(2, 49, 8), levels).weights.shape == (2, 3, 49)


def test_box_groups_are_grid_groups_of_a_grid() -> None:
    corner = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).flip(-1) / 4  # x, y, row by row
    boxes = torch.cat([corner, corner + 0.25], -1)[None]
    assert box_groups(boxes, 2)[0].tolist() == grid_groups(4, 4, 2).tolist()
    assert box_groups(torch.tensor([[[1.0, 1, 1, 1], [0, 0, 0, 0]]]), 3).tolist() == [[8, 0]]


def test_bf16_is_close() -> None:
    attention = HierarchicalAttention("scaled", 64, 64, depth=3)
    query, x = torch.randn(2, 3, 64), torch.randn(2, 49, 64)
    levels = [members(grid_groups(7, 7, 2)), members(grid_groups(4, 4, 2))]
    exact, rough = attention(query, x, levels), attention(query.bfloat16(), x.bfloat16(), levels)
    assert rough.context.dtype == torch.bfloat16
    torch.testing.assert_close(rough.context.float(), exact.context, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_hierarchical_gradients(name: str) -> None:
    attention = HierarchicalAttention(name, 3, 3, 4, depth=3).double()
    query = torch.randn(2, 2, 3, dtype=torch.double, requires_grad=True)
    x = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)
    grouping = [members(torch.tensor([0, 1, 1, 2, 2])), members(torch.tensor([0, 0, 1]))]
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])

    def found(q: Tensor, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return attention(q, x, grouping, mask)[:2]

    assert torch.autograd.gradcheck(found, (query, x, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_hierarchical_compiles(name: str) -> None:
    attention = HierarchicalAttention(name, 4, 4, depth=2)
    boxes, query, x = torch.rand(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 5, 4)

    def look(query: Tensor, x: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        return attention(query, x, [members(box_groups(boxes, 2), 4)])[:2]

    traced = torch.compile(look, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(query, x, boxes), look(query, x, boxes))


def test_hierarchical_mistakes_are_told() -> None:
    attention = HierarchicalAttention("dot", 4, 4)
    query, x = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    with pytest.raises(MeshcapError, match="0 memberships for 2 levels"):
        attention(query, x, [])
    with pytest.raises(MeshcapError, match=r"membership 0 is torch.bool of shape \(2, 4\)"):
        attention(query, x, [members(torch.tensor([0, 0, 1, 1]))])
    with pytest.raises(MeshcapError, match=r"mask is torch.float32 of shape \(2, 5\)"):
        attention(query, x, [members(torch.tensor([0, 0, 1, 1, 1]))], torch.ones(2, 5))
    with pytest.raises(MeshcapError, match=r"torch.float32 of shape \(5,\)"):
        members(torch.zeros(5))
    with pytest.raises(MeshcapError, match="blocks of 0"):
        grid_groups(2, 2, 0)
    with pytest.raises(MeshcapError, match="depth is 0"):
        HierarchicalAttention("dot", 4, 4, depth=0)
