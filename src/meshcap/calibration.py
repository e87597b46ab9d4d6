"""`Calibration`: what a captioner keeps to turn log-probabilities into a confidence. A small JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy
from numpy.typing import NDArray

from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.folders import CALIBRATION

Array = NDArray[numpy.float64]

VERSION = 1
ANEW = "make it anew with meshcap evaluate --calibrate"
FEWEST = 20  # captions to fit on
MEANING = "expected share of the caption's content words that at least one person used for the same picture"

LEAST = -50.0  # a log-probability below this, or none at all, is as bad as it gets


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
    given = numpy.asarray(log_probs, dtype=numpy.float64)
    given = numpy.minimum(numpy.fmax(given, LEAST), 0.0)  # of NaN and a number, fmax is the number
    return {name: signal(given) for name, signal in SIGNALS.items()}


@dataclass(frozen=True)
class Calibration:
    """Confidences as expected shares: see docs/confidence.md.

    A caption's signals, weighted and added, give x; the curve through (x, y), straight between its knots and flat
    beyond them, gives the confidence. It never falls when a word becomes likelier.
    """

    weights: dict[str, float]  # of the signals: mean, lowest, lowest third (log-probabilities), length (its logarithm)
    x: tuple[float, ...]
    y: tuple[float, ...]
    fitted_on: dict[str, Any] = field(default_factory=dict)  # data, split, captions, …: for people to read

    def __post_init__(self) -> None:
        _check(self.weights, self.x, self.y)

    def apply(self, log_probs: Sequence[float]) -> float:
        """The confidence, 0 to 1, in a caption whose words (and end) have these log-probabilities.

        Raises:
            MeshcapError: there are none.
        """
        if not len(log_probs):
            raise MeshcapError("no log-probabilities given: expected one for each word of the caption")
        signals = measured(log_probs)
        at = sum(weight * signals[name] for name, weight in self.weights.items())
        return float(numpy.interp(at, self.x, self.y))

    def save(self, folder: str | Path) -> None:
        """Write `calibration.json` into a model folder; a reader sees the old one or the new one."""
        content = {
            "version": VERSION,
            "meaning": MEANING,
            "weights": self.weights,
            "x": self.x,
            "y": self.y,
            "fitted_on": self.fitted_on,
        }
        lines = (f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in content.items())
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        write_text(Path(folder) / CALIBRATION, text)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read the file of a model folder, or the file itself.

        Raises:
            MeshcapError: there is none, or it holds something else.
        """
        path = Path(folder)
        path = path / CALIBRATION if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise MeshcapError(f"{path} is not readable JSON: {ANEW}") from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise MeshcapError(f"{path} is no calibration of version {VERSION}: {ANEW}")
        try:
            weights, fitted_on = content.get("weights", {}), content.get("fitted_on", {})
            if not isinstance(fitted_on, dict):
                raise MeshcapError("fitted_on is no object")
            return cls(weights, _numbers(content, "x"), _numbers(content, "y"), fitted_on)
        except MeshcapError as error:
            raise MeshcapError(f"{path}: {error}; {ANEW}") from error


def _numbers(content: Mapping[str, Any], name: str) -> tuple[float, ...]:
    given = content.get(name)
    if not isinstance(given, list) or not all(map(_finite, given)):
        raise MeshcapError(f"{name} is no list of numbers")
    return tuple(map(float, given))


def _finite(value: object) -> bool:
    # An int of JSON may be longer than any float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _check(weights: object, x: Sequence[float], y: Sequence[float]) -> None:
    if not isinstance(weights, dict) or not weights:
        raise MeshcapError(f"weights are missing, expected those of some of {', '.join(SIGNALS)}")
    for name, weight in weights.items():
        if name not in SIGNALS:
            raise MeshcapError(f"there is no signal {str(name)[:40]!r}, expected some of {', '.join(SIGNALS)}")
        if not _finite(weight) or (weight < 0 and name not in EITHER):
            raise MeshcapError(f"the weight of {name} is not a number from 0 up")
    if not x or len(x) != len(y):
        raise MeshcapError(f"the curve has {len(x)} x and {len(y)} y, expected as many of both, and some")
    if any(after <= before for before, after in pairwise(x)):
        raise MeshcapError("the curve's x do not rise")
    if any(after < before for before, after in pairwise(y)) or not 0 <= y[0] <= y[-1] <= 1:
        raise MeshcapError("the curve's y do not rise from 0 or more to 1 or less")
