"""English articles that agree with the word after them: "an umbrella", "a urinal", "an hour".

A captioner chooses the article before the noun, so a noun that was made likelier than it had learned to be may come
after the wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from meshcap.text.endings import BAD_ENDINGS

# It goes by the sound. A vowel's letter nearly always has a vowel's sound: not where it begins as "you" or "one" does.
# Of the 4,500 words that stand after an article in COCO's captions four times or more, people and these rules differ
# in a dozen, most of them slips ("a icebox").
NO_VOWEL = re.compile(r"uni(?![mn]|dent)|u[rst][aeiou]|u\.s|us[ab]?$|u[kp]s?$|eu|ewe|one(?![gr])|once|oui")
SILENT_H = re.compile(r"hour|honou?r|honest|heir|hors d")
SPELLED = frozenset("suv suvs rv rvs mp3 x-ray x-rays l-shaped 8 11 18".split())  # as in "an ess-you-vee"


def wants_an(word: str) -> bool:
    """Whether a word in lower case has "an" before it rather than "a"."""
    if word[:1] in set("aeiou"):
        return not NO_VOWEL.match(word)
    return bool(SILENT_H.match(word)) or word in SPELLED


def agreeing(words: Sequence[str]) -> list[str]:
    """The same words with "a" or "an" by what follows; before a preposition and the like they stay as they were."""
    found = list(words)
    for place, (word, following) in enumerate(pairwise(words)):
        if word in ("a", "an") and following not in BAD_ENDINGS:
            found[place] = "an" if wants_an(following) else "a"
    return found
