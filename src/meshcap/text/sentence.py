"""Tokens back to a sentence that a person would write."""

from __future__ import annotations

from collections.abc import Iterable

BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}", "``": "“", "''": "”"}
APOSTROPHES = ("'", "\u2019")
SUFFIXES = {mark + end for mark in APOSTROPHES for end in ("s", "m", "re", "ve", "ll", "d")}
LEFT_BOUND = {",", ".", "!", "?", ";", ":", "%", ")", "]", "}", "..", "...", "…", "”", "n't", "n\u2019t"} | SUFFIXES
RIGHT_BOUND = {"(", "[", "{", "“", "$", "£", "€", "¿", "¡"}
ONE_WORD = {("can", "not"), ("gon", "na"), ("wan", "na"), ("got", "ta"), ("gim", "me"), ("lem", "me")}


def join_words(words: Iterable[str], tokenizer: str = "ptb") -> str:
    """Join tokens into a sentence; whitespace inside them becomes single spaces. Never raises on strings."""
    words = [" ".join(word.split()) for word in words]
    words = [BRACKETS.get(word.lower(), word) for word in words if word]
    text, last = "", ""
    capital, bound, opened = True, True, {'"': False, "'": False}  # bound: the next word follows without a space
    for place, word in enumerate(words):
        low = word.lower()
        binds_left, binds_right = low in LEFT_BOUND, low in RIGHT_BOUND
        if word in opened:
            # A quotation mark opens or closes in turn; a last, lonely ' is the possessive of "the dogs ' tails".
            closes = opened[word] or (word == "'" and "'" not in words[place + 1 :])
            opened[word] = not closes
            binds_left, binds_right = closes, not closes
        elif tokenizer == "char":
            # Characters stand together; only whole Latin words, should the tokenizer keep them, need a space.
            binds_left |= not (_latin(last) and _latin(word) and len(last) + len(word) > 2)
        elif tokenizer == "ptb":
            binds_left |= (last.lower(), low) in ONE_WORD
            word = "I" if word == "i" else word
        if capital and any(map(str.isalnum, word)):
            word, capital = _capital(word), False
        capital |= word in (".", "!", "?")
        text += word if bound or binds_left else f" {word}"
        bound, last = binds_right, word
    return text


def _latin(word: str) -> bool:
    return word.isascii() and word.isalnum()


def _capital(word: str) -> str:
    at = next(place for place, letter in enumerate(word) if letter.isalnum())
    # title() rather than upper(): "ß" and the like become one capital, not two.
    return word[:at] + word[at].title() + word[at + 1 :]
