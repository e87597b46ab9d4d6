"""Scores that are not pop songs: the packaged captioner of music on pieces of music21's corpus.

    pip install music21
    python recipes/music_corpus.py make OUT        # a few dozen MIDI files of each kind, and what is true of them
    python recipes/music_corpus.py check OUT

Nothing of the corpus becomes part of meshcap: its licences are many. MIDI files are written by music21. What is true of
a piece is taken from music21's own reading: keys from the files (of classical movements, those that signature and last
bass note agree on), chords from published Roman numeral analyses, all else by the rules of
`meshcap.music.facts` over the notes as music21 has them, with the highest written part as the melody.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pop909 import Piece, report

from meshcap.captioner import Captioner
from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.music.facts import Facts, facts_of
from meshcap.music.features import HARMONY
from meshcap.music.harmony import Chord, Key
from meshcap.music.score import MOST_BARS, Part, Score, read_score

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
CLASSICAL = ("mozart", "haydn", "corelli", "handel", "verdi", "schumann_robert")
EACH = 40


def chorales() -> Iterator[tuple[str, Any, Key | None, dict[float, Chord | None]]]:
    """Chorales of Bach with the keys and Roman numerals that people have given them."""
    from music21 import corpus
    from music21.exceptions21 import CorpusException

    for number in range(1, 21):
        path = corpus.getWork(f"bach/choraleAnalyses/riemenschneider{number:03}.rntxt")
        analysis = corpus.parse(path)
        title, bwv = (re.search(rf"^{name}: *(.*)$", path.read_text(), re.M)[1] for name in ("Title", "BWV"))
        bwv = re.sub(r"248\((\d)\)\.(\d+)", r"248.\2-\1", bwv)  # as the corpus has the Christmas Oratorio
        try:
            piece = corpus.parse(f"bach/bwv{bwv}")
        except CorpusException:
            continue
        numerals = list(analysis.recurse().getElementsByClass("RomanNumeral"))
        chords = {float(one.getOffsetInHierarchy(analysis)): _chord(one) for one in numerals}
        yield f"chorale {number} {title}", piece, _key(numerals[0].key), chords


def folk_songs() -> Iterator[tuple[str, Any, Key | None, dict[float, Chord | None]]]:
    """Melodies alone, their keys as collectors wrote them."""
    from music21 import corpus

    for path in corpus.getComposer("ryansMammoth")[:: 1059 // EACH]:
        piece = corpus.parse(path)
        yield path.stem, piece, _key_of(piece), {}


def movements() -> Iterator[tuple[str, Any, Key | None, dict[float, Chord | None]]]:
    """Movements of the classical and romantic repertoire."""
    from music21 import corpus

    for path in (path for composer in CLASSICAL for path in corpus.getComposer(composer)):
        if path.suffix in (".mxl", ".xml", ".krn"):
            piece = corpus.parse(path)
            yield str(path).rpartition("corpus/")[2], piece, _key_by_end(piece), {}


KINDS = {"chorales": chorales, "folk songs": folk_songs, "movements": movements}


def _key(given: Any) -> Key | None:
    return Key(given.tonic.pitchClass, given.mode) if given.mode in ("major", "minor") else None


def _key_of(piece: Any) -> Key | None:
    found = piece.recurse().getElementsByClass("Key").first()
    return None if found is None else _key(found)


def _key_by_end(piece: Any) -> Key | None:
    signature = piece.recurse().getElementsByClass("KeySignature").first()
    last = piece.parts[-1].flatten().notes.last() if piece.parts else None
    if signature is None or last is None:
        return None
    modes: tuple[Any, ...] = ("major", "minor")
    keys = [Key.of_fifths(signature.sharps, mode) for mode in modes]
    return next((key for key in keys if key.tonic == last.pitches[0].pitchClass), None)


def _chord(one: Any) -> Chord | None:
    if one.quality not in ("major", "minor", "diminished", "augmented") or one.root() is None:
        return None
    return Chord(one.root().pitchClass, one.quality)


def without_repeats(piece: Any) -> None:
    """music21 would play them in MIDI, and nowhere else."""
    for bar in piece.recurse().getElementsByClass("Measure"):
        for side in ("leftBarline", "rightBarline"):
            if "Repeat" in getattr(getattr(bar, side), "classes", ()):
                setattr(bar, side, None)
    for one in list(piece.recurse().getElementsByClass(("RepeatExpression", "RepeatBracket"))):
        one.activeSite.remove(one)


def as_midi(piece: Any, path: Path) -> None:
    """Written by music21. Bars that are cut short get a time signature of their own, as notation programs write it."""
    from music21 import meter

    for part in piece.parts:
        nominal = written = None
        for bar in part.getElementsByClass("Measure"):
            nominal = bar.timeSignature or nominal
            length = bar.highestTime
            if nominal is None or not length:
                continue
            short = abs(length - nominal.barDuration.quarterLength) > 1e-3
            wanted = meter.TimeSignature(f"{round(length * 4)}/16") if short else nominal
            if written is None or wanted.ratioString != written:
                bar.timeSignature = meter.TimeSignature(wanted.ratioString)
            written = wanted.ratioString
    piece.write("midi", fp=path)


def as_score(piece: Any) -> Score:
    """Notes, bars and metres as music21 has them."""
    parts = []
    for number, part in enumerate(piece.parts):
        rows = []
        for one in part.flatten().stripTies().notes:
            if "ChordSymbol" in one.classes:
                continue
            start, length = float(one.offset), max(0.01, float(one.quarterLength))
            rows += [(start, length, pitch.midi) for pitch in one.pitches]
        columns = [np.array(column) for column in zip(*sorted(rows), strict=True)] if rows else [np.zeros(0)] * 3
        name = "melody" if number == 0 and len(piece.parts) > 1 else str(part.partName)
        whole = columns[2].astype(int)
        parts.append(Part(name, columns[0].astype(float), columns[1].astype(float), whole, np.full(len(rows), 80)))
    bars = [one for one in piece.parts[0].getElementsByClass("Measure") if one.highestTime]
    starts = [float(one.offset) for one in bars]
    metres = []
    for one in bars:
        signature = one.timeSignature or one.getContextByClass("TimeSignature")
        metres.append((signature.numerator, signature.denominator))
    tempos = np.full(len(bars), 120.0)  # what a MIDI file without a tempo means
    for start, end, mark in piece.flatten().metronomeMarkBoundaries():
        if mark.number and (rate := mark.getQuarterBPM()):
            tempos[[place for place, at in enumerate(starts) if start <= at < end]] = rate
    edges = np.array([*starts, starts[-1] + bars[-1].highestTime])
    return Score(tuple(parts), edges - edges[0], tuple(metres), tempos)


@app.command()
def make(out: Path, each: int = EACH, kinds: str = ",".join(KINDS)) -> None:
    """Write so many pieces of each kind into a folder."""
    for kind in kinds.split(","):
        pieces, kept, lines = KINDS[kind], 0, []
        for name, piece, key, chords in pieces():
            if kept == each:
                break
            if key is None or not getattr(piece, "parts", None):
                continue
            path = out / kind.replace(" ", "-") / f"{kept:02}.mid"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                without_repeats(piece)
                as_midi(piece, path)
                score = as_score(piece)
            except Exception as error:  # music21 raises many kinds, of files that it cannot write
                print(f"{name}: left out, {error!r:.100}", file=sys.stderr)
                continue
            if not 2 <= len(score) <= MOST_BARS:
                continue
            begun = tuple(_sounding(chords, float(start)) for start in score.bars[:-1])
            facts = facts_of(score, key, begun)
            row = {"kind": kind, "name": name, "file": str(path.relative_to(out)), "chords": bool(chords)}
            lines.append(json.dumps({**row, "facts": facts.to_dict()}))
            kept += 1
        write_text(out / f"{kind.replace(' ', '-')}.jsonl", "".join(f"{line}\n" for line in lines))
        print(f"{kind}: {kept}", flush=True)


def _sounding(chords: dict[float, Chord | None], start: float) -> Chord | None:
    before = [place for place in chords if place <= start + 1e-3]
    return chords[max(before)] if before else None


@app.command()
def check(
    out: Path,
    model: Annotated[str, typer.Option()] = "music",
    say: Annotated[int, typer.Option(help="Captions of each kind to print.")] = 0,
) -> None:
    """Caption them, with what the files say of keys and without, and count what is true."""
    captioner = Captioner.from_pretrained(model, device="cpu")
    for kind in KINDS:
        table = out / f"{kind.replace(' ', '-')}.jsonl"
        if not table.exists():
            continue
        own = [json.loads(line) for line in table.read_text().splitlines()]
        for bare in (False, True):
            pieces = []
            for row in own:
                try:
                    score = read_score(out / row["file"])
                except MeshcapError as error:
                    print(f"{row['name']}: {error}")
                    continue
                content = (score.bare() if bare else score).to_midi()
                caption = captioner.caption(content)
                piece = Piece.of(read_score(content), caption.text, Facts.from_dict(row["facts"]))
                unknown = () if row["chords"] else HARMONY
                # Some marks of tempo reach the MIDI file and are not found again in the score.
                pieces.append(piece.without((*unknown, "tempo", "speed") if kind == "movements" else unknown))
                if len(pieces) <= say:
                    print(f"{row['name']}: {caption.text}")
            print()
            report(f"{kind}, {'notes alone' if bare else 'as they are'}: {len(pieces)} pieces", pieces)


if __name__ == "__main__":
    app()
