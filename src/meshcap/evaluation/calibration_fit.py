"""Fit a `Calibration` to captions with references, and measure how far it holds on captions it was not fitted on.

Signals (one number from a caption's log-probabilities) and a rising curve (logistic, or pooled as in isotonic
regression) are chosen by cross-validation; of equals the simplest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from meshcap.calibration import EITHER, FEWEST, Array, Calibration, measured
from meshcap.errors import MeshcapError
from meshcap.evaluation.content_words import used_shares


def pooled(values: Array, weights: Array | None = None) -> Array:
    """The non-decreasing numbers that are nearest to `values` in weighted squares; values in the order of their x."""
    weights = numpy.ones(len(values)) if weights is None else weights
    blocks: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            before, its, many = blocks.pop()
            mean, total, count = (before * its + mean * total) / (its + total), its + total, count + many
        blocks.append((mean, total, count))
    return numpy.repeat([mean for mean, _, _ in blocks], [count for _, _, count in blocks])


KNOTS = 12  # at most, of a curve by pooling
PER_KNOT = 25  # captions at least
SAMPLED = 33  # knots of a logistic curve: straight lines between are within 0.001 of it


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


FOLDS = 5
# From simple to not.
CHOICES: tuple[tuple[tuple[str, ...], str], ...] = tuple(
    (names, curve)
    for names in (("mean",), ("lowest",), ("lowest third",), ("mean", "lowest"), ("mean", "lowest", "length"))
    for curve in CURVES
)


@dataclass(frozen=True)
class ConfidenceCurve:
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


def fit_curve(signals: Mapping[str, Array], shares: Array, names: Sequence[str], kind: str) -> ConfidenceCurve:
    weights = weigh(signals, names, shares)
    x, y = CURVES[kind](combined(signals, weights), shares)
    return ConfidenceCurve(weights, tuple(x.tolist()), tuple(y.clip(0.0, 1.0).tolist()), kind)


def choose(signals: Mapping[str, Array], shares: Array, seed: int = 0) -> tuple[ConfidenceCurve, list[Candidate]]:
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
    candidates = [
        Candidate(names, kind, float(error.mean()), place == taken)
        for place, ((names, kind), error) in enumerate(zip(CHOICES, errors, strict=True))
    ]
    return fit_curve(signals, shares, *CHOICES[taken]), candidates


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


BINS = 10
LEVELS = (0.5, 0.6, 0.7, 0.8)  # at which --min-confidence is tried


@dataclass(frozen=True)
class Bin:
    """Captions of about the same confidence."""

    count: int
    confidence: float  # their mean
    share: float  # the mean of what came true
    interval: tuple[float, float]  # of that mean, 95 %


@dataclass(frozen=True)
class Reliability:
    """Of confidences beside what came true."""

    error: float  # mean distance of a bin's confidence from its share, weighted by captions
    noise: float  # what that would be by chance alone if every confidence were right
    squared_error: float
    order: float  # rank correlation of confidences and shares
    bins: list[Bin]


@dataclass(frozen=True)
class Withheld:
    """What remains when captions below a confidence are not shown; None where there are none."""

    level: float
    withheld: float  # share of the captions
    withheld_share: float | None
    withheld_cider: float | None
    kept_share: float | None
    kept_cider: float | None


def reliability(confidences: Array, shares: Array, count: int = BINS) -> Reliability:
    """Bins of equally many captions, so that each has the same say and none is empty."""
    bins, error, noise = [], 0.0, 0.0
    for places in equal_parts(confidences, min(count, max(1, len(shares) // 10))):
        said, came = confidences[places], shares[places]
        # Of a mean; within a bin confidences differ, and that part of the spread is no noise.
        sure = float((came - said).std(ddof=1)) / len(places) ** 0.5 if len(places) > 1 else 0.0
        part = len(places) / len(shares)
        error += part * abs(float(said.mean() - came.mean()))
        noise += part * sure * (2 / numpy.pi) ** 0.5  # the mean distance of a normal variable from its middle
        middle, wide = float(came.mean()), 1.96 * sure
        ends = (max(0.0, middle - wide), min(1.0, middle + wide))
        bins.append(Bin(len(places), float(said.mean()), middle, ends))
    squared = float(((confidences - shares) ** 2).mean())
    return Reliability(error, noise, squared, rank_correlation(confidences, shares), bins)


def withheld(confidences: Array, shares: Array, cider: Array, levels: Sequence[float] = LEVELS) -> list[Withheld]:
    """For each level, how many captions lie below it, and how good those and the others are."""
    found = []
    for level in levels:
        below = confidences < level
        found.append(
            Withheld(
                level,
                float(below.mean()),
                *(_mean(values[below]) for values in (shares, cider)),
                *(_mean(values[~below]) for values in (shares, cider)),
            )
        )
    return found


def rank_correlation(one: Array, other: Array) -> float:
    """Spearman's: 1 where the order is the same, 0 where one says nothing of the other or never changes."""
    first, second = ranks(one), ranks(other)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(numpy.corrcoef(first, second)[0, 1])


