"""Rare words given back: the arithmetic, where the numbers come from, and the command."""

import json
from pathlib import Path

import numpy
import pytest
import torch

import tiny
import tiny_captioner
import tiny_data
from meshcap import Captioner
from meshcap.data import read_dataset
from meshcap.data.dataset import Sample
from meshcap.errors import MeshcapError
from meshcap.models.output import Output
from meshcap.text import Vocabulary
from meshcap.training.blend import Blend, unpacked
from meshcap.training.rare_words import WordUse, measure, with_rare_words
from meshcap.training.start import with_words
from meshcap.vision import create_vision

WORDS = [*tiny_captioner.WORDS[:4], *"a on blue red white circle triangle scene background".split()]


def build(**settings) -> Captioner:
    eyes = create_vision("patches", size=48)
    model = tiny.build("m2", vocab_size=len(WORDS), d_input=eyes.width, max_length=25, never=(0, 1, 2), **settings)
    return Captioner(model, Vocabulary(WORDS), eyes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tiny_data.scenes(tmp_path / "scenes", train=10, val=3)


@pytest.fixture
def samples(data: Path) -> list[Sample]:
    return read_dataset(str(data)).split("train")


def bias_of(folder: Path) -> torch.Tensor:
    return unpacked(folder).model.decoder.output.bias


def test_closed_form() -> None:
    # Said as often as people do, twice too seldom, too often, far too seldom, never by people, common.
    people = torch.tensor([1e-4, 2e-4, 1e-4, 2e-4, 0.0, 0.5], dtype=torch.float64)
    model = torch.tensor([1e-4, 1e-4, 2e-4, 1e-12, 1e-4, 0.1], dtype=torch.float64)
    expected = torch.tensor([0.0, 0.6931, 0.0, 3.0, 0.0, 0.0])
    use = WordUse(people, model)
    torch.testing.assert_close(use.bias(1), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(use.bias(2), 2 * expected, atol=2e-3, rtol=0)
    assert not use.bias(0).any() and not use.bias(1, rare=1e-5).any()
    assert use.bias(1, rare=1.0)[5] == pytest.approx(numpy.log(5), abs=1e-5)
    for given in ((-1.0, 0.1), (float("nan"), 0.1), (1.0, -0.1), (1.0, 2.0)):
        with pytest.raises(MeshcapError, match="expected a"):
            use.bias(*given)


@torch.no_grad()
def test_against_one_caption_at_a_time(samples: list[Sample]) -> None:
    captioner = build()
    use = measure(captioner, samples, batch=3)
    people, model = torch.zeros(len(WORDS)), torch.zeros(len(WORDS), dtype=torch.float64)
    for sample in samples:
        assert len(sample.captions) == 5  # all of them are read
        regions = captioner.look([sample.picture.read()])
        for caption in sample.captions:
            ids = [2, *captioner.vocabulary.encode(captioner.vocabulary.tokens(caption)), 3][:22]
            log_probs = captioner.model(regions, torch.tensor([ids[:-1]]))[0]
            for word, said in zip(ids[1:], log_probs.exp(), strict=True):
                if word != 0:  # <unk>, which it never says
                    people[word] += 1
                    model += said
    assert 0 < people[3] <= 50 and people[5:].any()
    torch.testing.assert_close(use.people, people.double() / people.sum())
    torch.testing.assert_close(use.model, model / model.sum(), atol=1e-6, rtol=1e-4)
    assert use.model.sum() == pytest.approx(1) and not use.model[:3].any()


def test_a_seed_chooses_the_pictures(samples: list[Sample]) -> None:
    captioner, told = build(), []
    first, again, other = (
        measure(captioner, samples, count=3, seed=seed, batch=2, tell=lambda *now: told.append(now))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.model, again.model) and not torch.equal(first.model, other.model)
    assert torch.equal(first.people, other.people)  # always of all captions
    assert told[:2] == [(2, 3), (3, 3)]


def test_a_bias_is_replaced(samples: list[Sample]) -> None:
    captioner = build()
    use = measure(captioner, samples)
    bias = use.bias(1, rare=0.2)
    assert (bias > 0).any()
    raised = with_rare_words(captioner, bias)
    again = measure(raised, samples)
    assert torch.equal(again.model, use.model)
    assert torch.equal(with_rare_words(raised, 2 * bias).model.decoder.output.bias, 2 * bias)
    assert torch.equal(raised.model.decoder.output.bias, bias)  # a copy was made
    before, after = captioner.model.state_dict(), with_rare_words(raised, None).model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert raised.vision is captioner.vision


@torch.no_grad()
def test_what_it_says_then(samples: list[Sample]) -> None:
    captioner = build()
    bias = measure(captioner, samples).bias(1, rare=0.2)
    regions, ids = captioner.look([samples[0].picture.read()]), torch.tensor([[2, 4, 5]])
    expected = (captioner.model(regions, ids) + bias).log_softmax(-1)
    torch.testing.assert_close(with_rare_words(captioner, bias).model(regions, ids), expected, atol=1e-5, rtol=1e-4)
    none = with_rare_words(captioner, 0 * bias)
    assert torch.equal(none.model(regions, ids), captioner.model(regions, ids))
    assert none.caption([one.picture.read() for one in samples]) == captioner.caption(
        [one.picture.read() for one in samples]
    )


def test_nothing_to_measure(samples: list[Sample]) -> None:
    captioner = build()
    with pytest.raises(MeshcapError, match="precomputed features"):
        measure(Captioner(captioner.model, captioner.vocabulary), samples)
    with pytest.raises(MeshcapError, match="count is 0"):
        measure(captioner, samples, count=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["m2", "show-attend-tell"])
def test_new_words_have_no_bias(name: str) -> None:
    model = tiny.build(name, never=(0, 1, 2), word_bias=True)
    larger = with_words(model, 12, Vocabulary([*tiny_captioner.WORDS[:4], *"abcdefgh"]))
    before, after = (
        next(module for module in one.modules() if isinstance(module, Output)).bias for one in (model, larger)
    )
    assert torch.equal(after[:10], before) and before.any() and not after[10:].any()


def test_biases_blend() -> None:
    first, second = build(word_bias=True, seed=1), build(word_bias=True, seed=2)
    middle = Blend(first, second).set(0.25).model.decoder.output.bias
    ends = [one.model.decoder.output.bias for one in (first, second)]
    torch.testing.assert_close(middle, ends[0] * 0.75 + ends[1] * 0.25)


def test_command(folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["words", str(folder), str(data), "--rare", "0.2", "--count", "6", "--device", "cpu"]
    assert tiny_data.call([*given, "--data", str(data), "--strengths", "0,1", "--beams", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["strength"] for row in rows] == [0, 1] and all("CIDEr" in row for row in rows)
    (folder / "README.md").write_text("About this one.")
    assert tiny_data.call([*given, "--strengths", "0.5", "--out", str(tmp_path / "new")]) == 0
    expected = measure(unpacked(folder), read_dataset(str(data)).split("train"), count=6).bias(0.5, rare=0.2)
    assert torch.equal(bias_of(tmp_path / "new"), expected)
    raised = expected[expected > 0]
    assert f"{len(raised)} of {len(WORDS)} words raised by {raised.mean():.2f} on average" in capsys.readouterr().out
    assert (tmp_path / "new" / "README.md").read_text() == "About this one."
    # Called on what it wrote, it writes the same; and it takes back what it gave.
    again = ["words", str(tmp_path / "new"), *given[2:]]
    assert tiny_data.call([*again, "--strengths", "0.5", "--out", str(tmp_path / "again")]) == 0
    assert torch.equal(bias_of(tmp_path / "again"), expected)
    assert tiny_data.call([*again, "--strengths", "0", "--out", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_training_goes_on_with_it(folder: Path, data: Path, tmp_path: Path) -> None:
    given = ["words", str(folder), str(data), "--rare", "0.2", "--device", "cpu", "--out", str(tmp_path / "new")]
    assert tiny_data.call(given) == 0
    words = tiny_data.train_words(data, tmp_path / "run", "--from", tmp_path / "new", xe=1, vision=None)
    assert tiny_data.call(words) == 0
    found = unpacked(tmp_path / "run")
    bias = found.model.decoder.output.bias
    assert len(bias) == len(found.vocabulary) > len(WORDS)
    torch.testing.assert_close(bias[: len(WORDS)], bias_of(tmp_path / "new"), atol=0.01, rtol=0)
    assert bias[len(WORDS) :].abs().max() < 0.01


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "nothing to do"),
        (["--strengths", "0,1", "--out", "new"], "2 strengths were given"),
        (["--strengths", "-1", "--out", "new"], "--strengths '-1'"),
        (["--strengths", "much", "--out", "new"], "--strengths 'much'"),
        (["--count", "0", "--out", "new"], "--count 0"),
        (["--rare", "3", "--out", "new"], "--rare 3"),
        (["--train-split", "more", "--out", "new"], "no pictures in the split 'more'"),
        (["--train-pictures", "nowhere", "--out", "new"], "nowhere is not a folder"),
        (["--out", "."], "not an empty folder"),
    ],
)
def test_mistakes(folder: Path, data: Path, more: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(["words", str(folder), str(data), *more]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not Path("new").exists()


def test_a_model_without_eyes(folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captioner = unpacked(folder)
    Captioner(captioner.model, captioner.vocabulary).save_pretrained(tmp_path / "blind")
    assert tiny_data.call(["words", str(tmp_path / "blind"), str(data), "--out", str(tmp_path / "new")]) == 2
    assert "reads precomputed features" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
