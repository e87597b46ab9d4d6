"""The kernels of a decoding step say what plain arithmetic says.

On a GPU; and on a CPU where Triton is installed and asked to interpret (TRITON_INTERPRET=1).
"""

import itertools
import os

import pytest
import torch

from meshcap import kernels
from meshcap.attention import HistoryCache, attend, empty_history, join_heads, reorder_history, split_heads

INTERPRETED = kernels.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
WHERE = "cpu" if INTERPRETED else "cuda"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def no_gradient():
    with torch.no_grad():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(WHERE, dtype)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    atol, rtol = {torch.bfloat16: (0.02, 0.02), torch.float16: (0.004, 0.004)}.get(found.dtype, (1e-5, 1e-5))
    torch.testing.assert_close(found.float(), expected.float(), atol=atol, rtol=rtol)


@dtypes
@pytest.mark.parametrize(("levels", "rows", "width"), [(0, 1, 16), (0, 7, 512), (3, 5, 512), (2, 3, 50), (1, 2, 1030)])
def test_add_norm(dtype: torch.dtype, levels: int, rows: int, width: int) -> None:
    x, added = draw(rows, width, dtype=dtype), draw(*([levels] if levels else []), rows, width, dtype=dtype)
    weight, bias = draw(width, dtype=dtype), draw(width, dtype=dtype)
    found = kernels.add_norm(x, added, weight, bias, 1e-5)
    assert found.shape == added.shape and found.dtype == dtype
    wide = (x.float() + added.float(), (width,), weight.float(), bias.float(), 1e-5)
    near(found, torch.nn.functional.layer_norm(*wide))


@dtypes
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_linear_relu(dtype: torch.dtype, rows: int) -> None:
    linear = torch.nn.Linear(64, 136).to(WHERE, dtype)
    x = draw(2, rows, 64, dtype=dtype)
    found = kernels.linear_relu(x, linear)
    assert found.shape == (2, rows, 136) and found.dtype == dtype
    near(found, torch.nn.functional.linear(x.float(), linear.weight.float(), linear.bias.float()).relu())


@dtypes
@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
@pytest.mark.parametrize(("levels", "rows", "width"), [(1, 1, 16), (3, 5, 512), (2, 7, 50), (6, 3, 300)])
def test_mix_levels(dtype: torch.dtype, kind: str, levels: int, rows: int, width: int) -> None:
    both = draw(2, rows, 24 + levels * width, dtype=dtype)
    query, halves = both[..., 24:], 4 * draw(levels, 2, rows, width, dtype=dtype)
    context = draw(levels, 2, rows, width, dtype=dtype)
    found = kernels.mix_levels(query, halves, context, kind=kind, scale=0.5)
    assert found.shape == (2, rows, width) and found.dtype == dtype
    scores = query.float().unflatten(-1, (levels, width)).movedim(-2, 0) + halves.float()
    alpha = scores.sigmoid() if kind == "sigmoid" else scores.softmax(0)
    near(found, (alpha * context.float()).sum(0) * 0.5)


@dtypes
@pytest.mark.parametrize(("shape", "width", "gain"), [((1, 1), 16, 1.0), ((3, 5), 50, 22.6), ((2, 4), 512, 1.0)])
def test_embed(dtype: torch.dtype, shape: tuple[int, int], width: int, gain: float) -> None:
    table, positions = draw(11, width, dtype=dtype), draw(8, width, dtype=dtype)
    ids, step = torch.randint(11, shape).to(WHERE), torch.tensor([4]).to(WHERE)
    found = kernels.embed(ids, table, gain, positions, step)
    assert found.shape == (*shape, width) and found.dtype == dtype
    near(found, table.float()[ids] * gain + positions[5].float())


@dtypes
@pytest.mark.parametrize(
    ("pictures", "heads", "beams", "words", "d"), [(1, 1, 1, 3, 16), (2, 3, 5, 20, 64), (1, 2, 2, 40, 32)]
)
def test_attend_history_and_follow_parents(
    dtype: torch.dtype, pictures: int, heads: int, beams: int, words: int, d: int
) -> None:
    """Against the plain cache, as beams go on from each other."""
    like = draw(heads, 1, d, dtype=dtype)
    shape = {"layers": 2, "pictures": pictures, "width": beams, "length": words}
    own = torch.arange(beams, dtype=torch.int32, device=WHERE)[:, None].repeat(pictures, 1, words)
    state = empty_history(like.float().cpu(), **shape)
    step = torch.zeros(1, dtype=torch.long, device=WHERE)
    keys, values = torch.full((2, *state["keys"].shape), 77.0).to(WHERE, dtype)  # what is not written is not read
    for _ in range(words):
        cache = HistoryCache.open(state, torch.float32)
        for layer in range(2):
            new = draw(pictures, beams, 3 * heads * d, dtype=dtype)
            query, *both = (split_heads(one, heads).float().cpu() for one in new.chunk(3, -1))
            expected = attend(query, *cache.append(layer, *both), mask=cache.mask)
            found = kernels.attend_history(new, keys[layer], values[layer], own, step)
            assert found.shape == (pictures, beams, heads * d) and found.dtype == dtype
            near(found.cpu(), join_heads(expected))
        step += 1
        state["step"] += 1
        parents = torch.randint(beams, (pictures, beams))
        kernels.follow_parents(own, parents.to(WHERE), step)
        reorder_history(state, parents)


def test_a_table_too_large_to_be_moved_at_once_is_followed_alike() -> None:
    ancestors = torch.randint(5, (2, 5, 9), dtype=torch.int32, device=WHERE)
    parents, step = torch.randint(5, (2, 5), device=WHERE), torch.tensor([4], device=WHERE)
    expected = ancestors.clone()
    for b, w in itertools.product(range(2), range(5)):
        expected[b, w, :4] = ancestors[b, parents[b, w], :4]
    for limit in (kernels.WIDEST, 1):
        found = ancestors.clone()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "WIDEST", limit)
            reorder_history({"ancestors": found, "step": step}, parents)
        assert torch.equal(found, expected)
