"""Score: the notes of a MIDI or ABC file in bars, with what the file says of tempo, metre, key and chords.

Times are in quarter notes. A bar is a span of the file's own metre (4/4 where it names none); a pick-up is a first bar
that is shorter. Silence before the first and after the last note is left out. Reading needs `symusic` (the extra
`music`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from meshcap.errors import MeshcapError
from meshcap.files import read_regular
from meshcap.music.harmony import Chord, Key, parse_chord

Source = str | os.PathLike[str] | bytes | bytearray | IO[bytes]
Format = Literal["midi", "abc"]

SUFFIXES = (".mid", ".midi", ".abc")
MOST_BYTES = 4 * 2**20  # the largest file of 10,000 pianists' recordings has a tenth of that
MOST_NOTES, MOST_BARS = 100_000, 500
MOST_TRACKS, MOST_CHANGES = 1000, 20_000  # tracks; tempos, metres, keys or markers
LONGEST_LINE = 1000  # letters of a line of ABC: its reader has fixed places for them
ABC_SECONDS, ABC_MEMORY = 5, 512 * 2**20
QUARTER = 480  # ticks that a score is written with
MELODY, BASS, OTHER = 0, 1, 2  # roles of a note
_MELODY = re.compile(r"melod|vocal|voice|lead|sopran|sing|flute|violin\b|descant", re.IGNORECASE)
_BASS = re.compile(r"bass|contrab|cello|tuba", re.IGNORECASE)
BASS_PROGRAMS = range(32, 40)  # of General MIDI


@dataclass(frozen=True)
class Part:
    """The notes of one track, by onset: onset and duration in quarters, pitch and velocity from 0 to 127."""

    name: str
    onset: np.ndarray
    duration: np.ndarray
    pitch: np.ndarray
    velocity: np.ndarray
    program: int = 0
    drums: bool = False

    def __len__(self) -> int:
        return len(self.onset)


@dataclass(frozen=True)
class Score:
    """A piece in bars. `bars` has where each begins, and where the last one ends."""

    parts: tuple[Part, ...]
    bars: np.ndarray  # (N + 1,) quarters
    metres: tuple[tuple[int, int], ...]  # of each bar, such as (3, 4)
    tempos: np.ndarray  # (N,) quarters a minute
    key: Key | None = None  # what the file says
    chords: tuple[Chord | None, ...] | None = None  # that each bar begins with, where the file says so

    def __len__(self) -> int:
        return len(self.metres)

    @cached_property
    def notes(self) -> dict[str, np.ndarray]:
        """All notes but drums, by onset then pitch: onset, duration, pitch, velocity, role, and the bar of each."""
        own = [part for part in self.parts if not part.drums and len(part)]
        names = ("onset", "duration", "pitch", "velocity")
        found = {name: np.concatenate([getattr(part, name) for part in own] or [np.zeros(0)]) for name in names}
        found["role"] = np.repeat(np.array(_roles(own), int), [len(part) for part in own])
        order = np.lexsort((found["duration"], found["pitch"], found["onset"]))
        found = {name: values[order] for name, values in found.items()}
        _split_roles(found)
        found["bar"] = np.clip(np.searchsorted(self.bars, found["onset"] + 1e-6, "right") - 1, 0, len(self) - 1)
        return found

    @cached_property
    def drums(self) -> np.ndarray:
        """Strokes of drums in each bar, (N,)."""
        onsets = np.concatenate([part.onset for part in self.parts if part.drums] or [np.zeros(0)])
        return np.histogram(onsets + 1e-6, self.bars)[0]

    @cached_property
    def measured(self) -> dict[Any, np.ndarray]:
        """What `hearing.chroma` has found."""
        return {}

    # Changes with a known effect on what is true of the piece.

    def transposed(self, semitones: int) -> Score:
        """All but drums higher by so many semitones; notes that would leave the keyboard stay by octaves."""

        def moved(part: Part) -> Part:
            pitch = part.pitch + semitones
            return part if part.drums else replace(part, pitch=pitch - 12 * (pitch > 127) + 12 * (pitch < 0))

        key = None if self.key is None else self.key.transposed(semitones)
        chords = self.chords and tuple(None if one is None else one.transposed(semitones) for one in self.chords)
        return replace(self, parts=tuple(map(moved, self.parts)), key=key, chords=chords)

    def at_tempo(self, factor: float) -> Score:
        """Faster by a factor."""
        return replace(self, tempos=self.tempos * factor)

    def reordered(self, order: list[int]) -> Score:
        """The same tracks in another order, which means nothing."""
        return replace(self, parts=tuple(self.parts[place] for place in order))

    def excerpt(self, first: int, last: int) -> Score:
        """Bars `first` to `last` (not included), counted from 0; notes that began before are left out."""
        start, end = self.bars[first], self.bars[last]

        def cut(part: Part) -> Part:
            there = (part.onset >= start - 1e-6) & (part.onset < end - 1e-6)
            onset, duration = part.onset[there] - start, part.duration[there]
            return replace(
                part,
                onset=onset,
                duration=np.minimum(duration, end - start - onset),
                pitch=part.pitch[there],
                velocity=part.velocity[there],
            )

        return Score(
            tuple(map(cut, self.parts)),
            self.bars[first : last + 1] - start,
            self.metres[first:last],
            self.tempos[first:last],
            self.key,
            self.chords and self.chords[first:last],
        )

    def bare(self) -> Score:
        """Without what the file says of key and chords."""
        return replace(self, key=None, chords=None)

    def to_midi(self) -> bytes:
        """The bytes of a MIDI file; key and chords are in it as key signature and markers."""
        library = _library()
        made = library.Score(QUARTER)

        def ticks(quarters: Any) -> Any:
            return np.rint(np.asarray(quarters) * QUARTER).astype(np.int32)

        for part in self.parts:
            track = library.Track(part.name, part.program, part.drums)
            arrays = ticks(part.onset), np.maximum(1, ticks(part.duration))
            track.notes = library.Note.from_numpy(*arrays, part.pitch.astype(np.int8), part.velocity.astype(np.int8))
            made.tracks.append(track)
        metre, tempo = None, 0.0
        for start, now, bpm in zip(self.bars, self.metres, self.tempos, strict=False):
            if now != metre:
                made.time_signatures.append(library.TimeSignature(int(ticks(start)), *now))
            if abs(bpm - tempo) > 0.01:
                made.tempos.append(library.Tempo(int(ticks(start)), float(bpm)))
            metre, tempo = now, bpm
        if self.key is not None:
            made.key_signatures.append(library.KeySignature(0, self.key.fifths, int(self.key.mode == "minor")))
        for start, chord in zip(self.bars, self.chords or (), strict=False):
            made.markers.append(library.TextMeta(int(ticks(start)), "N" if chord is None else chord.symbol))
        return bytes(made.dumps_midi())


def is_score(source: object) -> bool:
    """Whether a source is a score: by the name of a path, by the first bytes of a file's content."""
    if isinstance(source, bytes | bytearray | memoryview):
        head = bytes(source[:64])
        return head.startswith(b"MThd") or head.lstrip(b"\xef\xbb\xbf").startswith(b"X:")
    if isinstance(source, str | os.PathLike):
        return os.fspath(source).lower().endswith(SUFFIXES)
    return str(getattr(source, "name", "")).lower().endswith(SUFFIXES)


