"""Regions that are reminded of patterns."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tiny
from meshcap.errors import MeshcapError
from meshcap.models.hopfield import HopfieldConfig

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@torch.no_grad()
def test_retrieval_is_attention_to_the_patterns() -> None:
    """By torch's own multi-head attention, with patterns for keys and values."""
    layer = tiny.build("hopfield").encoder.layers[0]
    store, x = layer.store, torch.randn(2, 5, 16)
    theirs = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    theirs.in_proj_weight.copy_(torch.cat((store.query.weight, torch.eye(16), torch.eye(16))))
    theirs.in_proj_bias.copy_(F.pad(store.query.bias, (0, 32)))
    theirs.out_proj.weight.copy_(store.output.weight)
    theirs.out_proj.bias.copy_(store.output.bias)
    expected, weights = theirs(x, store.keys.expand(2, -1, -1), store.values.expand(2, -1, -1))
    torch.testing.assert_close(store(x), expected, **CLOSE)
    torch.testing.assert_close(store.weights(x).mean(1), weights, **CLOSE)


@torch.no_grad()
def test_layer_by_its_formula() -> None:
    layer, x = tiny.build("hopfield").encoder.layers[1], torch.randn(2, 5, 16)
    looked = layer.attention_norm(x + layer.attention(x))
    reminded = layer.norm(looked + layer.store(looked))
    torch.testing.assert_close(layer(x, None), layer.feed_forward(reminded), **CLOSE)


@torch.no_grad()
def test_alone_a_region_knows_no_other() -> None:
    pictures = tiny.pictures(4)
    changed = tiny.pictures(4)
    changed.features[0, 3] += 1
    for name, alone in (("hopfield-alone", True), ("hopfield", False)):
        model = tiny.build(name)
        one, other = (model.encode(regions)["levels"][-1, 0, 0] for regions in (pictures, changed))
        assert torch.allclose(one, other, **CLOSE) == alone


@torch.no_grad()
def test_beta_sharpens() -> None:
    """From the mean of all patterns to a single one; 1/√d unless told."""
    sharpest = []
    for beta in (1e-4, None, 1 / math.sqrt(8), 100.0):
        model = tiny.build("hopfield", beta=beta)
        _, seen = model(tiny.pictures(4), torch.tensor([[2, 4]]), attention=True)
        assert seen["patterns"].shape == (2, 1, 4, 4)  # layers, B, N, P
        torch.testing.assert_close(seen["patterns"].sum(-1), torch.ones(2, 1, 4))
        sharpest.append(seen["patterns"].amax(-1).mean().item())
    assert sharpest[0] == pytest.approx(0.25, abs=0.01)
    assert sharpest[0] < sharpest[1] == pytest.approx(sharpest[2]) and sharpest[3] > 0.6  # two heads, each with its own
    assert "memory" not in seen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patterns": 0}, "patterns is 0, expected a whole number of at least 1"),
        ({"retrieval_steps": 0}, "retrieval_steps is 0, expected a whole number of at least 1"),
        ({"beta": 0}, "beta is 0, expected a number above 0, 'learned' or null for 1/√d"),
        ({"beta": "sharp"}, "beta is 'sharp', expected a number above 0, 'learned' or null for 1/√d"),
        ({"self_attention": 1}, "self_attention is 1, expected true or false"),
        ({"heads": 7, "d_head": 8}, "d_model is 512, expected a multiple of heads = 7"),
        ({"slots": 4}, "a plain Transformer has no slots and looks at the last level: use model 'm2' for those"),
    ],
)
def test_refused(settings: dict, message: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        HopfieldConfig(vocab_size=100, **settings)
    assert str(caught.value) == message
