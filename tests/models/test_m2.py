"""M² by the paper's formulas, written out; and how its parameters begin."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiny
from meshcap.models.layers import BoxEmbedding
from meshcap.models.m2 import M2Config, MeshedAttention, sinusoids

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
D = 16


def norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def cross(mesh: MeshedAttention, heads: int) -> nn.MultiheadAttention:
    """Its cross-attention as torch's own module."""
    theirs = nn.MultiheadAttention(D, heads, batch_first=True).eval()
    ours = mesh.cross
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((ours.query.weight, ours.key_value.weight)))
        theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key_value.bias)))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


def mesh_of(**settings) -> MeshedAttention:
    model = tiny.build("m2", **{"encoder_layers": 3, "decoder_layers": 3, **settings})
    return model.decoder.layers[1].mesh


def inputs(mesh: MeshedAttention, levels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Words, levels, and the levels' keys and values."""
    y, x = torch.randn(2, 5, D), torch.randn(levels, 2, 7, D)
    return y, x, *mesh.cross.project(x.flatten(0, 1))


@torch.no_grad()
@pytest.mark.parametrize("gates", ["sigmoid", "softmax"])
def test_meshed_attention(gates: str) -> None:
    """M(X̃, Y) = Σ α_i ⊙ C(X̃_i, Y) with α_i from W_i [Y; C(X̃_i, Y)] + b_i."""
    mesh = mesh_of(gates=gates)
    y, x, keys, values = inputs(mesh, 3)
    attention = cross(mesh, heads=2)
    contexts = [norm(y + attention(y, level, level)[0], mesh.norm) for level in x]
    scores = []
    for i, context in enumerate(contexts):
        rows = slice(i * D, (i + 1) * D)
        weight = torch.cat((mesh.gates.query.weight[rows], mesh.gates.context[i].weight), 1)  # (D, 2D)
        scores.append(torch.cat((y, context), -1) @ weight.T + mesh.gates.query.bias[rows])
    if gates == "sigmoid":
        expected = sum(1 / (1 + (-s).exp()) * c for s, c in zip(scores, contexts, strict=True)) / math.sqrt(3)
    else:
        total = sum(s.exp() for s in scores)
        expected = sum(s.exp() / total * c for s, c in zip(scores, contexts, strict=True))
    torch.testing.assert_close(mesh(y, keys, values, None), expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["last", "one-to-one"])
def test_one_level_is_plain_cross_attention(kind: str) -> None:
    mesh = mesh_of(mesh=kind)
    y, x, keys, values = inputs(mesh, 1)
    assert mesh.gates is None
    expected = norm(y + cross(mesh, heads=2)(y, x[0], x[0])[0], mesh.norm)
    torch.testing.assert_close(mesh(y, keys, values, None), expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "levels"), [("full", [0, 1, 2]), ("last", [2]), ("one-to-one", [1])])
def test_which_levels_a_layer_looks_at(kind: str, levels: list[int]) -> None:
    decoder = tiny.build("m2", encoder_layers=3, decoder_layers=3, mesh=kind).decoder
    x = torch.randn(3, 2, 7, D)
    keys, values = decoder.sources(x, 1)
    project = decoder.layers[1].mesh.cross.project
    expected = [project(x[level]) for level in levels]
    torch.testing.assert_close(keys, torch.cat([one for one, _ in expected]))
    torch.testing.assert_close(values, torch.cat([one for _, one in expected]))


@torch.no_grad()
def test_encoder_layer() -> None:
    """Z = LN(X + attention to [X; slots]), LN(Z + W₂ relu(W₁ Z))."""
    layer = tiny.build("m2").encoder.layers[0]
    x = torch.randn(2, 5, D)
    z = norm(x + layer.attention(x), layer.norm)
    feed = layer.feed_forward
    hidden = (z @ feed.expand.weight.T + feed.expand.bias).clamp_min(0)
    expected = norm(z + hidden @ feed.contract.weight.T + feed.contract.bias, feed.norm)
    torch.testing.assert_close(layer(x, None), expected, **CLOSE)


@torch.no_grad()
def test_first_level_starts_from_projected_features_and_boxes() -> None:
    model = tiny.build("m2", encoder_layers=1)
    regions = tiny.pictures(4)
    encoder = model.encoder
    x = regions.features @ encoder.project.weight.T + encoder.project.bias + encoder.box(regions.boxes)
    expected = encoder.layers[0](norm(x.clamp_min(0), encoder.norm), None)
    torch.testing.assert_close(model.encode(regions)["levels"], expected[None], **CLOSE)


@pytest.mark.parametrize("loudness", [(1, 1, 1, 1), (3, 3, 3, 1.5)])
@torch.no_grad()
def test_box_embedding(loudness: tuple[float, ...]) -> None:
    """Centre and size, as they are and as waves of doubling frequency; the longest may be the loudest."""
    embedding = BoxEmbedding(D, waves=3, boost_low=loudness[0] > 1)
    box = [0.1, 0.2, 0.5, 0.8]
    place = [0.3, 0.5, 0.4, 0.6]  # centre x, centre y, width, height
    waves = [
        loud * wave(math.pi * frequency * number)
        for wave in (math.sin, math.cos)
        for number in place
        for frequency, loud in zip((1, 2, 4), loudness[1:], strict=True)
    ]
    numbers = [*(loudness[0] * number for number in place), *waves]
    expected = embedding.linear(torch.tensor(numbers))
    torch.testing.assert_close(embedding(torch.tensor([[box]]))[0, 0], expected, **CLOSE)


