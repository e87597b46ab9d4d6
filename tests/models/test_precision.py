"""Half precision: inference near float32, and a training step with finite gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F

import tiny
from meshcap.decoding import Beam, ConstrainedBeam, Hypotheses, Rules, Sampling, decode

PICTURES = tiny.pictures(3, 6, 2)
IDS = torch.tensor([[2, 4, 5, 6, 7]]).expand(3, -1)
RULES = Rules(max_length=6, no_repeat_ngram=2, min_length=3)
# Eight bits of precision in bfloat16, eleven in float16, some layers deep.
NEAR = {torch.bfloat16: 0.1, torch.float16: 0.015}


@torch.no_grad()
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_inference(captioner, dtype: torch.dtype) -> None:
    half = copy.deepcopy(captioner).to(dtype)
    log_probs = half(PICTURES, IDS)
    assert log_probs.dtype == torch.float32
    expected = captioner(PICTURES, IDS)
    assert (log_probs.exp() - expected.exp()).abs().max() < NEAR[dtype]
    assert (log_probs.exp() - expected.exp()).abs().max() > 0
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 5))


def expect_near(found: Hypotheses, model, near: float) -> None:
    """What a search in half precision says of its words is near what the model in float32 says of them."""
    spoken = torch.cat((torch.full_like(found.ids[..., :1], model.config.bos), found.ids[..., :-1]), -1)
    with torch.no_grad():
        expected = model(PICTURES, spoken).gather(-1, found.ids[..., None])[..., 0].exp()
    after_end = torch.arange(found.ids.shape[-1]) >= found.lengths[..., None]
    difference = (found.log_probs.exp() - expected).masked_fill(after_end, 0)
    assert difference.abs().max() > 0
    # One that looks at a single region looks at another where rounding changes which of two is the likelier.
    assert tiny.looks_hard(model) or difference.abs().max() < near
    assert found.scores.dtype == torch.float32


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_decoding(captioner, dtype: torch.dtype) -> None:
    half = copy.deepcopy(captioner).to(dtype)
    for strategy in (Beam(3), ConstrainedBeam([[[[7, 8]]]], 2), Sampling(3)):
        found = decode(half, PICTURES, strategy, RULES, attention=True)
        expect_near(found, captioner, NEAR[dtype])
        words = found.attention["words"].float()
        torch.testing.assert_close(words.sum(-1), torch.ones(words.shape[:-1]), atol=0.02, rtol=0)


def test_decoding_under_autocast(captioner) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = decode(captioner, PICTURES, Beam(3), RULES)
    expect_near(found, captioner, NEAR[torch.bfloat16])


def test_training_step_under_autocast(captioner) -> None:
    model = copy.deepcopy(captioner).train()

    if tiny.looks_hard(captioner):
        model.eval()  # as in self-critical training; its draws alone have no derivative (tests/models/test_show_…)

    def loss() -> torch.Tensor:
        torch.manual_seed(0)  # the same dropout
        return F.nll_loss(model(PICTURES, IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())

    before = loss().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss()
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(before, abs=0.5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or "bias" in name, name  # a softmax does not feel its keys' bias
    optimizer.step()
    model.eval()
    with torch.no_grad():
        after = F.nll_loss(model(PICTURES, IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
        start = F.nll_loss(captioner(PICTURES, IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
    assert after < start


def test_gradients_under_autocast_are_near(captioner) -> None:
    """Direction and size of the whole gradient, dropout off."""

    def gradient(half: bool) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            value = F.nll_loss(captioner(PICTURES, IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
        return torch.cat([one.flatten() for one in torch.autograd.grad(value, list(captioner.parameters()))])

    full, half = gradient(False), gradient(True)
    assert F.cosine_similarity(full, half, 0) > 0.99
    assert half.norm() == pytest.approx(full.norm().item(), rel=0.05)
