"""Words as METEOR 1.5 sees them: normalised text, stems, synonym sets and function words.

Everything is read at run time from `meteor-1.5.jar` as pycocoevalcap ships it (METEOR: LGPL 2.1; the synonym sets are
WordNet 3.0's, under WordNet's licence); nothing of it is part of meshcap. What Java takes for a space (ASCII's alone),
for a digit, and for equal words (equal 32-bit hash codes), is kept.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

NAMES = {"en": "english", "cz": "czech", "de": "german", "es": "spanish", "fr": "french", "ru": "russian"}

LETTERS = "A-Za-zŠŽšžŸÀ-ÖØ-öø-ž\u0400-\u0527\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
SPACES = " \t\n\r\f"  # what separates words
WHITE = " \u2000-\u200a\u202f\u205f\u3000\xa0"  # what is none at the end

_PLAIN = re.compile(r"[a-z0-9 ]*")  # such a line is normalised already
_WORDS = re.compile(f"[^{SPACES}]+")
_OTHER = re.compile(rf"([^0-9{LETTERS}\s.'`,\-‘’])", re.ASCII)
_DOTS = re.compile(r"\.\.+")
_HIDDEN_DOTS = re.compile(r"((?:DOT)+)MULTI")
_COMMAS = [
    re.compile(f"({left}),({right})")
    for left, right in (("[^0-9]", "[^0-9]"), ("[0-9]", "[^0-9]"), ("[^0-9]", "[0-9]"))
]
_SINGLE_QUOTES = re.compile("[`‘’]")
_DOUBLE_QUOTES = re.compile("[“”]|''")
_HYPHEN = re.compile(rf"([0-9{LETTERS}.])-([0-9{LETTERS}])")
_LETTER = re.compile(f"[{LETTERS}]")
_WHITE = re.compile(f"[{WHITE}]+")

# Apostrophes: English cuts before them (dog 's), French after them (l' eau), the others on both sides.
_APOSTROPHES = {
    "en": [
        (re.compile(f"([^{LETTERS}])'([^{LETTERS}])"), r"\1 ' \2"),
        (re.compile(f"([^{LETTERS}0-9])'([{LETTERS}])"), r"\1 ' \2"),
        (re.compile(f"([{LETTERS}])'([^{LETTERS}])"), r"\1 ' \2"),
        (re.compile(f"([{LETTERS}])'([{LETTERS}])"), r"\1 '\2"),
        (re.compile("([0-9])'(s)"), r"\1 '\2"),  # 1990's
    ],
    "fr": [
        (re.compile(f"([^{LETTERS}])'([^{LETTERS}])"), r"\1 ' \2"),
        (re.compile(f"([^{LETTERS}])'([{LETTERS}])"), r"\1 ' \2"),
        (re.compile(f"([{LETTERS}])'([^{LETTERS}])"), r"\1 ' \2"),
        (re.compile(f"([{LETTERS}])'([{LETTERS}])"), r"\1' \2"),
    ],
}
_OTHER_APOSTROPHES = [(re.compile("'"), " ' ")]


# WordNet's: nouns, verbs, adjectives.
_ENDINGS = [
    rule.split("-")
    for rule in (
        "s- ses-s xes-x zes-z ches-ch shes-sh men-man ies-y s- ies-y es-e es- ed-e ed- ing-e ing- er- est- er-e est-e"
    ).split()
]


def split_words(line: str) -> list[str]:
    """The words of a line: nothing but ASCII's spaces separates them."""
    return _WORDS.findall(line)


