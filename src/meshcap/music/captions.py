"""Captions of a piece by rules over its facts, and the checker that reads a caption back and says what of it is true.

Writer and checker share one table, `KINDS`: how a fact is said, and which values are true of a piece. Captions are
lower-case words without punctuation, as the PTB tokenizer leaves them; a key or a chord is one word ("f-sharp-minor").
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from meshcap.music.facts import DENSITIES, PLACES, RANGES, TEMPOS, Facts
from meshcap.music.harmony import DEGREES, QUALITIES, SPELLED, Chord, Key

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
NUMBERS |= {10: "ten", 12: "twelve", 16: "sixteen"}
NAMED_BARS = 32  # bars up to this are named by their number
NEAR = 6.0  # beats a minute that "about" may be off
_NOTE = "[a-g](?:-sharp|-flat)?"
_KEY, _CHORD = rf"{_NOTE}-(?:major|minor)", rf"{_NOTE}-(?:{'|'.join(QUALITIES)})"
_DEGREE = "|".join(DEGREES)
_METRE = "|".join(NUMBERS.values())

# What is said for each value. The first form of a value is not better than the others.
TEMPO = {
    "slow": ("slow", "unhurried"),
    "moderate": ("moderate", "medium-paced"),
    "lively": ("lively", "brisk"),
    "fast": ("fast", "rapid"),
}
CADENCE = {
    "authentic": ("closes with an authentic cadence", "ends on an authentic cadence"),
    "plagal": ("closes with a plagal cadence", "ends on a plagal cadence"),
    "half": ("closes with a half cadence", "stops on the dominant"),
    "deceptive": ("closes with a deceptive cadence", "ends on a deceptive cadence"),
    "home": ("comes to rest on the tonic", "settles on the tonic"),
    "away": ("ends away from the tonic", "is left open at the end"),
}
DIRECTION = {
    "rises": ("rises on the whole", "climbs from beginning to end"),
    "falls": ("falls on the whole", "sinks from beginning to end"),
    "arches": ("forms an arch", "is highest in its middle part"),
    "dips": ("forms a valley", "is lowest in its middle part"),
    "level": ("stays on one level", "neither rises nor falls"),
}
RANGE = {
    "narrow": ("has a narrow range", "moves in a small range"),
    "octave": ("spans about an octave", "covers about an octave"),
    "wide": ("has a wide range", "reaches far beyond an octave"),
}
DENSITY = {
    "sparse": ("sparse", "thin"),
    "even": ("neither thin nor dense", "of middling density"),
    "dense": ("dense", "busy"),
}
TEXTURE = {
    "melody alone": ("for one melody alone", "of a single voice"),
    "accompaniment alone": ("for accompaniment without a melody", "of accompaniment alone"),
    "broken chords": ("for melody over broken chords", "of a melody with broken chords"),
    "full chords": ("for melody over full chords", "of a melody with full chords"),
    "accompaniment": ("for melody and accompaniment", "of a melody with accompaniment"),
}
PLACE = {
    "beginning": ("near the beginning", "early on"),
    "first": ("before the middle", "in the second quarter"),
    "second": ("after the middle", "in the third quarter"),
    "end": ("near the end", "late"),
}
LOOP = {
    2: ("the first two chords come again at once", "the opening chords repeat after two bars"),
    4: ("the first four chords come again at once", "the opening chords repeat after four bars"),
    8: ("the first eight chords come again at once", "the opening chords repeat after eight bars"),
    None: ("the opening chords do not come again at once",),
}


@dataclass(frozen=True)
class Kind:
    """A kind of fact. `forms` have {} where the value is; `values` are the true ones, each with its words."""

    name: str
    forms: tuple[str, ...]
    words: str  # a pattern of all words that a value may have
    read: Callable[[str], object]  # words to a value
    say: Callable[[Facts], tuple[str, ...]]  # the ways of saying the true value; none: nothing to say
    holds: Callable[[object, Facts], bool]


def _table(
    name: str, forms: tuple[str, ...], table: dict[object, tuple[str, ...]], value: Callable[[Facts], object]
) -> Kind:
    meaning = {phrase: key for key, phrases in table.items() for phrase in phrases}
    words = "|".join(sorted(map(re.escape, meaning), key=len, reverse=True))
    say = lambda facts: table.get(value(facts), ())  # noqa: E731
    return Kind(name, forms, words, meaning.__getitem__, say, lambda found, facts: found == value(facts))


def _read_key(words: str) -> Key:
    note, _, mode = words.rpartition("-")
    return Key(SPELLED.get(note, -1), "minor" if mode == "minor" else "major")


def _read_chord(words: str) -> Chord:
    note, _, quality = words.rpartition("-")
    return Chord(SPELLED.get(note, -1), quality)


def _opening(facts: Facts) -> tuple[Chord, ...]:
    first = facts.chords[:4]
    return () if None in first or len(first) < 4 else tuple(chord for chord in first if chord is not None)


def _names(facts: Facts, chords: Iterable[Chord | None]) -> tuple[str, ...]:
    names = [chord.name(facts.key) for chord in chords if chord is not None]
    return (" ".join(names),) if names else ()


def _degrees(facts: Facts) -> tuple[str, ...]:
    steps = [facts.key.degree(chord) for chord in _opening(facts)]
    return (" ".join(step for step in steps if step),) if steps and None not in steps else ()


def _bar(value: int | None) -> tuple[str, ...]:
    return (str(value),) if value is not None and value <= NAMED_BARS else ()


def _metre_words(facts: Facts) -> tuple[str, ...]:
    top, bottom = facts.metre
    return (f"{NUMBERS[top]} {NUMBERS[bottom]}",) if top in NUMBERS and bottom in NUMBERS else ()


KINDS = {
    kind.name: kind
    for kind in (
        _table("tempo", ("{} piece", "{} passage", "{} music"), TEMPO, lambda facts: facts.tempo),  # type: ignore[arg-type]
        Kind(
            "speed",
            ("about {} beats a minute",),
            r"\d+",
            int,
            lambda facts: (str(round(facts.bpm / 10) * 10),),
            lambda found, facts: abs(int(str(found)) - facts.bpm) <= NEAR,
        ),
        Kind(
            "key",
            ("in the key of {}", "in {}"),
            _KEY,
            _read_key,
            lambda facts: (facts.key.name,),
            lambda found, facts: found == facts.key,
        ),
        Kind(
            "metre",
            ("{} time",),
            rf"(?:{_METRE}) (?:{_METRE})",
            str,
            _metre_words,
            lambda found, facts: (found,) == _metre_words(facts),
        ),
        Kind(
            "length",
            ("{} bars of", "over {} bars", "for {} bars"),
            r"\d+",
            int,
            lambda facts: (str(facts.bars),) if facts.bars <= NAMED_BARS else (),
            lambda found, facts: found == facts.bars,
        ),
        Kind(
            "progression",
            ("the chords go {}", "the first chords are {}"),
            rf"{_CHORD}(?: {_CHORD})*",
            lambda words: tuple(map(_read_chord, words.split())),
            lambda facts: _names(facts, _opening(facts)),
            lambda found, facts: isinstance(found, tuple) and found == facts.chords[: len(found)],
        ),
        Kind(
            "degrees",
            ("the harmony moves by the steps {}", "the first steps of the harmony are {}"),
            rf"(?:{_DEGREE})(?: (?:{_DEGREE}))*",
            str,
            _degrees,
            lambda found, facts: _degrees_true(str(found), facts),
        ),
        Kind(
            "opening",
            ("it begins on {}", "it opens on {}"),
            _CHORD,
            _read_chord,
            lambda facts: _names(facts, facts.chords[:1]),
            lambda found, facts: found == facts.chords[0],
        ),
        Kind(
            "closing",
            ("the last chord is {}", "it finishes on {}"),
            _CHORD,
            _read_chord,
            lambda facts: _names(facts, facts.chords[-1:]),
            lambda found, facts: found == facts.chords[-1],
        ),
        _table("cadence", ("it {}", "the piece {}"), CADENCE, lambda facts: facts.cadence),  # type: ignore[arg-type]
        _table("direction", ("the melody {}",), DIRECTION, lambda facts: facts.direction),  # type: ignore[arg-type]
        _table("range", ("the melody {}", "the tune {}"), RANGE, lambda facts: facts.range_word),  # type: ignore[arg-type]
        _table("density", ("the texture is {}", "the writing is {}"), DENSITY, lambda facts: facts.density_word),  # type: ignore[arg-type]
        _table("texture", ("{}",), TEXTURE, lambda facts: facts.texture),  # type: ignore[arg-type]
        _table("climax", ("the highest note comes {}", "the melody peaks {}"), PLACE, lambda facts: facts.climax_place),  # type: ignore[arg-type]
        Kind(
            "peak",
            ("the melody peaks in bar {}", "the highest note is in bar {}"),
            r"\d+",
            int,
            lambda facts: _bar(facts.climax),
            lambda found, facts: found == facts.climax,
        ),
        Kind(
            "return",
            ("the opening melody comes again in bar {}", "the first tune returns in bar {}"),
            r"\d+",
            int,
            lambda facts: _bar(facts.returns),
            lambda found, facts: found == facts.returns,
        ),
        _table("loop", ("{}",), LOOP, lambda facts: facts.loop if facts.bars >= 4 else 0),  # type: ignore[arg-type]
    )
}


def _degrees_true(found: str, facts: Facts) -> bool:
    steps = found.split()
    chords = facts.chords[: len(steps)]
    return len(chords) == len(steps) and all(
        chord is not None and facts.key.degree(chord) == step for chord, step in zip(chords, steps, strict=True)
    )


# Writing

NOUNS = ("piece", "passage", "music")
HARMONY = ("progression", "progression", "degrees", "opening", "closing", "cadence", "cadence", "loop")
MELODY = ("direction", "range", "climax", "peak", "return", "density")


def write_captions(facts: Facts, rng: random.Random, count: int = 5) -> list[str]:
    """`count` different captions, each of three to five true statements; fewer where there is little to say."""
    captions: list[str] = []
    for _ in range(20 * count):
        caption = _caption(facts, rng)
        if caption not in captions:
            captions.append(caption)
        if len(captions) == count:
            break
    return captions


def _said(kind: str, facts: Facts, rng: random.Random) -> str | None:
    ways = KINDS[kind].say(facts)
    return rng.choice(KINDS[kind].forms).replace("{}", rng.choice(ways)) if ways else None


def _caption(facts: Facts, rng: random.Random) -> str:
    """An opening with what kind of piece it is, and one or two clauses about its harmony and its melody."""
    noun, tempo = rng.choice(NOUNS), rng.choice(TEMPO[facts.tempo])
    article = "" if noun == "music" else "an " if tempo[0] in "aeiou" else "a "
    opening = f"{article}{tempo} {noun}"
    if facts.bars <= NAMED_BARS and rng.random() < 0.25:
        opening = f"{facts.bars} bars of {tempo} music"
    more = ["key"] if rng.random() < 0.75 else []
    more += [kind for kind in ("metre", "texture", "speed") if rng.random() < 0.3]
    for kind in more[:3]:
        if said := _said(kind, facts, rng):
            opening += f" {'at' if kind == 'speed' else 'in'} {said}" if kind in ("speed", "metre") else f" {said}"
    clauses = [_clause(kinds, facts, rng) for kinds in (HARMONY, MELODY)]
    found = [clause for clause in clauses if clause]
    if rng.random() < 0.35:
        found = found[:1] if rng.random() < 0.5 else found[1:]
    rng.shuffle(found)
    return f"{opening} where {' and '.join(found)}" if found else opening


def _clause(kinds: tuple[str, ...], facts: Facts, rng: random.Random) -> str | None:
    for kind in rng.sample(kinds, len(kinds)):
        if said := _said(kind, facts, rng):
            return said
    return None


# Reading


@dataclass(frozen=True)
class Statement:
    """What a caption says: a kind of fact, the words and the value."""

    kind: str
    words: str
    value: object

    def holds(self, facts: Facts) -> bool:
        """Whether it is true of a piece."""
        return KINDS[self.kind].holds(self.value, facts)


FILLERS = frozenset("a an in at and where".split())


@cache
def _patterns() -> list[tuple[Kind, re.Pattern[str]]]:
    found = []
    for kind in KINDS.values():
        for form in kind.forms:
            before, after = map(re.escape, form.split("{}"))
            found.append((len(form), kind, re.compile(rf"(?<!\S){before}({kind.words}){after}(?!\S)")))
    return [(kind, pattern) for _, kind, pattern in sorted(found, key=lambda one: -one[0])]


@lru_cache(20_000)
def read_caption(caption: str) -> tuple[tuple[Statement, ...], tuple[str, ...]]:
    """The statements of a caption in their order, and the words that belong to none."""
    text = " ".join(re.sub(r"[.,;]", " ", caption.lower()).split())
    found: list[tuple[int, Statement]] = []
    for kind, pattern in _patterns():
        while match := pattern.search(text):
            found.append((match.start(), Statement(kind.name, match[0], kind.read(match[1]))))
            text = text[: match.start()] + re.sub(r"\S", "·", match[0]) + text[match.end() :]
    left = tuple(word for word in text.split() if word not in FILLERS and set(word) != {"·"})
    return tuple(one for _, one in sorted(found, key=lambda one: one[0])), left


def check_caption(caption: str, facts: Facts) -> list[tuple[Statement, bool]]:
    """The statements of a caption, and whether each is true of a piece."""
    return [(one, one.holds(facts)) for one in read_caption(caption)[0]]


for _words, _buckets in ((TEMPO, TEMPOS), (RANGE, RANGES), (DENSITY, DENSITIES), (PLACE, PLACES)):
    assert set(_words) == set(_buckets)
