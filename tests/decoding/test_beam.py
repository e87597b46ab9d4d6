"""Greedy, beam and diverse beam search against plain searches, and against looking at every caption there is."""

from itertools import product
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from decoding import naive
from meshcap.decoding import Beam, DiverseBeam, Greedy, Rules, decode

PICTURES = tiny.pictures(3, 6, 2)

CASES = {  # rules and length penalty
    "plain": (Rules(max_length=6), 0.0),
    "one word": (Rules(max_length=1), 0.0),
    "long": (Rules(max_length=6, min_length=4), 0.8),
    "no bigram twice": (Rules(max_length=6, no_repeat_ngram=2), 0.0),
    "in time": (Rules(max_length=4, min_length=3, bad_endings=(4, 5, 6), end_in_time=True), 0.0),
    "some once": (Rules(max_length=6, once=(4, 5, 6, 7)), 0.0),
    "no phrase": (Rules(max_length=6, banned_phrases=((4, 5), (5, 6), (7, 7, 7))), 0.0),
    "all rules": (Rules(max_length=7, min_length=3, no_repeat_ngram=1, banned=(4, 8), bad_endings=(5, 6)), 0.5),
}
cases = pytest.mark.parametrize(("rules", "length_penalty"), CASES.values(), ids=CASES)
PLAIN = CASES["plain"][0]


@cases
def test_greedy(captioner, rules: Rules, length_penalty: float) -> None:
    found = decode(captioner, PICTURES, Greedy(), rules)
    for picture in range(len(PICTURES)):
        naive.expect_same(found, picture, naive.greedy(captioner, tiny.one(PICTURES, picture), rules))


@cases
def test_beam_of_one_is_greedy(captioner, rules: Rules, length_penalty: float) -> None:
    alone, greedy = decode(captioner, PICTURES, Beam(1), rules), decode(captioner, PICTURES, Greedy(), rules)
    assert torch.equal(alone.ids, greedy.ids)
    torch.testing.assert_close(alone.log_probs, greedy.log_probs)
    torch.testing.assert_close(alone.scores, greedy.scores)


@cases
def test_beam(captioner, rules: Rules, length_penalty: float) -> None:
    found = decode(captioner, PICTURES, Beam(4, length_penalty), rules, n_best=4)
    for picture in range(len(PICTURES)):
        captions = naive.beam(captioner, tiny.one(PICTURES, picture), 4, rules, length_penalty)
        naive.expect_same(found, picture, captions, length_penalty)


@cases
def test_diverse_beam(captioner, rules: Rules, length_penalty: float) -> None:
    found = decode(captioner, PICTURES, DiverseBeam(6, 3, 0.6, length_penalty), rules, n_best=6)
    for picture in range(len(PICTURES)):
        captions = naive.diverse(captioner, tiny.one(PICTURES, picture), 6, 3, 0.6, rules, length_penalty)
        naive.expect_same(found, picture, captions, length_penalty)


@pytest.mark.parametrize("seed", range(8))
def test_more_beams_than_there_are_words(seed: int) -> None:
    """Places that stay empty must not count, as captions or as words that another group said."""
    model, picture = tiny.build("m2", seed=seed, vocab_size=6), tiny.pictures(3, seed=seed)
    rules = Rules(max_length=4, min_length=3)
    naive.expect_same(decode(model, picture, Beam(10), rules, n_best=10), 0, naive.beam(model, picture, 10, rules))
    found = decode(model, picture, DiverseBeam(10, 2, 0.7), rules, n_best=10)
    naive.expect_same(found, 0, naive.diverse(model, picture, 10, 2, 0.7, rules))


def test_length_penalty_changes_what_is_found() -> None:
    """So that the comparisons above compare something."""
    model = tiny.shared("m2")
    short, long = (decode(model, PICTURES, Beam(4, penalty), PLAIN) for penalty in (0.0, 2.0))
    assert bool((short.lengths <= long.lengths).all())
    assert bool((short.lengths < long.lengths).any())


def test_one_group_is_a_beam_and_groups_differ() -> None:
    model = tiny.shared("m2")
    plain = decode(model, PICTURES, Beam(4), PLAIN, n_best=4)
    grouped = decode(model, PICTURES, DiverseBeam(4, 1), PLAIN, n_best=4)
    assert torch.equal(plain.ids, grouped.ids)
    for groups in (2, 4):  # however little it costs to be alike, all captions are different
        alike = decode(model, PICTURES, DiverseBeam(4, groups, 0.0), PLAIN, n_best=4).ids
        assert all(len({tuple(one) for one in picture}) == 4 for picture in alike.tolist())
    firsts = decode(model, PICTURES, DiverseBeam(4, 4, 100.0), PLAIN, n_best=4).ids[..., 0]  # (B, 4)
    assert all(len(set(row)) == 4 for row in firsts.tolist())


def every_caption(model, picture, steps: int) -> list[naive.Caption]:
    """All captions of up to `steps` words, by brute force."""
    eos = model.config.eos
    captions = []
    for words in product(range(model.config.vocab_size), repeat=steps):
        if eos in words:
            words = words[: words.index(eos) + 1]
        captions.append(words)
    captions = sorted(set(captions))
    ids = torch.tensor([[[model.config.bos, *words, *[model.config.pad] * (steps - len(words))] for words in captions]])
    with torch.no_grad():
        log_probs = model(picture, ids[..., :-1])[0].gather(-1, ids[0, :, 1:, None])[..., 0].tolist()
    found = []
    for words, row in zip(captions, log_probs, strict=True):
        row = tuple(row[: len(words)])
        if -inf not in row:
            found.append(naive.Caption(words, row, words[-1] == eos))
    return found


@settings(max_examples=12)
@given(seed=st.integers(0, 2**16), length_penalty=st.sampled_from([0.0, 0.0, 0.7, 1.0]))
@pytest.mark.parametrize("name", ["m2", "transformer"])
def test_wide_beam_finds_every_caption(name: str, seed: int, length_penalty: float) -> None:
    model, picture = tiny.build(name, seed=seed, vocab_size=6), tiny.pictures(3, seed=seed)
    captions = every_caption(model, picture, steps=4)
    assert len(captions) == 1 + 3 + 9 + 27 + 81  # ended after 1 to 4 words, or not ended: of unk, 4 and 5
    captions = naive.best(captions, len(captions), lambda one: one.rank(length_penalty))
    found = decode(model, picture, Beam(128, length_penalty), Rules(max_length=4), n_best=128)
    naive.expect_same(found, 0, captions, length_penalty)
