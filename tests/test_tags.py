"""Tags: what captions name, and colours measured from pixels."""

import math

import numpy as np
import pytest

import tiny_captioner
from meshcap.caption import Tag
from meshcap.data.scenes import draw_scene
from meshcap.tags import FORMS, colours, joined, merged, named, of_captions


def test_things_and_places_in_a_caption() -> None:
    assert named("two men riding bikes down a parking lot".split()) == {
        "man": "object",
        "bicycle": "object",
        "parking lot": "scene",
        "person": "object",  # a man is one
    }
    assert named("a hot dog on a plate".split()) == {"hot dog": "object", "plate": "object"}  # and no dog
    assert named("sitting quietly".split()) == named([]) == {}
    assert not {"sitting", "black", "large"} & FORMS.keys()


def test_a_word_counts_by_the_share_of_the_hypotheses_that_say_it() -> None:
    said = [("a dog in snow".split(), math.log(0.6)), ("a cat in snow".split(), math.log(0.2))]
    found = {tag.name: tag.probability for tag in of_captions(said, 0.8)}
    assert found == pytest.approx({"dog": 0.75 * 0.8, "cat": 0.25 * 0.8, "snow": 0.8})


def test_merged_tags_are_each_there_once() -> None:
    one = [Tag("dog", "object", 0.5), Tag("cat", "object", 0.1)]
    other = [Tag("dog", "object", 0.9), Tag("snow", "scene", 0.6)]
    assert [(tag.name, tag.probability) for tag in merged([*one, *other])] == [("dog", 0.9), ("snow", 0.6)]
    assert merged([*one, *other], most=1) == (other[0],)


def test_no_name_stands_twice() -> None:
    orange, black = Tag("orange", "colour", 0.4), Tag("black", "colour", 0.2)
    assert joined([Tag("orange", "object", 0.6)], [orange, black]) == (Tag("orange", "object", 0.6), black)
    assert joined([], [orange]) == (orange,)


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((0, 0, 0), "black"), ((255, 255, 255), "white"), ((128, 128, 128), "gray"), ((220, 20, 30), "red"),
        ((255, 140, 0), "orange"), ((240, 220, 40), "yellow"), ((40, 160, 60), "green"), ((90, 160, 230), "blue"),
        ((20, 30, 120), "blue"), ((130, 50, 200), "purple"), ((250, 130, 190), "pink"), ((120, 75, 35), "brown"),
    ],
)  # fmt: skip
def test_colours_have_their_names(rgb: tuple[int, int, int], name: str) -> None:
    pixels = np.broadcast_to(np.array(rgb, np.uint8)[:, None, None], (3, 50, 70))
    assert colours(pixels) == [Tag(name, "colour", 1.0)]


def test_a_colour_has_its_share_of_the_picture() -> None:
    pixels = np.zeros((3, 96, 96), np.uint8)
    pixels[2, 72:] = 255  # the lowest quarter is blue
    pixels[0, :4, :4] = 255  # and a spot of red too small to matter
    assert [(tag.name, round(tag.probability, 2)) for tag in colours(pixels)] == [("black", 0.75), ("blue", 0.25)]


def test_captions_come_with_tags_where_they_are_asked_for() -> None:
    captioner = tiny_captioner.build()
    picture = draw_scene(3, 64).image
    plain, tagged = captioner.caption(picture), captioner.caption(picture, tags=True)
    assert (plain.text, plain.tags) == (tagged.text, ())
    kinds = {tag.kind for tag in tagged.tags}
    assert "colour" in kinds and kinds <= {"colour", "object", "scene"}
    assert all(0 < tag.probability <= 1 for tag in tagged.tags)
    assert tagged.to_dict()["tags"] == [tag.to_dict() for tag in tagged.tags]
    assert "tags" not in plain.to_dict()
    (streamed,) = (caption for _, caption in captioner.stream([picture], tags=True))
    assert [tag.name for tag in streamed.tags] == [tag.name for tag in tagged.tags]
