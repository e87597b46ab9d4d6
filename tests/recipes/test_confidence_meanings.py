"""recipes/confidence_meanings.py: what else a confidence could mean, by hand and on known truths."""

import importlib.util
import sys
from pathlib import Path

import numpy
import pytest

from meshcap.metrics.cider import cider_d
from meshcap.text.tokenizers import tokenize_each

SPEC = importlib.util.spec_from_file_location(
    "confidence_meanings", Path(__file__).parents[2] / "recipes" / "confidence_meanings.py"
)
recipe = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = recipe
SPEC.loader.exec_module(recipe)
compare_meanings, left_out_cider = recipe.compare_meanings, recipe.left_out_cider


def test_left_out_people() -> None:
    references = [["a dog runs", "the dog runs fast", "a cat"], ["a boat", "a red boat on a lake"], ["alone"]]
    first, second = [list(tokenize_each("ptb", lines)) for lines in references[:2]]
    theirs = cider_d([first[1], second[1]], [[first[0], first[2]], [second[0]]]).per_image
    found = left_out_cider(references)
    assert len(found) == 5
    numpy.testing.assert_allclose(found[2:4], theirs)


def test_meanings() -> None:
    luck = numpy.random.default_rng(2)
    nouns = "dog cat boat tree house car ball fish star heart".split()
    references = [
        [f"a {a} and a {b}", f"the {b} by a {c}"] for a, b, c in (luck.choice(nouns, 3, False) for _ in range(80))
    ]
    right = luck.random(80) < 0.5
    captions = [lines[0] if good else "a plane and a dog" for good, lines in zip(right, references, strict=True)]
    log_probs = [[-0.1 if good else -1.0, float(-0.01 * luck.random())] for good in right]
    share, strict, cider = compare_meanings(captions, references, log_probs, right + 0.0)
    assert strict.mean == pytest.approx(right.mean(), abs=0.05)
    assert strict.explained > 0.8 and strict.order > 0.8
    assert share.mean >= strict.mean and 0 < share.people < 1 and 0.4 < cider.people < 0.8
    assert share.with_cider > 0.8
