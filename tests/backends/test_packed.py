"""Weights rearranged for the CPU give the same captions."""

import copy
from pathlib import Path

import pytest
import torch

import tiny
from meshcap.backends.packed import Int8Linear, PackedLinear, can_pack, pack
from meshcap.captioner import Captioner
from meshcap.decoding import Beam, Rules, decode
from meshcap.errors import MeshcapError

PICTURES = tiny.pictures(3, 6, 2)
IDS = torch.tensor([[2, 4, 5, 6, 7]]).expand(3, -1)


@torch.no_grad()
@pytest.mark.skipif(not can_pack(torch.float32), reason="torch without oneDNN")
def test_packed_models_say_the_same(captioner) -> None:
    packed = pack(copy.deepcopy(captioner))
    assert any(isinstance(module, PackedLinear) for module in packed.modules())
    torch.testing.assert_close(packed(PICTURES, IDS), captioner(PICTURES, IDS), atol=1e-5, rtol=1e-4)
    found, expected = (decode(model, PICTURES, Beam(3), Rules(max_length=6), n_best=3) for model in (packed, captioner))
    assert torch.equal(found.ids, expected.ids)
    torch.testing.assert_close(found.scores, expected.scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.skipif(not can_pack(torch.int8), reason="torch without int8 kernels")
def test_int8_is_near(captioner) -> None:
    rounded = pack(copy.deepcopy(captioner), int8=True)
    assert not any(type(module) is torch.nn.Linear for module in rounded.modules())
    assert any(isinstance(module, Int8Linear) for module in rounded.modules())
    found, expected = (model(PICTURES, IDS).exp() for model in (rounded, captioner))
    assert (found - expected).abs().max() < 0.15
    assert (found - expected).abs().mean() < 0.02
    assert not torch.equal(found, expected)  # it does round
    assert decode(rounded, PICTURES, Beam(3), Rules(max_length=6)).ids.shape == (3, 1, 6)


@pytest.mark.skipif(not can_pack(torch.int8), reason="torch without int8 kernels")
def test_int8_against_its_closed_form() -> None:
    linear = torch.nn.Linear(32, 8)
    x = torch.randn(5, 32)
    scales = linear.weight.abs().amax(1, keepdim=True) / 127
    weight = (linear.weight / scales).round() * scales
    expected = torch.nn.functional.linear(x, weight, linear.bias)
    step = (x.max() - x.min()) / 127  # of the inputs, at the least
    assert (Int8Linear(linear)(x) - expected).abs().max() < step * weight.abs().sum(1).max() / 2


@pytest.mark.parametrize("int8", [False, True])
def test_packed_models_are_not_saved(int8: bool, tmp_path: Path) -> None:
    """Half of their weights would be missing from the file."""
    if not can_pack(torch.int8 if int8 else torch.float32):
        pytest.skip("torch without such kernels")
    model = tiny.build("m2")
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(MeshcapError, match="laid out for the CPU cannot be saved"):
        pack(model, int8=int8).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_int8_is_refused_where_it_cannot_be(captioner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshcap.backends.packed.can_pack", lambda dtype: False)
    with pytest.raises(MeshcapError, match="int8 weights need an x86 CPU"):
        pack(copy.deepcopy(captioner), int8=True)


@pytest.mark.skipif(not can_pack(torch.int8), reason="torch without int8 kernels")
@pytest.mark.parametrize("multiplies", [True, False])
def test_int8_sees_in_16_bits_where_the_cpu_can(multiplies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if multiplies and not can_pack(torch.bfloat16):
        pytest.skip("torch without bfloat16 for this CPU")
    monkeypatch.setattr("meshcap.backends.torch_backend.multiplies_bfloat16", lambda: multiplies)
    captioner = Captioner.from_pretrained(dtype=torch.int8)
    assert captioner.vision is not None
    assert next(captioner.vision.parameters()).dtype == (torch.bfloat16 if multiplies else torch.float32)
    exact = Captioner.from_pretrained()
    photo = Path(__file__).parents[2] / "examples" / "giraffes.jpg"
    assert captioner.caption(photo).text == exact.caption(photo).text
