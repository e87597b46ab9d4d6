"""Scores small enough to work out by hand."""

from __future__ import annotations

import numpy as np

from meshcap.music.score import Part, Score

TRIADS = {"C": (60, 64, 67), "F": (65, 69, 72), "G": (67, 71, 74), "Am": (57, 60, 64), "Dm": (62, 65, 69)}


def part(name: str, notes: list[tuple[float, float, int]], **more: object) -> Part:
    """Notes are (onset, duration, pitch), in quarters."""
    columns = [np.array(column) for column in zip(*notes, strict=True)] if notes else [np.zeros(0)] * 3
    return Part(name, columns[0].astype(float), columns[1].astype(float), columns[2].astype(int),
                np.full(len(notes), 80), **more)  # type: ignore[arg-type]  # fmt: skip


def song(chords: list[str], melody: list[list[int]], *, metre: tuple[int, int] = (4, 4), bpm: float = 90.0) -> Score:
    """A bar for each chord, held below; the melody's notes share the bar among them. The bass is an octave lower."""
    length = metre[0] * 4 / metre[1]
    below, above = [], []
    for bar, (chord, notes) in enumerate(zip(chords, melody, strict=True)):
        start = bar * length
        below += [(start, length, pitch - 12) for pitch in TRIADS[chord]] + [(start, length, TRIADS[chord][0] - 24)]
        above += [(start + n * length / len(notes), length / len(notes), pitch) for n, pitch in enumerate(notes)]
    count = len(chords)
    parts = (part("Melody", above), part("Piano", sorted(below)))
    return Score(parts, np.arange(count + 1) * length, (metre,) * count, np.full(count, bpm))


# Eight bars in C: I IV V I twice, the second time the same tune, which ends an octave higher than it began.
FIRST = [[60, 62, 64, 65], [69, 67, 65, 64], [67, 69, 71, 74], [72]]
EIGHT = song(["C", "F", "G", "C"] * 2, FIRST * 2)
