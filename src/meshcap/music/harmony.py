"""Keys and chords: their names, and how they are estimated from notes.

Keys by correlating the sounding time of the twelve pitch classes with the profiles of Krumhansl and Kessler (1982), as
Krumhansl and Schmuckler did. Chords by templates: what sounds, weighted by its time, against the notes of each chord,
with the bass counted apart and a small cost for leaving the key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["major", "minor"]
QUALITIES = ("major", "minor", "diminished", "augmented", "suspended")
INTERVALS = {
    "major": (0, 4, 7),
    "minor": (0, 3, 7),
    "diminished": (0, 3, 6),
    "augmented": (0, 4, 8),
    "suspended": (0, 5, 7),
}
SHARPS = "c c-sharp d d-sharp e f f-sharp g g-sharp a a-sharp b".split()
FLATS = "c d-flat d e-flat e f g-flat g a-flat a b-flat b".split()
LETTERS = {letter: SHARPS.index(letter) for letter in "cdefgab"}
# As most people write each: D-flat major, but C-sharp minor.
USUAL = {
    "major": "c d-flat d e-flat e f f-sharp g a-flat a b-flat b".split(),
    "minor": "c c-sharp d e-flat e f f-sharp g g-sharp a b-flat b".split(),
}
FLAT_KEYS = {"major": {5, 10, 3, 8, 1}, "minor": {2, 7, 0, 5, 10, 3}}
SCALES = {"major": (0, 2, 4, 5, 7, 9, 11), "minor": (0, 2, 3, 5, 7, 8, 10)}
DEGREES = "one two three four five six seven".split()

# Krumhansl and Kessler 1982: how well each pitch class fits a key, from the tonic up.
PROFILES = {
    "major": np.array([6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88]),
    "minor": np.array([6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17]),
}
SPELLED = {name: number for names in (SHARPS, FLATS) for number, name in enumerate(names)}


@dataclass(frozen=True)
class Key:
    """A tonic, 0 (C) to 11 (B), and a mode."""

    tonic: int
    mode: Mode

    @property
    def name(self) -> str:
        """One word: "c-sharp-minor"."""
        return f"{USUAL[self.mode][self.tonic]}-{self.mode}"

    @property
    def fifths(self) -> int:
        """Sharps of the key signature; flats are negative."""
        major = self.tonic if self.mode == "major" else (self.tonic + 3) % 12
        sharps = major * 7 % 12
        flat = self.tonic in FLAT_KEYS[self.mode]
        return sharps - 12 if sharps > 6 or (sharps == 6 and flat) else sharps

    @classmethod
    def of_fifths(cls, fifths: int, mode: Mode) -> Key:
        return cls((fifths * 7 + (9 if mode == "minor" else 0)) % 12, mode)

    def transposed(self, semitones: int) -> Key:
        return Key((self.tonic + semitones) % 12, self.mode)

    def spell(self, pitch_class: int) -> str:
        """A note's name in this key."""
        return (FLATS if self.tonic in FLAT_KEYS[self.mode] else SHARPS)[pitch_class]

    def degree(self, chord: Chord) -> str | None:
        """The step of the scale that a chord stands on, in words; None between the steps."""
        step = (chord.root - self.tonic) % 12
        scale = SCALES[self.mode]
        if step == 11 and self.mode == "minor":
            return "seven"
        return DEGREES[scale.index(step)] if step in scale else None


@dataclass(frozen=True)
class Chord:
    """A root and one of QUALITIES: sevenths and what else is added to a triad are left out."""

    root: int
    quality: str

    @property
    def symbol(self) -> str:
        """As lead sheets have it: F#m."""
        ending = {"major": "", "minor": "m", "diminished": "dim", "augmented": "aug", "suspended": "sus4"}
        name = FLATS[self.root].replace("-flat", "b") if self.root in (1, 3, 8, 10) else SHARPS[self.root]
        return name.replace("-sharp", "#").capitalize() + ending[self.quality]

    def name(self, key: Key) -> str:
        """One word: "f-sharp-minor"."""
        return f"{key.spell(self.root)}-{self.quality}"

    def transposed(self, semitones: int) -> Chord:
        return Chord((self.root + semitones) % 12, self.quality)


