"""Options of captions mean the same everywhere: Python, `meshcap caption`, `meshcap batch` and the server."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import tiny_captioner
from meshcap import Captioner, CaptionOptions, MeshcapError, cli
from meshcap.calibration import Calibration
from meshcap.cli.options import flag
from meshcap.data.scenes import draw_scene
from meshcap.decoding import Beam, DiverseBeam, Greedy, Hypotheses, Sampling
from meshcap.options import DEFAULTS, HELP, NAMES, CaptionFields, OptionError, plan
from meshcap.say import Speaker
from meshcap.text import Vocabulary
from serving import small

Found = list[tuple[str, float]]  # captions of a picture with their confidences, best first
PICTURE = 6  # one of which the tiny captioner says other things with other options
CALIBRATION = Calibration({"mean": 1.0}, (-2.0, -0.8), (0.1, 0.9))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_captioner.saved(tmp_path_factory.mktemp("models") / "model", CALIBRATION)


@pytest.fixture(scope="module")
def speaker(model: Path) -> Captioner:
    return Captioner.from_pretrained(model, device="cpu")


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[TestClient]:
    captioner = Captioner.from_pretrained(model, device="cpu").optimize()
    with TestClient(small.app(captioner)) as client:
        yield client


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "photo.png"
    draw_scene(PICTURE, 64).image.save(path)
    return path


@pytest.fixture
def ways(
    model: Path, speaker: Captioner, client: TestClient, photo: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, Callable[[dict[str, Any]], Found | str]]:  # fmt: skip
    """Each gives captions, or the message of the error with options spelled as Python does."""

    def python(options: dict[str, Any]) -> Found | str:
        try:
            best = speaker.caption(photo, **options)
        except MeshcapError as error:
            return str(error)
        return [(one.text, one.confidence) for one in (best, *best.alternatives)]

    def run(command: str, options: dict[str, Any], *more: object) -> tuple[int, str, str]:
        words = [str(photo), "--model", str(model), "--device", "cpu", *map(str, more)]
        for name, value in options.items():
            if isinstance(value, bool):
                words.append(flag(name) if value else f"--no-{flag(name)[2:]}")
            else:
                for one in value if isinstance(value, list) else [value]:
                    words += [flag(name), str(one)]
        with pytest.raises(SystemExit) as left:
            cli.main([command, *words])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    def refused(err: str) -> str:
        """The message with flags as names: `--max-words` as `max_words`."""
        text = err.strip().removeprefix("error: ")
        for name in sorted(NAMES, key=len, reverse=True):
            text = text.replace(flag(name), name)
        return text

    def found(row: dict[str, Any]) -> Found:
        others = row.get("alternatives", [])
        return [(one["caption"] or "", one["confidence"]) for one in (row, *others)]

    def caption(options: dict[str, Any]) -> Found | str:
        code, out, err = run("caption", options, "--json")
        return refused(err) if code else found(json.loads(out))

    def batch(options: dict[str, Any]) -> Found | str:
        code, _, err = run("batch", options, "--out", tmp_path / "out.jsonl", "--restart")
        return refused(err) if code else found(json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8")))

    def rest(options: dict[str, Any]) -> Found | str:
        content, headers = photo.read_bytes(), {"Content-Type": "image/png"}
        answer = client.post("/v1/caption", content=content, headers=headers, params=options).json()
        return answer["error"]["message"] if "error" in answer else found(answer["results"][0])

    return {"python": python, "caption": caption, "batch": batch, "rest": rest}


SENSE: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"n": 7},
    {"n": 5, "groups": 5},
    {"strategy": "greedy"},
    {"strategy": "diverse", "n": 4},
    {"strategy": "diverse", "beams": 4, "groups": 2, "n": 3},
    {"strategy": "sample", "seed": 3},
    {"strategy": "sample", "n": 3, "temperature": 0.8, "top_k": 6, "top_p": 0.9, "seed": 5},
    {"beams": 1},
    {"beams": 9, "length_penalty": 1.0},
    {"must": "Cat"},
    {"must": ["red", "dog|horse"]},
    {"must": "HORSE on the grass"},
    {"must": "dog,cat"},
    {"must_not": "dog|grass"},
    {"must_not": ["Dog", "in grass", "on the"]},
    {"must_not": "a,the, of"},
    {"max_words": 5},
    {"max_words": 3, "n": 3},
    {"max_words": 1},
    {"min_words": 6},
    {"min_words": 3, "max_words": 4},
    {"no_repeat_ngram": 1},
    {"good_endings": False},
    {"good_endings": False, "max_words": 4},
    {"min_confidence": 1.0},
    {"n": 4, "min_confidence": 0.3},
]


@pytest.mark.parametrize("options", SENSE, ids=str)
def test_the_same_captions_everywhere(options: dict[str, Any], ways: dict[str, Callable[..., Any]]) -> None:
    expected = ways["python"](options)
    assert isinstance(expected, list), expected
    for name, way in ways.items():
        found = way(options)
        assert isinstance(found, list), f"{name}: {found}"
        # A withheld caption gives no text away, and batch no alternatives either.
        if name == "batch" and "min_confidence" in options:
            assert found[0][0] == expected[0][0]
            continue
        assert [text for text, _ in found] == [text for text, _ in expected], name
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-3), name


def test_options_differ(speaker: Captioner, photo: Path) -> None:
    """Otherwise the test above would compare the same caption all the time."""
    texts = {tuple(one.text for one in (best, *best.alternatives))
             for best in (speaker.caption(photo, **options) for options in SENSE)}  # fmt: skip
    assert len(texts) > len(SENSE) * 2 / 3


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"n": 3, "beams": 2}, "n is 3 and beams is 2: expected at least as many beams"),
    ({"n": 0}, "n is 0, expected 1 or more"),
    ({"max_words": 0}, "max_words is 0, expected 1 or more"),
    ({"max_words": 99}, "max_words is 99, and this model can say at most 24 words"),
    ({"min_words": 5, "max_words": 3}, "min_words is 5 and max_words is 3: expected no more than that"),
    ({"strategy": "clever"}, "strategy is 'clever', expected one of beam, greedy, diverse, sample"),
    ({"strategy": "greedy", "n": 2}, "n is 2, and this search keeps 1"),
    ({"strategy": "greedy", "beams": 2}, "beams is for a search by beam or diverse, and strategy is greedy"),
    ({"temperature": 0.5}, "temperature is for a search by sample, and strategy is beam: leave one out"),
    ({"strategy": "sample", "temperature": 1e-300}, "temperature is 1e-300, expected 0.001 to 1000"),
    ({"strategy": "sample", "top_p": 1.5}, "top_p is 1.5, expected 1e-09 to 1"),
    ({"strategy": "sample", "must": "dog"}, "must needs a beam search: leave strategy out or give beam"),
    ({"must": "zebra"}, "unknown word 'zebra' to mention"),
    ({"must": "dog|"}, "must is 'dog|', expected words, alternatives separated by |"),
    ({"must_not": "dgo"}, "nearest known: dog"),
    ({"must": "dog", "must_not": "Dog"}, "must has 'dog', which is in must_not, too"),
    ({"beams": 5, "groups": 2}, "5 beams do not divide into 2 equal groups"),
    ({"min_confidence": 2}, "min_confidence is 2, expected 0 to 1"),
    ({"length_penalty": "nan"}, "length_penalty is nan, expected -10 to 10"),
]


@pytest.mark.parametrize(("options", "message"), NONSENSE, ids=str)
def test_the_same_errors_everywhere(options: dict[str, Any], message: str, ways: dict[str, Callable[..., Any]]) -> None:
    for name, way in ways.items():
        if name == "python" and any(isinstance(value, str) for value in options.values()):
            options = {key: float(value) if value == "nan" else value for key, value in options.items()}
        found = way(options)
        assert isinstance(found, str) and message in found, f"{name}: {found}"
        assert "\n" not in found, name


def test_whole_short_captions(speaker: Captioner) -> None:
    """At most so many words, ended, and not on a word that something is missing after."""
    scenes = [draw_scene(number, 64).image for number in range(12)]
    for most in range(1, 8):
        for strategy in ("beam", "greedy", "diverse", "sample"):
            for caption in speaker.caption(scenes, max_words=most, strategy=strategy):
                assert caption.finished and 1 <= len(caption.words) <= most
                assert caption.words[-1] not in {"a", "on", "in", "with", "of", "the"}


def test_plurals_go_with_what_is_avoided(speaker: Captioner) -> None:
    words = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "as", "dog", "dogs", "man", "men", "teddy", "bear", "bears", "on"]
    vocabulary, model = Vocabulary(words), SimpleNamespace(max_length=20, unk=0, pad=1, bos=2, eos=3)

    def avoided(**options: Any) -> set[str]:
        rules = plan(CaptionOptions(**options), vocabulary, model).rules
        phrases = [(one,) for one in rules.banned[3:]] + list(rules.banned_phrases)
        return {" ".join(words[id] for id in ids) for ids in phrases}

    assert avoided(must_not="dog") == {"dog", "dogs"}
    assert avoided(must_not="dogs,on") == {"dogs", "on"}  # not the other way round
    assert avoided(must_not="Man, a") == {"man", "men", "a"}  # "as" is no plural
    assert avoided(must_not="teddy bear") == {"teddy bear", "teddy bears"}
    assert avoided(must_not="dog", must="dogs|man") == {"dog"}
    with pytest.raises(OptionError, match="which is in must_not, too"):
        avoided(must_not="dog", must="dog")


def test_what_is_known_of_english_is_not_used_of_other_languages() -> None:
    """German "in" may end a caption, "hat" (has) is no hat, and "men" no plural of anything."""
    words = "<unk> <pad> <bos> <eos> ein mann schaut sie in hat man men".split()
    model = SimpleNamespace(max_length=20, unk=0, pad=1, bos=2, eos=3)
    for tokenizer, english in (("ptb", True), ("unicode", False), ("char", False)):
        vocabulary = Vocabulary(words, tokenizer=tokenizer)
        rules = plan(CaptionOptions(must_not=() if tokenizer == "char" else "man"), vocabulary, model).rules
        assert (8 in rules.bad_endings) is english and (11 in rules.banned) is english
        speaker = Speaker(vocabulary, Calibration({"mean": 1.0}, (-3.0, 0.0), (0.4, 0.9)))
        said = [4, 5, 8, 9, 3]  # ein mann in hat
        log_probs = np.array([[[-0.1, -0.1, -9.0, -9.0, -0.1]]])
        found = Hypotheses(np.array([[said]]), log_probs, np.array([[-1.0]]), np.array([[5]]), np.array([[True]]))
        caption = speaker.caption_of(said[:-1], [-0.1, -0.1, -9.0, -9.0, -0.1])
        assert caption.confidence < 0.75 and speaker.shorten(caption, CaptionOptions()).shortened is english
        shown = speaker.shorten(caption, CaptionOptions()).text
        assert shown == ("Ein mann." if english else "Ein mann in hat")
        assert [tag.name for tag in speaker.tags(found, 0, caption)] == (["hat"] if english else [])


# The record itself.


def test_names_are_the_same_in_every_table() -> None:
    names = {field.name for field in fields(CaptionOptions)}
    assert names == set(NAMES) == set(HELP) == set(CaptionFields.__annotations__)
    assert set(DEFAULTS) <= names


def test_it_is_frozen_hashable_and_travels() -> None:
    options = CaptionOptions(n=2, must=["dog", " Cat |  puppy "], must_not="a b,c")
    assert options.must == ("dog", "Cat|puppy") and options.must_not == ("a b", "c")
    assert hash(options) == hash(CaptionOptions(n=2, must=("dog", "Cat|puppy"), must_not=["a b", "c"]))
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(FrozenInstanceError):
        options.n = 3  # type: ignore[misc]


def test_strategies_by_name_and_as_records() -> None:
    for options, expected in (
        ({}, Beam(5)),
        ({"n": 7}, Beam(7)),
        ({"beams": 3, "length_penalty": 0.5}, Beam(3, 0.5)),
        ({"strategy": "greedy"}, Greedy()),
        ({"groups": 2}, DiverseBeam(6, 2)),
        ({"groups": 1}, Beam(5)),
        ({"strategy": "diverse"}, DiverseBeam(6, 3)),
        ({"strategy": "diverse", "n": 4}, DiverseBeam(8, 4)),
        ({"strategy": "sample", "n": 2, "top_k": 3, "seed": 1}, Sampling(2, 1.0, 3, 1.0, 1)),
        ({"strategy": Beam(9, 1.0), "n": 9}, Beam(9, 1.0)),
    ):
        assert CaptionOptions(**options).search() == expected, options
    one, other = (CaptionOptions(strategy="sample").search() for _ in range(2))
    assert isinstance(one, Sampling) and isinstance(other, Sampling) and one.seed != other.seed
    with pytest.raises(MeshcapError, match="beams belongs into the strategy that was given"):
        CaptionOptions(strategy=Beam(9), beams=3)


def test_words_are_read_as_numbers() -> None:
    given = {"n": "3", "max-words": " 8 ", "good_endings": "no", "min_confidence": "0.5", "seed": None, "must": ["a|b"]}
    assert CaptionOptions.parse(given) == CaptionOptions(
        n=3, max_words=8, good_endings=False, min_confidence=0.5, must=("a|b",)
    )
    assert CaptionOptions.parse(given, n=4).n == 4
    for wrong, message in (
        ({"n": "three"}, "n is 'three', expected a whole number"),
        ({"n": 2.5}, "n is 2.5, expected a whole number"),
        ({"n": True}, "n is True, expected a whole number"),
        ({"n": "9" * 5000}, "expected a whole number"),
        ({"n": 10**30}, "expected 10000 or less"),
        ({"top_p": "much"}, "top_p is 'much', expected a number"),
        ({"attention": "maybe"}, "attention is 'maybe', expected true or false"),
        ({"must": 7}, "must is 7, expected words"),
        ({"must": [7]}, "must holds 7, expected words"),
        ({"beems": 7}, "'beems' is no option of captions, expected n, strategy, beams"),
        ({"strategy": ["beam"]}, "strategy is ['beam'], expected one of"),
    ):
        with pytest.raises(OptionError) as told:
            CaptionOptions.parse(wrong)
        assert message in str(told.value) and "\n" not in str(told.value) and len(str(told.value)) < 400


def test_errors_are_spelled_as_flags() -> None:
    with pytest.raises(OptionError) as told:
        CaptionOptions(min_words=5, max_words=3)
    assert told.value.spelled(flag) == "--min-words is 5 and --max-words is 3: expected no more than that"
    again = pickle.loads(pickle.dumps(told.value))
    assert str(again) == str(told.value) == "min_words is 5 and max_words is 3: expected no more than that"


def test_numbers_and_devices(
    model: Path, photo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main([*words, "--model", str(model)])
        return int(left.value.code or 0), *capsys.readouterr()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    expected = Captioner.from_pretrained(model, device="cpu").caption(photo).text
    assert Captioner.from_pretrained(model).caption(photo).text == expected  # auto
    assert command("caption", str(photo), "--device", "auto")[1] == f"{expected}\n"
    for words in (["caption", str(photo)], ["batch", str(photo), "--out", "x.jsonl"], ["serve"]):
        code, out, err = command(*words, "--device", "cuda")
        assert (code, out) == (2, "") and err.count("\n") == 1 and "no CUDA device" in err, err
    with pytest.raises(MeshcapError, match="no CUDA device"):
        Captioner.from_pretrained(model, device="cuda")
    for name in ("bfloat16", "int8"):
        try:
            short = Captioner.from_pretrained(model, device="cpu", dtype=name).caption(photo).text
        except MeshcapError as error:  # a CPU without such kernels
            assert "int8" in str(error)
            continue
        assert command("caption", str(photo), "--device", "cpu", "--dtype", name)[1] == f"{short}\n"
