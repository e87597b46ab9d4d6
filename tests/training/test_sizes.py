"""Another size for the same eyes: the same weights, other squares."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import tiny
import tiny_captioner
import tiny_data
from meshcap import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary
from meshcap.training.build import resized
from meshcap.vision import create_vision, load_vision
from meshcap.vision.preprocess import Preprocess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    eyes = create_vision("small-cnn", size=48)
    model = tiny.build("m2", vocab_size=len(tiny_captioner.WORDS), d_input=eyes.width, max_length=25)
    Captioner(model, Vocabulary(tiny_captioner.WORDS), eyes).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_same_eyes_see_more_cells() -> None:
    eyes = create_vision("small-cnn", size=48).eval()
    larger = resized(eyes, 64)
    picture = draw_scene(3, 64).image.convert("RGB")
    direct = create_vision("small-cnn", size=64).eval()
    direct.load_state_dict(eyes.state_dict())
    pixels = larger.preprocess.pixels(picture)[None]
    torch.testing.assert_close(larger.eval()(pixels).features, direct(pixels).features)
    assert larger(pixels).features.shape[1] > eyes(eyes.preprocess.pixels(picture)[None]).features.shape[1]
    assert eyes.preprocess.size == 48


def test_through_a_smaller_square() -> None:
    picture = draw_scene(5, 300).image.convert("RGB").resize((300, 200))
    way = Preprocess(size=64, pre_resize=32)
    small = picture.resize((32, 32), Image.Resampling.BICUBIC, reducing_gap=3.0)
    assert torch.equal(way.pixels(picture), Preprocess(size=64).pixels(small))
    assert not torch.equal(way.pixels(picture), Preprocess(size=64).pixels(picture))
    # Of a crop, the middle is cut out once.
    cropped = Preprocess(size=64, geometry="crop", pre_resize=32).pixels(picture)
    middle = picture.resize((32, 32), Image.Resampling.BICUBIC, box=(50, 0, 250, 200), reducing_gap=3.0)
    assert torch.equal(cropped, Preprocess(size=64).pixels(middle))
    with pytest.raises(MeshcapError, match="pre_resize is -1"):
        Preprocess(pre_resize=-1)


def test_training_on_at_another_size(folder: Path, tmp_path: Path) -> None:
    data = tiny_data.scenes(tmp_path / "scenes")
    words = tiny_data.train_words(data, tmp_path / "run", "--from", folder, "--size", 64, xe=1, vision=None)
    assert tiny_data.call(words) == 0
    assert load_vision(tmp_path / "run").preprocess.size == 64


@pytest.mark.parametrize("given", ["model.heads=2", "model.gates=softmax", "model.geometry=crop"])
def test_a_model_keeps_its_own_settings(
    folder: Path, tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny_data.scenes(tmp_path / "scenes")
    words = tiny_data.train_words(data, tmp_path / "run", "--from", folder, "--set", given, xe=1, vision=None)
    assert tiny_data.call(words) == 2
    assert f"{given.split('=')[0]} and --from" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
