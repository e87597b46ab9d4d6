"""`meshcap evaluate`: captions, scores and a report that other commands agree with."""

import json
import shutil
from pathlib import Path

import pytest

import tiny_data
from meshcap.captioner import Captioner


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"), train=16, val=3, test=5)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert tiny_data.call(tiny_data.train_words(data, folder, xe=6)) == 0
    return folder


def evaluate(run: Path, data: Path, *more: object) -> int:
    words = ["evaluate", run, data, "--device", "cpu", "--threads", 1, "--bootstrap", 20, *more]
    return tiny_data.call([str(word) for word in words])


def test_files_and_scores(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "evaluation"
    assert evaluate(run, data, "--out", out, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == [
        "captions-test.json", "report-test.html", "scores-test.json"
    ]  # fmt: skip
    assert json.loads((out / "scores-test.json").read_text()) == told
    captions = json.loads((out / "captions-test.json").read_text())
    assert [one["image_id"] for one in captions] == [f"{number}.png" for number in range(19, 24)]
    assert all(one["caption"] in (out / "report-test.html").read_text() for one in captions)

    # The same captions against the same references, by the command that knows nothing of models.
    test = [one for one in tiny_data.read_lines(data) if one["split"] == "test"]
    references = tiny_data.write_lines(tmp_path / "references.jsonl", test)
    words = ["score", out / "captions-test.json", "--references", references, "--metrics", "cider", "--json"]
    assert tiny_data.call([str(word) for word in words]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert told["scores"]["CIDEr"] > 0
    assert scored["scores"]["CIDEr"] == pytest.approx(told["scores"]["CIDEr"], abs=1e-9)


def test_captions_are_those_of_the_captioner(data: Path, run: Path, tmp_path: Path) -> None:
    assert evaluate(run, data, "--out", tmp_path / "out", "--beams", 3, "--batch-size", 2, "--dtype", "float32") == 0
    captions = json.loads((tmp_path / "out" / "captions-test.json").read_text())

    captioner = Captioner.from_pretrained(run, dtype="float32")
    pictures = [data.parent / one["image_id"] for one in captions]
    said = captioner.caption(pictures, beams=3, good_endings=False)
    assert [one.text for one in said] == [one["caption"] for one in captions]
    assert [one.confidence for one in said] == pytest.approx([one["confidence"] for one in captions], abs=1e-4)


def test_other_splits_and_metrics(data: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(run, data, "--split", "val", "--metrics", "CIDEr", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["scores"]) == {"CIDEr"}
    assert evaluate(run, data, "--split", "val") == 0
    assert "CIDEr" in capsys.readouterr().out


def test_mistakes(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(message: str, *words: object) -> None:
        capsys.readouterr()
        assert evaluate(*words) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("error: ")
        assert message in err

    refused("no pictures in the split 'dev'", run, data, "--split", "dev")
    refused("nowhere", tmp_path / "nowhere", data)
    refused("gone.jsonl", run, tmp_path / "gone.jsonl")
    copy = tmp_path / "copy"
    shutil.copytree(data.parent, copy)
    (copy / "20.png").write_bytes(b"no picture")
    out = tmp_path / "out"
    refused("20.png", run, copy / data.name, "--out", out)
    assert not list(out.glob("*"))
    (tmp_path / "file").write_text("")
    refused("cannot be made", run, data, "--out", tmp_path / "file" / "out")
    refused("METEORITE", run, data, "--metrics", "METEORITE")
