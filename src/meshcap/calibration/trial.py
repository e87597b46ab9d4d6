"""A calibration, and how far it holds on captions that it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from meshcap.calibration.calibration import Calibration
from meshcap.calibration.choose import Candidate, choose, held_out, signals_of
from meshcap.calibration.isotonic import Array
from meshcap.calibration.measure import Reliability, reliability
from meshcap.calibration.words import used_shares


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
    calibration = Calibration.fit(log_probs, shares.tolist(), fitted_on=about)
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
