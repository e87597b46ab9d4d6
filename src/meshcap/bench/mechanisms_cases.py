"""The captioners that the bench of mechanisms compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshcap.bench.mechanisms_jobs import Job
from meshcap.errors import MeshcapError

REFERENCE = "m2"  # what all others are compared with
SLOTS = 40
SLOW = ("ntm", "show-attend-tell", "hierarchical")  # beginnings of what trains longest


@dataclass(frozen=True)
class Case:
    """A captioner and how its settings differ from the bench's."""

    name: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)  # of the model alone
    changes: dict[str, Any] = field(default_factory=dict)  # of the training settings


def cases(layers: int = 3) -> list[Case]:
    """All captioners, from the oldest to M², and M²'s ablations."""
    found = [Case("seq2seq", "seq2seq")]
    for attention in ("soft", "hard"):
        for how in ("additive", "dot", "scaled", "bilinear"):
            name = f"show-attend-tell, {attention}, {how}"
            found.append(Case(name, "show-attend-tell", {"attention": attention, "score": how}))
    found += [Case("hierarchical", "hierarchical"), Case("ntm", "ntm"), Case("hopfield", "hopfield")]
    found.append(Case("hopfield, no self-attention", "hopfield", {"self_attention": False}))
    for depth in (layers, 2 * layers):
        deep = {"encoder_layers": depth, "decoder_layers": depth}
        found.append(Case(f"transformer, {depth} layers", "transformer", {}, deep))
    found.append(Case(REFERENCE, "m2", {}, {"slots": SLOTS}))
    for slots in (0, 20, 60, 80):
        found.append(Case(f"m2, {slots} slots" if slots else "m2, no memory", "m2", {}, {"slots": slots}))
    for name, option in (("last level", {"mesh": "last"}), ("one-to-one", {"mesh": "one-to-one"})):
        found.append(Case(f"m2, {name}", "m2", option, {"slots": SLOTS}))
    found.append(Case("m2, softmax gates", "m2", {"gates": "softmax"}, {"slots": SLOTS}))
    return found


def chosen_cases(layers: int, only: Sequence[str]) -> list[Case]:
    """Those whose names begin with one of `only`; all without."""
    chosen = [case for case in cases(layers) if not only or any(case.name.startswith(one) for one in only)]
    if not chosen:
        known = ", ".join(sorted({case.model for case in cases(layers)}))
        raise MeshcapError(f"no captioner begins with {', '.join(only)!r}: expected some of {known}")
    return chosen


def slow_first(jobs: Sequence[Job], layers: int) -> list[Job]:
    """Seed by seed, in each what takes longest first, so that no long run is left at the end."""
    slow = (*SLOW, f"transformer, {2 * layers} layers")

    def place(job: Job) -> tuple[int, int]:
        found = [number for number, start in enumerate(slow) if job[0].startswith(start)]
        return job[1], found[0] if found else len(slow)

    return sorted(jobs, key=place)
