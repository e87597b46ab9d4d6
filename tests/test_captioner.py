"""Captioner: pictures or regions in, sentences out."""

import copy
import json
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
import tiny_captioner
from meshcap import Captioner, MeshcapError, Regions
from meshcap.data.scenes import draw_scene
from meshcap.decoding import Beam, Greedy, Hypotheses, Sampling
from meshcap.say import UNSUITED
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
    drawn = speaker.caption(regions, strategy=Sampling(4, seed=1), n=4, max_words=8)
    assert drawn == speaker.caption(regions, strategy=Sampling(4, seed=1), n=4, max_words=8)


def test_round_trip_through_a_folder(speaker: Captioner, tmp_path: Path) -> None:
    speaker.save_pretrained(tmp_path / "model")
    again = Captioner.from_pretrained(tmp_path / "model", dtype="float32")
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


def test_as_a_pipeline_of_transformers(seeing: Captioner) -> None:
    pictures = [draw_scene(number, 64).image.convert("RGB") for number in range(3)]
    said = seeing.caption(pictures, n=2)
    expected = [[{"generated_text": str(one)}, *({"generated_text": str(o)} for o in one.alternatives)] for one in said]
    assert seeing.pipeline(pictures, batch_size=2, n=2) == expected
    assert seeing.pipeline(pictures[0], n=2) == expected[0]


def test_a_vision_travels_with_the_folder(seeing: Captioner, tmp_path: Path) -> None:
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


def test_vision_and_model_must_fit(speaker: Captioner) -> None:
    with pytest.raises(MeshcapError, match="108 numbers a region and the model was made for 6"):
        Captioner(speaker.model, speaker.vocabulary, create_vision("patches", size=48))


# Loading is apart from optimising.


