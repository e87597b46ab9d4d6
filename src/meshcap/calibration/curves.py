"""From log-probabilities to one number (a signal), and from that to a confidence (a rising curve of few knots)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy
from numpy.typing import NDArray

from meshcap.calibration.isotonic import Array, pooled

LEAST = -50.0  # a log-probability below this, or none at all, is as bad as it gets
KNOTS = 12  # at most, of a curve by pooling
PER_KNOT = 25  # captions at least
SAMPLED = 33  # knots of a logistic curve: straight lines between are within 0.001 of it


def _lowest_third(given: Array) -> float:
    return float(numpy.sort(given)[: -(-len(given) // 3)].mean())


# None of the first three falls when a word becomes likelier. The end of a caption counts as a word.
SIGNALS: dict[str, Callable[[Array], float]] = {
    "mean": lambda given: float(given.mean()),
    "lowest": lambda given: float(given.min()),
    "lowest third": _lowest_third,
    "length": lambda given: float(numpy.log(len(given))),
}
EITHER = frozenset({"length"})  # may count for a caption or against it; all others only for


def measured(log_probs: Sequence[float]) -> dict[str, float]:
    """Every signal of one caption."""
    given = numpy.nan_to_num(numpy.asarray(log_probs, dtype=numpy.float64), nan=LEAST, neginf=LEAST)
    given = given.clip(LEAST, 0.0)
    return {name: signal(given) for name, signal in SIGNALS.items()}


def combined(signals: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """One number a caption from its signals: (N,)."""
    return numpy.sum([weight * signals[name] for name, weight in weights.items()], axis=0)


def weigh(signals: Mapping[str, Array], names: Sequence[str], shares: Array) -> dict[str, float]:
    """How much each signal counts, by logistic regression on shares; one alone is taken as it is.

    A signal that would count against a caption for being likelier is left out.
    """
    names = list(names)
    while len(names) > 1:
        slopes, _ = logistic(numpy.stack([signals[name] for name in names], 1), shares)
        wrong = [(slope, name) for slope, name in zip(slopes, names, strict=True) if slope <= 0 and name not in EITHER]
        if not wrong:
            return {name: float(slope) for name, slope in zip(names, slopes, strict=True)}
        names.remove(min(wrong)[1])
    return {names[0]: 1.0}


def logistic(x: Array, shares: Array) -> tuple[Array, float]:
    """Slopes (F,) and offset that make `1 / (1 + exp(-(x @ slopes + offset)))` likeliest; shares may be fractions.

    By Newton's method, with a pull towards zero so weak that it only matters where shares are all 0 or all 1.
    """
    middle, spread = x.mean(0), x.std(0)
    spread = numpy.where(spread > 1e-12, spread, 1.0)
    columns = numpy.column_stack([(x - middle) / spread, numpy.ones(len(x))])  # (N, F + 1)
    pull = numpy.full(columns.shape[1], 1e-3)
    found = numpy.zeros(columns.shape[1])
    for _ in range(50):
        expected = 1 / (1 + numpy.exp(-columns @ found))
        slope = columns.T @ (shares - expected) - pull * found
        bend = (columns * (expected * (1 - expected))[:, None]).T @ columns + numpy.diag(pull)
        step = numpy.linalg.solve(bend, slope)
        step *= min(1.0, 4.0 / max(float(numpy.abs(step).max()), 1e-12))  # far from the top Newton leaps too far
        found = found + step
        if numpy.abs(step).max() < 1e-9:
            break
    slopes = found[:-1] / spread
    return slopes, float(found[-1] - middle @ slopes)


def logistic_curve(x: Array, shares: Array) -> tuple[Array, Array]:
    """Knots (x, y) of Platt's curve over the x that were seen; flat where likelier captions are no better."""
    slopes, offset = logistic(x[:, None], shares)
    low, high = float(x.min()), float(x.max())
    if slopes[0] <= 0 or high - low < 1e-9:
        return x.mean(keepdims=True), shares.mean(keepdims=True)
    at = numpy.linspace(low, high, SAMPLED)
    return at, 1 / (1 + numpy.exp(-(at * slopes[0] + offset)))


def pooled_curve(x: Array, shares: Array) -> tuple[Array, Array]:
    """Knots (x, y) at the middles of equally many captions each, pooled until they rise."""
    bins = equal_parts(x, min(KNOTS, max(2, len(x) // PER_KNOT)))
    sizes = numpy.array([len(places) for places in bins], dtype=numpy.float64)
    at = numpy.array([x[places].mean() for places in bins])
    y = pooled(numpy.array([shares[places].mean() for places in bins]), sizes)
    return at, y


CURVES = {"logistic": logistic_curve, "pooled": pooled_curve}


def equal_parts(x: Array, count: int) -> list[NDArray[numpy.int64]]:
    """Places of x in `count` parts of equally many, from low to high; equal numbers stay together."""
    order = numpy.argsort(x, kind="stable")
    ranked = x[order]
    cuts = {int(numpy.searchsorted(ranked, ranked[len(x) * part // count])) for part in range(1, count)}
    return [places for places in numpy.split(order, sorted(cuts)) if len(places)]
