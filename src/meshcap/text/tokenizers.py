"""Captions to tokens in three ways; a vocabulary keeps the name of the one it was made with.

- `ptb`: the field's, for English, equal to the Java tool of coco-caption (`meshcap.text.ptb`).
- `unicode`: words of any language, near Unicode's word boundaries (UAX #29): runs of letters, marks and digits, with
  apostrophes inside words and points inside numbers. Each ideograph and each hiragana is a word of its own, katakana
  and hangul stay together. Punctuation, symbols and emoji are left out. Thai, Lao, Khmer and Burmese, which put no
  spaces between words, need `char`.
- `char`: each character as a reader counts them, with its accents; emoji with their modifiers and joiners are one.
  White space and control characters are left out.

All three give lower case. The last two compose accents (NFC): é is one token however it was typed. No string makes
them fail.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from meshcap.errors import MeshcapError
from meshcap.text.ptb import ptb_stream, ptb_tokenize

TOKENIZERS = ("ptb", "unicode", "char")
LONGEST = 1000  # characters to compose at once; it takes the square of that when somebody piles up accents

_UNSEEN = re.compile(
    r"[\xad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]+"
)  # inside a word they mean nothing
_JOINERS = "\u200c\u200d"
_IDEOGRAPHS = ((0x3005, 0x3007), (0x3041, 0x309F), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_KATAKANA = ((0x30A1, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F))
_JAMO = {
    "l": ((0x1100, 0x115F), (0xA960, 0xA97C)),
    "v": ((0x1160, 0x11A7), (0xD7B0, 0xD7C6)),
    "t": ((0x11A8, 0x11FF), (0xD7CB, 0xD7FB)),
}

# Both run on a shape of the text, one character for each kind: see `_word_kind` and `_sign_kind`.
_WORD = re.compile(r"im*+|k[km]*+|[a0]m*+(?:[a0]m*+|['·](?=[a0])|(?<=0)\.(?=0))*+")
_SIGN = re.compile(r"(?:rr|l*+v++t*+|l++|t++|e(?:m*+j++e)*+|[^ mj])[mj]*+|[mj]++")


def get_tokenizer(name: str) -> Callable[[str], list[str]]:
    """The function that splits one caption into tokens.

    Raises:
        MeshcapError: a name that is none of `TOKENIZERS`.
    """
    if name not in TOKENIZERS:
        raise MeshcapError(f"tokenizer is {reprlib.repr(name)}, expected one of {', '.join(TOKENIZERS)}")
    return {"ptb": ptb_tokenize, "unicode": unicode_tokenize, "char": char_tokenize}[name]


def tokenize_each(name: str, captions: Iterable[str]) -> Iterator[list[str]]:
    """The tokens of each caption, one after the other.

    Raises:
        MeshcapError: a name that is none of `TOKENIZERS`, a string instead of captions.
    """
    one = get_tokenizer(name)
    if isinstance(captions, str):
        raise MeshcapError("a string was given, expected several captions: put it into a list")
    return ptb_stream(captions) if name == "ptb" else map(one, captions)


def unicode_tokenize(caption: str) -> list[str]:
    """Words in the sense of Unicode: see the head of this file."""
    text = _composed(_UNSEEN.sub("", caption.lower()))
    found = _WORD.finditer(text.translate(_kinds(_word_kind)))
    return [text[one.start() : one.end()].rstrip(_JOINERS).replace("\u2019", "'") for one in found]


def char_tokenize(caption: str) -> list[str]:
    """Characters as a reader counts them: see the head of this file."""
    text = _composed(caption.lower())
    if text.isascii():
        return [sign for sign in text if " " < sign < "\x7f"]
    return [text[one.start() : one.end()] for one in _SIGN.finditer(text.translate(_kinds(_sign_kind)))]


def _composed(text: str) -> str:
    if text.isascii():
        return text
    return " ".join(unicodedata.normalize("NFC", part) if len(part) <= LONGEST else part for part in text.split())


class _Kinds(dict[int, str]):
    """Code point -> its kind, for `str.translate`; found when first met."""

    def __init__(self, kind: Callable[[str], str]) -> None:
        self.kind = kind

    def __missing__(self, point: int) -> str:
        self[point] = kind = self.kind(chr(point))
        return kind


_kinds = cache(_Kinds)


def _word_kind(character: str) -> str:
    """i ideograph, k katakana, a letter, 0 digit, m mark, ' · . what joins two of them, a space for the rest."""
    if character in "'\u2019":
        return "'"
    if character in "\xb7\u0387\u05f3\u05f4\u2027":
        return "·"
    if character in ".,\u066b\u066c":
        return "."
    category = unicodedata.category(character)
    if category[0] == "M" or character in _JOINERS:
        return "m"
    if category[0] == "N" and category != "Nl":
        return "0"
    if category[0] not in "LN":
        return " "
    return "i" if _within(character, _IDEOGRAPHS) else "k" if _within(character, _KATAKANA) else "a"


def _sign_kind(character: str) -> str:
    """m what belongs to the sign before, j joiner, e emoji and symbol, r half a flag, l v t jamo, x the rest."""
    if character == "\u200d":
        return "j"
    if 0x1F1E6 <= ord(character) <= 0x1F1FF:
        return "r"
    category = unicodedata.category(character)
    skin, tag = 0x1F3FB <= ord(character) <= 0x1F3FF, 0xE0020 <= ord(character) <= 0xE007F
    if category[0] == "M" or character == "\u200c" or skin or tag:
        return "m"
    if character.isspace() or category in ("Cc", "Cf", "Cs"):
        return " "
    if category == "So" or (ord(character) >= 0x1F000 and category[0] != "L"):
        return "e"
    return next((kind for kind, ranges in _JAMO.items() if _within(character, ranges)), "x")


def has_no_spaces(character: str) -> bool:
    """Whether it is a sign of Chinese or Japanese, which put none between words."""
    return character > "\u3000" and _within(character, (*_IDEOGRAPHS, *_KATAKANA))


def _within(character: str, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in ranges)