def read_score(source: Source) -> Score:
    """A piece from a path, the bytes of a file or an open file: MIDI, or ABC.

    Raises:
        MeshcapError: the file cannot be read, is none of both, is damaged, has no notes or too many of something.
    """
    name, content = _content(source)
    if len(content) > MOST_BYTES:
        raise MeshcapError(f"{name} has {len(content):,} bytes, expected a score of at most {MOST_BYTES:,}")
    library = _library()
    try:
        if content.startswith(b"MThd"):
            found = library.Score.from_midi(content)
        elif content.lstrip(b"\xef\xbb\xbf \r\n").startswith(b"X:"):
            found = library.Score.from_midi(_midi_of_abc(name, content))
        else:
            raise MeshcapError(f"{name} is no score: expected MIDI (MThd …) or ABC (X:1 …)")
        return _score(name, found)
    except MeshcapError:
        raise
    except Exception as error:  # the library raises RuntimeError, ValueError and others of damaged files
        reason = " ".join(str(error).split())[:120]
        raise MeshcapError(f"{name} is a damaged score ({reason})") from error


def _content(source: Source) -> tuple[str, bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        return "the score", bytes(source)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        try:
            return str(path), read_regular(path)
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
    name = str(getattr(source, "name", "the score"))
    try:
        if source.seekable():
            source.seek(0)
        return name, source.read(MOST_BYTES + 1)
    except (OSError, ValueError, AttributeError) as error:
        raise MeshcapError(f"{name} cannot be read ({error}): expected a score") from error


def _library() -> Any:
    try:
        import symusic
    except ImportError:
        raise MeshcapError("scores are read by symusic, which is not installed: pip install 'meshcap[music]'") from None
    return symusic


def _midi_of_abc(name: str, content: bytes) -> bytes:
    """The MIDI file that abc2midi makes, the program that comes with symusic.

    It can be brought to read other files, to run and to grow for ever, and to crash: it gets no directives but those of
    MIDI, no long lines, and limits of time and memory. What it prints is dropped.
    """
    lines = content.decode("utf-8-sig", "replace").replace("\0", "").splitlines()
    if any(len(line) > LONGEST_LINE for line in lines):
        raise MeshcapError(f"{name} has a line of more than {LONGEST_LINE:,} letters: break it")
    kept = [line for line in lines if not re.match(r"\s*(%%(?!MIDI\b)|I:(?!MIDI\b))|.*abc-include", line)]
    limits = f"""if True:
        import os, resource, sys
        for one, most in (("CPU", {ABC_SECONDS}), ("AS", {ABC_MEMORY}), ("FSIZE", {4 * MOST_BYTES}), ("CORE", 0)):
            resource.setrlimit(getattr(resource, "RLIMIT_" + one), (most, most))
        os.execv(sys.argv[1], sys.argv[1:])"""
    with tempfile.TemporaryDirectory(prefix="meshcap-abc-") as folder:
        (Path(folder) / "in.abc").write_text("\n".join(kept) + "\n", encoding="utf-8")
        words = [os.environ["SYMUSIC_ABC2MIDI"], "in.abc", "-o", "out.mid", "-silent"]  # symusic sets this variable
        if sys.platform != "win32":  # which has no such limits but that of time
            words = [sys.executable, "-ISc", limits, *words]
        try:
            subprocess.run(
                words, cwd=folder, timeout=2 * ABC_SECONDS - 1, check=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            return read_regular(Path(folder) / "out.mid")
        except (subprocess.SubprocessError, OSError):
            raise MeshcapError(f"{name} is a damaged score (abc2midi cannot read it)") from None


def _score(name: str, found: Any) -> Score:
    counts = {"notes": (int(found.note_num()), MOST_NOTES), "tracks": (len(found.tracks), MOST_TRACKS)}
    for kind in ("tempos", "time_signatures", "key_signatures", "markers"):
        counts[kind.replace("_", " ")] = len(getattr(found, kind)), MOST_CHANGES
    for kind, (count, most) in counts.items():
        if count > most:
            raise MeshcapError(f"{name} has {count:,} {kind}, expected at most {most:,}")
    quarter = float(found.ticks_per_quarter)
    if not 1 <= quarter <= 32767:
        raise MeshcapError(f"{name} counts {quarter:g} ticks a quarter note, expected 1 to 32,767")
    parts = [_part(track, quarter) for track in found.tracks]
    sounding = [part for part in parts if not part.drums and len(part)]
    if not sounding:
        but = " but drums" if counts["notes"][0] else ""
        raise MeshcapError(f"{name} has no notes{but}, expected a piece of music")
    last = max(float((part.onset + part.duration).max()) for part in parts if len(part))
    bars, metres = _bars(name, found.time_signatures, quarter, last)
    first = min(float(part.onset.min()) for part in parts if len(part))
    skipped = bisect_right(bars, first + 1e-6) - 1
    ended = max(float(part.onset.max()) for part in parts if len(part))
    until = bisect_right(bars, ended + 1e-6)  # the bar of the last onset is the last: what rings on adds none
    bars, metres = bars[skipped : until + 1], metres[skipped:until]
    if len(metres) > MOST_BARS:
        raise MeshcapError(f"{name} has {len(metres):,} bars, expected at most {MOST_BARS}: take an excerpt")
    chords = _chords(found, bars, quarter)
    starts = np.asarray(bars)
    moved = tuple(replace(part, onset=part.onset - starts[0]) for part in parts)
    return Score(moved, starts - starts[0], tuple(metres), _tempos(found, starts, quarter), _key(found), chords)


def _part(track: Any, quarter: float) -> Part:
    notes = track.notes.numpy()
    onset = np.asarray(notes["time"], float) / quarter
    duration = np.asarray(notes["duration"], float) / quarter
    pitch = np.asarray(notes["pitch"]).astype(int) & 127
    velocity = np.asarray(notes["velocity"]).astype(int) & 127
    order = np.lexsort((pitch, onset))
    there = order[(onset[order] >= 0) & (velocity[order] > 0)]
    duration = np.maximum(duration, 0.01)
    arrays = onset[there], duration[there], pitch[there], velocity[there]
    return Part(str(track.name)[:200], *arrays, int(track.program), bool(track.is_drum))


def _bars(name: str, signatures: Any, quarter: float, last: float) -> tuple[list[float], list[tuple[int, int]]]:
    """Where bars begin, to the end of the last note. A metre that comes inside a bar begins a new one there."""
    changes = {0.0: (4, 4)}
    for one in sorted(signatures, key=lambda one: one.time):
        top, bottom = int(one.numerator), int(one.denominator)
        if 1 <= top <= 64 and bottom in (1, 2, 4, 8, 16, 32, 64):
            changes[one.time / quarter] = (top, bottom)
    times = sorted(changes)
    starts: list[float] = []
    metres: list[tuple[int, int]] = []
    for time, following in zip(times, [*times[1:], float("inf")], strict=True):
        top, bottom = changes[time]
        length, until = top * 4 / bottom, min(following, max(last, 1e-3))
        if (until - time) / length > 40 * MOST_BARS:
            raise MeshcapError(f"{name} has more than {40 * MOST_BARS:,} bars, expected at most {MOST_BARS}")
        place = 0
        while time + place * length < until - 1e-6:
            starts.append(time + place * length)
            metres.append((top, bottom))
            place += 1
        if following < float("inf") and starts and (short := following - starts[-1]) < length - 1e-3 and place:
            metres[-1] = _metre_of(short, bottom, metres[-1])  # cut short by the next metre
    end = starts[-1] + metres[-1][0] * 4 / metres[-1][1]
    return [*starts, end], metres


def _metre_of(length: float, bottom: int, otherwise: tuple[int, int]) -> tuple[int, int]:
    for below in (bottom, 8, 16, 32):
        top = length * below / 4
        if abs(top - round(top)) < 0.02 and round(top) >= 1:
            return round(top), below
    return otherwise


def _tempos(found: Any, bars: np.ndarray, quarter: float) -> np.ndarray:
    """Quarters a minute of each bar, the mean over its time."""
    changes = sorted((one.time / quarter, float(one.qpm)) for one in found.tempos)
    changes = [(0.0, 120.0), *((time, bpm) for time, bpm in changes if 1 <= bpm <= 2000)]
    times = np.array([time for time, _ in changes])
    minutes = 1 / np.array([bpm for _, bpm in changes])
    passed = np.concatenate(([0.0], np.cumsum(np.diff(times) * minutes[:-1])))  # minutes at each change

    def when(quarters: np.ndarray) -> np.ndarray:
        place = np.searchsorted(times, quarters, "right") - 1
        return passed[place] + (quarters - times[place]) * minutes[place]

    return np.diff(bars) / np.maximum(1e-9, np.diff(when(bars)))


def _key(found: Any) -> Key | None:
    """The first key that the file names; C major at the start of a file says often nothing, and is not believed."""
    given = [(int(one.key), int(one.tonality)) for one in found.key_signatures]
    real = [one for one in given if one != (0, 0)]
    if not real or not -7 <= real[0][0] <= 7:
        return None
    return Key.of_fifths(real[0][0], "minor" if real[0][1] else "major")


def _chords(found: Any, bars: list[float], quarter: float) -> tuple[Chord | None, ...] | None:
    """The chord that each bar begins with, by markers that are chord symbols; a bar without one keeps the last."""
    symbols = [(one.time / quarter, parse_chord(str(one.text))) for one in found.markers]
    given = sorted(((time, chord) for time, chord in symbols if chord is not False), key=lambda pair: pair[0])
    if len(given) < max(1, (len(bars) - 1) / 4):
        return None
    times = [time for time, _ in given]
    places = [bisect_right(times, start + 0.26) - 1 for start in bars[:-1]]
    return tuple(None if place < 0 else given[place][1] or None for place in places)


def _roles(parts: list[Part]) -> list[int]:
    """Of each track: by its name or program, else by its pitch. -1: a track that plays several roles."""
    roles = [OTHER] * len(parts)
    if not parts:
        return roles
    named = [_MELODY.search(part.name) is not None and _BASS.search(part.name) is None for part in parts]
    low = [_BASS.search(part.name) is not None or part.program in BASS_PROGRAMS for part in parts]
    total = sum(map(len, parts))
    single = [_overlap(part) < 1.3 and len(part) >= 0.02 * total for part in parts]

    def mean(place: int) -> tuple[float, float, str]:
        return float(parts[place].pitch.mean()), float(parts[place].onset[0]), parts[place].name

    melodies = [place for place in range(len(parts)) if named[place]]
    melodies = melodies or [place for place in range(len(parts)) if single[place] and not low[place]]
    if len(parts) > 1 and melodies:
        # Of several voices the highest sings.
        roles[max(melodies, key=mean)] = MELODY
    basses = [place for place in range(len(parts)) if low[place] and roles[place] != MELODY]
    basses = basses or [place for place in range(len(parts)) if single[place] and roles[place] != MELODY]
    if basses and MELODY in roles:
        lowest = min(basses, key=mean)
        if low[lowest] or parts[lowest].pitch.mean() < min(part.pitch.mean() for part in parts) + 1e-9:
            roles[lowest] = BASS
    if MELODY not in roles:
        roles = [-1] * len(parts)
    return roles


def _overlap(part: Part) -> float:
    """How many notes sound together, on the mean of a track's onsets."""
    starts, counts = np.unique(np.rint(part.onset * 24), return_counts=True)
    return float(counts.mean()) if len(starts) else 0.0


def _split_roles(notes: dict[str, np.ndarray]) -> None:
    """Where no track is the melody, the highest note at each onset is; where none is the bass, the lowest."""
    onset, pitch, role = np.rint(notes["onset"] * 24), notes["pitch"], notes["role"].astype(int)
    free = role != MELODY
    if not len(onset):
        notes["role"] = role
        return
    if (role == -1).any():
        role[:] = OTHER
        ends = notes["onset"] + notes["duration"]
        above, until = -1, -1.0  # the note that sings, and until when it sounds
        for place in np.lexsort((-pitch, onset)):
            start = notes["onset"][place]
            if onset[place] == (onset[above] if above >= 0 else -1):
                continue
            if above < 0 or start >= until - 0.1 or pitch[place] >= pitch[above] - 4:
                role[place], above, until = MELODY, place, ends[place]
        free = role != MELODY
    if not (role == BASS).any():
        order = np.lexsort((pitch, onset))
        order = order[free[order]]
        firsts = order[np.concatenate(([True], np.diff(onset[order]) > 0))] if len(order) else order
        role[firsts[pitch[firsts] < 60]] = BASS
    notes["role"] = role
