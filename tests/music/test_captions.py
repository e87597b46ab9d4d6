"""Facts of scores that were worked out by hand, captions made of them, and the checker that reads captions back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from meshcap.errors import MeshcapError
from meshcap.music.captions import KINDS, check_caption, read_caption, write_captions
from meshcap.music.facts import Facts, cadence_of, direction_of, facts_of, loop_of
from meshcap.music.harmony import Chord, Key
from meshcap.text.ptb import ptb_tokenize
from music_scores import EIGHT, song

C, F, G, AM = Chord(0, "major"), Chord(5, "major"), Chord(7, "major"), Chord(9, "minor")
IN_C = Key(0, "major")
FACTS = facts_of(EIGHT, IN_C, (C, F, G, C) * 2)


def test_the_facts_of_eight_bars() -> None:
    assert (
        Facts(
            bars=8,
            key=IN_C,
            metre=(4, 4),
            bpm=pytest.approx(90.0),  # type: ignore[arg-type]
            chords=(C, F, G, C) * 2,
            cadence="authentic",
            direction="rises",  # thirds of 2⅔ bars: the mean of the last is 3.9 semitones above that of the first
            range=14,  # C4 to D5
            density=pytest.approx((26 + 8 * 4) / 32),  # type: ignore[arg-type]
            texture="full chords",
            climax=3,  # D5, for the first time
            returns=5,
            loop=4,
            drums=False,
        )
        == FACTS
    )
    assert (FACTS.tempo, FACTS.range_word, FACTS.climax_place) == ("moderate", "octave", "first")


def test_six_eight_has_two_beats() -> None:
    facts = facts_of(song(["C"] * 2, [[60], [62]], metre=(6, 8), bpm=120), IN_C, (C, C))
    assert facts.metre == (6, 8) and facts.bpm == pytest.approx(80) and facts.returns is None


@pytest.mark.parametrize(
    ("chords", "cadence"),
    [
        ((F, G, C), "authentic"),
        ((G, C, C), "authentic"),
        ((G, F, C), "plagal"),
        ((C, F, G), "half"),
        ((F, G, AM), "deceptive"),
        ((AM, AM, C), "home"),
        ((C, G, F), "away"),
        ((C, G, None), None),
    ],
)
def test_cadences(chords: tuple[Chord | None, ...], cadence: str | None) -> None:
    assert cadence_of(IN_C, chords) == cadence


def test_directions_and_loops() -> None:
    thirds = {
        "rises": (60, 61, 62),
        "falls": (62, 64, 60),
        "arches": (60, 63, 61),
        "dips": (62, 59, 61),
        "level": (60, 61, 60),
    }
    assert {name: direction_of(values) for name, values in thirds.items()} == {name: name for name in thirds}  # type: ignore[arg-type]
    assert [loop_of(one) for one in ((C, G) * 2, (C, F, G, C) * 2, (C, C, C, C), (C, G, C, F))] == [2, 4, None, None]


def test_degrees_and_names_follow_the_key() -> None:
    key = Key(9, "minor")
    assert [key.degree(chord) for chord in (AM, F, C, G)] == ["one", "six", "three", "seven"]
    assert (Key(1, "major").name, Key(1, "minor").name) == ("d-flat-major", "c-sharp-minor")
    assert (
        Chord(10, "major").name(Key(5, "major")) == "b-flat-major"
        and Chord(6, "minor").name(Key(2, "major")) == "f-sharp-minor"
    )


def test_every_caption_is_true_and_read_back_whole() -> None:
    seen = set()
    for seed in range(150):
        for caption in write_captions(FACTS, random.Random(seed)):
            assert ptb_tokenize(caption) == caption.split()  # what training sees is what was written
            statements, left = read_caption(caption)
            assert not left and 1 <= len(statements) <= 7
            assert all(true for _, true in check_caption(caption, FACTS)), caption
            seen |= {one.kind for one in statements}
    assert seen == set(KINDS)
    assert len({tuple(write_captions(FACTS, random.Random(seed))) for seed in range(5)}) == 5
    assert len(set(write_captions(FACTS, random.Random(0)))) == 5


def test_the_checker_tells_true_from_false() -> None:
    caption = (
        "A slow piece in the key of C-major in three four time at about 90 beats a minute where the chords go C-major "
        "F-major G-major A-minor and the melody peaks in bar 3."
    )
    found = {one.kind: true for one, true in check_caption(caption, FACTS)}
    assert found == {"tempo": False, "key": True, "metre": False, "speed": True, "progression": False, "peak": True}
    assert read_caption("a cat on a piano")[1] == ("cat", "on", "piano")
    assert [true for _, true in check_caption("it begins on c-major", replace(FACTS, chords=(G, C)))] == [False]
    enharmonic = replace(FACTS, key=Key(6, "major"))
    assert [true for _, true in check_caption("music in g-flat-major", enharmonic)] == [True]


def test_each_wrong_value_is_found() -> None:
    tune = song(["Am", "Dm", "F", "Dm", "G"], [[59], [57], [57], [57], [55]], metre=(3, 4), bpm=200)
    other = facts_of(tune, Key(9, "minor"), (AM, Chord(2, "minor"), F, Chord(2, "minor"), G))
    wrong = set()
    for seed in range(200):
        for caption in write_captions(FACTS, random.Random(seed)):
            wrong |= {one.kind for one, true in check_caption(caption, other) if not true}
    assert wrong >= set(KINDS) - {"texture", "density"}  # both have few notes and full chords


def test_facts_travel_as_json() -> None:
    rounded = replace(FACTS, bpm=90.0, density=round(FACTS.density, 3))
    assert Facts.from_dict(FACTS.to_dict()) == rounded
    with pytest.raises(MeshcapError, match="no facts"):
        Facts.from_dict({"background": "sea"})
