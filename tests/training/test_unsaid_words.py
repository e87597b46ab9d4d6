"""Words nearly said: the arithmetic, where the numbers come from, and the command."""

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random

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
from meshcap.training.captions import tokenized
from meshcap.training.heard import LOOKED_AT, NEAREST, NUDGE, OFTEN, PRIOR, READ, WRONG, Heard
from meshcap.training.start import with_words
from meshcap.training.unsaid_words import follows, listen, with_word_bias, word_bias
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


INF = float("inf")


def heard_once(lacking: list[float], right: list[bool], said: list[int], captions: int = READ) -> Heard:
    """Words that came near in one caption alone."""
    nearest, by_people = torch.full((NEAREST, len(lacking)), INF), torch.zeros(NEAREST, len(lacking), dtype=torch.bool)
    nearest[0], by_people[0] = torch.tensor(lacking), torch.tensor(right)
    return Heard(captions, torch.tensor(said), nearest, by_people)


def test_what_lacks_least_and_is_right_is_raised() -> None:
    # Nearly said, the same of a picture of which nobody says it, far away, said often enough, never to be said.
    heard = heard_once([1.5, 1.5, 4.0, 0.2, INF], [True, False, True, True, False], [0, 0, 0, int(OFTEN), 0])
    none, raised = 0.0, NUDGE + 1.5
    torch.testing.assert_close(heard.bias(2, 0.5), torch.tensor([raised, raised, none, none, none]))
    torch.testing.assert_close(heard.bias(5, 0.5), torch.tensor([raised, raised, NUDGE + 4, none, none]))
    torch.testing.assert_close(heard.bias(5, 1.2), torch.tensor([raised, none, none, none, none]))
    assert not heard.bias(0, 0.5).any()
    assert not heard.bias(5, 100).any()
    for bad in (-1.0, float("nan"), INF):
        with pytest.raises(MeshcapError, match="expected a number"):
            heard.bias(bad, 0.5)
        with pytest.raises(MeshcapError, match="the price is"):
            heard.bias(3, bad)


@pytest.mark.parametrize("price", [0.0, 0.3, 0.6, 1.5])
def test_against_plain_python(price: float) -> None:
    chance = torch.Generator().manual_seed(3)
    words, captions, limit = 40, 7000, 4.0
    lacking = (6 * torch.rand(NEAREST, words, generator=chance)).sort(0).values
    lacking[5:, :10] = INF
    heard = Heard(
        captions,
        torch.randint(0, 20, (words,), generator=chance) - 8,  # most of them are hardly said
        lacking,
        torch.rand(NEAREST, words, generator=chance) < 0.5,
    )
    heard.said.clamp_(min=0)
    found = heard.bias(limit, price)
    chosen = set()
    for word in range(words):
        u0, best, expected, at = READ * int(heard.said[word]) / captions, 0.0, 0.0, 0
        for k in range(1, NEAREST + 1):
            lacks = float(lacking[k - 1, word])
            if lacks >= limit or u0 >= OFTEN:
                continue
            looked = [place for place in range(max(k, LOOKED_AT)) if lacking[place, word] < INF]
            right = sum(bool(heard.right[place, word]) for place in range(max(k, LOOKED_AT)))
            likely = max(0.1, 0.62 - 0.08 * (lacks + NUDGE))
            p = (right + PRIOR * likely) / (len(looked) + PRIOR)
            u = READ * k / captions
            worth = math.exp(-u0) - math.exp(-u0 - u) - price * u * (WRONG * (1 - p) - p)
            if worth > best:
                best, expected, at = worth, lacks + NUDGE, k
        assert float(found[word]) == pytest.approx(expected, abs=1e-5)
        chosen.add(at)
    assert len(chosen) > 2 or price > 1  # some are left alone, some raised for one place, some for several


def test_what_follows_what() -> None:
    vocabulary = Vocabulary(WORDS)
    said = follows([[["a", "red", "circle"], ["a", "red", "scene"]], [["a", "blue", "circle"]]], vocabulary)
    pairs = {(WORDS[first], WORDS[second]) for first, second in said.nonzero().tolist()}
    assert pairs == {("<bos>", "a"), ("a", "red")}  # the others once


