"""The kernel for few queries says what the plain arithmetic says."""

import pytest
import torch

from meshcap.attention import additive_mask, attend_openly
from meshcap.attention.few import attend_few, fits

pytestmark = pytest.mark.gpu


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize(("queries", "count", "groups"), [(1, 1, 1), (5, 50, 3), (3, 64, 2), (17, 65, 1), (64, 300, 2)])
@pytest.mark.parametrize("masked", ["", "rows", "groups"])
def test_against_plain_arithmetic(
    dtype: torch.dtype, width: int, queries: int, count: int, groups: int, masked: str
) -> None:
    pictures, heads = 3, 2
    query = torch.randn(pictures, queries, heads, width, device="cuda").to(dtype).transpose(1, 2)  # as heads are split
    keys, values = torch.randn(2, groups * pictures, heads, count, width, device="cuda").to(dtype)
    assert fits(query, keys)
    mask = None
    if masked:
        shape = (pictures, 1, queries, count) if masked == "rows" else (groups * pictures, 1, 1, count)
        visible = torch.rand(shape, device="cuda") < 0.5
        visible[..., -1] = True  # often nothing else, and in the last block
        mask = additive_mask(visible, dtype)
    found = attend_few(query, keys, values, mask)
    wide = None if mask is None else mask.float().repeat(groups * pictures // mask.shape[0], 1, 1, 1)
    repeated = query.float().repeat(groups, 1, 1, 1)
    expected, _ = attend_openly(repeated, keys.float(), values.float(), mask=wide)
    torch.testing.assert_close(found.float(), expected, atol=0.02 if dtype == torch.bfloat16 else 0.004, rtol=0.02)


def test_where_it_does_not_apply() -> None:
    query = torch.zeros(1, 2, 3, 64, device="cuda", dtype=torch.bfloat16)
    assert not fits(query, query)  # gradients are wanted
    with torch.no_grad():
        assert fits(query, query)
        assert not fits(query.float(), query.float())
        assert not fits(query.cpu(), query.cpu())
        assert not fits(query[..., :48], query[..., :48])
        assert not fits(query.repeat(1, 1, 30, 1), query)
