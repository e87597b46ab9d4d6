"""An explanation says what the model's own numbers say, for every captioner."""

import io
import json
import math
from dataclasses import replace

import pytest
import torch
from PIL import Image

import test_names
import tiny
from meshcap import Captioner, MeshcapError, Regions
from meshcap.calibration import Calibration
from meshcap.data.scenes import draw_scene
from meshcap.explain import explain
from meshcap.models import CaptionModel
from meshcap.options import CaptionOptions
from meshcap.text import Vocabulary
from meshcap.vision.backbone import Patches

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]


def speaker(model: CaptionModel, vision: Patches | None = None) -> Captioner:
    return Captioner(model, Vocabulary(WORDS), vision)


def test_numbers_are_the_models_own(captioner: CaptionModel) -> None:
    """Against `step`, word by word, which no explanation uses."""
    regions = tiny.pictures(5)
    found = explain(speaker(captioner), regions, attribution=False, runners_up=4)
    (said,) = speaker(captioner).describe(regions, n=5)
    assert found.text == said.text
    assert found.best[0] == (said.text, pytest.approx(said.confidence))
    assert len(found.best) == 1 + len(said.alternatives)
    assert found.confidence == pytest.approx(said.confidence, rel=1e-3)
    assert [one.is_end for one in found.words] == [False] * len(said.words) + [True] * said.finished
    with torch.no_grad():
        state = captioner.start(captioner.encode(regions), width=1, length=len(found.words))
        last = torch.tensor([[captioner.config.bos]])
        for one in found.words:
            chances = captioner.step(last, state)[0, 0].exp()
            id = captioner.config.eos if one.is_end else WORDS.index("a" if one.word == "an" else one.word)
            assert one.probability == pytest.approx(float(chances[id]), rel=1e-3, abs=1e-6)
            likeliest = sorted(chances.tolist(), reverse=True)
            assert [chance for _, chance in one.runners_up] == pytest.approx(likeliest[:4], rel=1e-3, abs=1e-6)
            assert one.rank == 1 + int((chances > chances[id]).sum())
            if one.rank == 1:
                assert one.runners_up[0][0] == one.word
            last = torch.tensor([[id]])


def test_looks_of_every_mechanism(captioner: CaptionModel) -> None:
    found = explain(speaker(captioner), tiny.pictures(5), attribution=True, steps=2)
    count = len(found.words)
    (seen,) = speaker(captioner).describe(tiny.pictures(5), attention=True)
    for number, one in enumerate(found.words):
        elsewhere = 0.0 if found.padding is None else float(found.padding[number])
        assert one.attention.shape == (5,)
        assert float(one.attention.sum()) + elsewhere == pytest.approx(1, abs=1e-5)
        assert one.attribution is not None and one.attribution.shape == (5,)
        assert one.gained is not None and one.gap is not None
        if number < len(seen.words) and seen.attention is not None:
            torch.testing.assert_close(one.attention, seen.attention[number][:5], atol=1e-5, rtol=1e-4)
    for tensor in found.other.values():
        assert len(tensor) == count
    name = captioner.name
    assert ("memory_reads" in found.other) == (name == "ntm")
    assert ("groups" in found.other) == (name == "hierarchical")
    assert (found.patterns is not None) == (name == "hopfield")
    assert (found.memory is not None) == bool(getattr(captioner.config, "slots", 0))
    meshed = getattr(captioner.config, "mesh", "last") == "full"
    for one in found.words:
        assert (one.levels is not None) == meshed
        assert (one.memory is not None) == (found.memory is not None)
        if one.levels is not None:
            assert one.levels.shape == (2,)
            assert float(one.levels.sum()) == pytest.approx(1, abs=1e-5)
        if one.memory is not None:
            assert 0 < one.memory < 1
    if found.gates is not None:
        assert found.gates.shape == (count, 2, 2)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [one["word"] for one in told["words"]] == [one.word for one in found.words]


def test_padding_is_left_out() -> None:
    both = tiny.pictures(3, 5)
    padded, alone = (
        explain(speaker(tiny.shared("m2")), one, attribution=True) for one in (both[:1], tiny.one(both, 0))
    )
    assert padded.text == alone.text
    assert padded.words[0].attention.shape == (3,)
    torch.testing.assert_close(padded.words[0].attribution, alone.words[0].attribution)


def test_confidence_is_the_calibrated_one() -> None:
    captioner = speaker(tiny.shared("m2"))
    captioner.calibration = Calibration({"mean": 1.0}, (-9.0, 0.0), (0.2, 0.3))
    found = explain(captioner, tiny.pictures(4), attribution=False)
    mean = sum(math.log(one.probability) for one in found.words) / len(found.words)
    assert found.confidence == pytest.approx(0.3 + 0.1 * mean / 9, abs=1e-4)
    assert found.best[0][1] == pytest.approx(found.confidence, abs=1e-4)


