"""The Turing machine: every stage of addressing against loops, then memory, machine and learning."""

import math
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshcap.errors import FailedError, MeshcapError
from meshcap.memory import Memory, TuringConfig, TuringMachine
from meshcap.memory.turing import Address, content, find, interpolate, read, sharpen, shift, write
from recipes.turing_machine import TASKS, Lessons, examine, learn

B, H, M, W = 2, 3, 7, 4


def weightings(*shape: int) -> Tensor:
    return torch.randn(*shape).mul(2).softmax(-1)


def each_head() -> list[tuple[int, int]]:
    return [(b, h) for b in range(B) for h in range(H)]


def test_content_by_loops() -> None:
    memory, key, strength = torch.randn(B, M, W), torch.randn(B, H, W), torch.rand(B, H, 1) * 5
    found = content(memory, key, strength)
    for b, h in each_head():
        scores = []
        for row in memory[b].tolist():
            mine = key[b, h].tolist()
            dot = sum(x * y for x, y in zip(row, mine, strict=True))
            scores.append(strength[b, h].item() * dot / (math.hypot(*row) * math.hypot(*mine)))
        total = sum(math.exp(score) for score in scores)
        assert found[b, h].tolist() == pytest.approx([math.exp(score) / total for score in scores], abs=1e-5)


def test_content_of_nothing_is_everywhere() -> None:
    found = content(torch.zeros(B, M, W), torch.zeros(B, H, W), torch.full((B, H, 1), 9.0))
    torch.testing.assert_close(found, torch.full((B, H, M), 1 / M))


def test_interpolate_by_loops() -> None:
    similar, before, gate = weightings(B, H, M), weightings(B, H, M), torch.rand(B, H, 1)
    found = interpolate(similar, before, gate)
    for b, h in each_head():
        g = gate[b, h].item()
        expected = [g * s + (1 - g) * w for s, w in zip(similar[b, h].tolist(), before[b, h].tolist(), strict=True)]
        assert found[b, h].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_shift_by_loops_round_the_end(reach: int) -> None:
    weights, shifts = weightings(B, H, M), weightings(B, H, 2 * reach + 1)
    found = shift(weights, shifts)
    for b, h in each_head():
        expected = [0.0] * M
        for row in range(M):
            for s in range(-reach, reach + 1):
                expected[(row + s) % M] += shifts[b, h, s + reach].item() * weights[b, h, row].item()
        assert found[b, h].tolist() == pytest.approx(expected, abs=1e-6)


def test_shift_forward_from_the_last_row_is_the_first() -> None:
    last = torch.zeros(1, 1, M)
    last[..., -1] = 1
    assert shift(last, torch.tensor([[[0.0, 0, 1]]]))[0, 0].tolist() == [1.0] + [0.0] * (M - 1)


def test_sharpen_by_loops() -> None:
    weights, sharpness = weightings(B, H, M), 1 + 4 * torch.rand(B, H, 1)
    found = sharpen(weights, sharpness)
    for b, h in each_head():
        powers = [w ** sharpness[b, h].item() for w in weights[b, h].tolist()]
        assert found[b, h].tolist() == pytest.approx([power / sum(powers) for power in powers], abs=1e-6)


def test_sharpen_where_powers_vanish() -> None:
    weights = torch.full((1, 1, 64), 1 / 64).requires_grad_()
    found = sharpen(weights, torch.tensor([[[60.0]]]))  # (1/64) ** 60 is 0 in float32
    torch.testing.assert_close(found.detach(), weights.detach())
    found[0, 0, 0].backward()
    assert weights.grad is not None and bool(weights.grad.isfinite().all())


@given(
    seed=st.integers(0, 10**6), strength=st.floats(0, 200), gate=st.floats(0, 1), sharpness=st.floats(1, 100),
    blank=st.booleans(),
)  # fmt: skip
def test_weights_stay_distributions(seed: int, strength: float, gate: float, sharpness: float, blank: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.zeros(1, 9, 4) if blank else torch.randn(1, 9, 4, generator=generator)
    weights = torch.zeros(1, 2, 9)
    weights[..., 0] = 1
    for _ in range(5):
        address = Address(
            key=torch.randn(1, 2, 4, generator=generator),
            strength=torch.full((1, 2, 1), strength),
            gate=torch.full((1, 2, 1), gate),
            shifts=torch.randn(1, 2, 3, generator=generator).mul(3).softmax(-1),
            sharpness=torch.full((1, 2, 1), sharpness),
        )
        weights = find(address, memory, weights)
        assert bool((weights >= 0).all())
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2))


