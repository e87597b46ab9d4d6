"""Scores against sums written out one number at a time, against each other, and against what is known of them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshcap.attention import SCORES, Additive, AttentionScore, Bilinear, Dot, ScaledDot, make_score
from meshcap.errors import MeshcapError

NAMES = sorted(SCORES)


def widths(name: str) -> tuple[int, int]:
    return (4, 4) if name in ("dot", "scaled") else (4, 3)


def plain(score: AttentionScore) -> Callable[[list[float], list[float]], float]:
    """The score of one query with one key, in Python's own arithmetic."""

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    def times(x: list[float], matrix: Tensor) -> list[float]:
        return [dot(x, column) for column in matrix.T.tolist()]

    if isinstance(score, Additive):
        return lambda q, x: dot(
            score.v.flatten().tolist(),
            [
                math.tanh(w + u + b)
                for w, u, b in zip(times(x, score.key), times(q, score.query), score.bias[0].tolist(), strict=True)
            ],
        )
    if isinstance(score, Bilinear):
        return lambda q, x: dot(x, times(q, score.weight.T))
    if isinstance(score, ScaledDot):
        return lambda q, x: dot(q, x) / math.sqrt(len(q))
    return dot


@pytest.mark.parametrize("name", NAMES)
def test_against_a_plain_loop(name: str) -> None:
    score = make_score(name, *widths(name), 5).double()
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)  # biases too
    one = plain(score)
    query, keys = torch.randn(2, 3, 4).double(), torch.randn(2, 6, widths(name)[1]).double()
    scores = score(query, score.prepare(keys))
    assert scores.shape == (2, 3, 6)
    expected = [[[one(q, x) for x in picture.tolist()] for q in asked.tolist()]
                for asked, picture in zip(query, keys, strict=True)]  # fmt: skip
    torch.testing.assert_close(scores, torch.tensor(expected).double())


def test_bilinear_is_the_dot_product_of_projections() -> None:
    of_keys, of_queries = torch.randn(5, 3), torch.randn(5, 4)
    bilinear, dot = Bilinear(4, 3), Dot(5, 5)
    with torch.no_grad():
        bilinear.weight.copy_(of_keys.T @ of_queries)
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 6, 3)
    found = bilinear(query, bilinear.prepare(keys))
    torch.testing.assert_close(found, dot(query @ of_queries.T, dot.prepare(keys @ of_keys.T)), atol=1e-5, rtol=1e-5)


def test_additive_with_small_numbers_is_linear() -> None:
    score = Additive(3, 3, 5).double()
    query, keys = 1e-5 * torch.randn(1, 2, 3).double(), 1e-5 * torch.randn(1, 4, 3).double()
    sums = (query @ score.query)[:, :, None] + (keys @ score.key)[:, None]
    torch.testing.assert_close(score(query, score.prepare(keys)), (sums @ score.v)[..., 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), sizes=st.tuples(*[st.integers(1, 4)] * 3))
def test_keys_may_come_in_any_order(name: str, seed: int, sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    batch, queries, count = sizes
    score = make_score(name, 4, 4)
    query, keys, order = torch.randn(batch, queries, 4), torch.randn(batch, count, 4), torch.randperm(count)
    there = score(query, score.prepare(keys))[..., order]
    torch.testing.assert_close(score(query, score.prepare(keys[:, order])), there, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_broadcast(name: str) -> None:
    score = make_score(name, 4, 4)
    query, keys = torch.randn(2, 5, 3, 4), torch.randn(2, 1, 6, 4)
    apart = torch.stack([score(query[:, i], score.prepare(keys[:, 0])) for i in range(5)], 1)
    torch.testing.assert_close(score(query, score.prepare(keys)), apart, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_heads_are_so_many_scores(name: str) -> None:
    together, alone = make_score(name, 4, 4, 5, heads=3), make_score(name, 4, 4, 5)
    query, keys = torch.randn(2, 3, 2, 4), torch.randn(2, 3, 6, 4)
    found = together(query, together.prepare(keys))
    for head in range(3):
        alone.load_state_dict(
            {key: value[head].view(alone.state_dict()[key].shape) for key, value in together.state_dict().items()}
        )
        expected = alone(query[:, head], alone.prepare(keys[:, head]))
        torch.testing.assert_close(found[:, head], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [4, 64, 512])
def test_variance_of_dot_grows_and_of_scaled_stays(width: int) -> None:
    """Of numbers with variance 1: D for the dot product, 1 for the scaled one."""
    count = 10_000
    query, keys = torch.randn(2, count, 1, width)
    # The dot product of two such vectors has an excess kurtosis of 6/D, hence the standard error of its variance.
    error = ((2 + 6 / width) / count) ** 0.5
    for name, expected in (("dot", width), ("scaled", 1)):
        score = make_score(name, width, width)
        variance = score(query, score.prepare(keys)).var().item()
        assert abs(variance / expected - 1) < 5 * error, (name, variance)


def test_fresh_scores_with_parameters_start_near_variance_one() -> None:
    query, keys = torch.randn(2, 4000, 1, 64)
    for name, low, high in (("bilinear", 0.8, 1.2), ("additive", 0.3, 1.0)):  # a tanh makes numbers smaller
        score = make_score(name, 64, 64)
        with torch.no_grad():
            assert low < score(query, score.prepare(keys)).var() < high, name


@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_close(name: str) -> None:
    score = make_score(name, 64, 64)
    query, keys = torch.randn(2, 3, 64), torch.randn(2, 8, 64)
    with torch.no_grad():
        exact = score(query, score.prepare(keys))
        score.bfloat16()
        rough = score(query.bfloat16(), score.prepare(keys.bfloat16()))
        assert rough.dtype == torch.bfloat16
        # 8 bits of each number: errors of some 2⁻⁸ of the typical score
        assert (rough.float() - exact).std() < 0.01 * exact.std()


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    score = make_score(name, *widths(name), 3).double()
    query = torch.randn(2, 2, 4, dtype=torch.double, requires_grad=True)
    keys = torch.randn(2, 3, widths(name)[1], dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, *_: score(q, score.prepare(k)), (query, keys, *score.parameters()), fast_mode=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_compiles(name: str) -> None:
    score = make_score(name, 4, 4)
    query, keys = torch.randn(2, 3, 4), torch.randn(2, 6, 4)
    traced = torch.compile(lambda q, k: score(q, score.prepare(k)), fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(query, keys), score(query, score.prepare(keys)))


def test_mistakes_are_told() -> None:
    for name in ("dot", "scaled"):
        with pytest.raises(MeshcapError, match="one width, and they have 4 and 3"):
            make_score(name, 4, 3)
    with pytest.raises(MeshcapError, match="no score 'cosine', expected one of additive"):
        make_score("cosine", 4, 4)
    with pytest.raises(MeshcapError, match="d_hidden is 0"):
        make_score("additive", 4, 4, 0)
    score = make_score("additive", 4, 3)
    with pytest.raises(MeshcapError, match=r"keys have shape \(2, 6, 4\), expected \(…, keys, 3\)"):
        score.prepare(torch.randn(2, 6, 4))
    prepared = score.prepare(torch.randn(2, 6, 3))
    with pytest.raises(MeshcapError, match="as many axes as the keys"):
        score(torch.randn(2, 4), prepared)
    with pytest.raises(MeshcapError, match=r"query has shape \(2, 1, 3\)"):
        score(torch.randn(2, 1, 3), prepared)
