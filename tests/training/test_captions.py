"""The table of captions: nothing lost, nothing twice, and rectangles that are no larger than they must be."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap.data.dataset import Sample
from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary
from meshcap.training.captions import CaptionTable, rectangles, tokenized

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *"abcdefgh"]
VOCABULARY = Vocabulary(WORDS)

word = st.sampled_from([*"abcdefgh", "strange"])  # the last is not in the vocabulary
caption = st.lists(word, min_size=1, max_size=12)
pictures = st.lists(st.lists(caption, min_size=1, max_size=7), min_size=1, max_size=8)


def table_of(tokens: list[list[list[str]]], max_length: int = 30) -> CaptionTable:
    return CaptionTable.build(tokens, VOCABULARY, max_length)


def said(ids: list[int]) -> list[str]:
    """The words of a row, without what stands around them."""
    return [WORDS[one] for one in ids if one not in (VOCABULARY.pad, VOCABULARY.bos, VOCABULARY.eos)]


def known(words: list[str]) -> list[str]:
    return [one if one in WORDS else "<unk>" for one in words]


@given(pictures)
def test_rows_are_the_captions(tokens: list[list[list[str]]]) -> None:
    table = table_of(tokens)
    flat = [one for captions in tokens for one in captions]
    assert len(table) == len(tokens)
    for picture, captions in enumerate(tokens):
        first, end = table.first[picture], table.first[picture + 1]
        assert [said(row) for row in table.ids[first:end].tolist()] == [known(one) for one in captions]
    for row, words, length, count in zip(table.ids.tolist(), flat, table.lengths, table.counts, strict=True):
        assert row[0] == VOCABULARY.bos
        assert row[length] == VOCABULARY.eos
        assert set(row[length + 1 :]) <= {VOCABULARY.pad}
        assert length == len(words) + 1
        assert count == length - words.count("strange")  # <eos> is to be learned, <unk> is not


@given(pictures, st.integers(2, 12))
def test_long_captions_lose_their_end(tokens: list[list[list[str]]], longest: int) -> None:
    table = table_of(tokens, longest)
    assert table.lengths.max() <= longest
    for row, words in zip(table.ids.tolist(), (one for captions in tokens for one in captions), strict=True):
        assert said(row) == known(words)[:longest]
        # A caption that was cut does not end there, and must not teach to.
        assert (VOCABULARY.eos in row) == (len(words) < longest)


@given(pictures, st.integers(1, 9), st.integers(0, 5))
def test_choose(tokens: list[list[list[str]]], count: int, seed: int) -> None:
    table = table_of(tokens)
    batch = numpy.random.default_rng(seed).integers(0, len(tokens), 6)  # a picture may come twice
    chosen = table.choose(batch, count, numpy.random.default_rng(seed))
    assert chosen.shape == (6, count)
    for picture, rows in zip(batch, chosen, strict=True):
        own = range(table.first[picture], table.first[picture + 1])
        real = rows[rows >= 0]
        assert len(set(real)) == len(real) == min(count, len(own))  # each once, and all where there is room
        assert set(real) <= set(own)
        assert (rows[: count - len(real)] == -1).all()
        assert (numpy.diff(table.lengths[real]) >= 0).all()  # shortest first


def test_choices_vary_and_are_fair() -> None:
    table = table_of([[["a"] * 3, ["b"] * 3, ["c"] * 3, ["d"] * 3]])
    rng = numpy.random.default_rng(0)
    seen = numpy.bincount(table.choose(numpy.zeros(2000, int), 2, rng).ravel(), minlength=4)
    assert seen.sum() == 4000
    assert (abs(seen - 1000) < 120).all()  # five standard deviations and more


@given(pictures, st.integers(1, 6), st.integers(0, 3))
def test_two_rectangles_hold_what_one_holds(tokens: list[list[list[str]]], count: int, seed: int) -> None:
    table = table_of(tokens)
    chosen = table.choose(numpy.arange(len(tokens)), count, numpy.random.default_rng(seed))
    longest = int(table.lengths.max())
    shapes = rectangles(table, count)
    assert sum(captions for captions, _ in shapes) == count
    assert len(shapes) <= 2
    assert sum(captions * length for captions, length in shapes) <= count * longest
    assert shapes[-1][1] == longest  # the last rectangle can hold any caption
    found = table.cut(chosen, shapes)
    assert [tuple(one.shape) for one in found] == [(len(tokens), s, t + 1) for s, t in shapes]
    rows = [row for one in found for row in one.flatten(0, 1).tolist()]
    kept = sorted(said(row) for row in rows if row[0] == VOCABULARY.bos)
    fitting, start = [], 0
    for captions, length in shapes:
        part = chosen[:, start : start + captions].ravel()
        start += captions
        fitting += [row for row in part if row >= 0 and table.lengths[row] <= length]
    assert kept == sorted(said(table.ids[row].tolist()) for row in fitting)
    assert all(set(row) == {VOCABULARY.pad} for row in rows if row[0] != VOCABULARY.bos)
    words = sum(one not in (VOCABULARY.pad, VOCABULARY.unk) for row in rows for one in row[1:])
    assert table.words(chosen, shapes) == words


def test_an_overlong_caption_is_left_out_and_not_counted() -> None:
    table = table_of([[["a"], ["b"] * 4, ["c"] * 5]])
    chosen = table.choose(numpy.array([0]), 3, numpy.random.default_rng(0))
    (narrow,) = table.cut(chosen, [(3, 5)])
    assert [said(row) for row in narrow[0].tolist()] == [["a"], ["b"] * 4, []]  # the last lacks room for its end alone
    assert table.words(chosen, [(3, 5)]) == 2 + 5


def test_rectangles_lose_at_most_their_share() -> None:
    rng = numpy.random.default_rng(3)
    lengths = numpy.clip(rng.normal(10, 2.5, (3000, 5)).round(), 4, 24).astype(int)
    tokens = [[["a"] * length for length in five] for five in lengths]
    table = table_of(tokens)
    shapes = rectangles(table, 5, lost=0.002)
    chosen = table.choose(numpy.arange(3000), 5, rng)
    (narrow, width), (wide, longest) = shapes
    assert narrow + wide == 5
    lost = (table.lengths[chosen[:, :narrow]] > width).sum()
    # Of each place in the narrow rectangle at most the share is longer; the shorter places lose less.
    assert 0 < lost <= 0.002 * 3000 * narrow
    assert narrow * width + wide * longest < 0.85 * 5 * longest  # and that is what the loss buys
    assert longest == table.lengths.max()


def test_the_split_is_the_best_there_is() -> None:
    """Against trying every pair of a count and a width that loses nothing."""
    rng = numpy.random.default_rng(4)
    tokens = [[["a"] * int(length) for length in rng.integers(2, 15, 4)] for _ in range(50)]
    table = table_of(tokens)
    found = rectangles(table, 4, lost=0.0)
    lengths = numpy.sort(table.lengths.reshape(50, 4), 1)
    longest = lengths.max()
    areas = [k * lengths[:, k - 1].max() + (4 - k) * longest for k in range(1, 5)]
    assert sum(s * t for s, t in found) == min(areas)


def test_nothing_to_train_on() -> None:
    with pytest.raises(MeshcapError, match="no pictures"):
        rectangles(table_of([]), 5)


def test_tokens_stay_with_their_pictures() -> None:
    samples = [
        Sample("1", ("A dog's ball.", "two  dogs"), "train", None),
        Sample("2", ("Nothing",), "train", None),
    ]
    assert tokenized(samples, "ptb") == [[["a", "dog", "'s", "ball"], ["two", "dogs"]], [["nothing"]]]