@pytest.mark.parametrize("width", [16, 7])
def test_sinusoids(width: int) -> None:
    table = sinusoids(30, width)
    assert table.shape == (30, width)
    assert not table[0].any()
    for place in (1, 2, 29):
        for i in range(width):
            angle = place / 10000 ** (2 * (i // 2) / width)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert table[place, i].item() == pytest.approx(expected, abs=1e-5)


def test_first_word_has_position_one() -> None:
    model = tiny.build("m2")
    seen = []
    attention = model.decoder.layers[0].attention
    handle = attention.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    with torch.no_grad():
        model(tiny.pictures(3), torch.tensor([[2, 4]]))
    handle.remove()
    words = model.decoder.words.weight[torch.tensor([2, 4])]
    torch.testing.assert_close(seen[0][0], words + sinusoids(3, D)[1:], **CLOSE)


def test_beginning() -> None:
    """A model as trained from: Xavier matrices, silent biases, words as loud as positions, sinusoids, small slots."""
    torch.manual_seed(0)
    model = tiny.MODELS["m2"](M2Config(vocab_size=500, d_input=64, d_model=128, heads=4, d_ff=256, slots=60))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert module.weight.abs().max() <= bound, name
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
            assert module.bias is None or not module.bias.any(), name
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all(), name
            assert not module.bias.any(), name
    assert model.decoder.words.weight.std().item() == pytest.approx(2**-0.5, rel=0.02)
    assert model.decoder.positions[1:].pow(2).mean().item() == pytest.approx(0.5, rel=0.02)  # as loud
    torch.testing.assert_close(model.decoder.positions, sinusoids(55, 128))
    memory = model.encoder.layers[0].attention.memory
    assert memory.keys.std().item() == pytest.approx(1 / 32, rel=0.05)
    assert memory.values.std().item() == pytest.approx(1 / 60, rel=0.05)
    assert model.decoder.output.words.bias is None
    assert model.decoder.output.words.weight is not model.decoder.words.weight


def test_size_of_the_papers_model() -> None:
    model = tiny.MODELS["m2"](M2Config(vocab_size=10201, boxes=False))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    d, ff, v, layers, slots = 512, 2048, 10201, 3, 40
    linear = d * d + d
    feed = 2 * d * ff + ff + d + 2 * d
    encoder = layers * (4 * linear + 2 * slots * d + 2 * d + feed) + 2048 * d + d + 2 * d
    decoder = layers * (8 * linear + 2 * 2 * d + layers * (2 * d * d + d) + feed) + 2 * v * d
    assert parameters == encoder + decoder
    assert parameters == pytest.approx(38.4e6, rel=0.002)


@torch.no_grad()
def test_attention_tells_what_the_model_did() -> None:
    """Weights recomputed layer by layer: regions weighed by gates, what slots took, how open gates were."""
    model = tiny.build("m2")
    regions, ids = tiny.pictures(3, 5), torch.tensor([[2, 4, 5], [2, 6, 7]])
    log_probs, seen = model(regions, ids, attention=True)
    torch.testing.assert_close(log_probs, model(regions, ids), **CLOSE)
    assert seen["words"].shape == (2, 3, 5)
    assert seen["gates"].shape == (2, 2, 2, 3)
    assert seen["memory"].shape == (2, 2, 5)

    # The first picture by itself, so that nothing is masked. First the slots' share of the first encoder layer.
    encoder, decoder = model.encoder, model.decoder
    alone = tiny.one(regions, 0)
    x = encoder.norm(F.relu(encoder.project(alone.features) + encoder.box(alone.boxes)))
    attention = encoder.layers[0].attention
    query, keys, _ = attention.qkv(x)[0].view(3, 3, 2, 8).unbind(1)  # each (N, H, d)
    slots = 8**0.5 * attention.memory.keys.view(3, 2, 8)
    scores = torch.einsum("qhd,khd->hqk", query, torch.cat((keys, slots))) / 8**0.5
    expected = scores.softmax(-1)[..., 3:].sum(-1).mean(0)
    torch.testing.assert_close(seen["memory"][0, 0, :3], expected, **CLOSE)

    # Then every decoder layer: α-weighted levels, averaged over layers.
    levels = model.encode(alone)["levels"][:, 0]  # (L, N, D)
    y = decoder.words(ids[0]) + sinusoids(4, D)[1:]
    words = torch.zeros(3, 3)
    for index, layer in enumerate(decoder.layers):
        y = layer.norm(y + layer.attention(y[None], causal=True)[0])
        attention = cross(layer.mesh, heads=2)
        found = [attention(y, level, level) for level in levels]  # weights averaged over heads
        contexts = torch.stack([layer.mesh.norm(y + one) for one, _ in found])
        gates = layer.mesh.gates(y[None], contexts[:, None])[:, 0].mean(-1)  # (L, T)
        torch.testing.assert_close(seen["gates"][index, :, 0], gates, **CLOSE)
        for level, (_, weights) in enumerate(found):
            words += (gates[level] / gates.sum(0))[:, None] * weights / len(decoder.layers)
        y = layer.feed_forward(layer.mesh(y[None], *decoder.sources(levels[:, None], index), None))[0]
    torch.testing.assert_close(seen["words"][0, :, :3], words, **CLOSE)


def test_dropout_only_while_training() -> None:
    model = tiny.build("m2", dropout=0.5)
    regions, ids = tiny.pictures(3), torch.tensor([[2, 4, 5]])
    with torch.no_grad():
        assert torch.equal(model(regions, ids), model(regions, ids))
        model.train()
        assert not torch.equal(model(regions, ids), model(regions, ids))
