"""The feature of a bar: what a captioner reads of it, `WIDTH` numbers from 0 to 1, and its box.

A captioner reads bars as a set, in no order. So each bar says itself where it is, which chord it begins with and how
sure that is, and what holds for the whole piece. What rules can measure exactly (metre, tempo, where the highest note
is) is given as measured: the captioner has to choose and say it, not to discover it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshcap.music.captions import read_caption
from meshcap.music.facts import (
    PLACES,
    RANGES,
    TEMPOS,
    Facts,
    accompaniment_size,
    direction_of,
    facts_of,
    melody_of,
    melody_thirds,
    opening_likeness,
)
from meshcap.music.hearing import Heard, chroma, hear, place_of
from meshcap.music.score import BASS, MELODY, Score

COUNTED = 32  # bars with a number of their own
CADENCES = ("authentic", "plagal", "half", "deceptive", "home", "away")
DIRECTIONS = ("rises", "falls", "arches", "dips", "level")
TEXTURES = ("melody alone", "accompaniment alone", "broken chords", "full chords", "accompaniment")
DENSITIES = ("sparse", "even", "dense")
PARTS = {  # what a bar's numbers are, in this order
    "chroma": 36,  # shares of the twelve pitch classes: all notes, bass, melody
    "half": 24,  # those of the first half, all notes and bass
    "octaves": 11,
    "rhythm": 24,  # onsets at twelfths of the bar, melody and others
    "notes": 6,
    "chord": 60,  # probabilities
    "root": 12,  # of the chord's root above the tonic
    "certainty": 3,
    "place": 8 + 4 + COUNTED + 2,
    "key": 24,
    "tempo": 21 + len(TEMPOS),
    "metre": 16 + 6,
    "length": COUNTED + 1,
    "melody": len(DIRECTIONS) + len(RANGES) + 4,
    "texture": len(DENSITIES) + len(TEXTURES) + 3,
    "climax": 1 + len(PLACES),
    "return": 3,
    "loop": 4,
    "cadence": len(CADENCES),
}
WIDTH = sum(PARTS.values())
HARMONY = ("progression", "degrees", "opening", "closing", "cadence", "loop")  # said of chords that were heard


def measure(score: Score) -> tuple[np.ndarray, np.ndarray, Facts, Heard]:
    """Features (N, WIDTH) and boxes (N, 4) of the bars of a piece; its facts as they were heard, and how surely."""
    heard = hear(score)
    facts = facts_of(score, heard.key, heard.best_chords())
    found = {**_of_bars(score, heard, facts), **_of_piece(score, heard, facts)}
    columns = []
    for name, width in PARTS.items():
        rows = np.asarray(found[name], np.float32)
        columns.append(np.broadcast_to(rows, (len(score), width)))
    features = np.clip(np.nan_to_num(np.concatenate(columns, 1)), 0, 1)
    return features.astype(np.float32), boxes_of(score), facts, heard


class Bars(np.ndarray):
    """Numbers of a piece's bars (N, WIDTH + 4), boxes last, with the facts that were found on the way."""

    facts: Facts
    heard: Heard
    roll: str | None = None  # a picture of the piece, as a data: URL, where somebody drew it

    @classmethod
    def measured(cls, score: Score) -> Bars:
        features, boxes, facts, heard = measure(score)
        return cls._made(np.concatenate((features, boxes), 1), facts, heard)

    @classmethod
    def _made(cls, numbers: np.ndarray, facts: Facts, heard: Heard) -> Bars:
        found = numbers.view(cls)
        found.facts, found.heard = facts, heard
        return found

    def report(self, text: str) -> dict[str, Any]:
        """What is known of the piece, and each statement of a caption: whether it agrees, and how sure that is."""
        known, heard = self.facts, self.heard
        best = np.where(heard.sounding, heard.chords.max(1), 0.0)
        sure = float(heard.keys.max())
        statements = []
        for one in read_caption(text)[0]:
            confidence = 1.0
            if one.kind == "key":
                confidence = float(heard.keys[place_of(one.value)]) if one.holds(known) else 1 - sure  # type: ignore[arg-type]
            elif one.kind in HARMONY:
                spans = {"opening": best[:1], "closing": best[-1:], "cadence": best[-2:], "loop": best[:8]}
                confidence = float(spans.get(one.kind, best[:4]).prod())
                confidence *= sure if one.kind in ("cadence", "degrees") else 1.0
            true = one.holds(known)
            said = {"kind": one.kind, "words": one.words, "agrees": true, "confidence": round(confidence, 4)}
            statements.append(said)
        return {"piece": known.to_dict() | {"key_confidence": round(sure, 4)}, "statements": statements}

    def packed(self) -> tuple[np.ndarray, dict[str, Any]]:
        """All of it as numbers (N, WIDTH + 65) and plain values, for another process."""
        heard = self.heard
        numbers = np.concatenate((np.asarray(self), heard.chords, heard.sounding[:, None]), 1).astype(np.float32)
        return numbers, {"facts": self.facts.to_dict(), "keys": heard.keys.tolist()}

    @classmethod
    def unpacked(cls, numbers: np.ndarray, known: Mapping[str, Any], roll: str | None = None) -> Bars:
        """What `packed` gave, the numbers in one row.

        Raises:
            ValueError: something else.
        """
        rows, keys = numbers.reshape(-1, WIDTH + 65), np.asarray(known["keys"], float).reshape(24)
        heard = Heard(keys, rows[:, WIDTH + 4 : -1].astype(float), rows[:, -1] > 0)
        found = cls._made(rows[:, : WIDTH + 4].copy(), Facts.from_dict(known["facts"]), heard)
        found.roll = roll
        return found


