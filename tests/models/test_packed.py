"""Weights rearranged for the CPU give the same captions."""

import copy

import pytest
import torch

import tiny
from meshcap.decoding import Beam, Rules, decode
from meshcap.models.packed import PackedLinear, can_pack, pack

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
