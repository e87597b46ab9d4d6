"""`meshcap export`."""

import json
from pathlib import Path

import pytest
from PIL import Image

import exported
import tiny
from meshcap.cli import main

pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mine"
    exported.captioner().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, picture in enumerate(exported.pictures()):
        Image.fromarray(picture).save(folder / f"{number}.png")
    return folder


def misuse(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as left:
        main(["export", *map(str, words)])
    assert left.value.code == 2
    told = capsys.readouterr().err.strip()
    assert len(told.splitlines()) == 1
    return told


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as left:
        main(["export", *map(str, words)])
    assert not left.value.code


def test_torch_archives_with_a_check(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(model, "--format", "torch", "--check", photos, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == "mine-torch"
    assert sorted(told["files"]) == ["calibration.json", "runtime.json", "say.pt2", "see.pt2", "vocabulary.json"]
    assert [(one["beams"], one["pictures"], one["same"]) for one in told["checks"]] == [(1, 6, 6), (5, 6, 6)]
    assert [path.name for path in tmp_path.iterdir()] == ["mine-torch"]


@pytest.mark.slow
def test_eight_bits_say_what_they_cost(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = exported.small(seed=7, d_model=64, d_ff=256)
    wide.save_pretrained(tmp_path / "wide")
    run(tmp_path / "wide", "--bits", "8", "--out", tmp_path / "narrow", "--check", photos)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("greedy: ") for line in lines)
    assert any(line.startswith("beam 5: ") and "of 6 captions are the same" in line for line in lines)
    assert (tmp_path / "narrow" / "say.onnx").is_file()


def test_misuse_is_told_in_one_line(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "32 bits" in misuse(capsys, model, "--format", "torch", "--bits", "8", "--out", out)
    assert "none.jpg is not there" in misuse(capsys, model, "--check", tmp_path / "none.jpg", "--out", out)
    (tmp_path / "text.jpg").write_text("no picture")
    mixed = ("--check", photos, "--check", tmp_path / "text.jpg")
    assert "text.jpg is no picture" in misuse(capsys, model, *mixed, "--out", out)
    assert "--runtime is for --format web" in misuse(capsys, model, "--runtime", photos, "--out", out)
    assert "--format onnx --bits 8" in misuse(capsys, model, "--format", "web", "--check", photos, "--out", out)
    no_runtime = misuse(capsys, model, "--format", "web", "--runtime", tmp_path / "none.tgz", "--out", out)
    assert "npm pack onnxruntime-web" in no_runtime
    assert "not standard input" in misuse(capsys, model, "--check", "-", "--out", out)
    assert "not an empty folder" in misuse(capsys, model, "--out", photos)
    assert "holds an exported model" in misuse(capsys, exported.folder("onnx"), "--out", out)
    blind = tmp_path / "blind"
    from meshcap.captioner import Captioner

    Captioner(tiny.build("m2"), exported.captioner().vocabulary).save_pretrained(blind)
    assert "precomputed features" in misuse(capsys, blind, "--out", out)
    assert not out.exists()


def test_an_exported_folder_captions(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`meshcap caption --model` takes it like any other, with the same options."""
    asked = ["caption", str(photos), "--n", "2", "--json", "--dtype", "float32"]
    told = []
    for folder in (model, exported.folder("onnx")):
        with pytest.raises(SystemExit) as left:
            main([*asked, "--model", str(folder)])
        assert not left.value.code
        told.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    ours, theirs = told
    assert len(theirs) == 6
    for a, b in zip(ours, theirs, strict=True):
        assert (a["file"], a["caption"]) == (b["file"], b["caption"])
        assert a["alternatives"][0]["caption"] == b["alternatives"][0]["caption"]
    with pytest.raises(SystemExit) as left:
        main([*asked, "--model", str(exported.folder("onnx")), "--must", "dog"])
    assert not left.value.code
    for line in capsys.readouterr().out.splitlines():
        found = json.loads(line)
        assert "dog" in found["caption"].lower() or found.get("missing") == ["dog"]
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(SystemExit) as left:
        main(["caption", str(tmp_path / "broken.jpg"), str(photos / "0.png"), "--model", str(exported.folder("onnx"))])
    assert left.value.code == 1
    both = capsys.readouterr()
    assert "broken.jpg" in both.err
    assert both.out.splitlines() == [f"{photos / '0.png'}\t{theirs[0]['caption']}"]
