"""Rising curves: against scikit-learn, against every partition there is, and against known truths."""

from itertools import combinations, pairwise

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcap.calibration import LEAST, SIGNALS, measured
from meshcap.evaluation.calibration_fit import (
    CURVES,
    combined,
    equal_parts,
    logistic,
    logistic_curve,
    pooled,
    weigh,
)

numbers = st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=7)


def test_pooled_by_hand() -> None:
    assert pooled(numpy.array([1.0, 3.0, 2.0, 4.0])).tolist() == [1, 2.5, 2.5, 4]
    assert pooled(numpy.array([3.0, 2.0, 1.0])).tolist() == [2, 2, 2]
    assert pooled(numpy.array([3.0, 0.0]), numpy.array([1.0, 2.0])).tolist() == [1, 1]
    assert pooled(numpy.array([1.0, 2.0])).tolist() == [1, 2]


@given(numbers, st.data())
@settings(deadline=None, max_examples=100)
def test_pooled_is_the_best_of_all_partitions(values: list[float], data: st.DataObject) -> None:
    """The nearest rising sequence is constant on blocks, at their means: try every way to cut into blocks."""
    y = numpy.array(values)
    weights = numpy.array(data.draw(st.lists(st.integers(1, 4).map(float), min_size=len(y), max_size=len(y))))
    best = numpy.inf
    for count in range(len(y)):
        for cuts in combinations(range(1, len(y)), count):
            blocks = numpy.split(numpy.arange(len(y)), cuts)
            means = [float(numpy.average(y[block], weights=weights[block])) for block in blocks]
            if means == sorted(means):
                levels = numpy.concatenate([[m] * len(b) for m, b in zip(means, blocks, strict=True)])
                best = min(best, float((weights * (y - levels) ** 2).sum()))
    found = pooled(y, weights)
    assert (numpy.diff(found) >= -1e-12).all()
    assert float((weights * (y - found) ** 2).sum()) == pytest.approx(best, abs=1e-9)


def test_pooled_is_scikit_learns() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    luck = numpy.random.default_rng(0)
    y, weights = luck.normal(size=400) + numpy.linspace(0, 2, 400), luck.uniform(0.1, 3, 400)
    theirs = isotonic.IsotonicRegression().fit_transform(numpy.arange(400), y, sample_weight=weights)
    numpy.testing.assert_allclose(pooled(y, weights), theirs, atol=1e-10)


def test_logistic_is_scikit_learns() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    luck = numpy.random.default_rng(1)
    x = luck.normal(size=(500, 3)) * [1, 5, 0.2] + [0, 3, -1]
    y = (luck.random(500) < 1 / (1 + numpy.exp(-(x @ [1.0, -0.3, 4.0] + 5)))).astype(float)
    slopes, offset = logistic(x, y)
    theirs = linear.LogisticRegression(C=1e6, max_iter=10_000, tol=1e-10).fit(x, y)
    numpy.testing.assert_allclose(slopes, theirs.coef_[0], rtol=1e-3)
    assert offset == pytest.approx(float(theirs.intercept_[0]), rel=1e-3)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_logistic_of_one_outcome_stays_finite(share: float) -> None:
    slopes, offset = logistic(numpy.linspace(-1, 0, 50)[:, None], numpy.full(50, share))
    assert numpy.isfinite(slopes).all() and (offset > 3 if share else offset < -3)


def test_straight_pieces_follow_the_logistic_curve() -> None:
    luck = numpy.random.default_rng(2)
    x = luck.uniform(-3, 0, 1000)
    shares = 1 / (1 + numpy.exp(-(3 * x + 4)))
    at, y = logistic_curve(x, shares)
    fine = numpy.linspace(at[0], at[-1], 999)
    assert numpy.abs(numpy.interp(fine, at, y) - 1 / (1 + numpy.exp(-(3 * fine + 4)))).max() < 2e-3


@pytest.mark.parametrize("kind", CURVES)
def test_curves_rise_whatever_they_are_given(kind: str) -> None:
    luck = numpy.random.default_rng(3)
    for shares in (luck.random(300), numpy.linspace(1, 0, 300), numpy.linspace(0, 1, 300), numpy.ones(300)):
        for x in (numpy.linspace(-2, 0, 300), numpy.zeros(300), numpy.repeat([-2.0, -1.0], 150)):
            at, y = CURVES[kind](x, shares)
            assert (numpy.diff(at) > 0).all() and (numpy.diff(y) >= 0).all()
            assert ((y >= 0) & (y <= 1)).all()
            assert numpy.interp(x, at, y).mean() == pytest.approx(shares.mean(), abs=0.05)


@given(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=60), st.integers(1, 12))
def test_equal_parts(values: list[float], count: int) -> None:
    x = numpy.array(values)
    parts = equal_parts(x, count)
    assert sorted(numpy.concatenate(parts).tolist()) == list(range(len(x)))
    assert 1 <= len(parts) <= count
    for one, following in pairwise(parts):
        assert x[one].max() < x[following].min()
    if len(set(values)) == len(values) and count <= len(values):
        assert {len(part) for part in parts} <= {len(x) // count, -(-len(x) // count)}


def test_signals_by_hand() -> None:
    found = measured([-0.3, -0.1, -0.8, -0.4])
    assert found == pytest.approx({"mean": -0.4, "lowest": -0.8, "lowest third": -0.6, "length": numpy.log(4)})
    assert measured([float("-inf"), 0.0])["lowest"] == LEAST
    assert measured([float("nan"), 0.0])["mean"] == LEAST / 2
    assert measured([1e-7])["mean"] == 0  # a rounding above one
    assert set(found) == set(SIGNALS)


def test_weights_never_punish_a_likelier_word() -> None:
    luck = numpy.random.default_rng(4)
    signals = {"mean": luck.normal(size=500), "lowest": luck.normal(size=500), "length": luck.normal(size=500)}
    shares = 1 / (1 + numpy.exp(-(2 * signals["mean"] - signals["lowest"] - signals["length"])))
    weights = weigh(signals, ("mean", "lowest", "length"), shares)
    assert set(weights) == {"mean", "length"} and weights["mean"] > 0 > weights["length"]
    assert weigh(signals, ("lowest",), shares) == {"lowest": 1.0}
    exact = weigh(signals, ("mean", "length"), 1 / (1 + numpy.exp(-(2 * signals["mean"] - signals["length"]))))
    assert exact == pytest.approx({"mean": 2.0, "length": -1.0}, rel=1e-3)
    numpy.testing.assert_allclose(
        combined(signals, exact), 2 * signals["mean"] - signals["length"], rtol=1e-2, atol=1e-2
    )
