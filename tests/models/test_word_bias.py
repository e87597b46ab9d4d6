"""A number of its own for each word, added to its logit: the same everywhere that logits are made."""

import copy
import json
from pathlib import Path

import pytest
import torch

import exported
import tiny
from meshcap import Captioner
from meshcap.export import compare, export_captioner
from meshcap.models import MODELS, CaptionModel, load
from meshcap.models.output import Output
from meshcap.models.packed import can_pack, pack
from meshcap.models.words import Words
from meshcap.training.optimiser import make_optimiser, named_weights
from meshcap.training.xe import xe_loss

PICTURES = tiny.pictures(3, 6)
IDS = torch.tensor([[2, 4, 5, 6]]).expand(2, -1)
BIAS = torch.tensor([9.0, 9.0, 9.0, 0.0, 0.5, -1.0, 2.0, 0.0, 3.0, 0.25])  # 9: of words that are never said


def output(model: CaptionModel) -> Output:
    return next(module for module in model.modules() if isinstance(module, Output))


def pair(name: str, **settings) -> tuple[CaptionModel, CaptionModel]:
    """The same captioner with a bias and without."""
    plain = tiny.build(name, never=(0, 1, 2), **settings)
    biased = tiny.build(name, never=(0, 1, 2), word_bias=True, **settings)
    rest = biased.load_state_dict(plain.state_dict(), strict=False)
    assert [one.removeprefix("decoder.") for one in rest.missing_keys] == ["output.bias"] and not rest.unexpected_keys
    with torch.no_grad():
        output(biased).bias.copy_(BIAS)
    return biased, plain


def expected(plain: CaptionModel) -> torch.Tensor:
    return (plain(PICTURES, IDS) + BIAS).log_softmax(-1)


@pytest.mark.parametrize("tied", [False, True])
def test_closed_form(tied: bool) -> None:
    words = Words(10, 16, tied=True) if tied else None
    made = Output(16, 10, (0, 1, 2), words, bias=True)
    assert not made.bias.any()
    made.bias.data.copy_(BIAS)
    y = torch.randn(5, 16)
    logits = y @ made.words.weight.T + BIAS
    logits[:, :3] = float("-inf")
    torch.testing.assert_close(made(y), logits.log_softmax(-1))
    torch.testing.assert_close(made(y, made.aligned()), logits.log_softmax(-1))
    weight, added = made.aligned()
    assert weight.shape == (16, 16) and torch.equal(added[3:10], BIAS[3:])
    assert added[:3].isneginf().all() and added[10:].isneginf().all()


def test_none_unless_asked_for() -> None:
    made = Output(16, 10, (1,))
    assert made.bias is None and [name for name, _ in made.named_parameters()] == ["words.weight"]


@torch.no_grad()
@pytest.mark.parametrize("name", [*sorted(MODELS), "m2-tied"])
def test_it_is_added_and_the_rest_renormalised(name: str) -> None:
    biased, plain = pair(name)
    torch.testing.assert_close(biased(PICTURES, IDS), expected(plain), atol=1e-5, rtol=1e-4)
    assert biased(PICTURES, IDS)[..., :3].isneginf().all()
    # A word at a time, as searches do.
    state = biased.start(biased.encode(PICTURES), width=1, length=4)
    steps = [biased.step(one[:, None], state)[:, 0] for one in IDS.unbind(1)]
    torch.testing.assert_close(torch.stack(steps, 1), expected(plain), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["m2", "m2-tied", "show-attend-tell"])
def test_packed(name: str) -> None:
    biased, plain = pair(name)
    if can_pack(torch.float32):
        torch.testing.assert_close(pack(copy.deepcopy(biased))(PICTURES, IDS), expected(plain), atol=1e-5, rtol=1e-4)
    if can_pack(torch.int8):
        found, without = (pack(copy.deepcopy(one), int8=True) for one in (biased, plain))
        torch.testing.assert_close(found(PICTURES, IDS), expected(without), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_saved_exactly(bits: int, tmp_path: Path) -> None:
    """Vectors are not rounded, whatever the bits."""
    for name, model in zip(("biased", "plain"), pair("m2", d_model=64, d_ff=128), strict=True):
        model.save_pretrained(tmp_path / name, bits=bits)
    again = load(tmp_path / "biased")
    assert again.config.word_bias and torch.equal(output(again).bias, BIAS)
    torch.testing.assert_close(again(PICTURES, IDS), expected(load(tmp_path / "plain")), atol=1e-5, rtol=1e-4)


def test_folders_of_before(tmp_path: Path) -> None:
    model = tiny.build("m2")
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    assert settings.pop("word_bias") is False
    path.write_text(json.dumps(settings))
    again = load(tmp_path)
    assert not again.config.word_bias
    assert torch.equal(again(PICTURES, IDS), model(PICTURES, IDS))


def test_it_learns_and_does_not_decay() -> None:
    biased, _ = pair("m2", dropout=0.0)
    optimiser = make_optimiser(
        named_weights(biased, None), lr=1.0, lr_vision=1.0, decay=0.1, device=torch.device("cpu")
    )
    (group,) = (one for one in optimiser.param_groups if any(w is output(biased).bias for w in one["params"]))
    assert group["weight_decay"] == 0
    xe_loss(biased, PICTURES, IDS[:, None]).backward()
    # Of cross-entropy, the gradient of a bias is how much too often the word is expected.
    said = biased(PICTURES, IDS[:, :-1]).exp().mean((0, 1)) - torch.bincount(IDS[0, 1:], minlength=10) / 3
    torch.testing.assert_close(output(biased).bias.grad, said, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "runtime"), [("torch", "torch-export"), ("onnx", "onnx")])
def test_exported(format: str, runtime: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    captioner = exported.small(encoder_layers=1, decoder_layers=1, seed=7, word_bias=True)
    before = captioner.caption(exported.pictures())
    with torch.no_grad():
        output(captioner.model).bias.copy_(BIAS)
    assert [one.text for one in captioner.caption(exported.pictures())] != [one.text for one in before]
    export_captioner(captioner, tmp_path / "out", format=format)
    found = compare(captioner, Captioner.from_pretrained(tmp_path / "out", runtime=runtime), exported.pictures())
    assert (found.same, found.differing) == (6, ()) and found.largest < 1e-4
