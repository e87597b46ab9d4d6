"""Words that are read and said with one matrix."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny
from meshcap.backends.packed import PackedLinear, can_pack, pack
from meshcap.decoding import Beam, Rules, decode
from meshcap.models import MODELS, create_model, load_model
from meshcap.models.layers import Output, Words
from meshcap.regions import Regions
from meshcap.training.losses import xe_loss
from meshcap.training.optimizer import make_optimizer, named_weights

PICTURES = tiny.pictures(3, 6)
IDS = torch.tensor([[2, 4, 5, 6]]).expand(2, -1)


def test_closed_form() -> None:
    words = Words(7, 16, tied=True)
    output = Output(16, 7, (1,), words)
    ids, y = torch.tensor([3, 6]), torch.randn(2, 16)
    torch.testing.assert_close(words(ids), words.weight[ids] * 4)  # √16
    logits = y @ words.weight.T
    logits[:, 1] = float("-inf")
    torch.testing.assert_close(output(y), logits.log_softmax(-1))
    weight, bias = output.aligned()
    assert torch.equal(weight[:7], words.weight) and weight.shape == (8, 16) and bias[7] == float("-inf")


def test_an_untied_table_is_read_as_it_is() -> None:
    words = Words(7, 16)
    assert torch.equal(words(torch.tensor([3, 6])), words.weight[[3, 6]])


@torch.no_grad()
@pytest.mark.parametrize("name", ["m2", "transformer", "hopfield"])
def test_beginning(name: str) -> None:
    """Words as loud as positions when they are read, and logits of about one when they are said."""
    model = create_model(name, vocab_size=2000, d_input=16, d_model=256, tied_words=True).eval()
    ids = torch.randint(4, 2000, (2, 12))
    assert model.decoder.words(ids).std().item() == pytest.approx(2**-0.5, rel=0.05)
    regions = Regions(torch.randn(2, 5, 16), tiny.pictures(5, 5).boxes)
    said = model(regions, ids)[..., 4:]
    assert 0.4 < said.std(-1).mean() < 1.2


@pytest.mark.parametrize("name", sorted(MODELS))
def test_one_matrix_less(name: str, tmp_path: Path) -> None:
    tied, own = tiny.build(name, tied_words=True), tiny.build(name)
    missing = set(own.state_dict()) - set(tied.state_dict())
    assert {one.removeprefix("decoder.") for one in missing} == {"output.words.weight"}
    assert set(tied.state_dict()) < set(own.state_dict())
    count = sum(weight.numel() for weight in named_weights(tied, None).values())
    assert count == sum(weight.numel() for weight in own.parameters()) - tiny.VOCAB * 16
    rates = {"lr": 1.0, "lr_vision": 1.0, "weight_decay": 0.1}
    optimizer = make_optimizer(named_weights(tied, None), **rates, device=torch.device("cpu"))
    assert sum(weight.numel() for group in optimizer.param_groups for weight in group["params"]) == count
    tied.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(tied.state_dict())
    again = load_model(tmp_path)
    assert again.config.tied_words
    assert torch.equal(again(PICTURES, IDS), tied(PICTURES, IDS))


def test_both_uses_teach_it() -> None:
    """The gradient is the sum of those that two matrices of the same numbers get."""
    tied, own = (tiny.build("m2", tied_words=choice, dropout=0.0) for choice in (True, False))
    weights = tied.state_dict()
    table = weights["decoder.words.weight"]
    own.load_state_dict({**weights, "decoder.words.weight": table * 4, "decoder.output.words.weight": table})
    for model in (tied, own):
        xe_loss(model, PICTURES, IDS[:, None]).backward()
    expected = own.decoder.words.weight.grad * 4 + own.decoder.output.words.weight.grad
    torch.testing.assert_close(tied.decoder.words.weight.grad, expected, atol=1e-6, rtol=1e-4)


def test_copies_have_a_table_of_their_own() -> None:
    model = tiny.build("m2-tied")
    other = copy.deepcopy(model)
    assert other.decoder.output.words.weight is other.decoder.words.weight
    assert other.decoder.output.words.weight is not model.decoder.words.weight
    other.to(torch.bfloat16)
    assert other.decoder.output.words.weight.dtype == torch.bfloat16
    assert model.decoder.output.words.weight.dtype == torch.float32


@torch.no_grad()
@pytest.mark.skipif(not can_pack(torch.float32), reason="torch without oneDNN")
def test_packing_leaves_the_table_to_read_with() -> None:
    model = tiny.build("m2-tied")
    packed = pack(copy.deepcopy(model))
    assert isinstance(packed.decoder.output.words, PackedLinear)
    assert torch.equal(packed.decoder.words.weight, model.decoder.words.weight)
    found, expected = (decode(one, PICTURES, Beam(3), Rules(max_length=6)) for one in (packed, model))
    assert torch.equal(found.ids, expected.ids)


@pytest.mark.parametrize("name", ["m2-tied", "show-attend-tell-tied"])
def test_compiles(name: str) -> None:
    model = tiny.build(name)
    traced = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(PICTURES, IDS), model(PICTURES, IDS))
