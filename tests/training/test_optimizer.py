"""Learning rates, weight decay and the running average."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tiny
from meshcap.training.optimizer import Average, make_optimizer, named_weights, schedule, set_rate


@given(st.integers(2, 400), st.floats(0, 0.5), st.floats(0, 0.9))
def test_the_rate_rises_once_and_falls_once(steps: int, warmup: float, last: float) -> None:
    shares = [schedule(step, steps, warmup, last) for step in range(steps)]
    top = shares.index(max(shares))
    assert max(shares) == pytest.approx(1.0)
    assert all(share > 0 for share in shares) or last == 0
    assert shares[:top] == sorted(shares[:top])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert min(shares[top:]) >= last - 1e-9


def test_the_rate_at_known_steps() -> None:
    assert schedule(0, 100, 0.1, 0.01) == pytest.approx(0.1)
    assert schedule(9, 100, 0.1, 0.01) == pytest.approx(1.0)
    assert schedule(10, 100, 0.1, 0.01) == pytest.approx(1.0)
    assert schedule(55, 100, 0.1, 0.01) == pytest.approx((1 + 0.01) / 2)  # half way down a cosine
    assert schedule(100, 100, 0.1, 0.01) == pytest.approx(0.01)
    assert schedule(500, 100, 0.1, 0.01) == pytest.approx(0.01)  # it does not rise again


def test_groups_have_their_rates_and_words_do_not_decay() -> None:
    model, vision = tiny.build("m2"), nn.Linear(3, 3)
    weights = named_weights(model, vision)
    optimizer = make_optimizer(weights, lr=0.1, lr_vision=0.01, weight_decay=0.5, device=torch.device("cpu"))
    found = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            found[id(weight)] = (group["lr"], group["weight_decay"])
    assert len(found) == len(weights) == sum(len(group["params"]) for group in optimizer.param_groups)
    for name, weight in weights.items():
        words = weight is model.decoder.words.weight
        decays = weight.dim() > 1 and not words
        rate = 0.01 if name.startswith("vision.") else 0.1
        assert found[id(weight)] == (rate, 0.5 if decays else 0.0), name
    set_rate(optimizer, 0.5)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.005, 0.05]
    set_rate(optimizer, 1.0)  # of the highest, and not of what it was before
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.01, 0.1]


def test_frozen_weights_do_not_learn() -> None:
    model, vision = tiny.build("m2"), nn.Linear(3, 3).requires_grad_(False)
    assert all(name.startswith("model.") for name in named_weights(model, vision))
    assert len(named_weights(model, vision)) == len(list(model.parameters()))


def test_the_average_is_the_weighted_mean_of_all_steps() -> None:
    weight = nn.Parameter(torch.zeros(1))
    average = Average({"w": weight}, 0.9)
    values = [3.0, -1.0, 4.0, 1.0, 5.0]  # so few that the first ones still tell whether the mean forgets its start
    expected = 0.0
    for step, value in enumerate(values, 1):
        with torch.no_grad():
            weight.fill_(value)
        average.update()
        keep = min(0.9, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * value
    assert average.mean["w"].item() == pytest.approx(expected, rel=1e-4)
    with average.applied():
        assert weight.item() == pytest.approx(expected, rel=1e-4)
    assert weight.item() == 5.0
    with pytest.raises(ZeroDivisionError), average.applied():
        raise ZeroDivisionError  # a validation that fails must not leave the mean in the model
    assert weight.item() == 5.0


def test_no_average() -> None:
    weight = nn.Parameter(torch.ones(1))
    average = Average({"w": weight}, 0.0)
    average.update()
    with average.applied():
        assert weight.item() == 1.0
    assert not average.mean
    assert math.isclose(average.decay, 0)


def test_later_stages_of_a_vision_learn_faster() -> None:
    model, vision = tiny.build("m2"), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    weights = named_weights(model, vision)
    stages = [list(layer.parameters()) for layer in vision]
    optimizer = make_optimizer(
        weights, lr=0.1, lr_vision=0.01, weight_decay=0.0, device=torch.device("cpu"), stages=stages, layer_decay=0.5
    )
    rates = {id(weight): group["highest"] for group in optimizer.param_groups for weight in group["params"]}
    for place, stage in enumerate(stages):
        assert {rates[id(weight)] for weight in stage} == {0.01 * 0.5 ** (2 - place)}
    assert {rates[id(weight)] for weight in model.parameters()} == {0.1}
    set_rate(optimizer, 0.1)
    lowest = min(group["lr"] for group in optimizer.param_groups)
    assert lowest == pytest.approx(0.01 * 0.25 * 0.1)
