"""Which key a piece is in and which chord each bar begins with, heard from its notes with probabilities.

Two small networks of one hidden layer look at the sounding time of the twelve pitch classes *from a candidate root or
tonic upwards* and say how well it fits, the same for all twelve: a transposed piece is heard the same, transposed.
They learned from the training songs of POP909 (recipes/pop909.py); `harmony.estimate_key` and `estimate_chords` are
the textbook ways, for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from meshcap.music.harmony import ALL_CHORDS, QUALITIES, Chord, Key, key_scores
from meshcap.music.score import BASS, MELODY, Score

WEIGHTS = Path(__file__).with_name("hearing.safetensors")
WINDOWS = (0.25, 0.5, 1.0)  # of a bar, from its beginning
CHORD_INPUTS, KEY_INPUTS = 12 * 10, 12 * 8 + 2
LOUDEST = 2.0  # quarters: a note that is held longer says no more


@dataclass(frozen=True)
class Heard:
    """Probabilities: of keys (24,), major ones first, and of ALL_CHORDS in each bar (N, 60); `sounding` (N,)."""

    keys: np.ndarray
    chords: np.ndarray
    sounding: np.ndarray

    @property
    def key(self) -> Key:
        return key_of(int(self.keys.argmax()))

    def best_chords(self) -> tuple[Chord | None, ...]:
        best = self.chords.argmax(1)
        return tuple(ALL_CHORDS[place] if there else None for place, there in zip(best, self.sounding, strict=True))


def key_of(place: int) -> Key:
    return Key(place % 12, "major" if place < 12 else "minor")


def place_of(key: Key) -> int:
    return key.tonic + 12 * (key.mode == "minor")


def chroma(score: Score, share: float = 1.0, role: int | None = None) -> np.ndarray:
    """(N, 12) quarters that each pitch class sounds in the first `share` of each bar. Kept with the score."""
    known = score.measured
    if (share, role) not in known:
        known[share, role] = _chroma(score, share, role)
    return known[share, role]


def _chroma(score: Score, share: float, role: int | None) -> np.ndarray:
    notes, starts = score.notes, score.bars[:-1]
    ends = starts + np.diff(score.bars) * share
    chosen = np.flatnonzero(np.ones(len(notes["pitch"]), bool) if role is None else notes["role"] == role)
    onset, end = notes["onset"][chosen], (notes["onset"] + notes["duration"])[chosen]
    bar, pitch = notes["bar"][chosen], notes["pitch"][chosen].astype(int) % 12
    found = np.zeros((len(score), 12))
    while len(bar):  # each round one bar further, with the notes that still sound there
        overlap = np.minimum(end, ends[bar]) - np.maximum(onset, starts[bar])
        np.add.at(found, (bar, pitch), np.clip(overlap, 0, LOUDEST))
        going = (end > score.bars[bar + 1] + 0.1) & (bar + 1 < len(score))
        onset, end, bar, pitch = onset[going], end[going], bar[going] + 1, pitch[going]
    return found


def _shares(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(1e-6, rows.sum(-1, keepdims=True))


def _upwards(rows: np.ndarray) -> np.ndarray:
    """(…, 12) to (…, 12, 12): for each of twelve roots, the same from there upwards."""
    places = (np.arange(12)[:, None] + np.arange(12)[None]) % 12
    return rows[..., places]


def chord_inputs(score: Score) -> np.ndarray:
    """(N, 12, CHORD_INPUTS): of each bar, for each root."""
    every = [chroma(score, share) for share in WINDOWS]
    low = [chroma(score, share, BASS) for share in WINDOWS]
    nothing = np.zeros((1, 12))
    before, after = np.concatenate((nothing, every[2][:-1])), np.concatenate((every[1][1:], nothing))
    whole = np.broadcast_to(every[2].sum(0, keepdims=True), every[2].shape)
    rows = [*map(_shares, (*every, *low, before, after, whole)), (every[1] > 0.2).astype(float)]
    return np.concatenate([_upwards(one) for one in rows], -1).astype(np.float32)


def key_inputs(score: Score, chords: np.ndarray) -> np.ndarray:
    """(12, KEY_INPUTS): of a piece and its chords' probabilities (N, 60), for each tonic."""
    every, low = chroma(score), chroma(score, role=BASS)
    sung = chroma(score, role=MELODY)
    total = every.sum(0)
    likely = chords.reshape(len(score), len(QUALITIES), 12)
    rows = [
        _shares(total),
        _shares(low.sum(0)),
        _shares(sung.sum(0)),
        likely[:, 0].mean(0),
        likely[:, 1].mean(0),
        likely[0, 0] + likely[0, 1],
        likely[-1, 0] + likely[-1, 1],
        _shares(sung[-1] + low[-1]),
    ]
    fits = key_scores(total).reshape(2, 12).T  # (12, 2)
    return np.concatenate([*(_upwards(one) for one in rows), fits], -1).astype(np.float32)


@cache
def _weights() -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return {name: tensor.astype(np.float32) for name, tensor in load_file(WEIGHTS).items()}


def _network(name: str, inputs: np.ndarray) -> np.ndarray:
    own = _weights()
    hidden = np.maximum(0, inputs @ own[f"{name}.0.weight"].T + own[f"{name}.0.bias"])
    return hidden @ own[f"{name}.2.weight"].T + own[f"{name}.2.bias"]


def _softmax(scores: np.ndarray) -> np.ndarray:
    grown = np.exp(scores - scores.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def hear(score: Score) -> Heard:
    """Key and chords; what the file itself says of them is taken as certain."""
    scores = _network("chord", chord_inputs(score))  # (N, 12, 5)
    chords = _softmax(scores.transpose(0, 2, 1).reshape(len(score), 60))
    sounding = chroma(score).sum(1) > 0
    if score.chords is not None:
        chords = np.zeros_like(chords)
        for bar, chord in enumerate(score.chords):
            if chord is not None:
                chords[bar, ALL_CHORDS.index(chord)] = 1.0
        sounding = np.array([chord is not None for chord in score.chords])
    if score.key is not None:
        keys = np.zeros(24)
        keys[place_of(score.key)] = 1.0
    else:
        keys = _softmax(_network("key", key_inputs(score, chords)).T.reshape(24))
    return Heard(keys, chords, sounding)
