"""Hopfield networks: energy, what is stored stays, what is damaged comes back; the modern one is attention."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.memory import Hopfield, HopfieldPooling, HopfieldStore, modern_energy, retrieve


def random_patterns(count: int, units: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 2, (count, units), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


@given(seed=st.integers(0, 10**6), units=st.integers(2, 30), count=st.integers(1, 12), pinv=st.booleans())
def test_energy_never_rises_one_by_one(seed: int, units: int, count: int, pinv: bool) -> None:
    network = Hopfield.store(random_patterns(count, units, seed), "pseudo-inverse" if pinv else "hebb")
    states = random_patterns(5, units, seed + 1)
    before = network.energy(states)
    for sweep in range(4):
        states = network.recall(states, limit=1, seed=seed + sweep)
        after = network.energy(states)
        assert bool((after <= before + 1e-4).all())
        before = after


def test_sweep_is_the_loop_that_the_paper_describes() -> None:
    patterns, cues = random_patterns(6, 20), random_patterns(4, 20, seed=7)
    network = Hopfield.store(patterns)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3)).tolist()
    expected = cues.clone()
    for cue in expected:
        for unit in order:
            field = sum(network.weights[unit, other].item() * cue[other].item() for other in range(20) if other != unit)
            if abs(field) > 1e-5:
                cue[unit] = math.copysign(1, field)
    assert torch.equal(network.recall(cues, limit=1, seed=3), expected)


def test_energy_by_hand() -> None:
    network = Hopfield(torch.tensor([[9.0, 1, -2], [1, 9, 3], [-2, 3, 9]]))  # its diagonal is set to zero
    assert network.energy(torch.tensor([1.0, 1, 1])).item() == -(1 - 2 + 3)
    assert network.energy(torch.tensor([[1.0, 1, -1], [1, -1, -1]])).tolist() == [-(1 + 2 - 3), -(-1 + 2 + 3)]


def test_few_patterns_are_fixed_points_and_come_back() -> None:
    patterns = random_patterns(10, 200)
    network = Hopfield.store(patterns)
    assert torch.equal(network.recall(patterns), patterns)
    assert torch.equal(network.recall(patterns, mode="at-once"), patterns)
    damaged = patterns.clone()
    damaged[:, :30] *= -1
    assert torch.equal(network.recall(damaged), patterns)
    assert torch.equal(network.recall(damaged[3]), patterns[3])  # one cue alone, without a batch


def test_too_many_patterns_are_forgotten() -> None:
    for load, low, high in ((0.05, 0.99, 1.0), (0.3, 0.0, 0.7)):
        patterns = random_patterns(int(load * 300), 300)
        found = Hopfield.store(patterns).recall(patterns, limit=20)
        assert low <= (found * patterns).mean().item() <= high


def test_pseudo_inverse_keeps_patterns_that_are_alike() -> None:
    first = random_patterns(1, 100)
    patterns = first.repeat(8, 1)
    for index in range(8):
        patterns[index, 10 * index : 10 * index + 10] *= -1  # each differs from the next in 20 units of 100
    assert not torch.equal(Hopfield.store(patterns).recall(patterns), patterns)
    network = Hopfield.store(patterns, "pseudo-inverse")
    assert torch.equal(network.recall(patterns), patterns)
    damaged = patterns.clone()
    damaged[:, 95:98] *= -1
    assert torch.equal(network.recall(damaged), patterns)


def test_at_once_may_swing_for_ever_and_ends_all_the_same() -> None:
    network = Hopfield(torch.tensor([[0.0, -1], [-1, 0]]))
    cue = torch.tensor([1.0, 1.0])
    assert network.recall(cue, mode="at-once", limit=3).tolist() == [-1, -1]
    assert network.recall(cue, mode="at-once", limit=4).tolist() == [1, 1]
    assert sorted(network.recall(cue).tolist()) == [-1, 1]


def test_seeds_repeat() -> None:
    network, cues = Hopfield.store(random_patterns(30, 60)), random_patterns(20, 60, seed=5)
    assert torch.equal(network.recall(cues, seed=1), network.recall(cues, seed=1))
    assert not torch.equal(network.recall(cues, seed=1), network.recall(cues, seed=2))


def test_mistakes() -> None:
    with pytest.raises(MeshcapError, match="all \\+1 or -1"):
        Hopfield.store(torch.zeros(3, 4))
    with pytest.raises(MeshcapError, match="no rule"):
        Hopfield.store(random_patterns(2, 4), "storkey")  # type: ignore[arg-type]
    with pytest.raises(MeshcapError, match="5 units, and the network has 4"):
        Hopfield.store(random_patterns(2, 4)).recall(torch.ones(5))
    with pytest.raises(MeshcapError, match="expected \\(units, units\\)"):
        Hopfield(torch.zeros(3, 4))
    with pytest.raises(MeshcapError, match="3 heads do not divide"):
        HopfieldStore(8, 4, heads=3)
    with pytest.raises(MeshcapError, match="0 patterns asked in 1 steps"):
        HopfieldStore(8, 0, heads=2)
    with pytest.raises(MeshcapError, match="at least 1"):
        retrieve(torch.zeros(1, 4), torch.zeros(2, 4), steps=0)


def test_modern_retrieval_is_attention_and_the_formula() -> None:
    query, patterns, values = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 7, 16), torch.randn(2, 3, 7, 4)
    attention = F.scaled_dot_product_attention(query, patterns, patterns)
    torch.testing.assert_close(retrieve(query, patterns, 16**-0.5), attention)
    torch.testing.assert_close(retrieve(query, patterns), attention)
    formula = (0.7 * query @ patterns.mT).softmax(-1) @ patterns
    torch.testing.assert_close(retrieve(query, patterns, 0.7), formula)
    again = (0.7 * formula @ patterns.mT).softmax(-1)
    torch.testing.assert_close(retrieve(query, patterns, 0.7, steps=2), again @ patterns)
    torch.testing.assert_close(retrieve(query, patterns, 0.7, steps=2, values=values), again @ values)


def test_modern_retrieval_sharpens_with_beta() -> None:
    patterns = torch.randn(20, 64)
    cues = patterns + 0.5 * torch.randn(20, 64)
    errors = [(retrieve(cues, patterns, beta) - patterns).norm(dim=1).mean().item() for beta in (0.02, 0.1, 0.3, 1.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1 and errors[-1] < 0.05


@given(seed=st.integers(0, 10**6), beta=st.floats(0.05, 4))
def test_modern_energy_never_rises_nor_falls_below_zero(seed: int, beta: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, patterns = torch.randn(4, 6, generator=generator), torch.randn(5, 6, generator=generator)
    energies = [modern_energy(query, patterns, beta)]
    for steps in (1, 2, 3):
        energies.append(modern_energy(retrieve(query, patterns, beta, steps=steps), patterns, beta))
    assert all(bool((after <= before + 1e-4).all()) for before, after in pairwise(energies))
    assert bool((energies[-1] >= -1e-4).all())


def test_masked_patterns_are_not_retrieved() -> None:
    query, patterns = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    mask = torch.zeros(2, 1, 5)
    mask[..., 3:] = float("-inf")
    torch.testing.assert_close(retrieve(query, patterns, mask=mask), retrieve(query, patterns[:, :3]))


@pytest.mark.parametrize("beta", [None, 0.8, "learned"])
@pytest.mark.parametrize("steps", [1, 3])
def test_store_by_its_formula(beta: float | None, steps: int) -> None:
    store = HopfieldStore(12, 5, heads=3, beta=beta, steps=steps)  # type: ignore[arg-type]
    betas = torch.full((3,), 0.8 if beta == 0.8 else 0.5)  # 1/√4
    if store.sharpness is not None:
        with torch.no_grad():
            store.sharpness.copy_(torch.tensor([0.3, -0.4, 0.1]))
        betas = 0.5 * store.sharpness.exp()
    x = torch.randn(2, 4, 12)
    query = store.query(x).view(2, 4, 3, 4)
    found = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        keys, values, one = store.keys[:, part], store.values[:, part], query[:, :, head]
        for _ in range(steps - 1):
            one = (betas[head] * one @ keys.T).softmax(-1) @ keys
        weights = (betas[head] * one @ keys.T).softmax(-1)
        if steps == 1:
            torch.testing.assert_close(store.weights(x)[:, head], weights)
        found.append(weights @ values)
    torch.testing.assert_close(store(x), store.output(torch.cat(found, -1)))


def test_store_hides_padding_and_learns() -> None:
    store = HopfieldStore(8, 6, heads=2, beta="learned")
    x, mask = torch.randn(3, 4, 8), torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] + [False] * 3])
    found = store(x, mask=mask)
    assert bool((found[~mask] == 0).all())
    torch.testing.assert_close(found[mask], store(x)[mask])
    found.square().sum().backward()
    for name, parameter in store.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name
        assert parameter.grad.abs().sum() > 0, name


def test_pooling_does_not_see_padding_nor_order() -> None:
    pooling = HopfieldPooling(8, heads=2, queries=3)
    x, mask = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = pooling(x, mask=mask)
    assert found.shape == (2, 3, 8)
    torch.testing.assert_close(found[1:], pooling(x[1:, :3]))
    torch.testing.assert_close(found[:1], pooling(x[:1, torch.randperm(5)]))


@pytest.mark.parametrize("autocast", [True, False])
def test_layers_in_bfloat16(autocast: bool) -> None:
    store, pooling = HopfieldStore(8, 6, heads=2, beta="learned", steps=2), HopfieldPooling(8, heads=2)
    x, mask = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    expected = store(x, mask=mask), pooling(x, mask=mask)
    if not autocast:
        store, pooling, x = store.bfloat16(), pooling.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = store(x, mask=mask), pooling(x, mask=mask)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), other, atol=0.06, rtol=0.06)