@pytest.mark.parametrize("writes", [1, 3])
def test_write_by_loops(writes: int) -> None:
    memory, weights = torch.randn(B, M, W), weightings(B, writes, M)
    erase, add = torch.rand(B, writes, W), torch.randn(B, writes, W)
    expected = memory.clone()
    for b in range(B):
        for row in range(M):
            for column in range(W):
                for u in range(writes):
                    expected[b, row, column] *= 1 - weights[b, u, row] * erase[b, u, column]
                for u in range(writes):
                    expected[b, row, column] += weights[b, u, row] * add[b, u, column]
    torch.testing.assert_close(write(memory, weights, erase, add), expected)


def test_what_is_written_can_be_read() -> None:
    memory, add = torch.randn(B, M, W), torch.randn(B, 1, W)
    here = torch.zeros(B, 1, M)
    here[:, :, 2] = 1
    after = write(memory, here, torch.ones(B, 1, W), add)
    torch.testing.assert_close(read(after, here), add)  # fully erased, so nothing of the old row is left
    others = [row for row in range(M) if row != 2]
    assert torch.equal(after[:, others], memory[:, others])
    torch.testing.assert_close(read(after, torch.full((B, 1, M), 1 / M)), after.mean(1, keepdim=True))


def test_memory_step_is_its_parts() -> None:
    unit = Memory(6, rows=M, row_width=W, reads=2, writes=1)
    state, control = unit.start(B), torch.randn(B, 6)
    state["memory"], state["weights"] = torch.randn(B, M, W), weightings(B, 3, M)
    after = unit(control, state)
    address, erase, add = unit.address(unit.steer(control))
    assert bool((address.strength > 0).all() and (address.sharpness > 1).all())
    assert bool(((address.gate > 0) & (address.gate < 1)).all())
    torch.testing.assert_close(address.shifts.sum(-1), torch.ones(B, 3))
    weights = find(address, state["memory"], state["weights"])
    memory = write(state["memory"], weights[:, 2:], erase, add)
    torch.testing.assert_close(after["weights"], weights)
    torch.testing.assert_close(after["memory"], memory)
    torch.testing.assert_close(after["reads"], read(memory, weights[:, :2]).flatten(1))  # what was written is there


def machine(controller: str = "lstm", **settings: int) -> TuringMachine:
    return TuringMachine(
        TuringConfig(
            d_input=5, d_output=4, d_control=8, rows=9, row_width=6, controller=controller, **settings  # type: ignore[arg-type]
        )
    )  # fmt: skip


@pytest.mark.parametrize("controller", ["lstm", "feed-forward"])
def test_step_by_step_is_the_whole_sequence(controller: str) -> None:
    made, x = machine(controller, reads=2, writes=2), torch.randn(3, 7, 5)
    whole, end = made(x)
    traced, trace = made.trace(x)
    state, steps = made.start(3), []
    for t in range(7):
        output, state = made.step(x[:, t], state)
        steps.append(output)
    torch.testing.assert_close(torch.stack(steps, 1), whole)
    torch.testing.assert_close(traced, whole)
    halfway = made(x[:, :3])[1]
    torch.testing.assert_close(made(x[:, 3:], halfway)[0], whole[:, 3:])
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, end[name])
        torch.testing.assert_close(trace[name][:, -1], end[name])
        assert len(tensor) == 3  # sequences come first in all of them: hypotheses can be reordered


