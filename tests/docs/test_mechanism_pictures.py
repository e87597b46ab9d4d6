"""The pictures of docs/mechanisms.md, drawn of tiny captioners, and those that stand on the page."""

import importlib.util
import re
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from docs.pages import ROOT
from meshcap.captioner import Captioner
from meshcap.models import MODELS
from meshcap.text import Vocabulary
from meshcap.training.settings import TrainSettings, parse
from meshcap.vision import create_vision
from tiny_captioner import WORDS

PAGE = ROOT / "docs" / "mechanisms.md"
HEAVIEST = 60_000  # bytes of a picture


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mechanisms_recipe", ROOT / "recipes" / "mechanisms.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def captioner(name: str, **settings) -> Captioner:
    vision = create_vision("small-cnn", size=96)
    model = tiny.build(name, vocab_size=len(WORDS), d_input=vision.width, max_length=12, **settings)
    return Captioner(model, Vocabulary(WORDS), vision)


@pytest.fixture(scope="module")
def stories(recipe):
    found = {}
    for name, options in recipe.KINDS.items():
        own = {"attention": "hard"} if "model.attention=hard" in options else {}
        found[name] = recipe.told(captioner(options[options.index("--arch") + 1], **own), "a note")
    found["hardened"] = found["hard"]
    return found


def test_every_registered_captioner_is_trained(recipe):
    for options in recipe.KINDS.values():
        chosen = dict(parse(options[place + 1]) for place, word in enumerate(options) if word == "--set")
        given = {"data.path": "scenes", "run.out": "out", "model.arch": options[options.index("--arch") + 1]}
        TrainSettings.named(given | chosen)  # which refuses names that are no setting's
    assert {options[options.index("--arch") + 1] for options in recipe.KINDS.values()} == set(MODELS)


@pytest.mark.parametrize(
    "name", ["seq2seq", "show-attend-tell", "hierarchical", "ntm", "hopfield", "transformer", "m2"]
)
def test_a_picture_of_each_mechanism_is_drawn(recipe, stories, name):
    paper = recipe.PICTURES[name](stories)
    assert paper.width == recipe.WIDE * recipe.TIMES
    last = np.asarray(paper)[-recipe.px(40) :]
    assert (last != 255).any(), "the page ends in nothing"
    edge = np.asarray(paper)[:, -recipe.px(3) :]
    assert (edge == 255).all(), "something runs over the right edge"


def test_on_the_page_are_the_pictures_that_the_recipe_draws(recipe):
    told = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"\(images/mechanism-([\w-]+)\.webp\)", told)) == set(recipe.PICTURES)
    for name in recipe.PICTURES:
        path = ROOT / "docs" / "images" / f"mechanism-{name}.webp"
        assert path.stat().st_size < HEAVIEST
        with Image.open(path) as picture:
            assert picture.width == recipe.WIDE * recipe.TIMES


def light_of(recipe, story, tile: Image.Image) -> np.ndarray:
    """(6, 6): each cell's brightness in parts of the scene's own."""
    plain = np.asarray(story.scene.resize(tile.size, Image.Resampling.LANCZOS).convert("L"), float)
    parts = np.asarray(tile.convert("L"), float) / plain
    side = tile.width // 6
    return np.array([[np.median(parts[y : y + side, x : x + side]) for x in range(0, 6 * side, side)]
                     for y in range(0, 6 * side, side)])  # fmt: skip


def test_light_falls_where_a_word_looked(recipe, stories):
    even = light_of(recipe, stories["seq2seq"], recipe.tiles(stories["seq2seq"])(0, 60))
    assert np.allclose(even, 1, atol=0.02)
    hard = stories["hard"]
    one = light_of(recipe, hard, recipe.tiles(hard)(0, 60))
    assert np.allclose(one.flatten()[int(hard.looks[0].argmax())], 1, atol=0.02)
    assert (one < 0.5).sum() == 35
    soft = stories["soft"]
    many = light_of(recipe, soft, recipe.tiles(soft)(0, 60)).flatten()
    order = soft.looks[0].argsort()
    assert many[order[-1]] > many[order[18]] > many[order[0]]


def test_heads_are_those_that_the_mean_is_of(recipe):
    story = recipe.told(captioner("transformer", decoder_layers=1))
    cross = story.captioner.model.decoder.layers[0].mesh.cross
    with recipe.overheard(cross, "with_weights") as heard:
        recipe.told(story.captioner)
    heads = heard[-1][1][0, 0]  # (H, T, N)
    torch.testing.assert_close(heads.mean(0)[: len(story.words)], story.looks)
    assert "with_weights" not in vars(cross)


def test_numbers_become_colours(recipe):
    tile = recipe.matrix(torch.tensor([[0.0, 1.0], [0.5, 0.0]]), 10, 10, "#d4611c")
    assert [tile.getpixel(place) for place in ((5, 5), (25, 5), (5, 25))] == [
        (255, 255, 255), (0xD4, 0x61, 0x1C), (234, 176, 142),
    ]  # fmt: skip
    signed = recipe.matrix(torch.tensor([[-1.0, 1.0]]), 10, 10)
    assert [signed.getpixel(place) for place in ((5, 5), (25, 5))] == [(0x2A, 0x6F, 0xDB), (0xD4, 0x61, 0x1C)]