def boxes_of(score: Score) -> np.ndarray:
    """(N, 4) x1, y1, x2, y2: where a bar is in the piece, and from its highest to its lowest note, high is up."""
    edges = score.bars / score.bars[-1]
    highest, lowest = np.full(len(score), 0.0), np.full(len(score), 127.0)
    np.maximum.at(highest, score.notes["bar"], score.notes["pitch"])
    np.minimum.at(lowest, score.notes["bar"], score.notes["pitch"])
    empty = highest < lowest
    highest[empty] = lowest[empty] = 63.5
    return np.stack((edges[:-1], 1 - highest / 127, edges[1:], 1 - lowest / 127), 1).astype(np.float32)


def _shares(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(1e-6, rows.sum(1, keepdims=True))


def _count(bars: np.ndarray, places: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    found = np.zeros(shape)
    np.add.at(found, (bars, places), 1)
    return found


def _of_bars(score: Score, heard: Heard, facts: Facts) -> dict[str, np.ndarray]:
    notes, count = score.notes, len(score)
    bar, sung = notes["bar"], notes["role"] == MELODY
    lengths = np.diff(score.bars)
    within = (notes["onset"] - score.bars[bar]) / lengths[bar]
    twelfth = np.clip((within * 12 + 0.02).astype(int), 0, 11)
    many = np.bincount(bar, minlength=count)
    mean = [np.bincount(bar, values, count) / np.maximum(1, many) for values in (notes["velocity"], notes["duration"])]
    size = np.bincount(bar, sung, count)
    numbers = np.stack(
        (
            many / 64,
            size / 16,
            (many == 0),
            mean[0] / 127,
            np.minimum(mean[1], 4) / 4,
            np.minimum(score.drums, 32) / 32,
        ),
        1,
    )
    chords = heard.chords * heard.sounding[:, None]
    roots = chords.reshape(count, 5, 12).sum(1)
    certain = np.stack((chords.max(1), np.full(count, score.chords is not None), heard.sounding), 1)
    order = np.arange(count)
    place = np.concatenate(
        (
            order[:, None] == np.arange(8)[None],
            (count - 1 - order)[:, None] == np.arange(4)[None],
            order[:, None] == np.arange(COUNTED)[None],
            np.stack((order / max(1, count - 1), order / 500), 1),
        ),
        1,
    )
    likeness = opening_likeness(score)
    returns = np.zeros((count, 3))
    returns[:, 0] = likeness
    if facts.returns is not None:
        returns[facts.returns - 1, 1] = 1
        returns[:, 2] = 1
    climax = np.zeros((count, 1 + len(PLACES)))
    if facts.climax is not None:
        climax[facts.climax - 1, 0] = 1
        climax[:, 1 + list(PLACES).index(str(facts.climax_place))] = 1
    return {
        "chroma": np.concatenate([_shares(chroma(score, 1.0, role)) for role in (None, BASS, MELODY)], 1),
        "half": np.concatenate([_shares(chroma(score, 0.5, role)) for role in (None, BASS)], 1),
        "octaves": _shares(_count(bar, (notes["pitch"] // 12).astype(int), (count, 11))),
        "rhythm": np.minimum(
            1, np.concatenate([_count(bar[one], twelfth[one], (count, 12)) for one in (sung, ~sung)], 1) / 3
        ),
        "notes": numbers,
        "chord": chords,
        "root": np.roll(roots, -facts.key.tonic, 1),
        "certainty": certain,
        "place": place,
        "climax": climax,
        "return": returns,
    }


def _one_hot(table: tuple[object, ...] | list[object], value: object) -> list[float]:
    return [float(one == value) for one in table]


def _of_piece(score: Score, heard: Heard, facts: Facts) -> dict[str, np.ndarray]:
    bpm, (top, bottom) = facts.bpm, facts.metre
    thirds = melody_thirds(melody_of(score), score)
    bends = (
        [0.0, 0.0] if thirds is None else [(thirds[2] - thirds[0]) / 24 + 0.5, (thirds[1] - thirds.mean()) / 24 + 0.5]
    )
    changes = [len(set(score.metres)) > 1, float(score.tempos.std() / max(1e-9, score.tempos.mean()))]
    size = accompaniment_size(score)
    # How sure what is said of chords is: all of them have to be right.
    best = heard.chords.max(1)
    first = [float(np.prod(best[: 2 * span])) for span in (2, 4, 8)]
    loop = [first[place] if facts.loop == span else 0.0 for place, span in enumerate((2, 4, 8))]
    ending = float(np.prod(best[-2:])) * float(heard.keys.max())
    found: dict[str, list[float]] = {
        "key": list(heard.keys),
        "tempo": [bpm / 240, *_one_hot(list(range(4, 24)), round(bpm / 10)), *_one_hot(list(TEMPOS), facts.tempo)],
        "metre": [
            *_one_hot(list(range(1, 17)), top),
            *_one_hot([1, 2, 4, 8], bottom),
            *map(float, changes),
        ],
        "length": [*_one_hot(list(range(1, COUNTED + 1)), len(score)), min(1.0, len(score) / 500)],
        "melody": [
            *_one_hot(list(DIRECTIONS), direction_of(thirds)),
            *_one_hot(list(RANGES), facts.range_word),
            (facts.range or 0) / 48,
            float(facts.range is None),
            *bends,
        ],
        "texture": [
            *_one_hot(list(DENSITIES), facts.density_word),
            *_one_hot(list(TEXTURES), facts.texture),
            min(1.0, facts.density / 16),
            min(1.0, size / 6),
            float(facts.drums),
        ],
        "loop": [*loop, 0.0 if facts.loop else first[1]],
        "cadence": [ending * (facts.cadence == one) for one in CADENCES],
    }
    return {name: np.asarray(values)[None] for name, values in found.items()}


def describe_metres(score: Score) -> str:
    """The metres of a piece, the most common first."""
    return ", ".join(f"{top}/{bottom}" for (top, bottom), _ in Counter(score.metres).most_common())
