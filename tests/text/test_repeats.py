"""Captions that come to no end."""

import pytest

from meshcap.text import Vocabulary
from meshcap.text.repeats import until_it_repeats
from meshcap.text.vocabulary import SPECIAL


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("various personal items organized items organized items", "various personal items organized"),
        ("many cellphones cords ipod cords ipod cords ipod and", "many cellphones cords ipod"),
        ("a series of shots of an action shot of a series of", "a series of shots of an action shot"),
        ("a man with a dog and a cat on a", "a man with a dog and a cat"),
        ("dog dog dog", "dog"),
        ("on a of", "on a"),
        ("", ""),
    ],
)
def test_until_it_repeats(words: str, told: str) -> None:
    assert until_it_repeats(words.split()) == told.split()


def test_only_what_did_not_end_and_is_to_be_mended_is_told_shorter() -> None:
    vocabulary = Vocabulary([*SPECIAL, "cords", "keys", "many"])
    ids = vocabulary.encode("many cords keys cords keys".split())
    assert vocabulary.said(ids, mend=True) == (["many", "cords", "keys"], "Many cords keys")
    for unchanged in (vocabulary.said(ids), vocabulary.said(ids, mend=True, whole=True)):
        assert unchanged[0] == vocabulary.decode(ids)
    assert vocabulary.said([*ids, vocabulary.eos], mend=True) == (vocabulary.decode(ids), "Many cords keys cords keys.")
