"""Captions that come to no end: of "Many cords keys cords keys cords …" what is told is "Many cords keys".

A captioner that was rewarded for naming things may go on naming them, in pictures of many small ones, until it is
stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshcap.text.endings import BAD_ENDINGS


def until_it_repeats(words: Sequence[str]) -> list[str]:
    """The words before one comes again that is no article, preposition or the like; two at least, and no bad ending."""
    seen: set[str] = set()
    found = list(words)
    for place, word in enumerate(words):
        if word in seen:
            found = list(words[:place])
            break
        if word not in BAD_ENDINGS:
            seen.add(word)
    while len(found) > 2 and found[-1] in BAD_ENDINGS:
        found.pop()
    return found