def named() -> tuple[Captioner, Regions]:
    """A captioner with a head for names, and a picture of an okapi."""
    model = tiny.build("m2-no-boxes", seed=15, vocab_size=len(test_names.WORDS))
    captioner = Captioner(model, Vocabulary(test_names.WORDS), names=test_names.head())
    return captioner, test_names.cells({1: 1.0})


def test_names_are_explained_with_what_the_head_saw() -> None:
    captioner, regions = named()
    options = CaptionOptions(max_words=6, attention=True)
    (said,) = captioner.caption(regions, options)
    found = explain(captioner, regions, options=options, attribution=True)
    assert (found.text, found.confidence) == (said.text, said.confidence)
    assert [one.word for one in found.words if not one.is_end] == said.words
    assert said.attention is not None
    for one, log_prob, looked in zip(found.words, said.log_probs, said.attention, strict=False):
        assert one.probability == pytest.approx(math.exp(log_prob), rel=1e-3)
        torch.testing.assert_close(one.attention, looked, atol=1e-5, rtol=1e-4)
        assert one.gap is not None and one.gap < 0.1
        assert (one.name is not None) == (one.word in ("okapi", "okapis"))
    (name,) = found.names
    assert name.word == "okapi" and name.probability > 0.99 and name.names[0] == ("okapi", name.probability)
    told = [one["name"]["word"] for one in json.loads(json.dumps(found.to_dict()))["words"] if "name" in one]
    assert told and set(told) == {"okapi"}
    assert explain(captioner, regions, options=replace(options, names=False)).names == []


def test_what_is_left_out_is_not_explained() -> None:
    words = [*WORDS[:4], "a", "dog", "on", "the", "bed", "with", "grass", "red"]
    captioner = Captioner(tiny.build("m2", seed=36, vocab_size=len(words)), Vocabulary(words))
    captioner.calibration = Calibration({"mean": 1.0}, (-9.0, 0.0), (0.2, 0.3))
    (said,) = captioner.caption(tiny.pictures(4))
    found = explain(captioner, tiny.pictures(4), attribution=True, steps=2)
    assert said.shortened and found.shortened
    assert (found.text, found.confidence) == (said.text, said.confidence)
    assert [one.word for one in found.words] == said.words
    whole = explain(captioner, tiny.pictures(4), options=CaptionOptions(shorten=False))
    assert not whole.shortened and len(whole.words) > len(found.words)
    assert whole.gates is not None and found.gates is not None
    torch.testing.assert_close(whole.gates[: len(found.words)], found.gates)


def test_a_sentence_of_ones_own() -> None:
    captioner = speaker(tiny.shared("m2"))
    found = explain(captioner, tiny.pictures(4), caption="A dog's red ball", steps=2)
    assert [one.word for one in found.words] == ["a", "dog", "'s", "red", "ball", "(end)"]
    assert not found.own
    assert found.text == "A dog's red ball."
    chances = [one.probability for one in found.words]
    assert found.confidence == pytest.approx(math.prod(chances) ** (1 / 6), rel=1e-3)
    assert found.best[0][0] == captioner.describe(tiny.pictures(4))[0].text


@pytest.mark.parametrize(
    ("caption", "told"),
    [
        ("a dig", "unknown word 'dig' in the caption.*nearest known: dog"),
        ("  ", "no words"),
        ("a a a a a a a a a", "9 words, expected at most 8"),
    ],
)
def test_sentences_that_cannot_be_explained(caption: str, told: str) -> None:
    with pytest.raises(MeshcapError, match=told):
        explain(speaker(tiny.shared("m2")), tiny.pictures(4), caption=caption)


@pytest.mark.parametrize("options", [{"runners_up": 0}])
def test_nothing_is_not_a_number_of_things(options: dict) -> None:
    with pytest.raises(MeshcapError, match="expected 1 or more"):
        explain(speaker(tiny.shared("m2")), tiny.pictures(4), **options)


def test_one_picture_at_a_time() -> None:
    with pytest.raises(MeshcapError, match="2 pictures"):
        explain(speaker(tiny.shared("m2")), tiny.pictures(4, 4))


def test_a_narrow_search_lists_what_it_has() -> None:
    assert (
        len(
            explain(
                speaker(tiny.shared("m2")),
                tiny.pictures(4),
                options=CaptionOptions(strategy="greedy"),
                attribution=False,
            ).best
        )
        == 1
    )


def test_pictures_are_seen_as_captioning_sees_them() -> None:
    vision = Patches(cells=4, side=4, preprocess={"size": 16, "geometry": "crop"})
    captioner = speaker(tiny.build("m2", d_input=vision.width), vision)
    picture = draw_scene(3, 64).image.resize((96, 64))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    found = explain(captioner, picture, attribution=False)
    assert found.text == captioner.caption(picture).text
    assert found.window == pytest.approx((1 / 6, 0, 5 / 6, 1))
    assert isinstance(found.picture, Image.Image) and found.picture.size == (96, 64)
    assert found.boxes is not None and found.boxes.shape == (16, 4)
    buffer.seek(0)
    assert explain(captioner, buffer, attribution=False).text == found.text
