"""Mistakes are told in one line that says what was given and what is expected."""

import pytest

import tiny
from meshcap.decoding import Beam, ConstrainedBeam, DiverseBeam, Greedy, Rules, Sampling, decode
from meshcap.errors import MeshcapError

PICTURES = tiny.pictures(3, 6)
SHORT = Rules(max_length=4)


def failing(call) -> str:
    with pytest.raises(MeshcapError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def search(strategy, rules: Rules = SHORT, **options) -> str:
    return failing(lambda: decode(tiny.shared("m2"), PICTURES, strategy, rules, **options))


def test_how_many_captions() -> None:
    assert search(Beam(3), n_best=4) == "4 captions of each picture were asked for, and the search keeps 3"
    assert search(Greedy(), n_best=0) == "0 captions of each picture were asked for, and the search keeps 1"


def test_how_long() -> None:
    expected = "max_length is 10, and this model can say at most 9 words"
    assert search(Greedy(), Rules(max_length=10)) == expected
    assert failing(lambda: Rules(max_length=3, min_length=4)) == "lengths from 4 to 3: expected 1 ≤ min ≤ max"
    assert "lengths from 0" in failing(lambda: Rules(min_length=0))


def test_words_of_rules() -> None:
    assert search(Greedy(), Rules(max_length=4, banned=(3,))).startswith("<eos> is banned, and no caption could end")
    assert search(Greedy(), Rules(max_length=4, banned=(10,))) == "word id 10 is not in a vocabulary of 10"
    assert search(Greedy(), Rules(max_length=4, bad_endings=(-1,))) == "word id -1 is not in a vocabulary of 10"
    assert "no_repeat_ngram is -1" in failing(lambda: Rules(no_repeat_ngram=-1))


@pytest.mark.parametrize("constraints", [7, [7], [[7]], [[[7]]], None, [[[["dog"]]]], [[["dog"]]], [[[[7.5]]]]])
def test_nesting_of_constraints(constraints) -> None:
    message = failing(lambda: ConstrainedBeam(constraints))
    assert message.startswith(f"constraints are {constraints!r}, expected for each picture a list of requirements")


def test_empty_constraints() -> None:
    assert failing(lambda: ConstrainedBeam([])).startswith("no constraints given")
    for empty in ([[[]]], [[[[]]]], [[[[7], []]]]):
        expected = "an empty requirement: expected at least one phrase of at least one word"
        assert failing(lambda empty=empty: ConstrainedBeam(empty)) == expected


def test_constraints_against_pictures_and_vocabulary() -> None:
    three = ConstrainedBeam([[[[7]]]] * 3)
    assert search(three) == "3 sets of constraints for 2 pictures: expected 1 or one each"
    assert search(ConstrainedBeam([[[[10]]]])) == "required word id 10 is not in a vocabulary of 10"
    assert search(ConstrainedBeam([[[[7, -1]]]])) == "required word id -1 is not in a vocabulary of 10"
    assert search(ConstrainedBeam([[[[7]]]], 2), n_best=5) == (
        "5 captions of each picture were asked for, and the search keeps 4"
    )


def test_too_many_states() -> None:
    words = [[[word]] for word in range(4, 13)]  # any of 2⁹ subsets may have been met
    assert search(ConstrainedBeam([words])) == "9 required phrases need over 256 search states: require fewer"
    assert ConstrainedBeam([words[:8]], 1).width == 256


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Beam(0), "beams is 0, expected more than 0"),
        (lambda: DiverseBeam(0, 0), "beams is 0, expected more than 0"),
        (lambda: DiverseBeam(6, 4), "6 beams do not divide into 4 equal groups"),
        (lambda: ConstrainedBeam([[[[7]]]], 0), "beams is 0, expected more than 0"),
        (lambda: Sampling(0), "samples is 0, expected more than 0"),
        (lambda: Sampling(temperature=0), "temperature is 0, expected more than 0"),
        (lambda: Sampling(top_k=-1), "top_k is -1, expected 0 (all words) or more"),
        (lambda: Sampling(top_p=0), "top_p is 0, expected a share above 0 and up to 1"),
        (lambda: Sampling(top_p=1.1), "top_p is 1.1, expected a share above 0 and up to 1"),
    ],
)
def test_options(make, message: str) -> None:
    assert failing(make) == message


def test_regions(captioner) -> None:
    other = tiny.Regions(PICTURES.features[..., :5], PICTURES.boxes)
    message = failing(lambda: decode(captioner, other, Greedy(), SHORT))
    assert message == "regions have 5 numbers each, this model expects 6"
    if captioner.config.boxes:
        message = failing(lambda: decode(captioner, tiny.Regions(PICTURES.features), Greedy(), SHORT))
        assert message.startswith("this model reads each region's box, and the regions came without boxes: give Reg")


def test_length_of_captions(captioner) -> None:
    ids = tiny.torch.zeros(2, 10, dtype=tiny.torch.long)
    message = failing(lambda: captioner(PICTURES, ids))
    assert message == "captions of 10 words, and this model writes 1 to 9"
