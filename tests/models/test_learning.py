"""Every captioner learns: eight drawn scenes by heart, and a new one by one class and one line."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tiny_data
from meshcap import Captioner
from meshcap.attention import State
from meshcap.data.scenes import draw_scene
from meshcap.decoding import Beam, Rules, decode
from meshcap.models import MODELS, create_model, register
from meshcap.models.recurrent import Carry, Cell, Looks, RecurrentCaptioner, RecurrentConfig, for_each, mean_region
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.losses import xe_loss
from meshcap.vision.backbone import Patches

CAPTIONERS = {name: (name, {}) for name in MODELS} | {
    "show-attend-tell-hard": ("show-attend-tell", {"attention": "hard", "entropy": 0.01}),
    "show-attend-tell-even": ("show-attend-tell", {"score": "bilinear", "doubly_stochastic": 0.1}),
    "hopfield-alone": ("hopfield", {"self_attention": False}),
    "m2-tied": ("m2", {"tied_words": True}),
    "show-attend-tell-tied": ("show-attend-tell", {"tied_words": True}),
}


@cache
def scenes() -> tuple[Regions, Tensor, Vocabulary]:
    """Eight pictures as cells, and a caption of each."""
    drawn = [draw_scene(number, 48) for number in range(8)]
    tokens = [scene.captions[0].split() for scene in drawn]
    vocabulary = Vocabulary.build(tokens, 1)
    vision = Patches(cells=4, side=12)
    regions = vision(torch.stack([vision.preprocess.pixels(scene.image) for scene in drawn]))
    ids = [[vocabulary.bos, *vocabulary.encode(one), vocabulary.eos] for one in tokens]
    longest = max(len(one) for one in ids)
    return regions, torch.tensor([one + [vocabulary.pad] * (longest - len(one)) for one in ids]), vocabulary


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTIONERS)
def test_learns_by_heart(name: str) -> None:
    kind, settings = CAPTIONERS[name]
    regions, ids, vocabulary = scenes()
    known = MODELS[kind].config_class.__dataclass_fields__
    sizes = {"heads": 2, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2}
    model = create_model(
        kind, vocab_size=len(vocabulary), d_input=432, d_model=64, dropout=0.0, suppressed_ids=(0, 1, 2),
        **{key: value for key, value in sizes.items() if key in known}, **settings,
    ).train()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    before = xe_loss(model.eval(), regions, ids).item()
    model.train()
    for _ in range(300):
        optimizer.zero_grad()
        xe_loss(model, regions, ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    after = xe_loss(model.eval(), regions, ids).item()
    assert before > 2
    assert after < 0.05
    found = decode(model, regions, Beam(3), Rules(max_length=ids.shape[1] - 1)).ids[:, 0]
    assert torch.equal(found, ids[:, 1:][:, : found.shape[1]])


@dataclass(frozen=True, kw_only=True)
class MeanConfig(RecurrentConfig):
    loudness: float = 1.0


class Mean(RecurrentCaptioner):
    """What CONTRIBUTING.md shows: an LSTM that is told the mean region once."""

    name = "mean"
    config_class = MeanConfig
    config: MeanConfig

    def __init__(self, config: MeanConfig):
        super().__init__(config)
        self.cell = Cell(config.d_model, config.d_model, config.d_model)
        self.reset_parameters()

    def remember(self, x: Tensor, regions: Regions) -> State:
        real = torch.ones_like(x[..., 0]) if regions.mask is None else regions.mask.to(x.dtype)
        return {"mean": mean_region(x, regions.mask), "even": real / real.sum(1, keepdim=True)}

    def begin(self, kept: State, width: int) -> Carry:
        mean = for_each(kept["mean"], width)
        return {"hidden": self.config.loudness * mean, "cell": torch.zeros_like(mean, dtype=torch.float32)}

    def advance(self, heard: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        hidden, cell = self.cell(heard, carry["hidden"], carry["cell"])
        return hidden, {"hidden": hidden, "cell": cell}, {"words": for_each(kept["even"], heard.shape[1])}


@pytest.fixture
def a_new_captioner():
    register(Mean)
    yield "mean"
    del MODELS["mean"]


def expect_a_run(model: str, folder: Path, **settings: object) -> None:
    """Both stages by the command line; the folder then captions a picture it has not seen."""
    data = tiny_data.scenes(folder / "scenes", train=8, val=2)
    words = tiny_data.train_words(data, folder / "run", "--arch", model, xe=4, scst=2, slots=None, **settings)
    assert tiny_data.call(words) == 0
    lines = tiny_data.read_lines(folder / "run" / "log.jsonl")
    assert all(abs(line["loss"]) < 1e4 for line in lines if "loss" in line)
    gaps = [line["disagreement"] for line in lines if "disagreement" in line]
    assert gaps and max(gaps) < 1e-4  # it speaks as it reads
    saved = json.loads((folder / "run" / "config.json").read_text())
    assert saved["model"] == model
    assert settings.items() <= saved.items()
    captioner = Captioner.from_pretrained(folder / "run")
    caption = captioner.caption(draw_scene(99, 48).image, attention=True)
    assert caption.attention.shape[0] == len(caption.text.split())


def test_a_new_captioner_is_one_class_and_one_line(a_new_captioner: str, tmp_path: Path) -> None:
    expect_a_run(a_new_captioner, tmp_path, loudness=2.0)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("seq2seq", {}),
        ("show-attend-tell", {"score": "scaled", "doubly_stochastic": 0.5}),
        ("show-attend-tell", {"attention": "hard", "entropy": 0.01}),
        ("hierarchical", {"groups": 2}),
        ("ntm", {"memory_rows": 6, "read_heads": 2}),
        ("hopfield", {"patterns": 5, "beta": "learned"}),
        ("transformer", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_trained_by_the_command_line(model: str, settings: dict, tmp_path: Path) -> None:
    expect_a_run(model, tmp_path, **settings)