def test_lstm_controller_is_torchs() -> None:
    made = machine()
    x, state = torch.randn(2, 5), made.start(2)
    state |= {"hidden": torch.randn(2, 8), "cell": torch.randn(2, 8)}
    cell = torch.nn.LSTMCell(5 + 6, 8)
    order = [0, 1, 3, 2]  # torch has the candidate before the output gate

    def rows(weight: Tensor) -> Tensor:
        return torch.cat([weight.chunk(4)[part] for part in order])

    with torch.no_grad():
        cell.weight_ih.copy_(rows(torch.cat((made.input.weight, made.recurrent.weight[:, :6]), 1)))
        cell.weight_hh.copy_(rows(made.recurrent.weight[:, 6:]))
        cell.bias_ih.copy_(rows(made.input.bias))
        cell.bias_hh.zero_()
    hidden, memory = cell(torch.cat((x, state["reads"]), 1), (state["hidden"], state["cell"]))
    _, after = made.step(x, state)
    torch.testing.assert_close(after["hidden"], hidden)
    torch.testing.assert_close(after["cell"], memory)


def test_sequences_do_not_disturb_each_other() -> None:
    made, x = machine(), torch.randn(4, 6, 5)
    whole = made(x)[0]
    for b in range(4):
        torch.testing.assert_close(made(x[b : b + 1])[0], whole[b : b + 1])


@pytest.mark.parametrize("controller", ["lstm", "feed-forward"])
def test_gradients_reach_everything_and_are_finite(controller: str) -> None:
    made = machine(controller)
    made(torch.randn(2, 30, 5))[0].square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_keeps_addresses_and_memory_in_float32(autocast: bool) -> None:
    made, x = machine(), torch.randn(2, 12, 5)
    expected = made(x)[0]
    if not autocast:
        made, x = made.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, state = made(x)
    assert found.dtype == torch.bfloat16
    assert state["memory"].dtype == state["weights"].dtype == torch.float32
    torch.testing.assert_close(state["weights"].sum(-1), torch.ones(2, 2))
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_memory_given_and_longer_memory() -> None:
    made = machine()
    given_rows = torch.randn(2, 5, 6)
    state = made.start(2, memory=given_rows)
    assert torch.equal(state["memory"], given_rows)
    assert made(torch.randn(2, 3, 5), state)[1]["memory"].shape == (2, 5, 6)
    assert made(torch.randn(2, 3, 5), made.start(2, rows=30))[1]["weights"].shape == (2, 2, 30)
    with pytest.raises(MeshcapError, match="expected \\(3, rows, 6\\)"):
        made.start(3, memory=given_rows)


def test_mistakes() -> None:
    with pytest.raises(MeshcapError, match="no controller 'gru'"):
        machine("gru")
    with pytest.raises(MeshcapError, match="reads is 0"):
        machine(reads=0)
    with pytest.raises(MeshcapError, match="reach is 5"):
        machine(reach=5)
    with pytest.raises(MeshcapError, match="d_input is 0"):
        TuringConfig(d_input=0, d_output=1)


def losses(steps: int) -> list[float]:
    """Of the first steps of one and the same course."""
    torch.manual_seed(0)
    made = TuringMachine(TuringConfig(d_input=4, d_output=3, d_control=24, rows=8, row_width=6))
    lessons = Lessons(steps=120, batch=16, width=3, longest=2, rate=1e-2)
    return [loss for _, loss, _ in islice(learn(made, TASKS["copy"], lessons), steps)]


def test_loss_falls_and_the_same_seed_learns_the_same() -> None:
    first = losses(120)
    assert sum(first[-20:]) < 0.6 * sum(first[:20])
    assert losses(10) == first[:10]


def test_examine_knows_a_machine_that_guesses() -> None:
    made = TuringMachine(TuringConfig(d_input=5, d_output=4, d_control=8, rows=9, row_width=6))
    answer = examine(made, TASKS["copy"], 6, 4, sequences=50)
    assert (answer.length, answer.bits) == (6, 24)
    assert 8 < answer.wrong < 16 and answer.perfect == 0


def test_learning_that_fails_says_so() -> None:
    made = TuringMachine(TuringConfig(d_input=4, d_output=3, d_control=8, rows=8, row_width=6))
    with torch.no_grad():
        made.output.bias.fill_(float("nan"))
    with pytest.raises(FailedError, match="nan at step 1"):
        next(learn(made, TASKS["copy"], Lessons(width=3, longest=2)))
    with pytest.raises(MeshcapError, match="at least 2"):
        next(learn(made, TASKS["associative-recall"], Lessons(width=3, longest=1)))
