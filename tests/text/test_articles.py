"""Articles by sound, against what people write."""

import pytest

from meshcap.text import Vocabulary
from meshcap.text.articles import agreeing, wants_an
from meshcap.text.vocabulary import SPECIAL

AN = """
apple umbrella office orange empty entertainment elephant oven airplane intersection uncooked unusual unidentified
uninterested unmade hour hourglass honor honest suv x-ray 18 ostrich oar island arena icebox
""".split()
A = "dog urinal unicorn uniform unit used useful utensil european ewe one one-way us uk usb house yellow 5 tv".split()


@pytest.mark.parametrize(("words", "an"), [(AN, True), (A, False)])
def test_by_the_sound(words: list[str], an: bool) -> None:
    assert [word for word in words if wants_an(word) != an] == []


def test_only_articles_before_what_they_belong_to_change() -> None:
    assert agreeing("a office with an desk and a umbrella".split()) == "an office with a desk and an umbrella".split()
    for as_it_was in ("a", "an", "", "a an apple", "dog a", "a on a table", "an of"):
        assert agreeing(as_it_was.split()) == as_it_was.split()


def test_a_captions_words_and_sentence_agree() -> None:
    vocabulary = Vocabulary([*SPECIAL, "a", "an", "office", "desk", "with"])
    ids = vocabulary.encode("a office with an desk".split())
    assert vocabulary.said(ids) == ("a office with an desk".split(), "A office with an desk")
    assert vocabulary.said([*ids, vocabulary.eos], mend=True) == (
        "an office with a desk".split(),
        "An office with a desk.",
    )
    assert vocabulary.said(ids, mend=True)[1] == "An office with a desk"
    without = Vocabulary([*SPECIAL, "a", "office"])
    assert without.said(without.encode(["a", "office"]), mend=True) == (["a", "office"], "A office")