@dataclass(frozen=True)
class Normalizer:
    """`-norm`: punctuation apart from words but kept, quotes and dashes made alike, lower case."""

    language: str
    prefixes: dict[str, bool]  # what keeps its dot; True: only before a number

    def __call__(self, line: str) -> list[str]:
        """The words of a line."""
        if _PLAIN.fullmatch(line):
            return line.split()
        line = _OTHER.sub(r" \1 ", f" {line} ")
        line = _DOTS.sub(lambda dots: f" {'DOT' * len(dots[0])}MULTI ", line)  # hidden from the rules for one dot
        for comma in _COMMAS:
            line = comma.sub(r"\1 , \2", line)
        line = _DOUBLE_QUOTES.sub(' " ', _SINGLE_QUOTES.sub("'", line))
        line = _HYPHEN.sub(r"\1 \2", line.replace("–", "-").replace("--", "-"))
        for pattern, cut in _APOSTROPHES.get(self.language, _OTHER_APOSTROPHES):
            line = pattern.sub(cut, line)
        words = split_words(line)
        line = " ".join(self._dot(word, after) for word, after in zip(words, [*words[1:], ""], strict=True))
        line = _HIDDEN_DOTS.sub(lambda dots: "." * (len(dots[1]) // 3), line)
        return split_words(_WHITE.sub(" ", line).lower())

    def _dot(self, word: str, after: str) -> str:
        """Cut a last dot off, unless the word is an abbreviation."""
        if len(word) < 2 or word[-1] != ".":
            return word
        stem = word[:-1]
        if "." in stem and _LETTER.search(stem):
            return word.replace(".", "")  # U.S.
        only_numbers = self.prefixes.get(stem)
        if only_numbers is False or "a" <= after[:1] <= "z" or (only_numbers and "0" <= after[:1] <= "9"):
            return word
        return f"{stem} ."


class Lexicon:
    """What the jar knows about a language's words.

    Raises:
        KeyError: the jar has no such language.
        OSError, zipfile.BadZipFile: the jar cannot be read.
    """

    def __init__(self, jar: Path, language: str = "en") -> None:
        self.jar, self.language = jar, language
        self.normalize = Normalizer(language, self._prefixes())
        # The program sets its word list before it reads -l: English function words in every language.
        self.function_words = frozenset(self._lines("function/english.words"))

    def _lines(self, name: str) -> list[str]:
        with zipfile.ZipFile(self.jar) as jar:
            return jar.read(name).decode("utf-8").splitlines()

    def _prefixes(self) -> dict[str, bool]:
        found = {}
        for line in self._lines(f"nonbreaking/{NAMES[self.language]}.prefixes"):
            words = split_words(line)
            if words and not words[0].startswith("#"):
                found[words[0]] = words[1:2] == ["#NUMERIC_ONLY#"]
        return found

    @cached_property
    def _synsets(self) -> dict[str, str]:
        lines = self._lines(f"synonym/{NAMES[self.language]}.synsets")
        return dict(zip(lines[::2], lines[1::2], strict=True))

    @cached_property
    def _bases(self) -> dict[str, list[str]]:
        lines = self._lines(f"synonym/{NAMES[self.language]}.exceptions")
        bases: dict[str, list[str]] = {}
        for base, forms in zip(lines[::2], lines[1::2], strict=True):
            for form in split_words(forms):
                bases.setdefault(form, []).append(base)
        return bases

    def synsets(self, word: str) -> set[str]:
        """WordNet's sets that hold the word or its base form."""
        bases = self._bases.get(word)
        if bases is None:
            bases = [self._base(word)]
        return {number for form in (word, *bases) for number in self._synsets.get(form, "").split()}

    def _base(self, word: str) -> str:
        """WordNet's rules: the first ending whose replacement makes a known word."""
        if len(word) > 2 and not word.endswith("ss"):
            for ending, replacement in _ENDINGS:
                if word.endswith(ending) and (base := word[: -len(ending)] + replacement) in self._synsets:
                    return base
        return ""


def java_hash(word: str) -> int:
    """String.hashCode: words with the same one are the same word to METEOR."""
    code = 0
    units = word.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


# Snowball's English stemmer ("Porter 2"), as of the jar.


def _rules(text: str) -> dict[str, str]:
    """ "ending-replacement …" as a dict."""
    return dict(rule.split("-") for rule in text.split())


_WHOLE = _rules(
    "skis-ski skies-sky dying-die lying-lie tying-tie idly-idl gently-gentl ugly-ugli early-earli only-onli "
    "singly-singl sky-sky news-news howe-howe atlas-atlas cosmos-cosmos bias-bias andes-andes"
)
_AFTER_PLURAL = frozenset("inning outing canning herring earring proceed exceed succeed".split())
_REGION = re.compile("(?:^gener|^commun|^arsen|.*?[aeiouy][^aeiouy])", re.DOTALL)
_NEXT_REGION = re.compile(".*?[aeiouy][^aeiouy]", re.DOTALL)
_VOWEL = re.compile("[aeiouy]")
_SHORT = re.compile("[^aeiouy][aeiouy][^aeiouywxY]$|^[aeiouy][^aeiouy]$")
_CONSONANT_Y = re.compile("([aeiouy])y")
_PARTICIPLES = frozenset("eed eedly ed edly ing ingly".split())
_DOUBLES = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_STEP_2 = _rules(
    "tional-tion enci-ence anci-ance abli-able entli-ent izer-ize ization-ize ational-ate ation-ate ator-ate alism-al "
    "aliti-al alli-al fulness-ful ousli-ous ousness-ous iveness-ive iviti-ive biliti-ble bli-ble ogi-og fulli-ful "
    "lessli-less li-"
)
_STEP_3 = _rules("tional-tion ational-ate alize-al icate-ic iciti-ic ical-ic ful- ness- ative-")
_STEP_4 = frozenset("al ance ence er ic able ible ant ement ment ent ism ate iti ous ive ize ion".split())


def _ending(word: str, endings: dict[str, str] | frozenset[str], longest: int) -> str:
    """The longest of the endings that the word has, or nothing."""
    return next((word[-n:] for n in range(min(longest, len(word)), 0, -1) if word[-n:] in endings), "")


def english_stem(word: str) -> str:
    """The stem of a lower-case word."""
    if word in _WHOLE:
        return _WHOLE[word]
    if len(word) < 3:
        return word
    word = _mark_consonants(word.removeprefix("'"))
    # The regions behind the first, and behind the second, consonant that follows a vowel.
    first = found.end() if (found := _REGION.match(word)) else len(word)
    second = found.end() if (found := _NEXT_REGION.match(word, first)) else len(word)
    word = _without_plural(word)
    if word not in _AFTER_PLURAL:
        word = _without_participle(word, first)
        if len(word) > 2 and word[-1] in "yY" and not _VOWEL.match(word[-2]):
            word = word[:-1] + "i"
        word = _without_suffixes(word, first, second)
    return word.replace("Y", "y")


def _mark_consonants(word: str) -> str:
    """Write y as Y where it is a consonant: first, and after a vowel."""
    return _CONSONANT_Y.sub(r"\1Y", "Y" + word[1:] if word.startswith("y") else word)


def _without_plural(word: str) -> str:
    for ending in ("'s'", "'s", "'"):
        if word.endswith(ending):
            word = word[: -len(ending)]
            break
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _VOWEL.search(word[:-2]):
        return word[:-1]
    return word


def _without_participle(word: str, first: int) -> str:
    ending = _ending(word, _PARTICIPLES, 5)
    if not ending:
        return word
    stem = word[: -len(ending)]
    if ending.startswith("eed"):
        return stem + "ee" if len(stem) >= first else word
    if not _VOWEL.search(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if stem.endswith(_DOUBLES):
        return stem[:-1]
    return stem + "e" if len(stem) == first and _SHORT.search(stem) else stem


def _without_suffixes(word: str, first: int, second: int) -> str:
    ending = _ending(word, _STEP_2, 7)
    stem = word[: len(word) - len(ending)]
    allowed = {"ogi": stem.endswith("l"), "li": stem.endswith(tuple("cdeghkmnrt"))}
    if ending and len(stem) >= first and allowed.get(ending, True):
        word = stem + _STEP_2[ending]

    ending = _ending(word, _STEP_3, 7)
    stem = word[: len(word) - len(ending)]
    if ending and len(stem) >= (second if ending == "ative" else first):
        word = stem + _STEP_3[ending]

    ending = _ending(word, _STEP_4, 5)
    stem = word[: len(word) - len(ending)]
    if ending and len(stem) >= second and (ending != "ion" or stem.endswith(("s", "t"))):
        word = stem

    stem = word[:-1]
    if word.endswith("e"):
        return stem if len(stem) >= second or (len(stem) >= first and not _SHORT.search(stem)) else word
    return stem if word.endswith("ll") and len(stem) >= second else word
