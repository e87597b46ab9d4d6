"""`meshcap explain`: files that open, and one line for what makes no sense."""

import json
from pathlib import Path

import pytest
from PIL import Image

import tiny
from meshcap import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.text import Vocabulary
from meshcap.vision.backbone import Patches
from tiny_data import call

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder and a photo in it."""
    folder = tmp_path_factory.mktemp("model")
    vision = Patches(cells=4, side=4)
    Captioner(tiny.build("m2", d_input=vision.width), Vocabulary(WORDS), vision).save_pretrained(folder)
    draw_scene(3, 64).image.save(folder / "photo.png")
    return folder


def words(folder: Path, *more: object) -> list[str]:
    return [str(one) for one in ("explain", folder / "photo.png", "--model", folder, "--device", "cpu", *more)]


def test_a_page_beside_where_one_stands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(words(folder, "--attribution")) == 0
    captioner = Captioner.from_pretrained(folder)
    said = captioner.caption(folder / "photo.png")
    assert capsys.readouterr().out == f"photo.explain.html\t{said.confidence:.2f}\t{said.text}\n"
    assert [one.name for one in tmp_path.iterdir()] == ["photo.explain.html"]
    html = (tmp_path / "photo.explain.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>") and html.count('class="word') >= len(said.words)
    assert "photo.png" in html and "what counted" in html


def test_a_picture(folder: Path, tmp_path: Path) -> None:
    assert call(words(folder, "--out", tmp_path / "out.PNG")) == 0
    with Image.open(tmp_path / "out.PNG") as image:
        image.load()


def test_numbers_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        call(words(folder, "--json", "--caption", "A dog's ball", "--beams", 2, "--baseline", "mean", "--attribution"))
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [one["word"] for one in told["words"]] == ["a", "dog", "'s", "ball", "(end)"]
    assert all(0 <= one["probability"] <= 1 and len(one["attribution"]) == 16 for one in told["words"])
    assert len(told["best"]) == 2 and told["baseline"] == "mean" and not told["own"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--caption", "a dig"), "unknown word 'dig' in the caption: this vocabulary has 10 words, nearest known: dog"),
        (("--caption", ""), "has no words"),
        (("--out", "x.gif"), "x.gif, expected a name that ends in .html or .png"),
        (("--out", "nowhere/x.html"), "nowhere is not a folder"),
    ],
)
def test_nonsense_is_one_line(
    folder: Path, more: tuple[str, ...], told: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert call(words(folder, *more)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and told in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("photo", ["missing.png", "config.json", "."])
def test_what_is_no_photo(folder: Path, photo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["explain", str(folder / photo), "--model", str(folder), "--out", str(tmp_path / "x.html")]
    assert call(given) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_vision(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Captioner(tiny.shared("m2"), Vocabulary(WORDS)).save_pretrained(tmp_path)
    photo, out = str(folder / "photo.png"), str(tmp_path / "x.html")
    assert call(["explain", photo, "--model", str(tmp_path), "--out", out]) == 2
    assert "expected one with a vision" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explain", "--help"]) == 0
    assert "Example: meshcap explain photo.jpg" in capsys.readouterr().out
