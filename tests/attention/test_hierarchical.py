"""Attention on attention, against flat attention and against levels put together by hand."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshcap.attention import (
    SCORES,
    HierarchicalAttention,
    KeyValueAttention,
    box_groups,
    grid_groups,
    members,
)
from meshcap.errors import MeshcapError

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
NAMES = sorted(SCORES)


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


def test_prepared_once_and_asked_often() -> None:
    attention = HierarchicalAttention("additive", 5, 4, 6)
    query, x, grouping = torch.randn(2, 3, 5), torch.randn(2, 6, 4), [members(grid_groups(2, 3, 2))]
    prepared = attention.prepare(x)
    steps = [attention.attend(query[:, t : t + 1], prepared, x, grouping).context for t in range(3)]
    torch.testing.assert_close(torch.cat(steps, 1), attention(query, x, grouping).context, **CLOSE)


def test_nothing_real_gives_zeros_and_finite_gradients() -> None:
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
def test_gradients(name: str) -> None:
    attention = HierarchicalAttention(name, 3, 3, 4, depth=3).double()
    query = torch.randn(2, 2, 3, dtype=torch.double, requires_grad=True)
    x = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)
    grouping = [members(torch.tensor([0, 1, 1, 2, 2])), members(torch.tensor([0, 0, 1]))]
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])

    def found(q: Tensor, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return attention(q, x, grouping, mask)[:2]

    assert torch.autograd.gradcheck(found, (query, x, *attention.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    attention = HierarchicalAttention(name, 4, 4, depth=2)
    boxes, query, x = torch.rand(2, 5, 4), torch.randn(2, 3, 4), torch.randn(2, 5, 4)

    def look(query: Tensor, x: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        return attention(query, x, [members(box_groups(boxes, 2), 4)])[:2]

    traced = torch.compile(look, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(query, x, boxes), look(query, x, boxes))


def test_mistakes_are_told() -> None:
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
