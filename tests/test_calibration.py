"""Calibration: known truths are found again, it rises, it comes back from its file, and other files are refused."""

import json
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap.calibration import CALIBRATION, Calibration, measured
from meshcap.errors import MeshcapError
from meshcap.evaluation.calibration_fit import choose, fit_calibration, held_out, reliability, signals_of

Made = tuple[list[list[float]], numpy.ndarray, numpy.ndarray]


def made(count: int, truth: str = "mean", seed: int = 0) -> Made:
    """Captions whose share has a known expectation: log-probabilities, that, and shares of 6 words each."""
    luck = numpy.random.default_rng(seed)
    level = luck.uniform(0.05, 0.6, count)
    log_probs = [(-luck.exponential(size=luck.integers(6, 14)) * scale).tolist() for scale in level]
    x = numpy.array([measured(one)[truth] for one in log_probs])
    middle, spread = numpy.median(x), x.std()
    expected = 0.25 + 0.65 / (1 + numpy.exp(-2.5 * (x - middle) / spread))
    return log_probs, expected, luck.binomial(6, expected) / 6


@pytest.mark.parametrize("truth", ["mean", "lowest"])
def test_a_known_curve_is_found_again(truth: str) -> None:
    log_probs, expected, shares = made(4000, truth)
    found = fit_calibration(log_probs, shares.tolist())
    assert set(found.weights) == {truth}
    given = numpy.array([found.apply(one) for one in log_probs])
    # 12 knots of 333 captions whose shares of 6 words are off by about 0.2: means are sure to 0.011, and the worst of
    # some dozens of places within four of those, and some more for straight lines through a bent curve.
    assert numpy.abs(given - expected).mean() < 0.015
    assert numpy.quantile(numpy.abs(given - expected), 0.99) < 0.06
    fresh, truly, _ = made(2000, truth, seed=1)
    assert numpy.abs(numpy.array([found.apply(one) for one in fresh]) - truly).mean() < 0.015


def test_held_out_confidences_are_calibrated_and_the_plain_ones_are_not() -> None:
    log_probs, _, shares = made(3000)
    signals = signals_of(log_probs)
    before = reliability(numpy.exp(signals["mean"]), shares)
    after = reliability(held_out(signals, shares), shares)
    assert before.error > 5 * before.noise
    assert after.error < 2 * after.noise
    assert after.squared_error < before.squared_error


def test_no_caption_is_judged_by_itself() -> None:
    """Shares that are pure chance cannot be foretold, however freely a curve may bend."""
    luck = numpy.random.default_rng(5)
    log_probs, shares = [[-value] for value in luck.random(300)], luck.integers(0, 2, 300).astype(float)
    expected = held_out(signals_of(log_probs), shares)
    assert ((expected - shares) ** 2).mean() > 0.99 * shares.var()


def test_the_simplest_of_equals_is_chosen() -> None:
    log_probs, _, shares = made(2000)
    curve, told = choose(signals_of(log_probs), shares)
    assert [one.chosen for one in told].count(True) == 1
    chosen = next(one for one in told if one.chosen)
    assert chosen.signals == ("mean",) and curve.kind == chosen.curve
    assert chosen.error < min(one.error for one in told) * 1.02
    assert next(one for one in told if one.signals == ("lowest",)).error > chosen.error


log_probabilities = st.lists(st.floats(-60, 0), min_size=1, max_size=12)
BOTH = Calibration({"mean": 2.0, "lowest": 0.5, "length": -0.3}, (-3.0, -1.0, 0.2), (0.1, 0.6, 0.97))


@given(log_probabilities, st.data())
def test_a_likelier_word_never_lowers_it(log_probs: list[float], data: st.DataObject) -> None:
    confidence = BOTH.apply(log_probs)
    assert 0.1 <= confidence <= 0.97
    place = data.draw(st.integers(0, len(log_probs) - 1))
    better = [*log_probs[:place], data.draw(st.floats(log_probs[place], 0)), *log_probs[place + 1 :]]
    assert BOTH.apply(better) >= confidence - 1e-12


