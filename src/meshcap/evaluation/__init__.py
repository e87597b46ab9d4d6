"""A model and a split to captions, scores, calibrated confidences and a report.

Names are imported at their first use: a captioner reads its `Calibration` from here and needs nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshcap.evaluation.calibration import Calibration
    from meshcap.evaluation.evaluation import Evaluation, evaluate

__all__ = ["Calibration", "Evaluation", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where = "calibration" if name == "Calibration" else "evaluation"
    return getattr(import_module(f"{__name__}.{where}"), name)
