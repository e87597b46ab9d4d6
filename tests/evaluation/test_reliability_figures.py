"""Figures of reliability: by hand, against scipy, and against a simulation of chance."""

import numpy
import pytest

from meshcap.evaluation.calibration_fit import rank_correlation, reliability, withheld


def test_by_hand() -> None:
    confidences = numpy.repeat([0.2, 0.9], 20)
    shares = numpy.tile([0.0, 1.0], 20)
    found = reliability(confidences, shares, 2)
    assert [(one.count, one.confidence, one.share) for one in found.bins] == [
        (20, pytest.approx(0.2), 0.5), (20, pytest.approx(0.9), 0.5)
    ]  # fmt: skip
    assert found.error == pytest.approx((0.3 + 0.4) / 2)
    assert found.squared_error == pytest.approx((0.04 + 0.64 + 0.81 + 0.01) / 4)
    sure = (0.25 * 20 / 19 / 20) ** 0.5  # of a mean of 20 coins
    assert found.noise == pytest.approx(sure * (2 / numpy.pi) ** 0.5)
    assert found.bins[0].interval == pytest.approx((0.5 - 1.96 * sure, 0.5 + 1.96 * sure))
    assert found.order == 0


def test_noise_is_what_a_perfect_forecast_shows() -> None:
    luck = numpy.random.default_rng(0)
    errors, noises = [], []
    for _ in range(200):
        confidences = luck.uniform(0.3, 1, 400)
        found = reliability(confidences, (luck.random(400) < confidences).astype(float))
        errors.append(found.error)
        noises.append(found.noise)
    assert numpy.mean(errors) == pytest.approx(numpy.mean(noises), rel=0.05)


def test_rank_correlation_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    luck = numpy.random.default_rng(1)
    one, other = luck.integers(0, 9, 200).astype(float), luck.integers(0, 5, 200).astype(float)
    assert rank_correlation(one, other) == pytest.approx(float(stats.spearmanr(one, other).statistic), abs=1e-12)
    assert rank_correlation(one, one) == pytest.approx(1)
    assert rank_correlation(one, numpy.ones(200)) == 0


def test_withheld_by_hand() -> None:
    found = withheld(
        numpy.array([0.1, 0.5, 0.9]), numpy.array([0.0, 0.5, 1.0]), numpy.array([0.3, 0.6, 1.2]), (0.05, 0.6)
    )
    none, two = found
    assert (none.withheld, none.withheld_share, none.kept_share) == (0, None, 0.5)
    assert two.withheld == pytest.approx(2 / 3)
    assert (two.withheld_share, two.withheld_cider, two.kept_share, two.kept_cider) == pytest.approx(
        (0.25, 0.45, 1, 1.2)
    )
