"""Attention without a query, against loops over plain numbers and against its limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meshcap.attention import SALIENCIES, Gate, MaxPool, WinnerTakeAll, make_saliency
from meshcap.errors import MeshcapError

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
KINDS = {
    "max": lambda d: MaxPool(),
    "gate": Gate,
    "open gate": lambda d: Gate(d, normalised=False),
    "winner-take-all": WinnerTakeAll,
    "sole winner": lambda d: WinnerTakeAll(d, rounds=20),
}
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False] * 5])


def test_every_name_is_made_and_tested() -> None:
    assert {type(make_saliency(name, 4)) for name in SALIENCIES} == {type(make(4)) for make in KINDS.values()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), sizes=st.tuples(*[st.integers(1, 5)] * 3))
def test_order_and_padding_change_nothing(kind: str, seed: int, sizes: tuple[int, int, int]) -> None:
    torch.manual_seed(seed)
    batch, count, width = sizes
    look, x, order = KINDS[kind](width), torch.randn(sizes), torch.randperm(count)
    context, weights = look(x)
    assert context.shape == (batch, width) and weights.shape == (batch, count)
    if kind != "open gate":
        torch.testing.assert_close(weights.sum(-1), torch.ones(batch), **CLOSE)
    moved = look(x[:, order])
    torch.testing.assert_close(moved, (context, weights[:, order]), **CLOSE)
    padded = torch.cat([x, 9 * torch.ones(batch, 2, width)], 1)
    again = look(padded, (torch.arange(count + 2) < count).expand(batch, -1))
    torch.testing.assert_close(again, (context, nn.functional.pad(weights, (0, 2))), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_real_gives_zeros_and_finite_gradients(kind: str) -> None:
    look, x = KINDS[kind](4), torch.randn(3, 5, 4, requires_grad=True)
    context, weights = look(x, MASK)
    assert not context[2].any() and not weights[2].any() and not weights[~MASK].any()
    (context.square().sum() + weights.square().sum()).backward()
    assert x.grad is not None and x.grad.isfinite().all() and not x.grad[~MASK].any()


def test_max_pooling() -> None:
    x = torch.tensor([[[1.0, 5.0, 0.0, 2.0], [3.0, 4.0, -1.0, 1.0], [9.0, 9.0, 9.0, 9.0]]])
    context, weights = MaxPool()(x, torch.tensor([[True, True, False]]))
    assert context.tolist() == [[3, 5, 0, 2]]
    assert weights.tolist() == [[0.75, 0.25, 0]]


@pytest.mark.parametrize("normalised", [True, False])
def test_gates(normalised: bool) -> None:
    look, x = Gate(4, normalised=normalised), torch.randn(3, 5, 4)
    context, weights = look(x, MASK)
    for b in range(2):
        gates = [
            1 / (1 + math.exp(-look.salience(region).item())) if real else 0.0
            for region, real in zip(x[b], MASK[b].tolist(), strict=True)
        ]
        total = sum(gates) if normalised else 1.0
        torch.testing.assert_close(weights[b], torch.tensor(gates) / total, **CLOSE)
        torch.testing.assert_close(context[b], sum(g / total * r for g, r in zip(gates, x[b], strict=True)), **CLOSE)


def inhibited(activities: list[float], rounds: int) -> list[float]:
    """The rounds of lateral inhibition, one region at a time."""
    shares = [a / sum(activities) for a in activities]
    for _ in range(rounds):
        alive = sum(a > 0 for a in shares)
        left = [max(0.0, a - sum(b for j, b in enumerate(shares) if j != i) / alive) for i, a in enumerate(shares)]
        shares = [a / sum(left) for a in left]
    return shares


@given(seed=st.integers(0, 1000), count=st.integers(1, 8), rounds=st.integers(0, 3))
def test_winner_take_all_is_lateral_inhibition(seed: int, count: int, rounds: int) -> None:
    torch.manual_seed(seed)
    look, x = WinnerTakeAll(4, rounds=rounds).double(), torch.randn(1, count, 4).double()
    expected = inhibited(look.salience(x).sigmoid().flatten().tolist(), rounds)
    torch.testing.assert_close(look(x)[1][0], torch.tensor(expected).double())


def test_winner_takes_all_in_the_end() -> None:
    x = torch.randn(20, 30, 4)
    look, gate = WinnerTakeAll(4, rounds=20), Gate(4)
    gate.load_state_dict(look.state_dict())
    context, weights = look(x)
    best = gate(x)[1].argmax(1)
    assert torch.equal(weights, nn.functional.one_hot(best, 30).float())
    torch.testing.assert_close(context, x[torch.arange(20), best])
    few = []
    for look.rounds in range(5):
        few.append((look(x)[1] > 0).sum(1).float().mean().item())
    assert few == sorted(few, reverse=True) and few[0] == 30 > few[1] > few[2] >= 1


def test_equals_share_what_they_win() -> None:
    look = WinnerTakeAll(1, rounds=10)
    with torch.no_grad():
        look.salience.weight.fill_(1)
    weights = look(torch.tensor([[[1.0], [2.0], [2.0], [-3.0]]]))[1]
    torch.testing.assert_close(weights, torch.tensor([[0, 0.5, 0.5, 0]]))


@pytest.mark.parametrize(
    "kind", sorted(KINDS.keys() - {"sole winner"})
)  # which may win by the ninth bit, and lose in bf16
def test_bf16_is_close(kind: str) -> None:
    look, x = KINDS[kind](64), torch.randn(3, 5, 64).bfloat16().float()
    with torch.no_grad():
        exact = look(x, MASK)
        rough = look.bfloat16()(x.bfloat16(), MASK)
    for a, b in zip(rough, exact, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str) -> None:
    look = KINDS[kind](3).double()
    x = torch.randn(3, 5, 3, dtype=torch.double, requires_grad=True)

    def context(x: Tensor, *_: Tensor) -> Tensor:
        return look(x, MASK)[0]

    assert torch.autograd.gradcheck(context, (x, *look.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_compiles(kind: str) -> None:
    look, x = KINDS[kind](4), torch.randn(3, 5, 4)
    traced = torch.compile(look, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(x, MASK), look(x, MASK))


def test_mistakes_are_told() -> None:
    with pytest.raises(MeshcapError, match="no saliency 'min', expected one of max"):
        make_saliency("min", 4)
    with pytest.raises(MeshcapError, match="rounds is -1"):
        WinnerTakeAll(4, rounds=-1)
    with pytest.raises(MeshcapError, match=r"regions have shape \(3, 4\)"):
        Gate(4)(torch.randn(3, 4))
    with pytest.raises(MeshcapError, match=r"expected torch.bool of shape \(3, 5\)"):
        MaxPool()(torch.randn(3, 5, 4), torch.ones(3, 5))
