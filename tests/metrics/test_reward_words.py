"""The bonus of seldom words, against counting by hand, and that it lets go when a word is said often enough."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshcap.errors import MeshcapError
from meshcap.metrics.reward_words import FLOOR, MEMORY, MOST, SeldomWords

PAD, EOS, WORDS = 0, 1, 12
# Two pictures with two captions each: 5 stands in all four, 6 in two (of one picture), 7 in one.
REFERENCES = [[[5, 6, 6, EOS], [5, 6]], [[5, 7], [5, 8, 9]]]


def seldom(share: float = 0.5) -> SeldomWords:
    return SeldomWords(REFERENCES, words=WORDS, ignored=(PAD, EOS), share=share)


def test_it_begins_as_if_all_were_said_as_people_do() -> None:
    found = seldom()
    people = torch.zeros(WORDS)
    people[5], people[6] = 1.0, 0.5
    people[7] = people[8] = people[9] = 0.25
    torch.testing.assert_close(found.used, people)
    torch.testing.assert_close(found.wanted, people / 2)
    assert not found.worth.any()
    assert not found(torch.tensor([[[5, 6, EOS]], [[7, 8, 9]]]), torch.tensor([0, 1])).any()


def test_a_word_is_worth_what_it_lacks() -> None:
    found = seldom()
    found.used[6], found.used[7], found.used[8] = 0.125, 0.0, 0.2
    worth = found.worth.tolist()
    assert worth[6] == pytest.approx(math.log((0.25 + FLOOR) / (0.125 + FLOOR)), rel=1e-5)
    assert worth[7] == MOST
    assert worth[8] == 0  # more than half as often as people


def test_what_is_often_enough_for_one_word_is_for_all() -> None:
    found = SeldomWords(REFERENCES, words=WORDS, ignored=(PAD, EOS), share=1.0, often=0.3)
    assert found.wanted[[5, 6, 7]].tolist() == pytest.approx([0.3, 0.3, 0.25])
    assert found.used[5] == 1 and not found.worth.any()
    found.used[5] = 0.1
    assert found.worth[5].item() == pytest.approx(math.log(3), rel=1e-4)


def test_no_word_is_worth_more_than_the_most() -> None:
    found = SeldomWords(REFERENCES, words=WORDS, ignored=(PAD, EOS), share=1.0, most=0.5)
    found.used[7] = 0.0
    found.used[6] = 0.5 * math.exp(-0.25)
    assert found.worth[[6, 7]].tolist() == pytest.approx([0.25, 0.5], rel=1e-3)


def test_a_hint_names_the_seldom_words_of_each_picture() -> None:
    found = seldom()
    found.used[6], found.used[7] = 0.125, 0.0
    hint = found.hint(torch.tensor([1, 0, 1]))
    assert hint.shape == (3, WORDS)
    assert hint[0].nonzero().flatten().tolist() == [7] and hint[1].nonzero().flatten().tolist() == [6]
    assert hint[0, 7] == MOST and hint[1, 6].item() == pytest.approx(math.log(2), rel=1e-4)
    assert torch.equal(hint[0], hint[2])
    found.used[0] = 0.0  # <pad> is worth nothing, and pictures with few words name no other in their place
    assert not found.hint(torch.tensor([0]))[0, PAD]


def test_only_what_is_right_counts_and_only_once() -> None:
    found = seldom()
    found.used[6], found.used[7] = 0.125, 0.0
    six = math.log(2)
    candidates = torch.tensor([[[6, 6, EOS, PAD], [7, 6, 5, EOS]], [[6, 7, 7, EOS], [10, 11, EOS, PAD]]])
    got = found(candidates, torch.tensor([0, 1]))
    torch.testing.assert_close(got, torch.tensor([[six, six], [MOST, 0.0]]), atol=1e-4, rtol=1e-4)


def test_what_is_said_is_remembered() -> None:
    found = seldom()
    before = found.used.clone()
    sure, unsure = math.log(0.6), math.log(0.4)
    log_probs = torch.tensor([[[sure, sure, sure, 0.0], [sure, sure, sure, unsure]]])
    candidates = torch.tensor([[[6, 6, EOS, PAD], [7, 6, 5, 8]]])
    counted = found.count(candidates, log_probs)
    assert counted.tolist() == [0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 2]  # 8 was an accident, 6 counts once a caption
    found.remember(counted)
    expected = MEMORY * before
    expected[5] += 0.5 * (1 - MEMORY)
    expected[6] += 1.0 * (1 - MEMORY)
    expected[7] += 0.5 * (1 - MEMORY)
    torch.testing.assert_close(found.used, expected)


def test_a_forgotten_word_gains_until_it_is_said_again() -> None:
    found = seldom()
    for _ in range(200):
        found.remember(found.count(torch.tensor([[[5, EOS]]]), torch.zeros(1, 1, 2)))
    assert found.worth[7] > 1 and found.worth[5] == 0
    for _ in range(200):
        found.remember(found.count(torch.tensor([[[7, EOS], [5, EOS]]]), torch.zeros(1, 2, 2)))
    assert found.worth[7] == 0


@given(st.lists(st.lists(st.integers(0, WORDS - 1), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(0, 1))
def test_against_plain_python(captions: list[list[int]], picture: int) -> None:
    found = seldom()
    found.used.mul_(0.1)
    worth = found.worth.tolist()
    right = {word for caption in REFERENCES[picture] for word in caption} - {PAD, EOS}
    expected = [sum(worth[word] for word in set(caption) & right) for caption in captions]
    got = found(torch.tensor([captions]), torch.tensor([picture]))
    torch.testing.assert_close(got, torch.tensor([expected], dtype=torch.float32), atol=1e-5, rtol=1e-5)


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(MeshcapError, match="no pictures"):
        SeldomWords([], words=WORDS, ignored=(), share=0.5)
    for share in (0.0, 1.5):
        with pytest.raises(MeshcapError, match="share above 0"):
            seldom(share)
        with pytest.raises(MeshcapError, match="enough for a word"):
            SeldomWords(REFERENCES, words=WORDS, ignored=(), share=1.0, often=share)
    with pytest.raises(MeshcapError, match="worth at most 0"):
        SeldomWords(REFERENCES, words=WORDS, ignored=(), share=1.0, most=0.0)
