"""benchmarks/caption.py: it measures a small captioner in processes of its own, and peers where they are."""

import json
from pathlib import Path

import pytest

import tiny
import tiny_data
from benchmarks import caption as bench
from benchmarks.caption import COLUMNS, Cost, bench_caption, draw_photos, weights_of
from benchmarks.common import show
from meshcap import Captioner
from meshcap.text import Vocabulary
from meshcap.vision import create_vision


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = tiny_data.bench(bench.command, *words)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vision = create_vision("small-cnn", size=48)
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(30))]
    model = tiny.build("m2", d_input=vision.width, vocab_size=len(words), suppressed_ids=(0, 1, 2))
    Captioner(model, Vocabulary(words), vision).save_pretrained(tmp_path / "model", bits=8)
    return tmp_path / "model"


def test_weights_are_counted_once(folder: Path) -> None:
    """Scales of 8 bits are no weights of their own."""
    captioner = Captioner.from_pretrained(folder)
    assert captioner.vision is not None
    whole = folder.parent / "whole"
    vision = create_vision("small-cnn", size=48)
    model = tiny.build("m2", d_input=vision.width, vocab_size=34, suppressed_ids=(0, 1, 2))
    Captioner(model, captioner.vocabulary, vision).save_pretrained(whole)
    expected = sum(t.numel() for part in (model, vision) for t in part.state_dict().values())
    assert weights_of(whole)[0] == weights_of(folder)[0] == expected
    files = [path.stat().st_size for path in whole.rglob("*.safetensors")]
    assert len(files) == 2
    assert weights_of(whole)[1] == sum(files) > weights_of(folder)[1]


def test_photos_are_of_the_size_that_is_told(tmp_path: Path) -> None:
    from PIL import Image

    paths = draw_photos(tmp_path, 3)
    assert len({Path(path).read_bytes() for path in paths}) == 3
    with Image.open(paths[2]) as image:
        assert (image.size, image.format) == ((640, 480), "JPEG")


def test_it_measures(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers are left out where transformers is missing."""
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    code, out, err = call(
        capsys, "--model", folder, "--pictures", 3, "--repeat", 1, "--words", 5, "--dtype", "float32", "--threads", 1,
        "--json",
    )  # fmt: skip
    assert code == 0 and err.startswith("meshcap, float32\n") and len(err.splitlines()) == 1 + len(bench.PEERS)
    row, blip, *others = json.loads(out)["rows"]
    # A process that has to import torch starts slower than it captions with a network of this size.
    assert row["cold_start"] > row["photo"] > 0
    assert row["folder"] > 0
    assert row["memory"] > 50e6
    assert (row["parameters"], row["file"]) == weights_of(folder)
    assert (blip["name"], blip["missing"]) == ("BLIP-base (random weights)", 'pip install "meshcap[hf]"')
    assert all(one["missing"] for one in others)


def test_peers_can_be_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(bench, "bench_caption", lambda *given, peers, **more: asked.extend([*peers, "asked"]) or [])
    assert tiny_data.bench(bench.command, "--model", folder, "--no-peers", "--json") == 0
    assert asked == ["asked"]


@pytest.mark.slow
def test_peers_have_the_published_sizes(folder: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"pictures": 1, "beams": 2, "words": 3, "repeat": 1, "threads": 1}
    rows = bench_caption(folder, dtypes=[], peers=["blip", "git", "vit-gpt2", "florence"], **sizes)
    # In millions, tied weights counted once.
    for row, millions in zip(rows, (224, 177, 239, 231), strict=True):
        assert row.parameters / 1e6 == pytest.approx(millions, rel=0.02), row.name
        assert row.file > row.parameters * 3.9  # float32, as published
        assert row.folder is None


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show("Captions", [Cost("meshcap", 2.5, 0.123, 0.2, 12.0, 450e6, 30_600_000, 31_800_000)], COLUMNS)
    out = capsys.readouterr().out
    for shown in ("2.50 s", "0.123 s", "0.200 s", "12.0/s", "450 MB", "30.6 M", "31.8 MB"):
        assert shown in out


def test_where_the_time_goes(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the start and of a photo; of what is exported, the encoder is part of what sees."""
    monkeypatch.setattr(bench, "EXAMPLES", folder.parent)
    monkeypatch.setattr(bench, "draw_photos", lambda place, count: draw_photos(place, 2))  # of examples there are none
    words = ["--model", folder, "--parts", "--repeat", 1, "--words", 5, "--dtype", "float32", "--threads", 1, "--json"]
    code, out, _ = call(capsys, *words)
    assert code == 0
    row, onnx = json.loads(out)["rows"]
    assert row["same"] == row["photos"] == 2
    for name in ("torch", "meshcap", "weights", "first", "cold_start", "decode", "vision", "encoder", "text", "photo"):
        assert row[name] > 0, name
    if not onnx["missing"]:
        assert onnx["same"] == 2 and onnx["encoder"] == 0 and onnx["photo"] > 0


def test_mistakes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (("--model", tmp_path / "none"), "no model folder here"),
        (("--model", folder, "--dtype", "auto"), "--dtype is 'auto', expected float32"),
        (("--model", tmp_path, "--no-peers", "--pictures", 1), "has no config.json"),
    ):
        code, _, err = call(capsys, *words)
        assert code == 2
        assert told in err.splitlines()[-1]
