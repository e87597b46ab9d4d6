"""recipes/words.py: which words are likely to be right, learned from the words themselves."""

import importlib.util
from pathlib import Path

import torch

from meshcap.training.heard import NEAREST, Heard

PATH = Path(__file__).parents[2] / "recipes" / "words.py"


def recipe():
    spec = importlib.util.spec_from_file_location("words_recipe", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_that_are_right_elsewhere_come_first() -> None:
    torch.manual_seed(0)
    count = 400
    share = torch.rand(count) ** 3  # how often a word is right wherever it comes near
    heard = Heard(
        captions=1000,
        said=torch.zeros(count, dtype=torch.long),
        lacking=torch.rand(NEAREST, count).sort(0).values * 4,
        right=torch.rand(NEAREST, count) < share,
    )
    heard.said[:50] = 1  # said already
    heard.lacking[0, 50:60] = 7.0  # too far
    words, chances = recipe().likeliest_right(heard, people=torch.full((count,), 1e-4))
    assert sorted(words.tolist()) == list(range(60, count))
    assert (chances[:-1] >= chances[1:]).all()
    # What it promises is about what is true, and the first are far better than the last.
    assert abs(float(chances.mean()) - float(share[words].mean())) < 0.05
    assert share[words[:50]].mean() > 2 * share[words[-150:]].mean()


def test_how_often_people_say_a_word_counts_too() -> None:
    torch.manual_seed(1)
    count = 600
    people = 10 ** (-5 + 3 * torch.rand(count))
    chance = (people.log10() + 5) / 4
    right = torch.zeros(NEAREST, count, dtype=torch.bool)
    right[0] = torch.rand(count) < chance  # only the nearest place knows
    lacking = torch.ones(NEAREST, count)
    words, _ = recipe().likeliest_right(Heard(1000, torch.zeros(count, dtype=torch.long), lacking, right), people)
    assert people[words[:100]].median() > 5 * people[words[-100:]].median()
