"""The kernels for GPUs, and attention on a CPU, say what plain arithmetic says."""

import pytest
import torch

from meshcap.attention import additive_mask, attend, attend_with_weights
from meshcap.decoding.choose import best_words
from meshcap.kernels import attend_by_products, can_attend_by_products, can_decode_attention, decode_attention

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@devices
@pytest.mark.parametrize(("words", "k"), [(10, 1), (10, 10), (10, 16), (10201, 5), (32768, 16), (40000, 3), (100, 40)])
def test_against_sorting(device: str, words: int, k: int) -> None:
    log_probs = torch.randn(2, 3, words).log_softmax(-1)
    log_probs[0, :, 3] = float("-inf")
    values, ids = (tensor.cpu() for tensor in best_words(log_probs.to(device), k))
    assert values.shape == ids.shape == (2, 3, min(k, words))
    assert ids.dtype == torch.long
    for row, found, places in zip(log_probs.flatten(0, 1), values.flatten(0, 1), ids.flatten(0, 1), strict=True):
        order = sorted(range(words), key=row.tolist().__getitem__, reverse=True)[:k]
        assert places.tolist() == order
        assert torch.equal(found, row[order])


@devices
def test_rows_with_little_in_them(device: str) -> None:
    """Fewer words than asked for have a chance: the rest are different ids within the row, at -inf."""
    log_probs = torch.full((3, 9), float("-inf"))
    log_probs[0, 4], log_probs[1, [8, 2]] = 0.0, torch.tensor([-1.0, -0.5])
    values, ids = (tensor.cpu() for tensor in best_words(log_probs.to(device), 5))
    assert ids[0, 0] == 4
    assert ids[1, :2].tolist() == [2, 8]
    assert values.isneginf().sum(-1).tolist() == [4, 3, 5]
    for row in ids.tolist():
        assert len(set(row)) == 5
        assert set(row) <= set(range(9))


@devices
def test_rows_may_lie_apart(device: str) -> None:
    """Cut out of a wider tensor, as a vocabulary that was filled up is."""
    wide = torch.randn(2, 3, 16)
    cut = wide.to(device)[..., :10]
    values, ids = (tensor.cpu() for tensor in best_words(cut, 4))
    expected = wide[..., :10].topk(4, -1)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(values, expected.values)


# The kernel for few queries says what the plain arithmetic says.


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize(("queries", "count", "groups"), [(1, 1, 1), (5, 50, 3), (3, 64, 2), (17, 65, 1), (64, 300, 2)])
@pytest.mark.parametrize("masked", ["", "rows", "groups"])
def test_decode_attention_against_plain_arithmetic(
    dtype: torch.dtype, width: int, queries: int, count: int, groups: int, masked: str
) -> None:
    pictures, heads = 3, 2
    query = torch.randn(pictures, queries, heads, width, device="cuda").to(dtype).transpose(1, 2)  # as heads are split
    keys, values = torch.randn(2, groups * pictures, heads, count, width, device="cuda").to(dtype)
    assert can_decode_attention(query, keys)
    mask = None
    if masked:
        shape = (pictures, 1, queries, count) if masked == "rows" else (groups * pictures, 1, 1, count)
        visible = torch.rand(shape, device="cuda") < 0.5
        visible[..., -1] = True  # often nothing else, and in the last block
        mask = additive_mask(visible, dtype)
    found = decode_attention(query, keys, values, mask)
    wide = None if mask is None else mask.float().repeat(groups * pictures // mask.shape[0], 1, 1, 1)
    repeated = query.float().repeat(groups, 1, 1, 1)
    expected, _ = attend_with_weights(repeated, keys.float(), values.float(), mask=wide)
    torch.testing.assert_close(found.float(), expected, atol=0.02 if dtype == torch.bfloat16 else 0.004, rtol=0.02)


@pytest.mark.gpu
def test_where_decode_attention_does_not_apply() -> None:
    query = torch.zeros(1, 2, 3, 64, device="cuda", dtype=torch.bfloat16)
    assert not can_decode_attention(query, query)  # gradients are wanted
    with torch.no_grad():
        assert can_decode_attention(query, query)
        assert not can_decode_attention(query.float(), query.float())
        assert not can_decode_attention(query.cpu(), query.cpu())
        assert not can_decode_attention(query[..., :48], query[..., :48])
        assert not can_decode_attention(query.repeat(1, 1, 30, 1), query)


@torch.no_grad()
@pytest.mark.parametrize(("queries", "count"), [(1, 64), (5, 196), (197, 197)])
def test_attention_by_products_against_plain_arithmetic(queries: int, count: int) -> None:
    query = torch.randn(2, queries, 3, 16).bfloat16().transpose(1, 2)  # as heads are split
    keys, values = torch.randn(2, 2, 3, count, 16).bfloat16()
    assert can_attend_by_products(query, keys)
    found = attend_by_products(query, keys, values)
    expected, _ = attend_with_weights(query.float(), keys.float(), values.float())
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0.03)
    assert torch.equal(attend(query, keys, values), found)  # which takes it where it applies


def test_where_attention_by_products_does_not_apply() -> None:
    query = torch.zeros(1, 2, 5, 16, dtype=torch.bfloat16)
    keys = torch.zeros(1, 2, 64, 16, dtype=torch.bfloat16)
    assert not can_attend_by_products(query, keys)  # gradients are wanted
    with torch.no_grad():
        assert can_attend_by_products(query, keys)
        assert not can_attend_by_products(query.float(), keys.float())
        assert not can_attend_by_products(query, keys[:, :, :63])
        assert not can_attend_by_products(query.to("meta"), keys.to("meta"))
