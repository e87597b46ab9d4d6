"""Selections against their limits, and estimated gradients against exact ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshcap.attention import (
    SELECTS,
    RunningMean,
    Sampled,
    Select,
    hardest,
    make_select,
    sample,
    score_function_loss,
    soft,
    straight_through,
)
from meshcap.errors import MeshcapError

DRAWS = 100_000
Z = 5.0  # standard errors: by chance, one of a million components lies outside
SCORES = torch.tensor([0.3, -1.0, 2.0, 0.0, 9.0], dtype=torch.double)
MASK = torch.tensor([True, True, True, True, False])
REWARDS = torch.tensor([1.0, 3.0, 2.0, 5.0, 100.0], dtype=torch.double)


@pytest.mark.parametrize("name", SELECTS)
@given(seed=st.integers(0, 1000), sizes=st.tuples(*[st.integers(1, 6)] * 3))
def test_weights_are_a_distribution_over_what_is_real(name: str, seed: int, sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    batch, queries, count = sizes
    scores = (10 * torch.randn(batch, queries, count)).requires_grad_()
    mask = torch.rand(batch, 1, count) < 0.5
    weights, log_prob = make_select(name)(scores, mask)
    assert weights.shape == scores.shape and log_prob.shape == (batch, queries)
    assert not weights[~mask.expand_as(weights)].any()
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float().expand(batch, queries))
    assert (log_prob <= 0).all() and not log_prob[~mask.any(-1).expand(batch, queries)].any()
    if name != "soft":
        assert set(weights.flatten().tolist()) <= {0.0, 1.0}
    if weights.requires_grad:
        (weights.square().sum() + log_prob.sum()).backward()
        assert scores.grad is not None and scores.grad.isfinite().all()
        assert not scores.grad[~mask.expand_as(weights)].any()


@pytest.mark.parametrize("name", SELECTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.double])
def test_nothing_real_gives_zeros_and_no_gradient(name: str, dtype: torch.dtype) -> None:
    scores = torch.tensor([[1.0, 1e4, -1e4]], dtype=dtype, requires_grad=True)
    weights, log_prob = make_select(name)(scores, torch.zeros(1, 3, dtype=torch.bool))
    assert weights.tolist() == [[0, 0, 0]] and log_prob.tolist() == [0] and weights.dtype == dtype
    if name != "hardest":
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
            (weights.sum() + log_prob.sum()).backward()
        assert scores.grad is not None and scores.grad.tolist() == [[0, 0, 0]]


@given(seed=st.integers(0, 1000), count=st.integers(1, 7), masked=st.booleans())
def test_soft_hardens_as_it_cools(seed: int, count: int, masked: bool) -> None:
    torch.manual_seed(seed)
    scores = torch.randperm(count).double()[None]
    mask = (torch.rand(1, count) < 0.6) if masked else None
    torch.testing.assert_close(soft(scores, mask, temperature=1e-3).weights, hardest(scores, mask).weights)
    if mask is None:
        even = torch.full((1, count), 1 / count).double()
        torch.testing.assert_close(soft(scores, temperature=1e9).weights, even)


def test_soft_is_softmax_of_what_is_real() -> None:
    expected = torch.cat([SCORES[:4].softmax(-1), torch.zeros(1)])
    torch.testing.assert_close(soft(SCORES, MASK).weights, expected)
    torch.testing.assert_close(soft(SCORES, MASK, temperature=0.5).weights[:4], (2 * SCORES[:4]).softmax(-1))


def test_hardest_takes_the_first_of_equals() -> None:
    assert hardest(torch.tensor([[1.0, 3.0, 3.0]])).weights.tolist() == [[0, 1, 0]]
    near = torch.tensor([[1.0, 1.0 + 2**-23]])  # apart by the last bit, which a softmax would lose
    assert hardest(near).weights.tolist() == [[0, 1]]


def draws(rewards: Tensor, baseline: float, seed: int = 1) -> Tensor:
    """The estimates that so many draws give of the gradient of the negative expected reward: (DRAWS, N)."""
    scores = SCORES.expand(DRAWS, -1).clone().requires_grad_()
    weights, log_prob = sample(scores, MASK, generator=torch.Generator().manual_seed(seed))
    score_function_loss(log_prob, weights @ rewards, baseline).backward()
    assert scores.grad is not None
    return scores.grad * DRAWS


def exact_gradient() -> Tensor:
    """∂/∂s_n of -Σ p_n r_n = -p_n (r_n - Σ p r), by enumeration."""
    p = SCORES[:4].softmax(-1)
    gradient = -p * (REWARDS[:4] - p @ REWARDS[:4])
    return torch.cat([gradient, torch.zeros(1)])


@pytest.mark.parametrize("baseline", [0.0, 2.0, -10.0])
def test_drawn_gradient_is_the_exact_one_on_average(baseline: float) -> None:
    estimates = draws(REWARDS, baseline)
    error = estimates.std(0) / DRAWS**0.5
    assert ((estimates.mean(0) - exact_gradient()).abs() <= Z * error).all()
    assert (error[:4] < 0.05).all()  # or the bound would say nothing


def test_a_good_baseline_lowers_the_variance() -> None:
    """Draws are the same: only the baseline differs."""
    expected = float(SCORES[:4].softmax(-1) @ REWARDS[:4])
    variance = {baseline: draws(REWARDS, baseline).var(0).sum() for baseline in (0.0, expected, -10.0)}
    assert variance[expected] < 0.5 * variance[0.0] < 0.25 * variance[-10.0]


@pytest.mark.parametrize("drawing", ["sample", "gumbel"])
def test_draws_follow_the_softmax(drawing: str) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = SCORES.expand(DRAWS, -1)
    if drawing == "sample":
        weights, log_prob = sample(scores, MASK, generator=generator)
        p = SCORES[:4].softmax(-1)
        torch.testing.assert_close(log_prob, (weights[:, :4] @ p).log())
    else:
        weights = straight_through(scores, MASK, gumbel=True, generator=generator).weights
    p = soft(SCORES, MASK).weights
    assert ((weights.mean(0) - p).abs() <= Z * (p * (1 - p) / DRAWS).sqrt()).all()


def test_chance_comes_from_the_generator() -> None:
    scores = torch.zeros(50, 4)
    first, again = (sample(scores, generator=torch.Generator().manual_seed(5)).weights for _ in range(2))
    assert torch.equal(first, again)
    torch.manual_seed(5)
    drawn = sample(scores).weights
    torch.manual_seed(5)
    assert torch.equal(drawn, sample(scores).weights)


def test_sampled_is_certain_in_evaluation() -> None:
    select: Select = Sampled(torch.Generator().manual_seed(0))
    scores = torch.tensor([[0.0, 0.1]]).expand(100, -1)
    assert 0 < select(scores, None).weights[:, 0].sum() < 100
    assert isinstance(select, Sampled)
    weights, log_prob = select.eval()(scores, None)
    assert weights[:, 1].all() and not log_prob.any()


def test_straight_through_is_hard_forward_and_soft_backward() -> None:
    direction = torch.randn(3, 5)
    gradients = []
    for select in (straight_through, soft):
        scores = torch.arange(15.0).view(3, 5).sin().requires_grad_()
        weights = select(scores, MASK, temperature=0.7).weights
        if select is straight_through:
            assert torch.equal(weights, hardest(scores, MASK).weights)  # to the bit
        (weights * direction).sum().backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(*gradients)


def test_gradients_of_what_is_smooth() -> None:
    scores = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True, False, True, True, False], [False] * 5])
    assert torch.autograd.gradcheck(lambda s: soft(s, mask, temperature=0.7).weights, (scores,))

    def log_prob(s: Tensor) -> Tensor:
        return sample(s, mask, generator=torch.Generator().manual_seed(0)).log_prob

    assert torch.autograd.gradcheck(log_prob, (scores,))


def test_bf16_is_close() -> None:
    scores = torch.randn(4, 50).bfloat16()
    weights = soft(scores).weights
    assert weights.dtype == torch.bfloat16
    torch.testing.assert_close(weights.float(), scores.float().softmax(-1), rtol=2**-8, atol=0)
    assert sample(scores).log_prob.dtype == torch.float32


def test_loss_sums_looks_and_averages_pictures() -> None:
    log_probs = -torch.arange(12.0).view(2, 3, 2)
    reward = torch.tensor([2.0, 5.0])
    loss = score_function_loss(log_probs, reward, baseline=1.0)
    assert loss.item() == pytest.approx(((2 - 1) * sum(range(6)) + (5 - 1) * sum(range(6, 12))) / 2)
    each = score_function_loss(log_probs, torch.ones(2, 3, 2))
    assert each.item() == pytest.approx(sum(range(12)) / 12)
    with pytest.raises(MeshcapError, match="leading axes of log_probs"):
        score_function_loss(log_probs, torch.ones(3))


def test_running_mean() -> None:
    baseline = RunningMean(0.9)
    assert baseline.value == 0
    baseline.update(torch.tensor([2.0, 4.0]))
    assert baseline.value.item() == pytest.approx(3)  # not 0.3: its start at zero does not count
    baseline.update(torch.tensor([5.0]))
    assert baseline.value.item() == pytest.approx((0.9 * 3 + 5) / 1.9)
    restored = RunningMean(0.9)
    restored.load_state_dict(baseline.state_dict())
    assert restored.value == baseline.value
    with pytest.raises(MeshcapError, match="momentum is 1"):
        RunningMean(1.0)


@pytest.mark.parametrize("name", SELECTS)
def test_compiles(name: str) -> None:
    select = make_select(name)
    traced = torch.compile(lambda s, m: select(s, m), fullgraph=True, backend="eager")
    torch.manual_seed(0)
    weights, log_prob = traced(SCORES[None], MASK[None])
    torch.manual_seed(0)
    torch.testing.assert_close((weights, log_prob), tuple(select(SCORES[None], MASK[None])))


def test_mistakes_are_told() -> None:
    with pytest.raises(MeshcapError, match="temperature is 0"):
        soft(SCORES, temperature=0)
    with pytest.raises(MeshcapError, match=r"mask is torch\.float32"):
        hardest(SCORES, torch.ones(5))
    with pytest.raises(MeshcapError, match="no selection 'best', expected one of soft"):
        make_select("best")
