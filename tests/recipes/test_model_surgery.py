"""recipes/model_surgery.py: means of models, other picture sizes, fewer bits; or nothing at all."""

from pathlib import Path

import pytest
import torch

import tiny
import tiny_captioner
from meshcap import Captioner
from meshcap.backends.packed import can_pack
from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary
from meshcap.vision import create_vision
from recipes import model_surgery
from recipes.model_surgery import at_size, blend, read

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]


def call(*words: object) -> str | None:
    """What is said instead of doing it."""
    try:
        model_surgery.main([str(word) for word in words])
    except SystemExit as left:
        return str(left.code)
    return None


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Path, Path]:
    for seed in (1, 2):
        tiny_captioner.build(seed=seed).save_pretrained(tmp_path / str(seed))
    return tmp_path / "1", tmp_path / "2"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    vision = create_vision("small-cnn", size=24, channels=(8, 16))
    captioner = Captioner(tiny.build("m2", d_input=vision.width, d_model=64, d_ff=128), Vocabulary(WORDS), vision)
    captioner.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("About this one.")
    (tmp_path / "model" / "log.jsonl").write_text("{}")  # of a run, and of no use in a captioner
    return tmp_path / "model"


def weights(captioner: Captioner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in captioner.model.state_dict().items()}


def test_shares(ends: tuple[Path, Path]) -> None:
    first, second = (read(end) for end in ends)
    one, other = weights(first), weights(second)
    for name, weight in weights(blend(first, second, 0.25)).items():
        torch.testing.assert_close(weight, one[name] * 0.75 + other[name] * 0.25)
    for share, expected in ((0.0, one), (1.0, other)):
        found = weights(blend(first, second, share))
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(torch.equal(weights(first)[name], one[name]) for name in one)
    with pytest.raises(MeshcapError, match=r"share is 1\.5"):
        blend(first, second, 1.5)


def test_only_relatives_blend(ends: tuple[Path, Path]) -> None:
    first, second = (read(end) for end in ends)
    blind = Captioner(second.model, second.vocabulary)
    with pytest.raises(MeshcapError, match="different image encoders"):
        blend(first, blind, 0.5)
    second.vocabulary = type(second.vocabulary)([*tiny_captioner.WORDS[:-1], "other"])
    with pytest.raises(MeshcapError, match="different words"):
        blend(first, second, 0.5)
    second.model.config = type(second.model.config)(**{**second.model.config.to_dict(), "gates": "softmax"})
    with pytest.raises(MeshcapError, match="different settings"):
        blend(first, second, 0.5)


def test_a_blend_is_written(ends: tuple[Path, Path], tmp_path: Path) -> None:
    assert call("blend", *ends, "--share", 0.5, "--out", tmp_path / "new") is None
    found, expected = read(tmp_path / "new"), blend(read(ends[0]), read(ends[1]), 0.5)
    assert all(torch.equal(weights(found)[name], weight) for name, weight in weights(expected).items())


def test_another_size_is_written(model: Path, tmp_path: Path) -> None:
    assert call("resize", model, "--size", 64, "--pre-resize", 32, "--out", tmp_path / "new") is None
    found, before = read(tmp_path / "new"), read(model)
    assert found.vision is not None and before.vision is not None
    assert (found.vision.preprocess.size, found.vision.preprocess.pre_resize) == (64, 32)
    for part in ("model", "vision"):
        one, other = getattr(found, part).state_dict(), getattr(before, part).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_one_size_only_and_none(model: Path) -> None:
    captioner = read(model)
    with pytest.raises(MeshcapError, match="no size to choose"):
        at_size(Captioner(captioner.model, captioner.vocabulary), 64)
    assert captioner.vision is not None
    captioner.vision.settings = dict  # type: ignore[method-assign]
    with pytest.raises(MeshcapError, match="of one size"):
        at_size(captioner, 64)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.4), (16, 0.55)])
def test_a_smaller_folder(bits: int, share: float, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    assert call("quantise", model, "--bits", bits, "--out", out) is None
    before, after = (sum(path.stat().st_size for path in one.rglob("model.safetensors")) for one in (model, out))
    assert after < share * before
    files = ["README.md", "config.json", "model.safetensors", "vision", "vocabulary.json"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert (out / "README.md").read_text() == "About this one."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "small"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_fewer_bits_caption_alike(dtype: torch.dtype, model: Path, tmp_path: Path) -> None:
    if dtype == torch.int8 and not can_pack(dtype):
        pytest.skip("torch without int8 kernels")
    (tmp_path / "small").mkdir()  # an empty one is filled
    assert call("quantise", model, "--out", tmp_path / "small") is None
    # Of a dozen, luck decides: two in ten may differ in 8 bits.
    seen = list(torch.randint(0, 256, (120, 24, 24, 3), dtype=torch.uint8).numpy())
    expected, found = (
        Captioner.from_pretrained(folder, dtype=kind).caption(seen, max_words=8)
        for folder, kind in ((model, torch.float32), (tmp_path / "small", dtype))
    )
    assert len({tuple(one.words) for one in expected}) > 3  # they do tell pictures apart
    same = sum(one.words == other.words for one, other in zip(expected, found, strict=True))
    assert same >= 0.75 * len(seen)


def test_without_an_image_encoder(tmp_path: Path) -> None:
    Captioner(tiny.build("m2-tied"), Vocabulary(WORDS)).save_pretrained(tmp_path / "model")
    assert call("quantise", tmp_path / "model", "--out", tmp_path / "small") is None
    assert Captioner.from_pretrained(tmp_path / "small").vision is None


def test_mistakes_write_nothing(model: Path, ends: tuple[Path, Path], tmp_path: Path) -> None:
    before, out = sorted(tmp_path.rglob("*")), tmp_path / "out"
    for words, message in (
        (("quantise", model, "--out", model), "exists and is not an empty folder"),
        (("quantise", model, "--out", model / "config.json"), "exists and is not an empty folder"),
        (("quantise", tmp_path / "nowhere", "--out", out), "nowhere"),
        (("blend", *ends, "--share", 2, "--out", out), "share is 2"),
        (("resize", model, "--size", 4, "--out", out), "size is 4"),
        (("resize", model, "--size", 64, "--pre-resize", -3, "--out", out), "is -3"),
    ):
        told = call(*words)
        assert told is not None and told.startswith("error: ") and message in told
    assert sorted(tmp_path.rglob("*")) == before
