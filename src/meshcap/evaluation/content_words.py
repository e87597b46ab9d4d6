"""What a confidence is a promise about: the share of a caption's content words that people used too.

Content words are what remains without articles, prepositions, pronouns, auxiliaries and the like; a word said twice
counts once. They are compared by stem: "dogs" is "dog", "riding" is "rides". The rules are English and go with the
tokenizer `ptb`; with the other tokenizers every token counts as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from meshcap.text.sentence import BAD_ENDINGS
from meshcap.text.tokenizers import tokenize_each

# Besides the words that no caption ends with: what a caption may say without claiming anything about its picture.
FUNCTION_WORDS = BAD_ENDINGS | frozenset(
    """
    i me you he him she it we us they them himself herself itself themselves there here who what whose
    's 're 've 'm 'll 'd n't not no nor if so such both either also too then just only even still
    off out up down away back about after before until like toward via per within
    doing did done having got get gets getting must shall
    other others something someone somebody thing things one ones own same all more most many much several few
    picture image photo photograph shot scene view
    """.split()
)
IRREGULAR = {
    "men": "man", "women": "woman", "children": "child", "people": "person", "feet": "foot", "teeth": "tooth",
    "mice": "mouse", "geese": "goose", "knives": "knife", "leaves": "leaf", "wolves": "wolf", "shelves": "shelf",
    "ran": "run", "sat": "sit", "stood": "stand", "lay": "lie", "lying": "lie", "laying": "lie", "lies": "lie",
    "rode": "ride", "ridden": "ride", "ate": "eat", "eaten": "eat", "held": "hold", "wore": "wear", "worn": "wear",
    "flew": "fly", "swam": "swim", "threw": "throw", "thrown": "throw", "caught": "catch", "drove": "drive",
}  # fmt: skip
_VOWEL = re.compile("[aeiouy]")


def stem(word: str) -> str:
    """A word without its plural, -ing or -ed, and without a last e. Not a word any more, but equal where it should."""
    word = IRREGULAR.get(word, word)
    if len(word) > 4 and word.endswith(("ies", "ied")):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if re.search("(s|x|z|ch|sh)es$", word) else word[:-1]
    for end in ("ing", "ed"):
        short = word.removesuffix(end)
        if short != word and len(short) > 2 and _VOWEL.search(short) and not word.endswith("eed"):
            doubled = short[-1] == short[-2] and short[-1] not in "lsz"
            word = short[:-1] if doubled else short
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def content_words(tokens: Iterable[str], tokenizer: str = "ptb") -> frozenset[str]:
    """The stems that a caption claims something with."""
    if tokenizer != "ptb":
        return frozenset(tokens)
    return frozenset(
        stem(word) for word in tokens if word not in FUNCTION_WORDS and any(letter.isalnum() for letter in word)
    )


def used_share(words: frozenset[str], others: Iterable[frozenset[str]]) -> float:
    """Which share of content words at least one of the others has too; 0 of a caption without any."""
    known = frozenset().union(*others)
    return len(words & known) / len(words) if words else 0.0


def used_shares(captions: Sequence[str], references: Sequence[Sequence[str]], tokenizer: str = "ptb") -> list[float]:
    """The share of each caption, given what people said of its picture."""
    said = [content_words(tokens, tokenizer) for tokens in tokenize_each(tokenizer, captions)]
    return [used_share(words, people) for words, people in zip(said, people_words(references, tokenizer), strict=True)]


def people_words(references: Sequence[Sequence[str]], tokenizer: str = "ptb") -> list[list[frozenset[str]]]:
    """The content words of each person about each picture."""
    tokens = tokenize_each(tokenizer, [line for lines in references for line in lines])
    return [[content_words(next(tokens), tokenizer) for _ in lines] for lines in references]
