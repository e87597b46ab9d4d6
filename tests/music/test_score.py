"""Reading scores: bars, metres, tempos, roles, limits, and changes whose effect is known."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshcap.errors import MeshcapError
from meshcap.music import score as score_module
from meshcap.music.facts import facts_of
from meshcap.music.features import WIDTH, measure
from meshcap.music.harmony import Chord, Key, estimate_chords, estimate_key, parse_chord
from meshcap.music.hearing import chroma, hear
from meshcap.music.score import BASS, MELODY, Score, is_score, read_score
from music_scores import EIGHT, part, song

symusic = pytest.importorskip("symusic")


def test_what_is_written_is_read_again() -> None:
    told = replace(EIGHT, key=Key(7, "major"), chords=(Chord(0, "major"),) * 8)
    read = read_score(told.to_midi())
    assert len(read) == 8 and read.metres == ((4, 4),) * 8
    assert read.key == told.key and read.chords == told.chords
    np.testing.assert_allclose(read.tempos, 90, rtol=1e-4)
    for name in ("onset", "duration", "pitch", "role", "bar"):
        np.testing.assert_allclose(read.notes[name], told.notes[name], atol=0.01)


def test_metres_change_and_a_pick_up_is_a_short_first_bar() -> None:
    made = symusic.Score(480)
    track = symusic.Track("Melody", 0, False)
    for time in range(0, 480 * 9, 480):
        track.notes.append(symusic.Note(time, 480, 60, 80))
    made.tracks.append(track)
    for time, top, bottom in ((0, 1, 4), (480, 3, 4), (480 * 7, 2, 4)):
        made.time_signatures.append(symusic.TimeSignature(time, top, bottom))
    for time, bpm in ((0, 60.0), (480 * 4, 120.0)):
        made.tempos.append(symusic.Tempo(time, bpm))
    read = read_score(bytes(made.dumps_midi()))
    assert read.metres == ((1, 4), (3, 4), (3, 4), (2, 4))
    np.testing.assert_allclose(read.bars, [0, 1, 4, 7, 9])
    np.testing.assert_allclose(read.tempos, [60, 60, 120, 120], rtol=1e-4)


def test_a_metre_inside_a_bar_cuts_it_short() -> None:
    made = symusic.Score(480)
    track = symusic.Track("", 0, False)
    for time in range(0, 480 * 6, 480):
        track.notes.append(symusic.Note(time, 480, 60, 80))
    made.tracks.append(track)
    made.time_signatures.append(symusic.TimeSignature(0, 4, 4))
    made.time_signatures.append(symusic.TimeSignature(480 * 3, 3, 4))
    assert read_score(bytes(made.dumps_midi())).metres == ((3, 4), (3, 4))


def test_silence_around_is_left_out_and_empty_bars_inside_are_bars() -> None:
    late = part("Melody", [(8.0, 1.0, 60), (20.0, 8.0, 62)])
    read = read_score(Score((late,), np.arange(8) * 4.0, ((4, 4),) * 7, np.full(7, 100.0)).to_midi())
    assert len(read) == 4 and read.notes["onset"].tolist() == [0.0, 12.0]
    features, boxes, facts, _ = measure(read)
    assert features.shape == (4, WIDTH) and np.isfinite(features).all()
    assert boxes[1].tolist() == [0.25, 0.5, 0.5, 0.5] and facts.texture == "melody alone"


def test_roles_by_name_by_pitch_and_in_one_track() -> None:
    roles = EIGHT.notes["role"]
    assert (EIGHT.notes["pitch"][roles == MELODY] >= 60).all() and (roles == MELODY).sum() == 26
    assert set(EIGHT.notes["pitch"][roles == BASS]) == {36, 41, 43}
    unnamed = replace(EIGHT, parts=tuple(replace(one, name="") for one in EIGHT.parts))
    assert (unnamed.notes["role"] == roles).all()
    columns = {
        name: np.concatenate([getattr(one, name) for one in EIGHT.parts])
        for name in ("onset", "duration", "pitch", "velocity")
    }
    piano = replace(EIGHT, parts=(replace(EIGHT.parts[0], name="", **columns),))
    assert (piano.notes["pitch"][piano.notes["role"] == MELODY] >= 60).all()
    assert set(piano.notes["pitch"][piano.notes["role"] == BASS]) == {36, 41, 43}


def test_drums_have_no_pitch() -> None:
    drums = part("Drums", [(0.0, 0.1, 36), (1.0, 0.1, 38)], drums=True)
    beaten = read_score(replace(EIGHT, parts=(*EIGHT.parts, drums)).to_midi())
    assert beaten.drums.tolist() == [2] + [0] * 7 and len(beaten.notes["pitch"]) == len(EIGHT.notes["pitch"])
    only = Score((drums,), np.array([0.0, 4.0]), ((4, 4),), np.array([90.0]))
    with pytest.raises(MeshcapError, match="no notes but drums"):
        read_score(only.to_midi())


@pytest.mark.parametrize("bars", [1, 2, 500])
def test_from_one_bar_to_five_hundred(bars: int) -> None:
    read = read_score(song(["C"] * bars, [[60, 64]] * bars).to_midi())
    features, boxes, facts, heard = measure(read)
    assert features.shape == (bars, WIDTH) and facts.bars == bars and heard.chords.shape == (bars, 60)
    assert boxes[:, 0].min() == 0 and boxes[:, 2].max() == 1


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="501 bars, expected at most 500"):
        read_score(song(["C"] * 501, [[60]] * 501).to_midi())
    monkeypatch.setattr(score_module, "MOST_NOTES", 10)
    with pytest.raises(MeshcapError, match="notes, expected at most 10"):
        read_score(EIGHT.to_midi())
    monkeypatch.setattr(score_module, "MOST_BYTES", 100)
    with pytest.raises(MeshcapError, match="bytes, expected a score of at most 100"):
        read_score(EIGHT.to_midi())
    with pytest.raises(MeshcapError, match="cannot be read"):
        read_score(tmp_path / "none.mid")


@pytest.mark.parametrize(
    "content", [b"", b"MThd", b"MThd\0\0\0\6\0\1\0\1\1\xe0", b"hello", b"\xff\xd8\xff\xe0", b"X:1\n"]
)
def test_what_is_no_score_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(MeshcapError) as caught:
        read_score(content)
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused_or_read() -> None:
    good, rng = EIGHT.to_midi(), random.Random(0)
    for _ in range(150):
        content = bytearray(good[: rng.randrange(14, len(good))] if rng.random() < 0.3 else good)
        for _ in range(rng.randrange(1, 12)):
            content[rng.randrange(8, len(content))] = rng.randrange(256)
        try:
            features = measure(read_score(bytes(content)))[0]
        except MeshcapError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(features).all()


def test_abc_is_read() -> None:
    read = read_score(b"X:1\nT:Three\nM:3/4\nL:1/4\nQ:1/4=100\nK:G\nG B d|g2 d|B A G|\n")
    assert read.metres[0] == (3, 4) and read.key == Key(7, "major") and len(read) == 3


def test_abc_is_converted_with_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(score_module, "ABC_SECONDS", 1)
    head = b"X:1\nT:a\nM:4/4\nL:1/8\nK:C\n"
    with pytest.raises(MeshcapError, match="damaged score"):  # bars of rest until memory or time is over
        read_score(head + b"Z999999999 C|\n")
    with pytest.raises(MeshcapError, match="line of more than 1,000 letters"):  # the reader of ABC crashed at it
        read_score(head + b"c" + b"'" * 100_000 + b"|\n")
    other = tmp_path / "other.abc"
    other.write_bytes(head + b"GABc|\n" * 3)
    included = read_score(head + f"%%abc-include {other}\nCDEF|\n".encode())
    assert len(included) == 1 and set(included.notes["pitch"]) == {60, 62, 64, 65}


def test_events_are_counted() -> None:
    note, metre = b"\0\x90\x3c\x40\x83\x60\x80\x3c\0", b"\1\xff\x58\4\1\6\x18\x08"
    marker, end = b"\1\xff\x06\1C", b"\0\xff\x2f\0"

    def midi(*tracks: bytes) -> bytes:
        head = b"MThd" + struct.pack(">IHHH", 6, 1, len(tracks), 480)
        return head + b"".join(b"MTrk" + struct.pack(">I", len(one)) + one for one in tracks)

    assert len(read_score(midi(note + end))) == 1
    for content, kind in ((midi(metre * 20_001 + note + end), "time signatures"),
                          (midi(marker * 20_001 + note + end), "markers"),
                          (midi(*[note + end] * 1001), "tracks")):  # fmt: skip
        with pytest.raises(MeshcapError, match=f"{kind}, expected at most"):
            read_score(content)


def test_kinds_of_sources(tmp_path: Path) -> None:
    assert is_score("a/Song.MID") and is_score(Path("tune.abc")) and is_score(EIGHT.to_midi())
    assert not is_score("photo.jpg") and not is_score(b"\xff\xd8\xff") and not is_score(np.zeros((2, 2)))


def test_transposing_by_a_fifth_changes_the_keys_name_and_nothing_else() -> None:
    plain, moved = measure(EIGHT), measure(EIGHT.transposed(7))
    assert (plain[2].key, moved[2].key) == (Key(0, "major"), Key(7, "major"))
    up = tuple(None if chord is None else chord.transposed(7) for chord in plain[2].chords)
    assert replace(plain[2], key=moved[2].key, chords=up) == moved[2]
    np.testing.assert_allclose(np.roll(plain[3].keys.reshape(2, 12), 7, 1).ravel(), moved[3].keys, atol=1e-5)


def test_tempo_and_order_of_tracks() -> None:
    plain = measure(EIGHT)
    assert measure(EIGHT.at_tempo(1.5))[2] == replace(plain[2], bpm=plain[2].bpm * 1.5)
    turned = measure(EIGHT.reordered([1, 0]))
    np.testing.assert_array_equal(plain[0], turned[0])
    assert plain[2] == turned[2]


def test_chord_symbols() -> None:
    meant = {
        "Am7": Chord(9, "minor"),
        "F#:min": Chord(6, "minor"),
        "Bb/D": Chord(10, "major"),
        "Cmaj7": Chord(0, "major"),
        "Gsus4": Chord(7, "suspended"),
        "B:hdim7": Chord(11, "diminished"),
        "E7": Chord(4, "major"),
        "Caug": Chord(0, "augmented"),
    }
    assert {symbol: parse_chord(symbol) for symbol in meant} == meant
    assert parse_chord("N") is None and parse_chord("Chorus") is False and parse_chord("verse 2") is False
    for chord in set(meant.values()):
        assert parse_chord(chord.symbol) == chord


def test_keys_and_chords_are_heard() -> None:
    expected = tuple(Chord(root, "major") for root in (0, 5, 7, 0)) * 2
    heard = hear(EIGHT)
    assert heard.key == Key(0, "major") and heard.best_chords() == expected
    assert estimate_key(chroma(EIGHT).sum(0)) == Key(0, "major")
    assert estimate_chords(chroma(EIGHT, 0.5), chroma(EIGHT, 0.5, BASS)) == expected
    told = hear(replace(EIGHT, key=Key(9, "minor"), chords=(Chord(9, "minor"),) * 8))  # the file is believed
    assert told.key == Key(9, "minor") and set(told.best_chords()) == {Chord(9, "minor")}
    assert facts_of(EIGHT, Key(0, "major"), expected).chords == expected


def test_key_signatures_count_sharps() -> None:
    for fifths in range(-6, 7):
        for mode in ("major", "minor"):
            key = Key.of_fifths(fifths, mode)
            assert Key.of_fifths(key.fifths, mode) == key
    assert Key(7, "major").fifths == 1 and Key(2, "minor").fifths == -1 and Key(0, "minor").fifths == -3
