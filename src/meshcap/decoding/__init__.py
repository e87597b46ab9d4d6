"""From log-probabilities to captions.

The records (`Rules`, strategies, `Hypotheses`) need no torch; what runs them with torch is imported when it is first
asked for, so that exported captioners run where there is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from meshcap.decoding.records import (
    Beam,
    ConstrainedBeam,
    DiverseBeam,
    Greedy,
    Hypotheses,
    Rules,
    Sampling,
    Settings,
    Strategy,
)

if TYPE_CHECKING:  # the same table again, in the form that type checkers read
    from meshcap.decoding.ensemble import Ensemble
    from meshcap.decoding.extension import Extended, Extension, Shares
    from meshcap.decoding.search import Decodable, Graphs, State, decode

__all__ = [
    "Beam",
    "ConstrainedBeam",
    "Decodable",
    "DiverseBeam",
    "Ensemble",
    "Extended",
    "Extension",
    "Graphs",
    "Greedy",
    "Hypotheses",
    "Rules",
    "Sampling",
    "Settings",
    "Shares",
    "State",
    "Strategy",
    "decode",
]

_MODULES = {
    "Decodable": "meshcap.decoding.search",
    "Ensemble": "meshcap.decoding.ensemble",
    "Extended": "meshcap.decoding.extension",
    "Extension": "meshcap.decoding.extension",
    "Graphs": "meshcap.decoding.search",
    "Shares": "meshcap.decoding.extension",
    "State": "meshcap.decoding.search",
    "decode": "meshcap.decoding.search",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value  # found without coming here next time
    return value
