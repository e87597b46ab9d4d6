"""`meshcap quantise`: a smaller folder that captions alike, or none."""

import re
from pathlib import Path

import pytest
import torch

import tiny
from meshcap import Captioner, cli
from meshcap.models.packed import can_pack
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]
FILES = ["README.md", "config.json", "model.safetensors", "vision", "vocabulary.json"]


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["quantise", *(str(word) for word in words)])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def mistake(done: tuple[int, str, str], message: str) -> None:
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    vision = create_vision("small-cnn", size=24, channels=(8, 16))
    captioner = Captioner(tiny.build("m2", d_input=vision.width, d_model=64, d_ff=128), Vocabulary(WORDS), vision)
    captioner.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("About this one.")
    (tmp_path / "model" / "log.jsonl").write_text("{}")  # of a run, and of no use in a captioner
    return tmp_path / "model"


def pictures(count: int = 12) -> list:
    return list(torch.randint(0, 256, (count, 24, 24, 3), dtype=torch.uint8).numpy())


@pytest.mark.parametrize(("bits", "share", "moved"), [(8, 0.4, 0.4), (16, 0.55, 0.05)])
def test_a_smaller_folder(
    bits: int, share: float, moved: float, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    code, told, _ = call(capsys, model, out, "--bits", bits)
    assert code == 0
    found = re.fullmatch(
        rf"{out}: ([\d.]+) MB of weights before, ([\d.]+) MB in {bits} bits; largest error ([\d.]+)% of the largest "
        "weight beside it\n",
        told,
    )
    before, after = (sum(path.stat().st_size for path in one.rglob("model.safetensors")) for one in (model, out))
    assert after < share * before
    assert [float(one) for one in found.groups()[:2]] == [round(before / 1e6, 2), round(after / 1e6, 2)]
    assert 0 < float(found[3]) <= moved  # of 8 bits at most half a 127th
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert (out / "README.md").read_text() == "About this one."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "small"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_it_captions_alike(dtype: torch.dtype, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if dtype == torch.int8 and not can_pack(dtype):
        pytest.skip("torch without int8 kernels")
    (tmp_path / "small").mkdir()  # an empty one is filled
    assert call(capsys, model, tmp_path / "small")[0] == 0
    seen = pictures(120)  # of a dozen, luck decides: two in ten may differ in 8 bits
    expected, found = (
        Captioner.from_pretrained(folder, dtype=kind).caption(seen, max_length=9)
        for folder, kind in ((model, torch.float32), (tmp_path / "small", dtype))
    )
    assert len({tuple(one.words) for one in expected}) > 3  # they do tell pictures apart
    same = sum(one.words == other.words for one, other in zip(expected, found, strict=True))
    assert same >= 0.75 * len(seen)


def test_without_eyes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Captioner(tiny.build("m2-tied"), Vocabulary(WORDS)).save_pretrained(tmp_path / "model")
    assert call(capsys, tmp_path / "model", tmp_path / "small")[0] == 0
    assert Captioner.from_pretrained(tmp_path / "small").vision is None


def test_mistakes_write_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    mistake(call(capsys, model, model), "exists and is not an empty folder")
    mistake(call(capsys, model, model / "config.json"), "exists and is not an empty folder")
    mistake(call(capsys, tmp_path / "nowhere", tmp_path / "out"), "nowhere")
    mistake(call(capsys, model, model / "config.json" / "out"), "config.json")
    assert call(capsys, model, tmp_path / "out", "--bits", 4)[0] == 2
    assert sorted(tmp_path.rglob("*")) == before
    (model / "vision" / "model.safetensors").write_bytes(b"")
    mistake(call(capsys, model, tmp_path / "out"), "truncated or corrupted")
    assert sorted(tmp_path.rglob("*")) == before
