"""The LSTM that recurrent captioners share, against torch's own."""

import pytest
import torch

import tiny
from meshcap.models import create_model
from meshcap.models.recurrent import Cell, RecurrentCaptioner, mean_region
from models.torch_lstm import torchs

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def test_a_cell_is_torchs_lstm() -> None:
    cell, x = Cell(5, 7, 7), torch.randn(3, 6, 5)
    expected, (hidden, memory) = torchs(cell)(x)
    h = c = torch.zeros(3, 7)
    said = []
    for heard in cell.input(x).unbind(1):
        h, c = cell(heard, h, c)
        said.append(h)
    torch.testing.assert_close(torch.stack(said, 1), expected, **CLOSE)
    torch.testing.assert_close(h, hidden[0], **CLOSE)
    torch.testing.assert_close(c, memory[0], **CLOSE)


def test_the_cell_stays_wide_in_half_precision() -> None:
    cell = Cell(5, 7, 7).to(torch.bfloat16)
    hidden, memory = cell(cell.input(torch.randn(3, 5).bfloat16()), torch.zeros(3, 7).bfloat16(), torch.zeros(3, 7))
    assert (hidden.dtype, memory.dtype) == (torch.bfloat16, torch.float32)


def test_mean_of_the_real_regions() -> None:
    x = torch.randn(2, 4, 3)
    mask = torch.tensor([[True, False, True, False], [True] * 4])
    expected = torch.stack(((x[0, 0] + x[0, 2]) / 2, x[1].sum(0) / 4))
    torch.testing.assert_close(mean_region(x, mask), expected)
    torch.testing.assert_close(mean_region(x, None), x.sum(1) / 4)


@pytest.mark.parametrize("name", ["seq2seq", "show-attend-tell", "hierarchical", "ntm"])
def test_beginnings(name: str) -> None:
    """A new LSTM keeps what it holds; biases begin at zero."""
    model = create_model(name, **tiny.sizes(name))
    assert isinstance(model, RecurrentCaptioner)
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    assert len(cells) == (2 if name == "seq2seq" else 1)
    for cell in cells:
        inward, forget, outward, candidate = cell.input.bias.chunk(4)
        assert (forget == 1).all() and not inward.any() and not outward.any() and not candidate.any()
    assert model.words.weight.std().item() == pytest.approx(2**-0.5, rel=0.3)