def test_by_hand() -> None:
    one = Calibration({"mean": 1.0}, (-1.0, 0.0), (0.2, 0.8))
    assert one.apply([-0.5]) == pytest.approx(0.5)
    assert one.apply([-0.25, -0.75]) == pytest.approx(0.5)
    assert one.apply([-9.0]) == one.apply([float("-inf")]) == one.apply([float("nan")]) == 0.2
    assert one.apply([0.0]) == one.apply([1e-6]) == 0.8
    assert Calibration({"lowest": 1.0}, (-1.0, 0.0), (0.2, 0.8)).apply([-0.25, -0.75]) == pytest.approx(0.35)
    assert type(one.apply([-0.5])) is float
    with pytest.raises(MeshcapError, match="no log-probabilities"):
        one.apply([])


def test_round_trip(tmp_path: Path) -> None:
    log_probs, _, shares = made(500)
    fitted = fit_calibration(log_probs, shares.tolist(), fitted_on={"data": "drawn", "split": "val"})
    fitted.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CALIBRATION]
    assert Calibration.load(tmp_path) == Calibration.load(tmp_path / CALIBRATION) == fitted
    assert fitted.fitted_on["captions"] == 500 and fitted.fitted_on["data"] == "drawn"
    first = (tmp_path / CALIBRATION).read_bytes()
    fit_calibration(log_probs, shares.tolist(), fitted_on={"data": "drawn", "split": "val"}).save(tmp_path)
    assert (tmp_path / CALIBRATION).read_bytes() == first  # no dates, no chance
    assert "share" in json.loads(first)["meaning"]


GOOD = {"version": 1, "weights": {"mean": 1.0}, "x": [-1, 0], "y": [0.2, 0.8], "fitted_on": {}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 1"),
        ({"weights": None}, "weights"),
        ({"weights": {}}, "weights"),
        ({"weights": {"mood": 1}}, "no signal 'mood'"),
        ({"weights": {"mean": -1}}, "weight of mean"),
        ({"weights": {"mean": "1"}}, "weight of mean"),
        ({"weights": {"mean": 10**400}}, "weight of mean"),
        ({"x": [0, -1]}, "x do not rise"),
        ({"x": [0, 0]}, "x do not rise"),
        ({"x": [0]}, "1 x and 2 y"),
        ({"x": [], "y": []}, "and some"),
        ({"x": [0, None]}, "x is no list"),
        ({"x": "01"}, "x is no list"),
        ({"y": [0.2, True]}, "y is no list"),
        ({"y": [0.8, 0.2]}, "y do not rise"),
        ({"y": [0.2, 1.2]}, "y do not rise"),
        ({"y": [-0.2, 0.2]}, "y do not rise"),
        ({"fitted_on": []}, "fitted_on"),
    ],
)
def test_bad_files_are_refused_in_one_line(change: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / CALIBRATION).write_text(json.dumps(GOOD | change))
    with pytest.raises(MeshcapError, match=message) as refused:
        Calibration.load(tmp_path)
    assert "\n" not in str(refused.value) and CALIBRATION in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "NaN", '{"version": 1, "weights": {"mean": NaN}}', "[" * 100_000])
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / CALIBRATION).write_text(text)
    with pytest.raises(MeshcapError) as refused:
        Calibration.load(tmp_path)
    assert "\n" not in str(refused.value)
    (tmp_path / CALIBRATION).unlink()
    with pytest.raises(MeshcapError, match="cannot be read"):
        Calibration.load(tmp_path)


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(MeshcapError, match="too few"):
        fit_calibration([[-1.0]] * 19, [1.0] * 19)
    with pytest.raises(MeshcapError, match="one share a caption"):
        fit_calibration([[-1.0]] * 20, [1.0] * 21)
    with pytest.raises(MeshcapError, match="between 0 and 1"):
        fit_calibration([[-1.0]] * 20, [float("nan")] * 20)
    with pytest.raises(MeshcapError, match="no log-probabilities"):
        fit_calibration([[]] * 20, [1.0] * 20)
    assert fit_calibration([[-1.0]] * 20, [0.5] * 20).apply([-0.2]) == pytest.approx(0.5, abs=1e-6)
