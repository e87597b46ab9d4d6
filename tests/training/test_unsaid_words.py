"""Words nearly said: the arithmetic, where the numbers come from, and the command."""

import json
from pathlib import Path

import pytest
import torch

import tiny
import tiny_captioner
import tiny_data
from meshcap import Captioner
from meshcap.data import read_dataset
from meshcap.data.dataset import Sample
from meshcap.decoding import Beam
from meshcap.errors import MeshcapError
from meshcap.models.output import Output
from meshcap.text import Vocabulary
from meshcap.training.blend import Blend, unpacked
from meshcap.training.start import with_words
from meshcap.training.unsaid_words import NUDGE, Heard, listen, with_word_bias
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
    # Said, nearly said, said although it came near elsewhere, far away, never to be said.
    heard = Heard(torch.tensor([9, 0, 1, 0, 0]), torch.tensor([0.0, 1.5, 0.2, 4.0, float("inf")]))
    torch.testing.assert_close(heard.bias(2), torch.tensor([0.0, 1.5 + NUDGE, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(heard.bias(5), torch.tensor([0.0, 1.5 + NUDGE, 0.0, 4.0 + NUDGE, 0.0]))
    assert not heard.bias(0).any()
    for limit in (-1.0, float("nan"), float("inf")):
        with pytest.raises(MeshcapError, match="expected a number"):
            heard.bias(limit)


@torch.no_grad()
def test_against_one_caption_at_a_time(samples: list[Sample]) -> None:
    captioner = build()
    heard = listen(captioner, samples, beams=2, batch=3)
    said, lacking = torch.zeros(len(WORDS), dtype=torch.int64), torch.full((len(WORDS),), float("inf"))
    for sample in samples:
        regions = captioner.look([sample.picture.read()])
        (caption,) = captioner.describe(regions, strategy=Beam(2))
        ids = [WORDS.index(word) for word in caption.words]
        for word in set(ids):
            said[word] += 1
        for log_probs in captioner.model(regions, torch.tensor([[2, *ids]]))[0]:
            lacking = torch.minimum(lacking, log_probs.max() - log_probs)
    lacking[3] = float("inf")
    assert torch.equal(heard.said, said) and said.any()
    torch.testing.assert_close(heard.lacking, lacking, atol=1e-5, rtol=1e-4)
    assert heard.lacking[:4].isinf().all() and (heard.lacking[4:] >= 0).all()


@torch.no_grad()
def test_a_raised_word_is_likeliest_where_it_came_nearest(samples: list[Sample]) -> None:
    captioner = build()
    heard = listen(captioner, samples, beams=1)
    unsaid = [word for word in range(4, len(WORDS)) if not heard.said[word]]
    assert unsaid
    nearest = min(unsaid, key=lambda word: float(heard.lacking[word]))
    limit = float(heard.lacking[nearest]) + 1e-4
    bias = heard.bias(limit)
    assert bias.nonzero().flatten().tolist() == [nearest]
    again = listen(with_word_bias(captioner, bias), samples, beams=1)
    assert torch.equal(again.said, heard.said)  # what it has already is not heard
    raised = with_word_bias(captioner, bias)
    texts = [raised.caption(one.picture.read(), strategy=Beam(1)).words for one in samples]
    assert any(WORDS[nearest] in words for words in texts)  # greedy search says what is likeliest


def test_progress_is_told(samples: list[Sample]) -> None:
    told: list[tuple[int, int]] = []
    listen(build(), samples[:5], beams=1, batch=2, tell=lambda *now: told.append(now))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_a_bias_is_replaced(samples: list[Sample]) -> None:
    captioner = build()
    bias = torch.arange(len(WORDS)) / 10
    raised = with_word_bias(captioner, bias)
    assert torch.equal(with_word_bias(raised, 2 * bias).model.decoder.output.bias, 2 * bias)
    assert torch.equal(raised.model.decoder.output.bias, bias)  # a copy was made
    before, after = captioner.model.state_dict(), with_word_bias(raised, None).model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert raised.vision is captioner.vision


@torch.no_grad()
def test_what_it_says_then(samples: list[Sample]) -> None:
    captioner = build()
    bias = torch.arange(len(WORDS)) / 10
    regions, ids = captioner.look([samples[0].picture.read()]), torch.tensor([[2, 4, 5]])
    expected = (captioner.model(regions, ids) + bias).log_softmax(-1)
    torch.testing.assert_close(with_word_bias(captioner, bias).model(regions, ids), expected, atol=1e-5, rtol=1e-4)
    none = with_word_bias(captioner, 0 * bias)
    assert torch.equal(none.model(regions, ids), captioner.model(regions, ids))
    pictures = [one.picture.read() for one in samples]
    assert none.caption(pictures) == captioner.caption(pictures)


def test_nothing_to_listen_to(samples: list[Sample]) -> None:
    captioner = build()
    with pytest.raises(MeshcapError, match="precomputed features"):
        listen(Captioner(captioner.model, captioner.vocabulary), samples)


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
    given = ["words", str(folder), str(data), "--beams", "2", "--device", "cpu"]
    assert tiny_data.call([*given, "--data", str(data), "--limits", "0,9", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["limit"] for row in rows] == [0, 9] and all("CIDEr" in row for row in rows)
    (folder / "README.md").write_text("About this one.")
    assert tiny_data.call([*given, "--limits", "9", "--out", str(tmp_path / "new")]) == 0
    expected = listen(unpacked(folder), read_dataset(str(data)).split("val"), beams=2).bias(9)
    assert torch.equal(bias_of(tmp_path / "new"), expected)
    raised = expected[expected > 0]
    assert f"{len(raised)} of {len(WORDS)} words raised by {raised.mean():.2f} on average" in capsys.readouterr().out
    assert (tmp_path / "new" / "README.md").read_text() == "About this one."
    # Called on what it wrote, it writes the same; and it takes back what it gave.
    again = ["words", str(tmp_path / "new"), *given[2:]]
    assert tiny_data.call([*again, "--limits", "9", "--out", str(tmp_path / "again")]) == 0
    assert torch.equal(bias_of(tmp_path / "again"), expected)
    assert tiny_data.call([*again, "--limits", "0", "--out", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_training_goes_on_with_it(folder: Path, data: Path, tmp_path: Path) -> None:
    given = ["words", str(folder), str(data), "--limits", "9", "--device", "cpu", "--out", str(tmp_path / "new")]
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
        (["--limits", "0,1", "--out", "new"], "2 limits were given"),
        (["--limits", "-1", "--out", "new"], "--limits '-1'"),
        (["--limits", "much", "--out", "new"], "--limits 'much'"),
        (["--heard-split", "more", "--out", "new"], "no pictures in the split 'more'"),
        (["--pictures", "nowhere", "--out", "new"], "nowhere is not a folder"),
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
