"""Which signals and which curve: what predicts held-out shares best, and of equals the simplest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

from meshcap.calibration.curves import CURVES, combined, measured, weigh
from meshcap.calibration.isotonic import Array

FOLDS = 5
# From simple to not.
CHOICES: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    (names, curve)
    for names in (("mean",), ("lowest",), ("lowest third",), ("mean", "lowest"), ("mean", "lowest", "length"))
    for curve in CURVES
)


@dataclass(frozen=True)
class Curve:
    """A fitted way from signals to confidences."""

    weights: dict[str, float]  # of each signal
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: str

    def __call__(self, signals: Mapping[str, Array]) -> Array:
        return numpy.interp(combined(signals, self.weights), self.x, self.y)


@dataclass(frozen=True)
class Candidate:
    """What one choice of signals and curve came to on captions that it had not seen."""

    signals: tuple[str, ...]
    curve: str
    error: float  # squared, the mean over captions
    chosen: bool = False


def signals_of(log_probs: Sequence[Sequence[float]]) -> dict[str, Array]:
    """Every signal of every caption: (N,) each."""
    each = [measured(one) for one in log_probs]
    return {name: numpy.array([one[name] for one in each]) for name in each[0]}


def fit_curve(signals: Mapping[str, Array], shares: Array, names: Sequence[str], kind: str) -> Curve:
    weights = weigh(signals, names, shares)
    x, y = CURVES[kind](combined(signals, weights), shares)
    return Curve(weights, tuple(x.tolist()), tuple(y.clip(0.0, 1.0).tolist()), kind)


def choose(signals: Mapping[str, Array], shares: Array, seed: int = 0) -> tuple[Curve, list[Candidate]]:
    """The curve to use, fitted on everything, and how all choices fared on held-out captions.

    The simplest is taken that is worse than the best by no more than the standard error of their difference.
    """
    fold = folds(len(shares), seed)
    errors = []  # (N,) for each choice
    for names, kind in CHOICES:
        expected = numpy.empty(len(shares))
        for out in range(FOLDS):
            kept, held = fold != out, fold == out
            curve = fit_curve(_some(signals, kept), shares[kept], names, kind)
            expected[held] = curve(_some(signals, held))
        errors.append((expected - shares) ** 2)
    best = min(errors, key=lambda one: float(one.mean()))
    worse = [(float((one - best).mean()), float((one - best).std()) / len(best) ** 0.5) for one in errors]
    taken = next(place for place, (by, sure) in enumerate(worse) if by <= sure)
    told = [
        Candidate(names, kind, float(error.mean()), place == taken)
        for place, ((names, kind), error) in enumerate(zip(CHOICES, errors, strict=True))
    ]
    return fit_curve(signals, shares, *CHOICES[taken]), told


def held_out(signals: Mapping[str, Array], shares: Array, seed: int = 0) -> Array:
    """A confidence for each caption, (N,), from fits (the choosing included) that did not see it."""
    fold = folds(len(shares), seed)
    expected = numpy.empty(len(shares))
    for out in range(FOLDS):
        kept, held = fold != out, fold == out
        curve, _ = choose(_some(signals, kept), shares[kept], seed + 1)
        expected[held] = curve(_some(signals, held))
    return expected


def folds(count: int, seed: int) -> Array:
    """To which of `FOLDS` equal parts each caption belongs."""
    return numpy.random.default_rng(seed).permutation(numpy.arange(count) % FOLDS)


def _some(signals: Mapping[str, Array], places: Array) -> dict[str, Array]:
    return {name: values[places] for name, values in signals.items()}
