"""CLIPScore with a tiny CLIP of random weights, against transformers' own forward pass."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.metrics import clip, score
from meshcap.metrics.clip import MEAN, SD, clip_scores, find_pictures

SIDE = 8
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP folder as transformers saves it."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    folder = tmp_path_factory.mktemp("clip") / "tiny-clip"
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [",", "."]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": len(words), "max_position_embeddings": 32, "bos_token_id": 56, "eos_token_id": 57}
    vision = {**sizes, "image_size": SIDE, "patch_size": 4}
    torch.manual_seed(3)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({word: id for id, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    told = {"tokenizer_class": "CLIPTokenizer", "pad_token": "<|endoftext|>", **ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def draw(path: Path, size: tuple[int, int] = (SIDE, SIDE), seed: int = 0) -> numpy.ndarray:
    pixels = numpy.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=numpy.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@needs_transformers
def test_scores_are_those_of_transformers_own_forward_pass(folder: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer, CLIPModel

    pixels = numpy.stack([draw(tmp_path / f"{k}.png", seed=k) for k in range(5)])
    captions = [["a cat", "two dogs, running", "", "a cat", "x" * 200], ["b", "c", "d", "e", "f"]]
    references = [["one cat", "a cat"], ["dogs"], ["nothing", "at", "all"], ["a car"], ["y"]]
    told: list[str] = []
    found = clip_scores(folder, [tmp_path / f"{k}.png" for k in range(5)], captions, references, told.append)
    assert told == ["CLIPScore: 0 of 5 pictures", "CLIPScore: 0 of 16 captions"]

    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    values = (pixels / 255 - numpy.array(MEAN)) / numpy.array(SD)
    images = torch.from_numpy(values.transpose(0, 3, 1, 2).astype("float32"))

    def forward(texts: list[str], picture: int) -> tuple[numpy.ndarray, torch.Tensor]:
        asked = [f"A photo depicts {text}" for text in texts]
        tokens = tokenizer(asked, padding="max_length", truncation=True, max_length=32, return_tensors="pt")
        with torch.no_grad():
            out = model(pixel_values=images[picture : picture + 1], **tokens)
        return out.logits_per_image[0].numpy() / model.logit_scale.exp().item(), out.text_embeds

    for system, (plain, with_references) in zip(captions, found, strict=True):
        assert [plain.name, with_references.name] == ["CLIPScore", "RefCLIPScore"]
        for k, caption in enumerate(system):
            cosines, vectors = forward([caption, *references[k]], k)
            fits = 2.5 * max(cosines[0], 0)
            nearest = max(0.0, float((vectors[1:] @ vectors[0]).max()))
            assert plain.per_image[k] == pytest.approx(fits, abs=1e-5)
            expected = 2 * fits * nearest / (fits + nearest) if fits + nearest else 0
            assert with_references.per_image[k] == pytest.approx(expected, abs=1e-5)
        assert plain.corpus() == pytest.approx(plain.per_image.mean())
    assert len({round(float(value), 6) for value in found[0][0].per_image}) > 2  # weights that tell pictures apart
    assert "torchvision" not in sys.modules


@needs_transformers
def test_through_score(folder: Path, tmp_path: Path) -> None:
    draw(tmp_path / "COCO_val2014_000000000001.jpg", (20, 12))
    draw(tmp_path / "deep" / "000000000002.png", (9, 31), seed=2)
    found = score({1: "a dog", 2: "a cat"}, {1: ["dogs"], 2: ["cats"]}, clip=folder, pictures=tmp_path, bootstrap=20)
    assert list(found.scores)[-2:] == ["CLIPScore", "RefCLIPScore"]
    assert 0 <= found.per_image["1"]["CLIPScore"] <= 2.5
    assert "|CLIPScore:tiny-clip,w=2.5|" in found.signature
    with pytest.raises(MeshcapError, match=r"CLIPScore needs the pictures: give their folder with --pictures"):
        score({1: "a dog"}, {1: ["dogs"]}, clip=folder)


@needs_transformers
def test_folders_that_hold_no_clip(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MeshcapError, match="cannot be loaded as a CLIP model: "):
        clip.Clip(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=r"holds no config\.json, expected a CLIP folder as transformers saves it"):
        clip.Clip(tmp_path)


def test_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MeshcapError) as raised:
        clip.Clip(tmp_path)
    assert str(raised.value) == 'CLIPScore needs transformers: pip install "meshcap[hf]"'


def test_pictures_are_found_by_name_and_id(tmp_path: Path) -> None:
    for name in ("a.jpg", "val/COCO_val2014_000000000042.jpg", "000000000007.png", "note.txt"):
        draw(tmp_path / name) if not name.endswith("txt") else (tmp_path / name).touch()
    found = find_pictures(tmp_path, ["a", "42", "7", "x", "features/a.npy"], {"x": "somewhere/else/a.jpg"})
    assert [path.name for path in found] == [
        "a.jpg", "COCO_val2014_000000000042.jpg", "000000000007.png", "a.jpg", "a.jpg",
    ]  # fmt: skip
    with pytest.raises(MeshcapError, match=r"2 of 3 pictures are not in .* \(first: '8'\), expected files named by id"):
        find_pictures(tmp_path, ["a", "8", "note"])
    with pytest.raises(MeshcapError, match="is not a folder, expected one with the pictures"):
        find_pictures(tmp_path / "none", ["a"])


def test_preparation_scales_the_short_side_and_keeps_the_middle(tmp_path: Path) -> None:
    wide = numpy.zeros((SIDE, 3 * SIDE, 3), numpy.uint8)
    wide[:, SIDE : 2 * SIDE] = (255, 128, 0)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    found = clip._pixels(tmp_path / "wide.png", SIDE, MEAN, SD)
    expected = (numpy.array([1, 128 / 255, 0]) - MEAN) / SD
    numpy.testing.assert_allclose(found, numpy.broadcast_to(expected[:, None, None], (3, SIDE, SIDE)), atol=1e-6)
    Image.fromarray(wide).resize((6 * SIDE, 2 * SIDE), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    found = clip._pixels(tmp_path / "large.png", SIDE, MEAN, SD)
    middle = numpy.broadcast_to(expected[:, None, None], (3, SIDE, SIDE - 4))
    numpy.testing.assert_allclose(found[:, :, 2:-2], middle, atol=1e-6)


def test_what_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8 no")
    with pytest.raises(MeshcapError, match=r"a\.jpg cannot be read as a picture"):
        clip._pixels(tmp_path / "a.jpg", SIDE, MEAN, SD)


def test_colours_of_the_folder(tmp_path: Path) -> None:
    assert clip._colours(tmp_path) == (MEAN, SD)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [1, 1, 1]}')
    assert clip._colours(tmp_path) == ([0.5] * 3, [1] * 3)
    (tmp_path / "preprocessor_config.json").write_text("no")
    assert clip._colours(tmp_path) == (MEAN, SD)
