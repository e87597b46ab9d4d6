"""A confidence that means something: from a caption's word log-probabilities to a share that was measured."""

from meshcap.calibration.calibration import CALIBRATION, FEWEST, Calibration

__all__ = ["CALIBRATION", "FEWEST", "Calibration"]
