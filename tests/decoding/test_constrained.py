"""Constrained beam search: what is required appears whenever it can, and is found as a plain search finds it."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from decoding import naive
from meshcap.decoding import Beam, ConstrainedBeam, Rules, decode
from meshcap.decoding.records import automaton

PICTURES = tiny.pictures(3, 6)

CASES = {  # constraints, rules and length penalty
    "a word": ([[[7]]], Rules(max_length=5), 0.0),
    "a phrase": ([[[9, 4]]], Rules(max_length=5), 0.8),
    "alternatives": ([[[7], [9, 4]], [[8]]], Rules(max_length=6), 0.0),
    "in time": ([[[7], [9, 4]]], Rules(max_length=4, end_in_time=True), 0.0),
    "overlapping phrases": ([[[4, 5, 4]], [[5, 4, 6], [4, 4]]], Rules(max_length=7), 0.0),
    "rules": (
        [[[9, 4]], [[5]]],
        Rules(max_length=6, min_length=4, no_repeat_ngram=2, banned=(8,), bad_endings=(5, 4)),
        0.5,
    ),
    "an ending": ([[[7, 3], [8, 5, 3]], [[6]]], Rules(max_length=6), 0.0),
    "too much": ([[[4, 5]], [[6, 7]], [[8]]], Rules(max_length=3), 0.0),
}
cases = pytest.mark.parametrize(("constraints", "rules", "length_penalty"), CASES.values(), ids=CASES)


@cases
def test_finds_what_a_plain_search_finds(captioner, constraints, rules: Rules, length_penalty: float) -> None:
    strategy = ConstrainedBeam([constraints], 2, length_penalty)
    found = decode(captioner, PICTURES, strategy, rules, n_best=strategy.width)
    for picture in range(len(PICTURES)):
        alone = tiny.one(PICTURES, picture)
        captions = naive.constrained(captioner, alone, constraints, 2, rules, length_penalty)
        naive.expect_same(found, picture, captions, length_penalty)
        satisfied = found.satisfied[picture, : len(captions)].tolist()
        assert satisfied == [len(naive.met(caption.words, constraints)) for caption in captions]


def test_one_beam_per_state() -> None:
    model, rules = tiny.shared("m2"), Rules(max_length=6)
    constraints = [[[7], [9, 4]], [[8]]]
    strategy = ConstrainedBeam([constraints], 1)
    found = decode(model, PICTURES, strategy, rules, n_best=strategy.width)
    for picture in range(len(PICTURES)):
        naive.expect_same(found, picture, naive.constrained(model, tiny.one(PICTURES, picture), constraints, 1, rules))


@pytest.mark.parametrize("seed", range(4))
def test_constraints_of_each_picture(seed: int) -> None:
    """With automata of different sizes side by side, each picture gets what it gets alone."""
    model, rules, pictures = tiny.build("m2", seed=seed), Rules(max_length=5), tiny.pictures(3, 6, 2)
    each = [[[[7]]], [[[9, 4], [5, 6]], [[8]]], []]
    strategy = ConstrainedBeam(each, 3)
    found = decode(model, pictures, strategy, rules, n_best=strategy.width)
    for picture, constraints in enumerate(each):
        captions = naive.constrained(model, tiny.one(pictures, picture), constraints, 3, rules)
        naive.expect_same(found, picture, captions)
        assert found.satisfied[picture, 0] == len(constraints)


def test_nothing_required_is_a_beam() -> None:
    model, rules = tiny.shared("m2"), Rules(max_length=6)
    free = decode(model, PICTURES, ConstrainedBeam([[]], 4), rules, n_best=4)
    plain = decode(model, PICTURES, Beam(4), rules, n_best=4)
    assert torch.equal(free.ids, plain.ids)
    torch.testing.assert_close(free.scores, plain.scores)


words = st.integers(4, tiny.VOCAB - 1)
phrases = st.lists(words, min_size=1, max_size=3)
requirements = st.lists(st.lists(phrases, min_size=1, max_size=2), min_size=1, max_size=2)


@given(constraints=requirements, seed=st.integers(0, 100))
def test_met_whenever_they_can_be(constraints: list[list[list[int]]], seed: int) -> None:
    length = 1 + sum(max(len(phrase) for phrase in phrases) for phrases in constraints)
    strategy, rules = ConstrainedBeam([constraints], 1), Rules(max_length=length)
    found = decode(tiny.shared("m2"), tiny.pictures(3, seed=seed), strategy, rules)
    assert found.satisfied[0, 0] == len(constraints)
    assert len(naive.met(found.ids[0, 0].tolist(), constraints)) == len(constraints)


@given(constraints=requirements, length=st.integers(1, 3))
def test_otherwise_as_many_as_possible(constraints: list[list[list[int]]], length: int) -> None:
    """The most that any sequence of so many words meets, by trying them all."""
    possible = max(len(naive.met(said, constraints)) for said in product(range(4, tiny.VOCAB), repeat=length))
    found = decode(tiny.shared("m2"), PICTURES, ConstrainedBeam([constraints], 2), Rules(max_length=length))
    assert found.satisfied[:, 0].tolist() == [possible] * 2
    assert [len(naive.met(ids[0], constraints)) for ids in found.ids.tolist()] == [possible] * 2


@given(constraints=requirements, said=st.lists(words, max_size=12))
def test_automaton(constraints: list[list[list[int]]], said: list[int]) -> None:
    """Two captions that stand alike are in one state; the state counts what is met."""
    machine = automaton(tuple(tuple(tuple(p) for p in phrases) for phrases in constraints))
    seen: dict[int, object] = {}
    state = 0
    for end in range(len(said) + 1):
        standing = naive.standing(said[:end], constraints)
        assert seen.setdefault(state, standing) == standing
        assert machine.satisfied[state] == len(standing[0])
        if end < len(said):
            word = said[end]
            state = machine.next[state][1 + machine.words.index(word) if word in machine.words else 0]
    assert len(set(seen.values())) == len(seen)
