"""The k likeliest words, on a CPU and by the kernel for GPUs."""

import pytest
import torch

from meshcap.decoding.likeliest import likeliest

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@devices
@pytest.mark.parametrize(("words", "k"), [(10, 1), (10, 10), (10, 16), (10201, 5), (32768, 16), (40000, 3), (100, 40)])
def test_against_sorting(device: str, words: int, k: int) -> None:
    log_probs = torch.randn(2, 3, words).log_softmax(-1)
    log_probs[0, :, 3] = float("-inf")
    values, ids = (tensor.cpu() for tensor in likeliest(log_probs.to(device), k))
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
    values, ids = (tensor.cpu() for tensor in likeliest(log_probs.to(device), 5))
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
    values, ids = (tensor.cpu() for tensor in likeliest(cut, 4))
    expected = wide[..., :10].topk(4, -1)
    assert torch.equal(ids, expected.indices)
    assert torch.equal(values, expected.values)