_SYMBOL = re.compile(r"([A-Ga-g])([#♯b♭]*)(?::)?([^/\s]*)(?:/\S+)?")
_ENDINGS = (  # tried in this order
    ("suspended", r"sus.*|.*sus[24]?"),
    ("diminished", r"dim.*|o.*|°.*|ø.*|hdim.*|m7b5|min7b5|m7\(b5\)"),
    ("augmented", r"aug.*|\+.*"),
    ("minor", r"min.*|m(?!aj).*|-.*"),
    ("major", r"(?:maj|M|Δ|add|dom)?[\d#b(),/]*|6.*|7.*|9.*|maj.*"),
)


def parse_chord(symbol: str) -> Chord | Literal[False] | None:
    """A chord symbol such as "Am7", "F#:min", "Bb/D"; None of "N" or "N.C.", no chord; False of any other text."""
    symbol = symbol.strip()
    if symbol.upper() in ("N", "NC", "N.C.", "X"):
        return None
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return False
    letter, signs, ending = found.groups()
    root = LETTERS[letter.lower()] + sum(1 if sign in "#♯" else -1 for sign in signs)
    for quality, pattern in _ENDINGS:
        if re.fullmatch(pattern, ending):
            return Chord(root % 12, quality)
    return False


def key_scores(chroma: np.ndarray) -> np.ndarray:
    """(24,) correlations with the profile of each key, major ones first, for the sounding time of pitch classes."""
    profiles = np.stack([np.roll(PROFILES[mode], tonic) for mode in ("major", "minor") for tonic in range(12)])
    profiles = profiles - profiles.mean(1, keepdims=True)
    centred = chroma - chroma.mean()
    norms = np.linalg.norm(profiles, axis=1) * max(1e-9, float(np.linalg.norm(centred)))
    return profiles @ centred / norms


def estimate_key(chroma: np.ndarray) -> Key:
    """By Krumhansl and Schmuckler."""
    best = int(key_scores(chroma).argmax())
    return Key(best % 12, "major" if best < 12 else "minor")


ALL_CHORDS = [Chord(root, quality) for quality in QUALITIES for root in range(12)]
_TEMPLATES = np.zeros((60, 12))
for _place, _chord in enumerate(ALL_CHORDS):
    for _interval in INTERVALS[_chord.quality]:
        _TEMPLATES[_place, (_chord.root + _interval) % 12] = 1
# Measured on the training songs of POP909: see docs/music.md.
BASS_ROOT, OUTSIDE = 0.35, 0.6
PRIOR = {"major": 0.0, "minor": 0.0, "diminished": -0.12, "augmented": -0.2, "suspended": -0.12}


def chord_scores(chroma: np.ndarray, bass: np.ndarray) -> np.ndarray:
    """(N, 60) how well each of ALL_CHORDS fits sounding times (N, 12), of all notes and of the bass."""
    share = chroma / np.maximum(1e-9, chroma.sum(1, keepdims=True))
    low = bass / np.maximum(1e-9, bass.sum(1, keepdims=True))
    inside = np.minimum(share, 0.34) @ _TEMPLATES.T
    roots = np.array([chord.root for chord in ALL_CHORDS])
    prior = np.array([PRIOR[chord.quality] for chord in ALL_CHORDS])
    heard = (share > 0).astype(float) @ _TEMPLATES.T / 3
    return inside - OUTSIDE * (1 - share @ _TEMPLATES.T) + BASS_ROOT * low[:, roots] + 0.3 * heard + prior


def estimate_chords(chroma: np.ndarray, bass: np.ndarray) -> tuple[Chord | None, ...]:
    """A chord for each span; None where nothing sounds."""
    best = chord_scores(chroma, bass).argmax(1)
    return tuple(ALL_CHORDS[place] if chroma[n].sum() > 0 else None for n, place in enumerate(best))
