"""The same numbers as the public M² implementation, from the same weights.

`small.pth` is a random checkpoint in its format and `small_golden.pt` what it computes from it. Twice: as it is, where
zero-padding is looked at like real regions; and with two parameters replaced, where padding really is hidden.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap.decoding import Beam, Greedy, Hypotheses, Rules, decode
from meshcap.models import M2
from meshcap.models.reference import read_reference
from meshcap.regions import Regions

FIXTURES = Path(__file__).parents[1] / "fixtures"
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(scope="module")
def golden() -> dict:
    return torch.load(FIXTURES / "small_golden.pt", weights_only=True)


@pytest.fixture(scope="module", params=["padding attended", "padding hidden"])
def case(request: pytest.FixtureRequest, golden: dict, tmp_path_factory: pytest.TempPathFactory):
    """A model, its regions, and what the public implementation made of them."""
    counts = golden["n_regions"]
    regions = Regions.collate([one[:count] for one, count in zip(golden["features"], counts, strict=True)])
    if request.param == "padding attended":
        return read_reference(FIXTURES / "small.pth", regions=12, d_head=16), regions, golden["outputs"]
    checkpoint = torch.load(FIXTURES / "small.pth", weights_only=True)
    checkpoint["state_dict"].update(golden["variantB_overrides"])
    path = tmp_path_factory.mktemp("reference") / "overridden.pth"
    torch.save(checkpoint, path)
    return read_reference(path, regions=12, d_head=16), regions, golden["variantB_outputs"]


@pytest.fixture
def main(golden: dict) -> tuple[M2, Regions]:
    """The main case, with a model of its own for gradients; dropout is off."""
    return read_reference(FIXTURES / "small.pth", regions=12, d_head=16), Regions(golden["features"])


def test_settings_are_read_off_the_tensors(case, golden: dict) -> None:
    model, _, outputs = case
    sizes, config = golden["config"], model.config
    assert (config.encoder_layers, config.decoder_layers) == (sizes["N"], sizes["N"])
    assert (config.d_model, config.d_ff, config.d_input) == (sizes["d_model"], sizes["d_ff"], sizes["d_in"])
    assert (config.heads, config.head_width, config.slots) == (sizes["h"], sizes["d_k"], sizes["m"])
    assert (config.vocab_size, config.max_length, config.boxes) == (sizes["vocab"], sizes["max_len"], False)
    assert config.attend_padding == (0 if outputs["enc_mask"].any() else 12)


def test_mask(case) -> None:
    model, regions, outputs = case
    hidden = outputs["enc_mask"][:, 0, 0]  # (B, N), theirs is True where a region is hidden
    encoded = model.encode(regions)
    assert encoded["levels"].shape[2] == 12
    if model.config.attend_padding:
        assert not hidden.any()
        assert "visible" not in encoded
    else:
        assert hidden.any()
        torch.testing.assert_close(encoded["visible"], ~hidden)


def test_levels(case) -> None:
    model, regions, outputs = case
    levels = model.encode(regions)["levels"].movedim(0, 1)  # (B, L, N, D)
    torch.testing.assert_close(levels, outputs["enc_output"], **CLOSE)


def test_teacher_forced_log_probs(case, golden: dict) -> None:
    model, regions, outputs = case
    captions = golden["captions"]
    said = captions != golden["pad"]
    with torch.no_grad():
        log_probs = model(regions, captions)
    assert said.sum() > 60
    torch.testing.assert_close(log_probs[said], outputs["tf_log_probs"][said], **CLOSE)


def theirs(found: Hypotheses) -> Tensor:
    """Our ids in their writing: what follows <eos> is 0 there."""
    return found.ids.masked_fill(torch.arange(found.ids.shape[-1]) >= found.lengths[..., None], 0)


def test_greedy(case, golden: dict) -> None:
    model, regions, outputs = case
    found = decode(model, regions, Greedy(), Rules(max_length=golden["max_len"]))
    expected = outputs["greedy_ids"]  # their greedy search goes on after <eos>
    after_end = (expected == golden["eos"]).cumsum(1) - (expected == golden["eos"]).long() > 0
    assert torch.equal(theirs(found)[:, 0], expected.masked_fill(after_end, 0))


def test_stepping_past_the_end(case, golden: dict) -> None:
    model, regions, outputs = case
    words = torch.full((len(regions), 1), golden["bos"])
    said = []
    with torch.no_grad():
        state = model.start(model.encode(regions), width=1, length=golden["max_len"])
        for _ in range(golden["max_len"]):
            words = model.step(words, state).argmax(-1)
            said.append(words)
    assert torch.equal(torch.cat(said, 1), outputs["greedy_ids"])


@pytest.mark.parametrize("beams", [1, 3, 5])
def test_beam(case, golden: dict, beams: int) -> None:
    model, regions, outputs = case
    found = decode(model, regions, Beam(beams), Rules(max_length=golden["max_len"]), n_best=beams)
    ids, log_probs = outputs[f"beam{beams}_ids"], outputs[f"beam{beams}_log_probs"]
    assert torch.equal(theirs(found), ids.view_as(found.ids))
    torch.testing.assert_close(found.log_probs, log_probs.view_as(found.log_probs), **CLOSE)


def test_best_of_beam(case, golden: dict) -> None:
    model, regions, outputs = case
    found = decode(model, regions, Beam(5), Rules(max_length=golden["max_len"]))
    assert torch.equal(theirs(found)[:, 0], outputs["beam5_top1_ids"])
    torch.testing.assert_close(found.log_probs[:, 0], outputs["beam5_top1_log_probs"], **CLOSE)


def recompose(model: M2) -> dict[str, Tensor]:
    """Our gradients under their names: q, k, v apart, the halves of the gates together."""
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    found: dict[str, Tensor] = {}

    def copy(new: str, old: str) -> None:
        found[f"{new}.weight"], found[f"{new}.bias"] = ours[f"{old}.weight"], ours[f"{old}.bias"]

    def cut(new: list[str], old: str) -> None:
        for part in ("weight", "bias"):
            for name, piece in zip(new, ours[f"{old}.{part}"].chunk(len(new)), strict=True):
                found[f"{name}.{part}"] = piece

    def feed_forward(new: str, old: str) -> None:
        for name, part in (("fc1", "expand"), ("fc2", "contract"), ("layer_norm", "norm")):
            copy(f"{new}.{name}", f"{old}.{part}")

    copy("encoder.fc", "encoder.project")
    copy("encoder.layer_norm", "encoder.norm")
    for i in range(3):
        layer, attention = f"encoder.layers.{i}", f"encoder.layers.{i}.mhatt.attention"
        found[f"{attention}.m_k"] = ours[f"{layer}.attention.memory.keys"][None]
        found[f"{attention}.m_v"] = ours[f"{layer}.attention.memory.values"][None]
        cut([f"{attention}.fc_{one}" for one in "qkv"], f"{layer}.attention.qkv")
        copy(f"{attention}.fc_o", f"{layer}.attention.output")
        copy(f"{layer}.mhatt.layer_norm", f"{layer}.norm")
        feed_forward(f"{layer}.pwff", f"{layer}.feed_forward")

        layer = f"decoder.layers.{i}"
        attention = f"{layer}.self_att.attention"
        cut([f"{attention}.fc_{one}" for one in "qkv"], f"{layer}.attention.qkv")
        copy(f"{attention}.fc_o", f"{layer}.attention.output")
        copy(f"{layer}.self_att.layer_norm", f"{layer}.norm")
        attention = f"{layer}.enc_att.attention"
        copy(f"{attention}.fc_q", f"{layer}.mesh.cross.query")
        cut([f"{attention}.fc_{one}" for one in "kv"], f"{layer}.mesh.cross.key_value")
        copy(f"{attention}.fc_o", f"{layer}.mesh.cross.output")
        copy(f"{layer}.enc_att.layer_norm", f"{layer}.mesh.norm")
        words = ours[f"{layer}.mesh.gates.query.weight"].chunk(3)
        biases = ours[f"{layer}.mesh.gates.query.bias"].chunk(3)
        for level in range(3):
            context = ours[f"{layer}.mesh.gates.context.{level}.weight"]
            found[f"{layer}.fc_alpha{level + 1}.weight"] = torch.cat((words[level], context), 1)
            found[f"{layer}.fc_alpha{level + 1}.bias"] = biases[level]
        feed_forward(f"{layer}.pwff", f"{layer}.feed_forward")
    found["decoder.word_emb.weight"] = ours["decoder.words.weight"]
    found["decoder.fc.weight"] = ours["decoder.output.words.weight"]
    return found


def expect_norms(found: dict[str, Tensor], norms: dict[str, float | None], scale: float) -> None:
    """All 157 norms; what the public implementation keeps frozen has none."""
    assert len(norms) == 157
    assert [name for name, norm in norms.items() if norm is None] == ["decoder.pos_emb.weight"]
    assert set(found) == set(norms) - {"decoder.pos_emb.weight"}
    for name, gradient in found.items():
        assert float(gradient.norm()) == pytest.approx(norms[name], rel=1e-4, abs=1e-4 * scale), name


def test_cross_entropy_and_its_gradients(main, golden: dict) -> None:
    model, regions = main
    captions = golden["captions"]
    log_probs = model(regions, captions)[:, :-1]
    loss = F.nll_loss(log_probs.flatten(0, 1), captions[:, 1:].flatten(), ignore_index=golden["pad"])
    assert loss.item() == pytest.approx(golden["xe_loss"], abs=1e-4)
    loss.backward()
    found = recompose(model)
    expect_norms(found, golden["xe_grad_norms"], scale=1)
    attention = "encoder.layers.0.mhatt.attention"
    torch.testing.assert_close(found[f"{attention}.fc_q.weight"], golden["xe_grad_enc0_fc_q"], **CLOSE)
    torch.testing.assert_close(found[f"{attention}.m_k"], golden["xe_grad_enc0_m_k"], **CLOSE)


def test_self_critical_loss_and_its_gradients(main, golden: dict) -> None:
    model, regions = main
    ids = decode(model, regions, Beam(5), Rules(max_length=20), n_best=5).ids  # (B, 5, 20)
    spoken = torch.cat((torch.full_like(ids[..., :1], golden["bos"]), ids[..., :-1]), -1)
    log_probs = model(regions, spoken).gather(-1, ids[..., None])[..., 0]
    log_probs = log_probs.masked_fill(ids == golden["pad"], 0)
    rewards = golden["scst_rewards"]
    loss = (-log_probs.mean(-1) * (rewards - rewards.mean(1, keepdim=True))).mean()
    assert loss.item() == pytest.approx(golden["scst_loss"], abs=1e-6)
    loss.backward()
    expect_norms(recompose(model), golden["scst_grad_norms"], scale=0.01)
