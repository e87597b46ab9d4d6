"""Counting what is true of drawn scenes."""

from dataclasses import replace

import pytest

from meshcap.data import Sample, read_dataset
from meshcap.data.scenes import draw_dataset, facts_of
from recipes.drawn_scenes import statements, truth_lines, truths


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    folder = tmp_path_factory.mktemp("drawn") / "scenes"
    draw_dataset(folder, train=0, val=0, test=30, workers=1)
    return read_dataset(folder).split("test")


def test_references_are_all_true_and_those_of_another_scene_are_not(samples: list[Sample]) -> None:
    for place in range(5):
        found = truths(samples, [sample.captions[place] for sample in samples])
        assert found is not None
        assert (found["of"], found["objects"], found["true"], found["wrong"]) == (30, 30, 30, {})
        assert found["said"]["object"] == sum(len(facts_of(sample.more)[0]) for sample in samples)
    moved = truths(samples, [sample.captions[0] for sample in [*samples[1:], samples[0]]])
    assert moved is not None
    assert moved["true"] <= moved["objects"] <= 1
    assert moved["wrong"]["object"] >= 29


def test_one_mistake_is_counted_where_it_belongs(samples: list[Sample]) -> None:
    captions = [sample.captions[0] for sample in samples]
    one = next(place for place, sample in enumerate(samples) if len(facts_of(sample.more)[0]) == 1)
    (thing,), background = facts_of(samples[one].more)
    article = "an" if thing.colour[0] == "o" else "a"
    elsewhere = "in a meadow" if background != "meadow" else "by the sea"
    captions[one] = f"{article} {thing.name} {elsewhere}"
    found = truths(samples, captions)
    assert found is not None
    assert (found["objects"], found["true"], found["wrong"]) == (30, 29, {"background": 1})
    captions[one] = f"a {'small' if thing.size == 'large' else 'big'} {thing.name} and nothing else {elsewhere}"
    found = truths(samples, captions)
    assert found is not None
    assert (found["true"], found["wrong"]) == (29, {"background": 1, "size": 1, "words": 2})
    assert truth_lines(found) == [
        ("every statement true", "29 of 30 (wrong: words 2, size 1, background 1)"),
        ("all objects named", "30 of 30"),
    ]


def test_statements_by_hand() -> None:
    said = statements("on the left is a big red ball and on the right a blue house")
    assert said == {"relation": 2, "object": 2, "size": 1}
    assert statements("at night , an orange fish near the top") == {"background": 1, "object": 1, "place": 1}
    assert statements("") == {}


def test_other_pictures_have_no_truth(samples: list[Sample]) -> None:
    assert truths([], []) is None
    assert truths([replace(samples[0], more=None), samples[1]], ["", ""]) is None
    assert truths([replace(samples[0], more={"url": ""}), samples[1]], ["", ""]) is None