@torch.no_grad()
def test_against_one_caption_at_a_time(samples: list[Sample]) -> None:
    captioner = build()
    may_follow = torch.rand(len(WORDS), len(WORDS), generator=torch.Generator().manual_seed(0)) < 0.7
    heard = listen(captioner, samples, may_follow=may_follow, beams=2, batch=3)
    said = torch.zeros(len(WORDS), dtype=torch.int64)
    near: list[list[tuple[float, bool]]] = [[] for _ in WORDS]
    for sample, people in zip(samples, tokenized(samples, "ptb"), strict=True):
        regions = captioner.look([sample.picture.read()])
        (caption,) = captioner.describe(regions, strategy=Beam(2))
        ids = [WORDS.index(word) for word in caption.words]
        by_people = {word for one in people for word in one}
        log_probs = captioner.model(regions, torch.tensor([[2, *ids]]))[0]
        for word in range(4, len(WORDS)):
            said[word] += word in ids
            lacks = [
                float(now.max() - now[word])
                for before, now in zip([2, *ids], log_probs, strict=True)
                if may_follow[before, word]
            ]
            if lacks and word not in ids:
                near[word].append((min(lacks), WORDS[word] in by_people))
    assert heard.captions == len(samples) and torch.equal(heard.said, said) and said.any()
    assert heard.lacking[:, :4].isinf().all()
    for word in range(4, len(WORDS)):
        expected = sorted(near[word])
        assert heard.lacking[: len(expected), word].tolist() == pytest.approx([one for one, _ in expected], abs=1e-4)
        found = list(zip(heard.lacking[:, word].tolist(), heard.right[:, word].tolist(), strict=True))
        for lacks, right in expected:  # two pictures may lack nearly the same
            assert any(abs(lacks - one) < 1e-4 and right == said_so for one, said_so in found)
        assert sum(said_so for _, said_so in found) == sum(right for _, right in expected)
        assert heard.lacking[len(expected) :, word].isinf().all()
    assert heard.right.any() and not heard.right.all()


@torch.no_grad()
def test_a_raised_word_is_likeliest_where_it_came_nearest(samples: list[Sample]) -> None:
    captioner = build()
    anything = torch.ones(len(WORDS), len(WORDS), dtype=torch.bool)
    heard = listen(captioner, samples, may_follow=anything, beams=1)
    unsaid = [word for word in range(4, len(WORDS)) if not heard.said[word]]
    assert unsaid
    nearest = min(unsaid, key=lambda word: float(heard.lacking[0, word]))
    limit = float(heard.lacking[0, nearest]) + 1e-4
    bias = heard.bias(limit, 0.0).where(heard.said == 0, 0.0)
    assert bias.nonzero().flatten().tolist() == [nearest]
    raised = with_word_bias(captioner, bias)
    again = listen(raised, samples, may_follow=anything, beams=1)
    assert torch.equal(again.said, heard.said)  # what it has already is not heard
    assert torch.equal(word_bias(raised), bias) and not word_bias(captioner).any()
    on_top = listen(raised, samples, may_follow=anything, beams=1, more=True)
    assert on_top.said[nearest] > 0  # unless it is asked for more
    texts = [raised.caption(one.picture.read(), strategy=Beam(1)).words for one in samples]
    assert any(WORDS[nearest] in words for words in texts)  # greedy search says what is likeliest


def test_more_is_added_to_what_was_raised(folder: Path, data: Path, tmp_path: Path) -> None:
    own = torch.zeros(len(WORDS))
    own[WORDS.index("red")] = 0.5
    with_word_bias(unpacked(folder), own).save_pretrained(tmp_path / "raised")
    given = ["words", str(tmp_path / "raised"), str(data), "--heard-split", "train", "--beams", "2", "--device", "cpu"]
    given += ["--price", "0.01", "--limits", "9", "--out", str(tmp_path / "more")]
    assert tiny_data.call([*given, "--more", "--strength", "0.5"]) == 0
    train = read_dataset(str(data)).split("train")
    may_follow = follows(tokenized(train, "ptb"), Vocabulary(WORDS))
    on_top = listen(unpacked(tmp_path / "raised"), train, may_follow=may_follow, beams=2, more=True).bias(9, 0.01)
    assert on_top.any()
    assert torch.equal(bias_of(tmp_path / "more"), own + 0.5 * on_top)


def test_captions_are_needed(samples: list[Sample]) -> None:
    with pytest.raises(MeshcapError, match=f"{samples[1].id} has no captions"):
        listen(build(), [samples[0], replace(samples[1], captions=())])


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
    plain = Vocabulary(WORDS, tokenizer="char")  # where no rule of English differs between the two
    other, same = (Captioner(one.model, plain, one.vision) for one in (none, captioner))
    assert other.caption(pictures) == same.caption(pictures)


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
    parts = ["--heard-split", "train,val", "--heard-pictures", "6"]
    given = ["words", str(folder), str(data), "--beams", "2", "--device", "cpu", "--price", "0.01", *parts]
    assert tiny_data.call([*given, "--data", str(data), "--limits", "0,9", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["limit"] for row in rows] == [0, 9] and all("CIDEr" in row for row in rows)
    (folder / "README.md").write_text("About this one.")
    assert tiny_data.call([*given, "--limits", "9", "--out", str(tmp_path / "new")]) == 0
    dataset = read_dataset(str(data))
    drawn = [dataset.split("train")[at] for at in sorted(Random(0).sample(range(10), 6))]
    everybody = [*dataset.split("train"), *dataset.split("val")]
    may_follow = follows(tokenized(everybody, "ptb"), Vocabulary(WORDS))
    heard = listen(unpacked(folder), [*drawn, *dataset.split("val")], may_follow=may_follow, beams=2)
    expected = heard.bias(9, 0.01)
    assert heard.captions == 9 and expected.any()
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
    raising = ["--limits", "9", "--price", "0", "--device", "cpu"]
    given = ["words", str(folder), str(data), *raising, "--out", str(tmp_path / "new")]
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
        (["--price", "-1", "--out", "new"], "--price -1.0: expected a number of at least 0"),
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
