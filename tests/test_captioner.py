"""Captioner: pictures or regions in, sentences out."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from meshcap import Captioner, MeshcapError, Regions
from meshcap.data.scenes import draw_scene
from meshcap.decoding import Beam, Greedy, Sample
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]


@pytest.fixture(scope="module")
def speaker() -> Captioner:
    return Captioner(tiny.build("m2", seed=10), Vocabulary(WORDS))


def test_a_caption_tells_how_it_came_about(speaker: Captioner) -> None:
    regions = tiny.pictures(3, 5, 4)
    captions = speaker.caption(regions, n=3, max_words=8, good_endings=False, attention=True)
    assert len(captions) == 3
    for caption, count in zip(captions, (3, 5, 4), strict=True):
        assert caption.text == speaker.vocabulary.sentence([*caption.words, *["<eos>"] * caption.finished])
        assert len(caption.log_probs) == len(caption.words) + caption.finished
        assert caption.confidence == pytest.approx(
            torch.tensor(caption.log_probs).mean().exp().item(), rel=1e-4
        )  # the geometric mean of the words' probabilities
        assert caption.score == pytest.approx(sum(caption.log_probs), abs=1e-4)
        assert caption.score >= caption.alternatives[0].score >= caption.alternatives[1].score
        assert caption.attention.shape == (len(caption.words), 5)
        assert torch.allclose(caption.attention.sum(-1), torch.ones(len(caption.words)), atol=1e-5)
        assert torch.all(caption.attention[:, count:] == 0)
        assert "<unk>" not in caption.words


def test_batches_change_nothing(speaker: Captioner) -> None:
    regions = tiny.pictures(3, 5, 4, 2, 6)
    together = speaker.caption(regions, max_words=8)
    one_by_one = speaker.caption(regions, max_words=8, batch_size=1)
    assert [c.words for c in together] == [c.words for c in one_by_one]


def test_must_and_must_not(speaker: Captioner) -> None:
    regions = tiny.pictures(3, 5, 4, 6)
    for caption in speaker.caption(regions, must=["red ball", "a|dog"], max_words=8):
        assert caption.missing == 0
        assert "red ball" in " ".join(caption.words)
        assert {"a", "dog"} & set(caption.words)
    said = {word for caption in speaker.caption(regions, max_words=8) for word in caption.words}
    avoided = sorted(said)[0]
    assert all(avoided not in c.words for c in speaker.caption(regions, must_not=[avoided], max_words=8))


def test_what_cannot_be_mentioned_is_counted(speaker: Captioner) -> None:
    (caption,) = speaker.caption(tiny.pictures(3), must=["a", "dog", "red"], max_words=2)
    assert caption.missing == 1


def test_good_endings() -> None:
    speaker = Captioner(tiny.build("m2", seed=6), Vocabulary(WORDS))  # one whose captions mostly end by themselves
    regions = tiny.pictures(*range(1, 9))

    def endings(**options) -> list[str]:
        captions = speaker.caption(regions, n=5, max_words=8, **options)
        everyone = [one for caption in captions for one in (caption, *caption.alternatives)]
        return [one.words[-1] for one in everyone if one.finished]

    assert {"a", "of"} & set(endings(good_endings=False))
    assert endings()
    assert not {"a", "of"} & set(endings())
    for most in range(1, 9):  # also where the last word is the last that fits
        captions = speaker.caption(regions, n=5, max_words=most)
        for one in (one for caption in captions for one in (caption, *caption.alternatives)):
            assert one.finished and 1 <= len(one.words) <= most
            assert one.words[-1] not in ("a", "of")


def test_strategies_are_passed_on(speaker: Captioner) -> None:
    regions = tiny.pictures(3, 5)
    greedy = speaker.caption(regions, strategy=Greedy(), max_words=8)
    assert [c.words for c in greedy] == [c.words for c in speaker.caption(regions, strategy=Beam(1), max_words=8)]
    drawn = speaker.caption(regions, strategy=Sample(4, seed=1), n=4, max_words=8)
    assert drawn == speaker.caption(regions, strategy=Sample(4, seed=1), n=4, max_words=8)


def test_round_trip_through_a_folder(speaker: Captioner, tmp_path: Path) -> None:
    speaker.save_pretrained(tmp_path / "model")
    again = Captioner.from_pretrained(tmp_path / "model")
    regions = tiny.pictures(3, 5, 4)
    before, after = (c.caption(regions, max_words=8) for c in (speaker, again))
    assert [c.words for c in before] == [c.words for c in after]
    # bfloat16 rounds, so only that it runs and speaks is promised
    assert all(c.text for c in Captioner.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).caption(regions))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"must": ["cat"]}, "cat"),
        ({"must_not": ["dgo"]}, "dog"),  # the nearest known word is named
        ({"must": ["dog"], "strategy": Greedy()}, "beam search"),
        ({"max_words": 99}, "at most 8"),
        ({"min_words": 5, "max_words": 3}, "min_words is 5 and max_words is 3"),
        ({"n": 6, "strategy": Beam(5)}, "keeps 5"),
        ({"n": 3, "beams": 2}, "n is 3 and beams is 2"),
        ({"strategy": "clever"}, "strategy is 'clever', expected one of beam, greedy, diverse, sample"),
    ],
)
def test_mistakes_are_told(speaker: Captioner, options: dict, message: str) -> None:
    with pytest.raises(MeshcapError, match=message) as told:
        speaker.caption(tiny.pictures(3), **options)
    assert "\n" not in str(told.value)


def test_regions_that_do_not_fit(speaker: Captioner) -> None:
    boxes = torch.rand(1, 3, 4)
    with pytest.raises(MeshcapError, match="7 numbers each, this model expects 6"):
        speaker.caption(Regions(torch.zeros(1, 3, 7), boxes))
    with pytest.raises(MeshcapError, match=r"without boxes: give Regions\(features, boxes\)"):
        speaker.caption(Regions(torch.zeros(1, 3, 6)))
    with pytest.raises(MeshcapError, match="picture 1 has features with NaN"):
        speaker.caption(
            Regions(torch.tensor([0.0, float("nan")])[:, None, None].expand(2, 3, 6), boxes.expand(2, 3, 4))
        )
    with pytest.raises(MeshcapError, match="zero regions"):
        speaker.caption(Regions(torch.zeros(1, 3, 6), boxes, torch.zeros(1, 3, dtype=torch.bool)))


def test_a_vocabulary_of_another_size_is_refused() -> None:
    with pytest.raises(MeshcapError, match=r"9 words and the model was made for 10"):
        Captioner(tiny.build("m2"), Vocabulary(WORDS[:-1]))
    with pytest.raises(MeshcapError, match="<unk> is word 1 of the vocabulary and 0 of the model"):
        Captioner(tiny.build("m2"), Vocabulary(["<pad>", "<unk>", *WORDS[2:]]))


@pytest.fixture(scope="module")
def seeing() -> Captioner:
    vision = create_vision("patches", size=48)
    words = [*WORDS[:4], *(f"w{number}" for number in range(30))]
    model = tiny.build("m2", seed=4, d_input=vision.width, vocab_size=len(words), suppressed_ids=(0, 1, 2))
    return Captioner(model, Vocabulary(words), vision)


def test_pictures_of_every_kind(seeing: Captioner, tmp_path: Path) -> None:
    """A path, a PIL image, an array and the bytes of a file show the same picture."""
    image = draw_scene(5, 64).image.convert("RGB")
    image.save(tmp_path / "scene.png")
    options = {"max_words": 8}
    expected = seeing.caption(image, **options)
    assert not isinstance(expected, list)
    path = tmp_path / "scene.png"
    for picture in (path, str(path), np.asarray(image), path.read_bytes()):
        assert seeing.caption(picture, **options).words == expected.words
        assert seeing.caption(picture, **options).score == pytest.approx(expected.score, abs=1e-4)
    together = seeing.caption([path, image, draw_scene(6, 64).image], batch_size=2, **options)
    assert [one.words for one in together[:2]] == [expected.words] * 2
    assert together[2].score != pytest.approx(expected.score, abs=1e-4)
    regions = seeing.see([seeing.read(image)])
    assert seeing.caption(regions, **options)[0].words == expected.words


def test_eyes_travel_with_the_folder(seeing: Captioner, tmp_path: Path) -> None:
    seeing.save_pretrained(tmp_path / "model")
    again = Captioner.from_pretrained(tmp_path / "model")
    image = draw_scene(7, 80).image
    assert again.caption(image, max_words=8).words == seeing.caption(image, max_words=8).words
    assert again.vision.preprocess == seeing.vision.preprocess


def test_pictures_that_cannot_be_captioned(seeing: Captioner, speaker: Captioner, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    for captioner, pictures, message in (
        (seeing, tmp_path / "bad.png", "bad.png"),
        (seeing, tmp_path / "gone.png", "gone.png"),
        (seeing, [], "no pictures given"),
        (seeing, b"", "picture"),
        (speaker, draw_scene(1, 48).image, "no vision of its own"),
    ):
        with pytest.raises(MeshcapError, match=re.escape(message)) as told:
            captioner.caption(pictures, max_words=8)
        assert "\n" not in str(told.value)


def test_eyes_and_model_must_fit(speaker: Captioner) -> None:
    with pytest.raises(MeshcapError, match="108 numbers a region and the model was made for 6"):
        Captioner(speaker.model, speaker.vocabulary, create_vision("patches", size=48))
