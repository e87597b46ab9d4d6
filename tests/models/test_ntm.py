"""A captioner with a memory beside it: written while it speaks, and it matters what is there."""

import pytest
import torch

import tiny
from meshcap.errors import MeshcapError
from meshcap.memory.turing import BLANK
from meshcap.models.show_attend_tell import NTMConfig

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
PICTURES = tiny.pictures(4, 4)


@torch.no_grad()
def test_what_is_in_the_memory_changes_what_is_said() -> None:
    model = tiny.build("ntm")
    states = [model.start(model.encode(PICTURES), width=2, length=5) for _ in range(2)]
    assert states[0]["carry.memory"].shape == (2, 2, 5, 4)  # B, W, rows, width
    assert (states[0]["carry.memory"] == torch.tensor(BLANK)).all()
    for state in states:
        model.step(torch.full((2, 2), 2), state)
    assert (states[0]["carry.memory"] - BLANK).abs().max() > 0.01  # something was noted
    states[1]["carry.memory"][0, 0] += torch.randn(5, 4)
    first, second = (model.step(torch.full((2, 2), 4), state).exp() for state in states)
    assert (first - second)[0, 0].abs().max() > 1e-3
    torch.testing.assert_close(first[0, 1], second[0, 1])
    torch.testing.assert_close(first[1], second[1])


@torch.no_grad()
@pytest.mark.parametrize("name", ["ntm", "ntm-two-heads"])
def test_a_step_by_the_memorys_own(name: str) -> None:
    """Attend, control, write, read, tell: with the parts' own functions, one hypothesis at a time."""
    model, words = tiny.build(name), torch.tensor([2, 4, 6])
    kept = model.encode(PICTURES[:1])
    found, seen = model(PICTURES[:1], words[None], attention=True)
    hidden, cell = kept["first"].chunk(2, -1)
    noted = model.memory.start(1)
    for place, word in enumerate(words):
        context = model.gated_attend(hidden[:, None], kept).context[:, 0]
        heard = model.cell.input(model.words.weight[word][None])
        hidden, cell = model.cell(heard, torch.cat((hidden, context, noted["reads"]), -1), cell)
        noted = model.memory(hidden, noted)
        told = model.words.weight[word] + model.deep(torch.cat((hidden, context, noted["reads"]), -1))
        torch.testing.assert_close(found[0, place], model.output(told)[0], **CLOSE)
        heads = torch.cat((seen["memory_reads"], seen["memory_writes"]), 2)[0, place]
        torch.testing.assert_close(heads, noted["weights"][0], **CLOSE)
        torch.testing.assert_close(heads.sum(-1), torch.ones(len(heads)))


@torch.no_grad()
def test_hypotheses_take_their_notes_along() -> None:
    model = tiny.build("ntm")
    state = model.start(model.encode(PICTURES), width=3, length=5)
    model.step(torch.tensor([[4, 5, 6], [4, 5, 6]]), state)
    before = state["carry.memory"].clone()
    model.reorder(state, torch.tensor([[2, 2, 0], [1, 0, 0]]))
    torch.testing.assert_close(state["carry.memory"][0], before[0, [2, 2, 0]])
    torch.testing.assert_close(state["carry.memory"][1], before[1, [1, 0, 0]])
    assert (before[0, 0] - before[0, 2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["memory_width", "read_heads", "write_heads"])
def test_refused(name: str) -> None:
    with pytest.raises(MeshcapError, match=f"{name} is 0, expected a whole number of at least 1"):
        NTMConfig(vocab_size=100, **{name: 0})
    with pytest.raises(MeshcapError, match="memory_rows is 2, expected a whole number of at least 3"):
        NTMConfig(vocab_size=100, memory_rows=2)
