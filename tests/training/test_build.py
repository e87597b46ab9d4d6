"""What a run begins with, the plan it makes, and another size for the same vision."""

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
from meshcap.models import MODELS
from meshcap.text import Vocabulary
from meshcap.training.build import build, resized, with_words
from meshcap.training.captions import check_captions, check_coverage
from meshcap.training.plan import complete
from meshcap.training.settings import TrainSettings
from meshcap.vision import create_vision, load_vision
from meshcap.vision.preprocess import Preprocess

CPU, GPU = torch.device("cpu"), torch.device("cuda")
TOKENS = [[["a", "dog"], ["a", "cat"]], [["the", "dog"], ["a", "bird"]]]
WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *"abcdef"]


@pytest.mark.parametrize("name", [*sorted(MODELS), "m2-tied", "show-attend-tell-tied"])
def test_new_words_change_nothing_that_was_known(name: str) -> None:
    """For the old words the odds among each other are what they were; the new ones begin as a rare word would."""
    model = tiny.build(name, suppressed_ids=(0, 1, 2))
    larger = with_words(model, 13, Vocabulary([*WORDS, "x", "y", "z"])).eval()
    regions, ids = tiny.pictures(4, 4), torch.tensor([[2, 4, 5, 6], [2, 9, 4, 4]])
    before, after = model(regions, ids), larger(regions, ids)
    assert after.shape[-1] == 13
    old = after[..., 3:10].log_softmax(-1)
    torch.testing.assert_close(old, before[..., 3:].log_softmax(-1), atol=1e-5, rtol=1e-4)
    assert torch.isfinite(after[..., 10:]).all()
    torch.testing.assert_close(after[..., 10], after[..., 12])
    assert after[..., :3].isneginf().all()


def test_a_model_with_no_new_words_never_says_unk() -> None:
    model = tiny.build("m2", suppressed_ids=(1, 2))
    same = with_words(model, 10, Vocabulary(WORDS)).eval()
    assert same(tiny.pictures(4), torch.tensor([[2, 4]]))[..., 0].isneginf().all()
    for one, other in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)


def test_captions_that_teach_nothing() -> None:
    check_captions(TOKENS)
    check_captions([[["a"], ["a"]]])  # of a single picture nothing else can be said
    with pytest.raises(MeshcapError, match="all 3 captions are 'a dog'"):
        check_captions([[["a", "dog"], ["a", "dog"]], [["a", "dog"]]])


def test_coverage() -> None:
    vocabulary = Vocabulary([*WORDS[:4], "a", "dog", "cat", "the"])
    assert check_coverage(vocabulary, TOKENS) == pytest.approx(1 / 8)
    with pytest.raises(MeshcapError, match="lacks 38% of the words"):
        check_coverage(Vocabulary([*WORDS[:4], "a", "dog"]), TOKENS)


def planned(given: dict, pictures: int, device: torch.device = CPU) -> TrainSettings:
    return complete(TrainSettings.named({"data.path": "", "run.out": "", **given}), pictures=pictures, device=device)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_new_captioner_says_only_words(name: str) -> None:
    given = {
        "model.arch": name, "model.vision": "patches", "model.size": 48, "model.d_model": 16, "model.heads": 2,
        "data.min_count": 1,
    }  # fmt: skip
    settings = planned(given, 2)
    parts = build(settings, TOKENS, None)
    assert sorted(parts.vocabulary.words[4:]) == ["a", "bird", "cat", "dog", "the"]
    assert parts.model.config.d_input == parts.vision.width
    assert set(parts.model.config.suppressed) == {0, 1, 2}
    assert parts.model.config.max_length == settings.data.max_length
    assert parts.model.config.dropout == settings.model.dropout


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("pictures", [1, 3, 40, 6_000, 100_000])
@pytest.mark.parametrize(
    "given",
    [
        {}, {"model.vision": "small-cnn"}, {"model.vision": "patches"}, {"data.features": "f"}, {"model.start": "s"}
    ],
)  # fmt: skip
def test_plans_leave_nothing_open(device: torch.device, pictures: int, given: dict) -> None:
    settings = planned(given, pictures, device)
    for name in ("xe.batch", "scst.batch", "xe.steps", "scst.steps", "xe.lr", "scst.lr", "run.validate_every"):
        assert settings.get(name) is not None, name
        assert settings.get(name) >= 1e-9, name
    few = device == GPU and "model.start" in given and pictures < 500
    assert settings.xe.lr_vision >= 0 and (settings.scst.lr_vision > 0) is few
    assert settings.xe.batch <= pictures and settings.scst.batch <= pictures
    assert settings.run.validate_every <= settings.xe.steps
    if "model.start" not in given:
        assert settings.model.d_model % settings.model.heads == 0
    # A plan that is completed again, as at --resume, is the same plan.
    assert complete(settings, pictures=pictures, device=device) == settings


def test_what_a_person_decides_is_kept() -> None:
    own = {
        "xe.batch": 7, "xe.lr": 0.5, "model.d_model": 24, "model.heads": 3, "xe.epochs": 2.0, "scst.steps": 11,
        "xe.ema": 0.0,
    }  # fmt: skip
    settings = planned(own, 70)
    assert settings.xe.steps == 20
    assert settings.xe.epochs is None
    for name, value in own.items():
        if name != "xe.epochs":
            assert settings.get(name) == value


def test_few_pictures_get_enough_steps() -> None:
    """Ten epochs over 71 pictures would be 22 steps, in which nobody learns to speak; asked-for epochs are obeyed."""
    few = planned({}, 71)
    assert (few.xe.steps, few.scst.steps) == (500, 50)
    assert few.run.validate_every is not None
    assert 4 <= few.xe.steps // few.run.validate_every <= 40
    asked = planned({"xe.epochs": 1, "scst.epochs": 1}, 71)
    assert (asked.xe.steps, asked.scst.steps) == (2, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vision = create_vision("small-cnn", size=48)
    model = tiny.build("m2", vocab_size=len(tiny_captioner.WORDS), d_input=vision.width, max_length=25)
    Captioner(model, Vocabulary(tiny_captioner.WORDS), vision).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_same_vision_sees_more_cells() -> None:
    vision = create_vision("small-cnn", size=48).eval()
    larger = resized(vision, 64)
    picture = draw_scene(3, 64).image.convert("RGB")
    direct = create_vision("small-cnn", size=64).eval()
    direct.load_state_dict(vision.state_dict())
    pixels = larger.preprocess.pixels(picture)[None]
    torch.testing.assert_close(larger.eval()(pixels).features, direct(pixels).features)
    assert larger(pixels).features.shape[1] > vision(vision.preprocess.pixels(picture)[None]).features.shape[1]
    assert vision.preprocess.size == 48


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
