"""Sampling: seeds, and that words are drawn as often as the model and the options say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from meshcap.decoding import Greedy, Rules, Sampling, decode
from meshcap.decoding.choose import keep_likeliest

PICTURES = tiny.pictures(3, 6, 2)
RULES = Rules(max_length=6)


def test_seeds(captioner) -> None:
    first, again, other = (decode(captioner, PICTURES, Sampling(6, seed=seed), RULES, n_best=6) for seed in (1, 1, 2))
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.ids, other.ids)
    for picture in first.ids.tolist():
        assert len({tuple(ids) for ids in picture}) > 1  # each of the samples is a draw of its own


def test_the_likeliest_word_alone_is_greedy(captioner) -> None:
    greedy = decode(captioner, PICTURES, Greedy(), RULES).ids
    for strategy in (Sampling(3, top_k=1), Sampling(3, top_p=1e-6), Sampling(3, temperature=1e-3)):
        sampled = decode(captioner, PICTURES, strategy, RULES, n_best=3).ids
        assert torch.equal(sampled, greedy.expand_as(sampled)), strategy


def first_words(model, **options: float) -> torch.Tensor:
    """How often each word came first, (V,), in 20,000 samples of one picture."""
    same = tiny.pictures(4)[torch.zeros(1000, dtype=torch.long)]
    found = decode(model, same, Sampling(20, **options), Rules(max_length=1), n_best=20)
    return torch.bincount(found.ids.flatten(), minlength=model.config.vocab_size)


def probabilities(model) -> torch.Tensor:
    with torch.no_grad():
        return model(tiny.pictures(4), torch.tensor([[model.config.bos]]))[0, 0].exp()


def expect_frequencies(counts: torch.Tensor, expected: torch.Tensor) -> None:
    """A chi-square far beyond its mean, or any word that cannot be, is no accident."""
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0].double(), expected[expected > 0].double()
    wanted = expected * counts.sum()
    assert wanted.min() > 5, "too few draws to judge"
    freedom = len(counts) - 1
    assert ((counts - wanted) ** 2 / wanted).sum() < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_words_come_as_often_as_they_are_likely(temperature: float, seed: int) -> None:
    model = tiny.shared("m2")
    expected = probabilities(model) ** (1 / temperature)
    counts = first_words(model, temperature=temperature, seed=seed)
    expect_frequencies(counts, expected / expected.sum())


def test_frequencies_can_be_wrong() -> None:
    """The judge above tells a temperature of 1 from one of 1.2."""
    model = tiny.shared("m2")
    with pytest.raises(AssertionError):
        expect_frequencies(first_words(model, temperature=1.2), probabilities(model))


@pytest.mark.parametrize("top_p", [0.5, 0.7, 0.9])
def test_top_p_keeps_exactly_the_nucleus(top_p: float) -> None:
    model = tiny.shared("m2")
    odds = probabilities(model).tolist()
    nucleus, reached = set(), 0.0
    for word in sorted(range(len(odds)), key=lambda word: -odds[word]):
        nucleus.add(word)
        reached += odds[word]
        if reached >= top_p:
            break
    assert 1 < len(nucleus) < 8  # of the eight that can be said
    expected = torch.tensor([one / reached if word in nucleus else 0.0 for word, one in enumerate(odds)])
    expect_frequencies(first_words(model, top_p=top_p), expected)


def test_top_k_keeps_k() -> None:
    model = tiny.shared("m2")
    best = probabilities(model).topk(3)
    expected = torch.zeros(model.config.vocab_size).scatter(0, best.indices, best.values / best.values.sum())
    expect_frequencies(first_words(model, top_k=3), expected)


@given(seed=st.integers(0, 10**6), top_k=st.integers(0, 9), top_p=st.floats(0.05, 1))
def test_keep_likeliest(seed: int, top_k: int, top_p: float) -> None:
    odds = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    kept = keep_likeliest(odds, top_k, top_p)
    for row, result in zip(odds.flatten(0, 1).tolist(), kept.flatten(0, 1).tolist(), strict=True):
        order = sorted(range(7), key=lambda word: -row[word])[: top_k or None]
        shares = torch.tensor([row[word] for word in order], dtype=torch.float64).softmax(0).tolist()
        stays = [word for place, word in enumerate(order) if sum(shares[:place]) < top_p]
        assert result == [row[word] if word in stays else float("-inf") for word in range(7)]