def ranks(values: Array) -> Array:
    """From 0; equal values share the mean of their ranks."""
    _, place, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    ends = numpy.cumsum(counts)
    middles: Array = (ends - 1 + ends - counts) / 2
    return middles[place]


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def fit_calibration(
    log_probs: Sequence[Sequence[float]],
    shares: Sequence[float],
    *,
    fitted_on: Mapping[str, Any] | None = None,
) -> Calibration:
    """The calibration that predicts held-out shares best, of captions with these log-probabilities.

    Args:
        shares: what a confidence shall foretell of each caption, 0 to 1.
        fitted_on: what the captions are, to be kept; their number is added.

    Raises:
        MeshcapError: too few captions, or shares that are none.
    """
    if len(log_probs) != len(shares):
        raise MeshcapError(f"{len(log_probs)} captions and {len(shares)} shares: expected one share a caption")
    if len(shares) < FEWEST:
        raise MeshcapError(f"{len(shares)} captions are too few to calibrate with: expected {FEWEST} at least")
    if not all(len(one) for one in log_probs):
        raise MeshcapError("a caption has no log-probabilities: expected one for each of its words")
    known = numpy.asarray(shares, dtype=numpy.float64)
    if not ((known >= 0) & (known <= 1)).all():
        raise MeshcapError("a share is not between 0 and 1")
    curve, _ = choose(signals_of(log_probs), known)
    return Calibration(
        curve.weights, curve.x, curve.y, {**(fitted_on or {}), "captions": len(shares), "curve": curve.kind}
    )


@dataclass(frozen=True)
class Trial:
    """Of captions with references; arrays have one number a caption, (N,)."""

    calibration: Calibration  # fitted on all of them
    shares: Array  # what came true
    plain: Array  # the geometric mean of the words' probabilities: what there is without a calibration
    expected: Array  # confidences by fits that had not seen the caption
    before: Reliability  # of the plain ones
    after: Reliability  # of the expected ones
    candidates: list[Candidate]  # the signals and curves that were tried

    def figures(self) -> dict[str, float]:
        """The few numbers that a run keeps."""
        return {
            "captions": len(self.shares),
            "mean_share": float(self.shares.mean()),
            "calibration_error_before": self.before.error,
            "calibration_error": self.after.error,
            "calibration_error_by_chance": self.after.noise,
            "rank_correlation": self.after.order,
        }

    def to_dict(self, cider: Sequence[float]) -> dict[str, Any]:
        """Everything that was measured; `cider` is that of each caption."""
        values = numpy.asarray(cider, dtype=numpy.float64)
        return {
            "signal": self.calibration.weights,
            "fitted_on": self.calibration.fitted_on,
            "mean_share": float(self.shares.mean()),
            "variance": float(self.shares.var()),
            "candidates": [asdict(one) for one in self.candidates],
            "before": asdict(self.before)
            | {"withheld": [asdict(one) for one in withheld(self.plain, self.shares, values)]},
            "after": asdict(self.after)
            | {"withheld": [asdict(one) for one in withheld(self.expected, self.shares, values)]},
        }


def try_calibration(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    log_probs: Sequence[Sequence[float]],
    *,
    tokenizer: str = "ptb",
    fitted_on: Mapping[str, Any] | None = None,
) -> Trial:
    """Fit on all captions, and measure with fits on four fifths of them what the others come to.

    Raises:
        MeshcapError: too few captions, or one without log-probabilities.
    """
    shares = numpy.array(used_shares(captions, references, tokenizer))
    about = {**(fitted_on or {}), "tokenizer": tokenizer}
    calibration = fit_calibration(log_probs, shares.tolist(), fitted_on=about)
    signals = signals_of(log_probs)
    plain, expected = numpy.exp(signals["mean"]), held_out(signals, shares)
    return Trial(
        calibration,
        shares,
        plain,
        expected,
        reliability(plain, shares),
        reliability(expected, shares),
        choose(signals, shares)[1],
    )
