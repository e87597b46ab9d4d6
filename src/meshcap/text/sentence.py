"""Tokens back to a sentence that a person would write, and which words cannot end one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from meshcap.text.ptb import ptb_tokenize
from meshcap.text.tokenizers import has_no_spaces

BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}", "``": "“", "''": "”"}
APOSTROPHES = ("'", "\u2019")
SUFFIXES = {mark + end for mark in APOSTROPHES for end in ("s", "m", "re", "ve", "ll", "d")}
LEFT_BOUND = {",", ".", "!", "?", ";", ":", "%", ")", "]", "}", "..", "...", "…", "”", "n't", "n\u2019t"} | SUFFIXES
RIGHT_BOUND = {"(", "[", "{", "“", "$", "£", "€", "¿", "¡"}
CLOSING = {")", "]", "}", "%", "'", "\u2019"}  # a full stop may follow; quotations bring their own
# English words with capitals wherever they stand: those that people who caption photographs write so, and no others
# ("turkey", "may" and "china" mean other things, too).
CASED = {
    word.lower(): word
    for word in """
    I TV TVs DVD DVDs CD CDs PC SUV SUVs ATV RV RVs ATM BBQ BLT LED USB UK USA U.S. NYC BMW
    Wii Nintendo Xbox iPod iPods iPad iPads iPhone iPhones
    African American Americans Asian Asians British Canadian Chinese English European French German Greek Hawaiian
    Indian Italian Japanese Korean Mexican Siamese Thai Victorian
    America Australia California Canada Chicago England Europe Italy Japan London Mexico Paris Washington
    Ben York Christmas Easter Halloween Thanksgiving Santa Claus Obama
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """.split()
}
NAMES = {("new", "york"), ("new", "england"), ("new", "mexico"), ("big", "ben")}  # the first word has a capital here
# Keys and chords are one word each: "C-sharp-minor".
HARMONY = re.compile(r"[a-g](-sharp|-flat)?-(major|minor|diminished|augmented|suspended)")
ONE_WORD = {("can", "not"), ("gon", "na"), ("wan", "na"), ("got", "ta"), ("gim", "me"), ("lem", "me")}


# How somebody looks, before a name: "a small black Rex" is Rex.
LOOKS = frozenset(
    """
    black white brown gray grey red yellow golden orange tan blonde blond dark light
    small little tiny big large young old adult baby fluffy furry cute beautiful
    """.split()
)
# Words that no English caption ends with: after an article, a preposition, a conjunction, a possessive or an
# auxiliary something is missing ("… on a").
BAD_ENDINGS = frozenset(
    """
    a an the this these those some any each every another
    of on in at by to with for from into onto over under near behind beside between through along across against
    around above below inside outside towards upon beneath among during without
    and or but while as than that which who where because
    his her its their my your our
    is are was were be being been am has have had does do can will would should could may might
    very
    """.split()
)
# A search that must end at a given length is tempted by these too: "a man wearing", "standing next", "in front".
OPEN_ENDINGS = BAD_ENDINGS | frozenset(
    "wearing holding carrying riding using having containing including next top front side filled covered made".split()
)


# Words that open a further phrase of a caption ("a dog | on a bench"), and what an "and" must be followed by to do so.
OPENERS = frozenset(
    """
    on in at by with for from into onto over under near behind beside between through along across against around above
    below inside outside towards upon beneath among next down up off to that which while as and or
    """.split()
)
COUNTED = frozenset("a an the two three four some several many his her its their other another".split())

ARTICLES = ("a", "an")
# Where the first letter misleads: "an hour", "a unicorn", "a one-way street".
VOWEL_SOUND = ("hour", "honest", "honor", "honour", "heir")
CONSONANT_SOUND = ("uni", "use", "usu", "uti", "uto", "eu", "ewe", "one", "once", "ukulele", "ura", "ufo")


def with_article(word: str) -> str:
    """The article that a word takes: "a" or "an", by how it is commonly said."""
    low = word.lower()
    if low.startswith(VOWEL_SOUND):
        return "an"
    un = low.startswith(("unin", "unim"))  # "uninhabited" begins with another sound than "uniform"
    return "an" if low[:1] in tuple("aeiou") and (un or not low.startswith(CONSONANT_SOUND)) else "a"


def fit_articles(words: Sequence[str], new: Collection[int], proper: Collection[int] = ()) -> dict[int, str]:
    """Words by their places, articles before those at the places `new` made to fit: "a okapi" as "an okapi".

    At the places `proper` stands a name: an article before it is left out, as "Rex" has none, and "small black"
    between them.
    """
    fitting = dict(enumerate(words))
    for place in sorted(new):
        before = fitting.get(place - 1, "")
        if place in proper:
            first = place - 1
            while fitting.get(first) in LOOKS:
                first -= 1
            if fitting.get(first) in (*ARTICLES, "the"):
                for one in range(first, place):
                    del fitting[one]
        elif place not in proper and before in ARTICLES:
            fitting[place - 1] = with_article(fitting[place])
    return fitting


def phrase_starts(words: Sequence[str]) -> list[int]:
    """Places before which a caption may end, and what comes before is whole: "a dog | sitting | on a bench"."""
    found = []
    for place in range(2, len(words)):
        word, before, after = words[place], words[place - 1], words[place + 1 : place + 2]
        opens = word in OPENERS or (word.endswith("ing") and before not in COUNTED)
        if word in ("and", "or") and not COUNTED.intersection(after):  # "black and white", "meat and carrots"
            opens = False
        if opens and before not in OPENERS | OPEN_ENDINGS:
            found.append(place)
    return found


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
        elif tokenizer == "unicode":
            binds_left |= has_no_spaces(last[-1:]) or has_no_spaces(word[:1])
        elif tokenizer == "ptb":
            binds_left |= (last.lower(), low) in ONE_WORD
            if word == low:  # a word that came with capitals keeps its own
                word = CASED.get(low, word)
                follows = words[place + 1].lower() if place + 1 < len(words) else ""
                word = _capital(word) if (low, follows) in NAMES or HARMONY.fullmatch(low) else word
        if capital and any(map(str.isalnum, word)):
            capital = False
            word = _capital(word) if word == word.lower() else word  # "iPhone" needs no other
        capital |= word in (".", "!", "?")
        text += word if bound or binds_left else f" {word}"
        bound, last = binds_right, word
    return text


def full_stop(text: str, tokenizer: str = "ptb") -> str:
    """The sentence with its full stop, in English; other languages end theirs in other ways.

    None is added after another mark, nor where it would be read as part of the last word ("vitamin c.").
    """
    last = text.rsplit(" ", 1)[-1]
    return f"{text}." if tokenizer == "ptb" and _takes_a_stop(last) else text


@lru_cache(4096)
def _takes_a_stop(word: str) -> bool:
    return (word[-1:].isalnum() or word[-1:] in CLOSING) and ptb_tokenize(f"{word}.") == ptb_tokenize(word)


def _latin(word: str) -> bool:
    return word.isascii() and word.isalnum()


def _capital(word: str) -> str:
    at = next(place for place, letter in enumerate(word) if letter.isalnum())
    # title() rather than upper(): "ß" and the like become one capital, not two.
    return word[:at] + word[at].title() + word[at + 1 :]


IRREGULAR = {  # plurals, and words that are none although they end like one
    "men": "man", "women": "woman", "children": "child", "people": "person", "geese": "goose", "mice": "mouse",
    "knives": "knife", "calves": "calf", "oxen": "ox", "babies": "baby", "policemen": "policeman",
    "policewomen": "policewoman", "firemen": "fireman", "fishermen": "fisherman", "businessmen": "businessman",
    "gentlemen": "gentleman", "buses": "bus", "busses": "bus", "couches": "couch", "benches": "bench",
    "skis": "skis", "scissors": "scissors", "shears": "shears", "loaves": "loaf", "shelves": "shelf",
}  # fmt: skip


def singular(word: str) -> str:
    """The singular of an English noun, as far as captions need it."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def plurals(words: Iterable[str]) -> dict[str, list[str]]:
    """Nouns and those of `words` that are their plurals; nothing of words as short as "a" and "it"."""
    found: dict[str, list[str]] = {}
    for word in words:
        one = singular(word)
        if one != word and len(one) > 2 and word not in BAD_ENDINGS:
            found.setdefault(one, []).append(word)
    return found
