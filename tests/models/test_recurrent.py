"""The LSTM that recurrent captioners share, against torch's own."""

import pytest
import torch

import tiny
from meshcap.models import create_model
from meshcap.models.recurrent import Cell, RecurrentCaptioner, mean_region, reading_order
from meshcap.regions import Regions
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


# Sequence to sequence: torch's LSTM in reading order, and one vector for everything.


@torch.no_grad()
def test_the_context_is_torchs_last_state() -> None:
    model, pictures = tiny.build("seq2seq"), tiny.pictures(3, 6, 2)
    kept = model.encode(pictures)
    for place in range(3):
        alone = tiny.one(pictures, place)
        middles = ((alone.boxes[0, :, 1] + alone.boxes[0, :, 3]) / 2).tolist()
        order = sorted(range(len(middles)), key=lambda n: int(middles[n] * 100))
        assert len({int(y * 100) for y in middles}) == len(middles)  # no two in a row: height alone decides
        _, (hidden, _) = torchs(model.reader)(model.regions(alone)[:, order])
        torch.testing.assert_close(kept["first"][place], model.first(hidden[0, 0]).tanh(), **CLOSE)
        torch.testing.assert_close(kept["context"][place], model.context(hidden[0, 0]), **CLOSE)


@torch.no_grad()
def test_words_by_torchs_lstm() -> None:
    """The context as a bias of every step."""
    model, pictures, ids = tiny.build("seq2seq"), tiny.pictures(4), torch.tensor([[2, 4, 5, 6]])
    kept, lstm = model.encode(pictures), torchs(model.cell)
    order = torch.arange(64).view(4, -1)[[0, 1, 3, 2]].flatten()
    lstm.bias_hh_l0.copy_(kept["context"][0, order])
    state = tuple(part[None].contiguous() for part in kept["first"].chunk(2, -1))
    expected = model.output(lstm(model.words(ids), state)[0])
    torch.testing.assert_close(model(pictures, ids), expected, **CLOSE)


def test_reading_order() -> None:
    """Rows from the top, each from the left; a wider or taller one of the same middle comes later; padding last."""
    boxes = torch.tensor(
        [
            [0.6, 0.1, 0.8, 0.3],  # upper right
            [0.1, 0.5, 0.3, 0.7],  # below
            [0.1, 0.1, 0.3, 0.301],  # upper left, lower by less than a row
            [0.05, 0.5, 0.35, 0.7],  # as the one below, but wider
            [0.0, 0.0, 0.0, 0.0],  # not real
        ]
    )[None]
    mask = torch.tensor([[True, True, True, True, False]])
    x = torch.zeros(1, 5, 2)
    assert reading_order(boxes, mask, x).tolist() == [[2, 0, 1, 3, 4]]
    shuffle = [3, 4, 0, 2, 1]
    found = reading_order(boxes[:, shuffle], mask[:, shuffle], x)[0]
    assert [shuffle[n] for n in found] == [2, 0, 1, 3, 4]
    assert reading_order(None, mask[:, [4, 0, 1, 2, 3]], x).tolist() == [[1, 2, 3, 4, 0]]
    assert reading_order(None, None, x).tolist() == [[0, 1, 2, 3, 4]]


@torch.no_grad()
def test_one_vector_is_all_that_passes() -> None:
    """Whatever the number of regions, the decoder's view of them is as large."""
    model = tiny.build("seq2seq")
    for count in (1, 4, 30):
        kept = model.encode(tiny.pictures(count))
        assert kept["first"].shape == (1, 32) and kept["context"].shape == (1, 64)
    _, seen = model(tiny.pictures(3, 6), torch.tensor([[2, 4], [2, 5]]), attention=True)
    assert seen["words"][0].tolist() == [[torch.tensor(1 / 3).item()] * 3 + [0.0] * 3] * 2


@torch.no_grad()
def test_without_boxes_regions_are_read_as_they_come() -> None:
    model, pictures, ids = tiny.build("seq2seq", boxes=False), tiny.pictures(4), torch.tensor([[2, 4, 5]])
    turned = Regions(pictures.features.flip(1))
    assert (model(turned, ids).exp() - model(pictures, ids).exp()).abs().max() > 1e-3
    _, (hidden, _) = torchs(model.reader)(model.regions(pictures))
    torch.testing.assert_close(model.encode(pictures)["first"], model.first(hidden[0]).tanh(), **CLOSE)
