"""Whatever the strategy, captions keep the rules; one that cannot go on is left unfinished."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from decoding import naive
from meshcap.decoding import Beam, ConstrainedBeam, DiverseBeam, Greedy, Rules, Sampling, Strategy, decode

PICTURES = tiny.pictures(3, 6)
STRATEGIES = {
    "greedy": Greedy(),
    "beam": Beam(3),
    "diverse": DiverseBeam(4, 2),
    "constrained": ConstrainedBeam([[[[7, 8]]]], 2),
    "sample": Sampling(8, temperature=1.5),
}
words = st.integers(4, tiny.VOCAB - 1)


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    longest = draw(st.integers(1, tiny.LONGEST))
    return Rules(
        max_length=longest,
        min_length=draw(st.integers(1, longest)),
        no_repeat_ngram=draw(st.integers(0, 3)),
        banned=tuple(draw(st.sets(words, max_size=4))),
        banned_phrases=tuple(draw(st.sets(st.tuples(words, words) | st.tuples(words, words, words), max_size=3))),
        bad_endings=tuple(draw(st.sets(words, max_size=4))),
        end_in_time=draw(st.booleans()),
    )


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@given(rules=rules())
def test_rules_hold(strategy: Strategy, rules: Rules) -> None:
    found = decode(tiny.shared("m2"), PICTURES, strategy, rules, n_best=strategy.width)
    eos = tiny.shared("m2").config.eos
    for picture in range(len(PICTURES)):
        for place in range(strategy.width):
            length, finished = int(found.lengths[picture, place]), bool(found.finished[picture, place])
            said = found.ids[picture, place, :length].tolist()
            assert not set(said) & set(rules.banned)
            for phrase in rules.banned_phrases:
                assert phrase not in [tuple(said[at : at + len(phrase)]) for at in range(length)]
            if rules.no_repeat_ngram:
                assert not any(naive.repeats(said[:end], rules.no_repeat_ngram) for end in range(length + 1))
            assert (eos in said) == finished
            if finished:
                assert said[-1] == eos
                assert rules.min_length <= length <= rules.max_length
                assert length == 1 or said[-2] not in rules.bad_endings
            elif found.scores[picture, place] > -inf:
                assert length == rules.max_length
                assert not rules.end_in_time


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_each_rule_changes_captions(strategy: Strategy) -> None:
    """The property above is not true by accident: without a rule, captions break it."""
    model = tiny.shared("m2")
    free = decode(model, PICTURES, strategy, Rules(max_length=8), n_best=strategy.width)
    captions = [row[:length] for row, length in zip(
        free.ids.flatten(0, 1).tolist(), free.lengths.flatten().tolist(), strict=True)]  # fmt: skip
    assert any(naive.repeats(said[:end], 1) for said in captions for end in range(len(said)))
    likeliest = max(range(4, tiny.VOCAB), key=lambda word: sum(said.count(word) for said in captions))
    banned = decode(model, PICTURES, strategy, Rules(max_length=8, banned=(likeliest,)), n_best=strategy.width)
    assert not (free.ids != likeliest).all()
    assert (banned.ids != likeliest).all()
    ends = {said[-2] for said in captions if len(said) > 1 and said[-1] == model.config.eos}
    if ends:
        better = decode(model, PICTURES, strategy, Rules(max_length=8, bad_endings=tuple(ends)), n_best=strategy.width)
        assert not better.ids.equal(free.ids)


def test_no_way_on() -> None:
    """Rules that leave no word at all give an unfinished caption that keeps them, and a score that says so."""
    everything = tuple(range(4, tiny.VOCAB))
    rules = Rules(max_length=6, min_length=6, no_repeat_ngram=1, banned=everything)  # <unk> once, then nothing
    for strategy in STRATEGIES.values():
        found = decode(tiny.shared("m2"), PICTURES, strategy, rules, n_best=strategy.width)
        assert (found.scores == -inf).all()
        assert not found.finished.any()
        assert (found.ids[..., 0] <= 1).all()  # <unk>, or nothing from the start
        assert (found.ids[..., 1:] == 1).all()
        assert (found.lengths <= 1).all()
        assert found.log_probs.isfinite().all()
