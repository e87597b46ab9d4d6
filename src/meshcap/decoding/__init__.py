"""From log-probabilities to captions."""

from meshcap.decoding.constrained import ConstrainedBeam
from meshcap.decoding.decode import Graphs, decode
from meshcap.decoding.ensemble import Ensemble
from meshcap.decoding.hypotheses import Hypotheses
from meshcap.decoding.protocol import Decodable, State
from meshcap.decoding.rules import Rules
from meshcap.decoding.strategies import Beam, DiverseBeam, Greedy, Sample, Strategy

__all__ = [
    "Beam",
    "ConstrainedBeam",
    "Decodable",
    "DiverseBeam",
    "Ensemble",
    "Graphs",
    "Greedy",
    "Hypotheses",
    "Rules",
    "Sample",
    "State",
    "Strategy",
    "decode",
]
