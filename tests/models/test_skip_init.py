"""Networks built to be filled: nothing is drawn, and everything that is not drawn is as ever."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tiny
from meshcap.models import load_model
from meshcap.models.base import SkipInit

DRAW = [
    nn.init.normal_, nn.init.uniform_, nn.init.xavier_uniform_, nn.init.xavier_normal_,
    nn.init.kaiming_uniform_, nn.init.kaiming_normal_,
]  # fmt: skip


@pytest.mark.parametrize("draw", DRAW)
def test_nothing_is_drawn(draw) -> None:
    weight = nn.Parameter(torch.full((3, 4), 7.0))
    before = torch.random.get_rng_state()
    with SkipInit():
        draw(weight)
    assert (weight == 7).all()
    assert torch.equal(torch.random.get_rng_state(), before)
    draw(weight)
    assert not (weight == 7).any()


def test_the_rest_is_as_ever() -> None:
    with SkipInit():
        norm = nn.LayerNorm(4)
        table = torch.arange(6.0).view(2, 3).cos()
    assert (norm.weight == 1).all() and (norm.bias == 0).all()
    assert torch.equal(table, torch.arange(6.0).view(2, 3).cos())


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_what_is_read_is_whole(captioner, bits: int, tmp_path: Path) -> None:
    """Buffers that files do not keep included; twice, as memory that holds anything may hold the right numbers once."""
    captioner.save_pretrained(tmp_path, bits=bits)
    first, second = load_model(tmp_path), load_model(tmp_path)
    tensors = dict(second.named_parameters()) | dict(second.named_buffers())
    for name, tensor in [*first.named_parameters(), *first.named_buffers()]:
        assert torch.equal(tensor, tensors[name]), name
    if bits == 32:
        expected = dict(captioner.named_parameters()) | dict(captioner.named_buffers())
        for name, tensor in tensors.items():
            assert torch.equal(tensor, expected[name]), name


def test_tiny_models_are_read_without_touching_the_dice(tmp_path: Path) -> None:
    tiny.build("m2").save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
