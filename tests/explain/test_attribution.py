"""Integrated gradients: closed forms, completeness over every captioner, and models without gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from meshcap.backends.packed import can_pack, pack
from meshcap.errors import MeshcapError
from meshcap.explain.attribution import (
    attribute,
    differentiable,
    integrated_gradients,
    rank_correlation,
)
from meshcap.models import CaptionModel

IDS = torch.tensor([4, 7, 5, 3])  # three words and the end


def test_a_linear_function_has_a_closed_form() -> None:
    weights, x, start = torch.randn(2, 5, 3), torch.randn(5, 3), torch.randn(5, 3)
    found = integrated_gradients(lambda points: torch.einsum("mnf,tnf->mt", points, weights), x, start, steps=1)
    torch.testing.assert_close(found, (weights * (x - start)).sum(-1))


def test_a_product_is_shared_by_its_factors() -> None:
    """f = x₀ x₁ from zero: half of it each. The gradient at the end alone would give each of them all of it."""
    x = torch.tensor([[3.0], [5.0]])
    found = integrated_gradients(lambda p: p[:, 0] * p[:, 1], x, torch.zeros(2, 1), steps=2)
    torch.testing.assert_close(found, torch.tensor([[7.5, 7.5]]))


def test_batches_change_nothing() -> None:
    x = torch.randn(4, 3)

    def told(points: torch.Tensor) -> torch.Tensor:
        return torch.stack((points.sin().sum((1, 2)), points.square().sum((1, 2))), -1)

    whole = integrated_gradients(told, x, torch.zeros(4, 3), steps=9, batch=9)
    torch.testing.assert_close(integrated_gradients(told, x, torch.zeros(4, 3), steps=9, batch=2), whole)
    torch.testing.assert_close(whole[1], x.square().sum(-1))  # each number by itself: its own x²


@pytest.mark.parametrize("baseline", ["zero", "mean"])
def test_completeness(captioner: CaptionModel, baseline: str) -> None:
    found = attribute(captioner, tiny.pictures(5), IDS, baseline=baseline, steps=48)
    regions = tiny.pictures(5)
    nothing = torch.zeros_like(regions.features)
    if baseline == "mean":
        nothing = nothing + regions.features.mean(1, keepdim=True)
    spoken = torch.tensor([[2, *IDS[:-1].tolist()]])
    with torch.no_grad():
        there, away = (
            captioner(type(regions)(features, regions.boxes), spoken)[0].gather(-1, IDS[:, None])[:, 0]
            for features in (regions.features, nothing)
        )
    torch.testing.assert_close(found.gained, there - away, atol=1e-4, rtol=1e-4)
    assert found.regions.shape == found.gradient_input.shape == (4, 5)
    if not tiny.looks_hard(captioner):  # whose steps from region to region no gradient sees
        assert found.gap.max() < 0.02 + 0.02 * found.gained.abs().max()
        assert found.gained.abs().max() > 0.02  # and there was something to share out


def test_a_region_that_is_nothing_counts_nothing() -> None:
    regions = tiny.pictures(4)
    regions.features[0, 2] = 0
    found = attribute(tiny.shared("m2"), regions, IDS)
    assert torch.all(found.regions[:, 2] == 0)
    assert torch.all(found.regions[:, 0] != 0)


def test_the_model_itself_where_it_has_gradients() -> None:
    model = tiny.shared("m2")
    assert differentiable(model) is model


def test_shorter_numbers_are_copied_and_left_alone() -> None:
    model = tiny.build("m2")
    before = attribute(model, tiny.pictures(3), IDS, steps=4)
    after = attribute(model.bfloat16(), tiny.pictures(3), IDS, steps=4)
    assert model.dtype == torch.bfloat16
    torch.testing.assert_close(after.regions, before.regions, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("int8", [False, True])
def test_optimized_models_are_refused(int8: bool) -> None:
    if not can_pack(torch.int8 if int8 else torch.float32):
        pytest.skip("this torch has no such kernels")
    with pytest.raises(MeshcapError, match="an optimized model has no gradients"):
        attribute(pack(tiny.build("m2"), int8=int8), tiny.pictures(3), IDS)


@pytest.mark.parametrize("options", [{"baseline": "grey"}, {"steps": 0}])
def test_nonsense_is_refused(options: dict) -> None:
    with pytest.raises(MeshcapError, match="expected"):
        attribute(tiny.shared("m2"), tiny.pictures(3), IDS, **options)


def test_rank_correlation_by_hand() -> None:
    # d = (0, 0, 1, -1): ρ = 1 - 6 Σd² / (n (n² - 1)) = 1 - 12 / 60
    assert rank_correlation(torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20, 40, 30])) == pytest.approx(0.8)
    assert rank_correlation(torch.ones(4), torch.arange(4.0)) is None
    # two share rank 1.5: (0, 1.5, 1.5, 3) against (0, 1, 2, 3)
    assert rank_correlation(torch.tensor([0.0, 1, 1, 2]), torch.arange(4.0)) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=12, unique=True))
def test_ranks_see_order_alone(numbers: list[int]) -> None:
    x = torch.tensor(numbers, dtype=torch.float32)
    assert rank_correlation(x, x**3 + 5) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
