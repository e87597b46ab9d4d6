"""Which words count, when two are the same, and which share of them people used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap.evaluation.content_words import content_words, stem, used_share, used_shares


@pytest.mark.parametrize(
    "family",
    [
        "dog dogs", "box boxes", "bus buses", "dress dresses", "puppy puppies", "child children", "man men",
        "woman women", "person people", "knife knives", "ride rides riding rode ridden", "run runs running ran",
        "sit sits sitting sat", "play plays playing played", "carry carries carrying carried", "bake baked baking",
        "fly flies flying flew", "lie lies lying laying lay", "jump jumped jumping", "church churches", "roll rolling",
        "pass passes passing passed", "street streets", "need needs needed", "swim swimming swam",
    ],
)  # fmt: skip
def test_the_same_word(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    "pair", ["bed red", "king wing", "string stream", "grass gas", "bus bush", "sled shed", "seed see", "tennis tent"]
)
def test_another_word(pair: str) -> None:
    one, other = pair.split()
    assert stem(one) != stem(other)


def test_content_words() -> None:
    said = "there is a man 's hat on the two dogs , and a dog is riding !".split()
    assert content_words(said) == {"man", "hat", "two", "dog", stem("riding")}
    assert content_words(["un", "chien", "."], "unicode") == {"un", "chien", "."}
    assert content_words(["a", "of", "with"]) == frozenset()


def test_shares_worked_out_by_hand() -> None:
    references = [["Two men ride horses.", "People on a beach"], ["A cat"], ["A cat"], ["cats"]]
    captions = ["A man riding a brown horse on the beach", "A dog", "of a", "A cat with a cat"]
    # man, ride, horse and beach of five; nothing; nothing said; cat, which counts once
    assert used_shares(captions, references) == [4 / 5, 0.0, 0.0, 1.0]
    assert used_shares(["猫 狗"], [["一只 猫"]], "unicode") == [1 / 2]


words = st.frozensets(st.sampled_from("abcdefgh"))


@given(words, st.lists(words, max_size=4), words)
def test_more_people_never_lower_a_share(
    said: frozenset[str], people: list[frozenset[str]], one: frozenset[str]
) -> None:
    share = used_share(said, people)
    assert 0 <= share <= used_share(said, [*people, one]) <= 1
    assert used_share(said, [*people, said]) == (1 if said else 0)
