"""Facts: what is true of a piece and can be said of it. Each is a plain rule over notes, bars, key and chords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from meshcap.errors import MeshcapError
from meshcap.music.harmony import SPELLED, Chord, Key, parse_chord
from meshcap.music.score import MELODY, Score

# Beats a minute from which a piece is called so.
TEMPOS = {"slow": 0.0, "moderate": 76.0, "lively": 104.0, "fast": 132.0}
RANGES = {"narrow": 0, "octave": 10, "wide": 15}  # semitones between a melody's lowest and highest note
DENSITIES = {"sparse": 0.0, "even": 2.5, "dense": 5.0}  # notes in the time of a beat
PLACES = {"beginning": 0.0, "first": 0.25, "second": 0.5, "end": 0.75}  # of the piece
STEP, BEND = 2.0, 1.5  # semitones that thirds of a melody differ by, to be called rising or an arch
ALIKE = 0.6  # notes that two passages share, of all that they have, to be called the same
GRID = 4  # places of a quarter note at which notes are compared


@dataclass(frozen=True)
class Facts:
    """None: there is nothing to say. Bars are counted from 1."""

    bars: int
    key: Key
    metre: tuple[int, int]
    bpm: float  # beats a minute, of the piece's own metre
    chords: tuple[Chord | None, ...]
    cadence: str | None
    direction: str | None
    range: int | None  # semitones of the melody
    density: float
    texture: str
    climax: int | None  # the bar of the melody's highest note
    returns: int | None  # the bar where the opening melody comes again
    loop: int | None  # bars after which the first chords come again
    drums: bool

    @property
    def tempo(self) -> str:
        return _bucket(TEMPOS, self.bpm)

    @property
    def range_word(self) -> str | None:
        return None if self.range is None else _bucket(RANGES, self.range)

    @property
    def density_word(self) -> str:
        return _bucket(DENSITIES, self.density)

    @property
    def climax_place(self) -> str | None:
        return None if self.climax is None else _bucket(PLACES, (self.climax - 0.5) / self.bars)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Facts:
        """What `to_dict` gave.

        Raises:
            MeshcapError: something else.
        """
        try:
            own = {field.name: given[field.name] for field in fields(cls)}
            note, _, mode = own["key"].rpartition("-")
            own["key"] = Key(SPELLED[note], "minor" if mode == "minor" else "major")
            top, bottom = own["metre"].split("/")
            own["metre"] = int(top), int(bottom)
            own["chords"] = tuple(None if one is None else parse_chord(one) or None for one in own["chords"])
            return cls(**own)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MeshcapError(f"this sample has no facts of a piece of music ({error!r})") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        found = {**asdict(self), "key": self.key.name, "metre": "{}/{}".format(*self.metre), "bpm": round(self.bpm, 2)}
        found |= {"chords": [None if chord is None else chord.symbol for chord in self.chords]}
        return found | {"tempo": self.tempo, "density": round(self.density, 3)}


def _bucket(table: dict[str, Any], value: float) -> str:
    return [name for name, least in table.items() if value >= least][-1]


def facts_of(score: Score, key: Key, chords: tuple[Chord | None, ...]) -> Facts:
    """The facts of a piece whose key, and the chord each bar begins with, are known."""
    metre = Counter(score.metres).most_common(1)[0][0]
    melody = melody_of(score)
    return Facts(
        bars=len(score),
        key=key,
        metre=metre,
        bpm=beats_a_minute(score, metre),
        chords=chords,
        cadence=cadence_of(key, chords),
        direction=direction_of(melody_thirds(melody, score)),
        range=int(melody["pitch"].max() - melody["pitch"].min()) if len(melody["pitch"]) else None,
        density=density_of(score, metre),
        texture=texture_of(score),
        climax=int(melody["bar"][melody["pitch"].argmax()]) + 1 if len(melody["pitch"]) else None,
        returns=first_return(opening_likeness(score)),
        loop=loop_of(chords),
        drums=bool(score.drums.any()),
    )


def beat_of(metre: tuple[int, int]) -> float:
    """Quarters of a beat: a dotted quarter of 6/8, 9/8 and 12/8."""
    top, bottom = metre
    return 12 / bottom if bottom >= 8 and top % 3 == 0 and top > 3 else 4 / bottom


def beats_a_minute(score: Score, metre: tuple[int, int]) -> float:
    """Of the whole piece: all its beats over all its time."""
    lengths = np.diff(score.bars)
    return float(lengths.sum() / (lengths / score.tempos).sum() / beat_of(metre))


def melody_of(score: Score) -> dict[str, np.ndarray]:
    notes = score.notes
    sung = notes["role"] == MELODY
    return {name: values[sung] for name, values in notes.items()}


def melody_thirds(melody: dict[str, np.ndarray], score: Score) -> np.ndarray | None:
    """The mean pitch of the melody, weighted by time, in each third of the piece; None where one has no notes."""
    thirds = np.minimum(2, (3 * melody["onset"] / score.bars[-1] + 1e-9).astype(int))
    weight = np.bincount(thirds, melody["duration"], 3)
    return np.bincount(thirds, melody["duration"] * melody["pitch"], 3) / weight if (weight > 0).all() else None


def direction_of(thirds: np.ndarray | None) -> str | None:
    if thirds is None:
        return None
    first, middle, last = thirds
    if last - first >= STEP:
        return "rises"
    if first - last >= STEP:
        return "falls"
    if middle - max(first, last) >= BEND:
        return "arches"
    return "dips" if min(first, last) - middle >= BEND else "level"


def density_of(score: Score, metre: tuple[int, int]) -> float:
    return len(score.notes["pitch"]) / max(1e-9, float(score.bars[-1]) / beat_of(metre))


def accompaniment_size(score: Score) -> float:
    """How many notes of the accompaniment begin together, on the mean; 0 where there is none."""
    notes = score.notes
    onsets = np.floor(notes["onset"][notes["role"] != MELODY] * 12 + 0.3)
    return len(onsets) / len(np.unique(onsets)) if len(onsets) else 0.0


def texture_of(score: Score) -> str:
    """Who plays: the melody alone, accompaniment alone, or both, in broken or in full chords."""
    notes = score.notes
    sung = int((notes["role"] == MELODY).sum())
    if sung == len(notes["role"]):
        return "melody alone"
    if sung == 0:
        return "accompaniment alone"
    size = accompaniment_size(score)
    return "broken chords" if size < 1.6 else "full chords" if size >= 2.2 else "accompaniment"


def cadence_of(key: Key, chords: tuple[Chord | None, ...]) -> str | None:
    """How the last two chords that differ close the piece, by the steps of their roots."""
    there = [chord for chord in chords[-3:] if chord is not None]
    if not there or chords[-1] is None:
        return None
    last = (there[-1].root - key.tonic) % 12
    before = next(((chord.root - key.tonic) % 12 for chord in reversed(there) if chord.root != there[-1].root), None)
    if last == 0:
        return {7: "authentic", 5: "plagal"}.get(before, "home") if before is not None else "home"
    if last == 7:
        return "half"
    if before == 7 and last in (8, 9):
        return "deceptive"
    return "away"


def loop_of(chords: tuple[Chord | None, ...]) -> int | None:
    for period in (2, 4, 8):
        first, again = chords[:period], chords[period : 2 * period]
        if len(again) == period and None not in first and first == again and len(set(first)) > 1:
            return period
    return None


def opening_likeness(score: Score) -> np.ndarray:
    """(N,) how much of the melody of the first bars sounds again from each bar on; 0 where it overlaps them."""
    size = 4 if len(score) >= 8 else 2
    melody = melody_of(score)
    places = np.floor((melody["onset"] - score.bars[melody["bar"]]) * GRID + 0.4).astype(int)
    bars: list[list[tuple[int, int]]] = [[] for _ in range(len(score))]
    for bar, place, pitch in zip(melody["bar"], places, melody["pitch"], strict=True):
        bars[bar].append((int(place), int(pitch)))

    def passage(start: int) -> set[tuple[int, int, int]]:
        return {(bar - start, *note) for bar in range(start, min(len(bars), start + size)) for note in bars[bar]}

    opening = passage(0)
    found = np.zeros(len(score))
    if len(opening) >= 4:
        for start in range(size, len(score) - size + 1):
            other = passage(start)
            found[start] = len(opening & other) / max(1, len(opening | other))
    return found


def first_return(likeness: np.ndarray) -> int | None:
    there = np.flatnonzero(likeness >= ALIKE)
    return int(there[0]) + 1 if len(there) else None