@pytest.fixture(scope="module")
def folder(seeing: Captioner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    seeing.save_pretrained(folder)
    return folder


def test_a_loaded_captioner_is_saved_copied_pickled_and_trained(folder: Path, tmp_path: Path) -> None:
    captioner, image = Captioner.from_pretrained(folder, dtype="float32"), draw_scene(8, 64).image
    expected = captioner.caption(image, n=3)
    for again in (
        copy.deepcopy(captioner),
        pickle.loads(pickle.dumps(captioner)),
        Captioner.from_pretrained(saved(captioner, tmp_path), dtype="float32"),
    ):
        assert again.caption(image, n=3) == expected
    for name in ("model.safetensors", "vision/vision.json", "vocabulary.json", "config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    weights = {id(one) for one in captioner.model.parameters()}
    assert weights == {id(one) for one in captioner.model.parameters()} and all(
        one.requires_grad for one in captioner.model.parameters()
    )
    loss = captioner.model(captioner.see([captioner.read(image)]), torch.tensor([[2, 5]])).logsumexp(-1).sum()
    loss.backward()


def saved(captioner: Captioner, folder: Path) -> Path:
    captioner.save_pretrained(folder)
    return folder


def test_changed_weights_are_seen(folder: Path) -> None:
    """What inference runs is a copy: it is made again when the weights have changed."""
    captioner, other = Captioner.from_pretrained(folder), Captioner.from_pretrained(folder)
    image = draw_scene(8, 64).image
    before = captioner.caption(image)
    with torch.no_grad():
        for one in (*captioner.model.parameters(), *other.model.parameters()):
            one.mul_(1.2)
    after = captioner.caption(image)
    assert after.score != before.score
    assert after == other.caption(image)


def test_optimized_in_place(folder: Path, tmp_path: Path) -> None:
    captioner, plain = Captioner.from_pretrained(folder), Captioner.from_pretrained(folder)
    image = draw_scene(8, 64).image
    assert captioner.optimize() is captioner
    assert captioner.optimize().caption(image) == plain.caption(image)
    for use in (
        lambda: captioner.save_pretrained(tmp_path),
        lambda: copy.deepcopy(captioner),
        lambda: captioner.to(dtype="bfloat16"),
    ):
        with pytest.raises(MeshcapError, match=r"optimized in place and cannot be .*: load it again"):
            use()


def test_devices_and_numbers(folder: Path) -> None:
    captioner = Captioner.from_pretrained(folder, device="cpu", dtype="bfloat16")
    assert captioner.dtype == torch.bfloat16 and captioner.device == torch.device("cpu")
    assert {one.dtype for one in captioner.model.parameters()} == {torch.bfloat16}
    assert captioner.to("cpu", torch.float32) is captioner
    assert captioner.dtype == torch.float32
    assert repr(captioner) == "Captioner(m2, 0.0 M weights, 34 words, patches, cpu, float32)"
    image = draw_scene(8, 64).image
    int8 = Captioner.from_pretrained(folder, dtype="int8")
    assert int8.dtype == torch.int8 and int8.caption(image).text
    assert {one.dtype for one in int8.model.parameters()} == {torch.float32}  # it can still be saved
    for options, message in (
        ({"device": "tpu"}, "device is 'tpu', expected auto, cpu, cuda or mps"),
        ({"device": "meta"}, "device is 'meta', expected auto, cpu, cuda or mps"),
        ({"dtype": "int4"}, "dtype is 'int4', expected auto, float32, bfloat16, float16, int8"),
        ({"dtype": torch.float64}, "dtype is 'torch.float64', expected auto"),
        ({"backend": "jax"}, "backend is 'jax', expected auto, torch, onnx, torch-export"),
    ):
        with pytest.raises(MeshcapError, match=message):
            Captioner.from_pretrained(folder, **options)
    if not torch.cuda.is_available():
        with pytest.raises(MeshcapError, match="device is cuda, and torch sees no CUDA device: use cpu or auto"):
            Captioner.from_pretrained(folder, device="cuda")
        with pytest.raises(MeshcapError, match="no CUDA device"):
            captioner.to("cuda")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("file", ["model.safetensors", "vision/model.safetensors"])
def test_weights_that_are_not_finite_are_refused(file: str, bad: float, tmp_path: Path) -> None:
    vision = create_vision("small-cnn", channels=(8, 8), size=48)
    model = tiny.build("m2", d_input=vision.width)
    with torch.no_grad():
        list((vision if "vision" in file else model).parameters())[-1].view(-1)[0] = bad
    Captioner(model, Vocabulary(WORDS), vision).save_pretrained(tmp_path)
    with pytest.raises(MeshcapError, match=r"has .* with NaN or infinite numbers: the file is damaged"):
        Captioner.from_pretrained(tmp_path)


def test_names_that_are_no_model_are_refused_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(MeshcapError, match="no model 'my-captioner': there is no such folder here"):
        Captioner.from_pretrained("my-captioner")
    assert time.monotonic() - start < 2


# What captions are.


def test_captions_of_a_list_are_different(seeing: Captioner) -> None:
    image = draw_scene(5, 64).image
    for options in ({"n": 5}, {"n": 5, "groups": 5}, {"n": 6, "beams": 12, "groups": 3}, {"n": 4, "must": "w3|w4"}):
        best = seeing.caption(image, **options)
        texts = [best.text, *(one.text for one in best.alternatives)]
        assert len(texts) == len(set(texts)) == options["n"]
        assert not any(one.alternatives for one in best.alternatives)
    drawn = seeing.caption(image, strategy="sample", n=5, temperature=0.01, seed=1)  # all the same words
    assert drawn.alternatives == ()


def test_the_same_caption_twice_is_said_once(speaker: Captioner) -> None:
    ids = torch.tensor([[[4, 5, 3, 1], [4, 5, 3, 1], [4, 7, 3, 1]]])
    found = Hypotheses(
        ids=ids,
        log_probs=torch.full((1, 3, 4), -0.5),
        scores=torch.tensor([[-1.0, -1.0, -2.0]]),
        lengths=torch.full((1, 3), 3),
        finished=torch.ones(1, 3, dtype=torch.bool),
    )
    (caption,) = speaker.say(found, n=3)
    assert [caption.text, *(one.text for one in caption.alternatives)] == ["A dog.", "A red."]


def test_phrases_that_must_not_appear(seeing: Captioner) -> None:
    image = draw_scene(5, 64).image
    plain = seeing.caption(image)
    phrase = " ".join(plain.words[:2])
    other = seeing.caption(image, must_not=phrase.upper())
    assert phrase not in " ".join(other.words)
    assert other.words[0] == plain.words[0] or other.words != plain.words  # the first word alone may stay
    both = seeing.caption(image, must_not=f"{plain.words[0]}|{plain.words[1]}")
    assert not {plain.words[0], plain.words[1]} & set(both.words)
    with pytest.raises(MeshcapError, match="must has 'w3 w4', which is in must_not, too"):
        seeing.caption(image, must="w3 w4", must_not="w4")


def test_required_words_that_do_not_suit_come_with_a_warning(seeing: Captioner) -> None:
    image = draw_scene(5, 64).image
    plain = seeing.caption(image)
    assert plain.warning is None
    assert seeing.caption(image, must=plain.words[0].upper()).warning is None  # it says that anyway
    warnings = [seeing.caption(image, must=f"w{number}").warning for number in range(30)]
    assert any(warnings) and not all(warnings)
    regions = seeing.see([seeing.read(image)])
    for number, warning in enumerate(warnings):
        found = seeing.search(regions, must=f"w{number}")
        unsuited = float(found.confidence[0, 0]) < UNSUITED * float(found.unconstrained[0])
        assert (warning is not None) == unsuited
    told = next(one for one in warnings if one)
    assert "does not suit the picture" in told and "\n" not in told
    missing = seeing.caption(image, must=["w1", "w2", "w3"], max_words=2)
    assert missing.missing == 1 and missing.warning == "1 of 3 required words could not be fitted in"


def test_withheld_captions_give_nothing_away(seeing: Captioner) -> None:
    image = draw_scene(5, 64).image
    plain = seeing.caption(image, n=3)
    between = (plain.confidence + plain.alternatives[-1].confidence) / 2
    some = seeing.caption(image, n=3, min_confidence=between)
    for one, before in zip((some, *some.alternatives), (plain, *plain.alternatives), strict=True):
        assert one.withheld == (before.confidence < between)
        assert one.text == ("" if one.withheld else before.text) and one.confidence == before.confidence
        assert one.withheld == (one.words == [] and one.log_probs == [])
    assert set(seeing.caption(image, min_confidence=1.0).to_dict()) == {"caption", "confidence", "withheld"}


def test_what_a_caption_shows_of_itself(seeing: Captioner, tmp_path: Path) -> None:
    image = draw_scene(5, 64).image
    caption = seeing(image, n=2, attention=True)
    assert str(caption) == caption.text
    told = json.loads(json.dumps(caption.to_dict()))
    assert told["caption"] == caption.text and told["words"] == caption.words
    assert told["alternatives"][0]["caption"] == caption.alternatives[0].text
    page = caption._repr_html_()
    assert page.count("<img") == 1 + len(caption.words) and caption.text in page
    assert "<img" not in seeing.caption([image])[0]._repr_html_()


def test_a_sentence_of_ones_own(seeing: Captioner) -> None:
    image = draw_scene(5, 64).image
    caption = seeing.caption(image)
    judged = seeing.score(image, caption.text)
    assert judged.words == caption.words and judged.text == caption.text
    assert judged.log_probs == pytest.approx(caption.log_probs, abs=1e-4)
    assert judged.score == pytest.approx(caption.score, abs=1e-3)
    several = seeing.score(seeing.see([seeing.read(image)]), ["w3 w4", caption.text])
    assert several[1].log_probs == pytest.approx(judged.log_probs, abs=1e-4)
    assert several[0].probability < judged.probability
    wrong = (("w3 zebra", "zebra"), ("", "in the caption"), ("w3 " * 9, "has 9 words, expected at most 8"))
    for text, message in wrong:
        with pytest.raises(MeshcapError, match=message):
            seeing.score(image, text)


def test_progress_goes_to_stderr(seeing: Captioner, capsys: pytest.CaptureFixture[str]) -> None:
    images = [draw_scene(number, 48).image for number in range(3)]
    assert seeing.caption(images, progress=True, batch_size=1) == seeing.caption(images, batch_size=1)
    shown = capsys.readouterr()
    assert shown.out == "" and "captions" in shown.err


def test_pushing_to_the_hub(seeing: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []

    class Hub:
        def __init__(self, token: str | None = None):
            calls.append(("token", token))

        def create_repo(self, repo_id: str, **options: object) -> None:
            calls.append((repo_id, options))

        def upload_folder(self, *, repo_id: str, folder_path: str, **commit: object) -> str:
            calls.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))
            return "https://hub/commit"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert seeing.push_to_hub("me/captioner", private=True, token="t") == "https://hub/commit"
    files = ["README.md", "config.json", "model.safetensors", "vision", "vocabulary.json"]
    assert calls == [
        ("token", "t"), ("me/captioner", {"private": True, "exist_ok": True}), ("me/captioner", files),
    ]  # fmt: skip


def test_weights_that_are_finite_and_too_large_give_no_caption() -> None:
    captioner = tiny_captioner.build()
    with torch.no_grad():
        for weight in captioner.model.parameters():
            weight.fill_(1e38)
    with pytest.raises(MeshcapError, match="computes no numbers"):
        captioner.caption(np.zeros((50, 50, 3), np.uint8))
