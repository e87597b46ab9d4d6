"""A Neural Turing Machine: a controller that learns to use a memory beside it (Graves, Wayne and Danihelka, 2014).

- `Memory` is the part that any network can hold on to: give it a vector that says what you want and the state of a
  step ago, and it writes, reads and returns what was read. It has no weights that depend on the number of rows, so a
  machine may be tried with a longer memory than it learned with.
- `TuringMachine` is a controller (LSTM or feed-forward) around it, from vectors to vectors.
- All heads find their rows at once, in the memory as the last step left it; then they write, then they read. What is
  written is there to be read in the same step, by a head that looks there.
- A state is a dict of tensors with the sequences first: what reorders hypotheses can reorder it.

How heads find their rows (section 3.3 of the paper), in four small steps:

    content      which rows look like the key
    interpolate  those, or where the head was before
    shift        and from there a little forward or back, round the end to the beginning
    sharpen      without the blur that shifting leaves behind

All of that is float32, whatever the rest computes in: a weighting is shifted and sharpened hundreds of times in a row.

B sequences, T steps, M rows of W numbers, R reading and U writing heads, H = R + U (in this order in all weights),
S = 2·reach + 1 shifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError

State = dict[str, Tensor]
BLANK = 1e-6  # what rows hold before anything is written: nothing, yet with a direction that a key can be compared to
TINY = 1e-16  # below the square of a norm that means anything
FAINT = 1e-16  # a weight that counts as none, and still has a logarithm


@dataclass
class Address:
    """Where all heads shall go, by the controller. Each number is in its range: see `Memory.address`."""

    key: Tensor  # (B, H, W)
    strength: Tensor  # (B, H, 1), β ≥ 0
    gate: Tensor  # (B, H, 1), g in 0–1: 1 is content alone, 0 is the place before
    shifts: Tensor  # (B, H, S), a distribution over -reach … reach
    sharpness: Tensor  # (B, H, 1), γ ≥ 1


def find(address: Address, memory: Tensor, before: Tensor) -> Tensor:
    """Where all heads look now: memory (B, M, W) and the weights (B, H, M) of a step ago -> weights (B, H, M)."""
    similar = content(memory, address.key, address.strength)
    moved = shift(interpolate(similar, before, address.gate), address.shifts)
    return sharpen(moved, address.sharpness)


def content(memory: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    """softmax(β · cosine(key, row)) over rows: memory (B, M, W), key (B, H, W), strength (B, H, 1) -> (B, H, M)."""
    # The strength goes into the key, which is small, and the norms of the rows come after the product, for rows are
    # many: no tensor here is larger than the memory itself.
    key = key * (strength * (key.square().sum(-1, keepdim=True) + TINY).rsqrt())
    shrink = (memory.square().sum(-1) + TINY).rsqrt()  # (B, M), 1 / norm
    return (key @ memory.mT * shrink[:, None]).softmax(-1)


def interpolate(similar: Tensor, before: Tensor, gate: Tensor) -> Tensor:
    """g · content + (1 - g) · before."""
    return torch.lerp(before, similar, gate)


def shift(weights: Tensor, shifts: Tensor) -> Tensor:
    """Circular convolution: row i gets Σ shifts[s] · weights[i - s], s from -reach to reach; (B, H, M) -> the same."""
    reach = shifts.shape[-1] // 2
    parts = shifts.split(1, dim=-1)
    moved = weights * parts[reach]
    for by in range(1, reach + 1):
        moved = torch.addcmul(moved, weights.roll(by, -1), parts[reach + by])
        moved = torch.addcmul(moved, weights.roll(-by, -1), parts[reach - by])
    return moved


def sharpen(weights: Tensor, sharpness: Tensor) -> Tensor:
    """weights ** γ, brought back to a sum of 1.

    As softmax(γ · log weights), the same number: a power of a small weight may well be zero in float32, and a sum of
    zeros cannot be divided by.
    """
    return (weights.clamp_min(FAINT).log() * sharpness).softmax(-1)


class Memory(nn.Module):
    """M rows of W numbers, and the heads that read and write them.

    The state: `memory` (B, M, W), `weights` (B, R + U, M) and `reads` (B, R·W). All but the reads are float32 under
    any autocast or weights.

    Args:
        d_control: numbers of the vector that steers the heads.
        rows, row_width: M and W. `start` can take another M.
        reads, writes: heads.
        reach: heads move by -reach … reach rows in a step.
    """

    def __init__(
        self, d_control: int, *, rows: int = 128, row_width: int = 20, reads: int = 1, writes: int = 1, reach: int = 1
    ):
        super().__init__()
        for name, value in {"rows": rows, "row_width": row_width, "reads": reads, "writes": writes}.items():
            if value < 1:
                raise MeshcapError(f"{name} is {value}, expected at least 1")
        if not 0 <= 2 * reach < rows:
            raise MeshcapError(f"reach is {reach}, expected 0 or more, and less than half of the {rows} rows")
        self.rows, self.row_width, self.reads, self.writes, self.reach = rows, row_width, reads, writes, reach
        heads = reads + writes
        # By the function that brings them into range: tanh (keys, what is added), softplus (strengths, sharpness),
        # sigmoid (gates, what is erased), softmax (shifts).
        self.sizes = [
            heads * row_width + writes * row_width,
            2 * heads,
            heads + writes * row_width,
            heads * (2 * reach + 1),
        ]
        self.steer = nn.Linear(d_control, sum(self.sizes))
        self.first_reads = nn.Parameter(torch.empty(reads * row_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Heads begin in focus and near where they were: those that read rather stay, those that write rather go on.

        One that looks everywhere at once learns nothing from it, and one that writes over and over the same row little.
        """
        nn.init.xavier_uniform_(self.steer.weight)
        nn.init.zeros_(self.steer.bias)
        heads = self.reads + self.writes
        _, softplus, sigmoid, shifts = self.steer.bias.detach().split(self.sizes)
        softplus[heads:] = 2.0  # γ ≈ 3
        sigmoid[:heads] = -2.0  # g ≈ 0.1
        if self.reach:
            shifts = shifts.view(heads, -1)
            shifts[: self.reads, self.reach] = 1.0  # readers stay: with a reach of 1, 0.58 of the weight
            shifts[self.reads :, self.reach + 1] = 1.0  # writers go one row forward
        nn.init.normal_(self.first_reads, std=0.01)

    def start(self, batch: int, *, memory: Tensor | None = None, rows: int | None = None) -> State:
        """The state before the first step: a blank memory, or the one given (B, M, W); all heads on the first row."""
        like = self.first_reads
        if memory is None:
            shape = (batch, self.rows if rows is None else rows, self.row_width)
            memory = like.new_full(shape, BLANK, dtype=torch.float32)
        elif memory.dim() != 3 or memory.shape[0] != batch or memory.shape[2] != self.row_width:
            raise MeshcapError(
                f"the memory given has shape {tuple(memory.shape)}, expected ({batch}, rows, {self.row_width})"
            )
        weights = like.new_zeros(batch, self.reads + self.writes, memory.shape[1], dtype=torch.float32)
        weights[..., 0] = 1
        return {"memory": memory.float(), "weights": weights, "reads": like.expand(batch, -1)}

    def forward(self, control: Tensor, state: State) -> State:
        """One step: control (B, d_control) moves the heads, which write and then read. Returns the next state."""
        steering = self.steer(control)
        with torch.autocast(control.device.type, enabled=False):
            address, erase, add = self.address(steering.float())
            weights = find(address, state["memory"], state["weights"])
            reading, writing = weights.split((self.reads, self.writes), dim=1)
            memory = write(state["memory"], writing, erase, add)
            reads = read(memory, reading).flatten(1)
        return {"memory": memory, "weights": weights, "reads": reads.to(control.dtype)}

    def address(self, steering: Tensor) -> tuple[Address, Tensor, Tensor]:
        """From the controller's output: where to go, what to erase and what to add, (B, U, W) each."""
        heads, written = self.reads + self.writes, self.writes * self.row_width
        tanh, softplus, sigmoid, shifts = steering.split(self.sizes, dim=-1)
        key, add = tanh.tanh().split((heads * self.row_width, written), dim=-1)
        strength, sharpness = F.softplus(softplus).unflatten(-1, (2, heads, 1)).unbind(1)
        gate, erase = sigmoid.sigmoid().split((heads, written), dim=-1)
        address = Address(
            key=key.unflatten(-1, (heads, -1)),
            strength=strength,
            gate=gate.unsqueeze(-1),
            shifts=shifts.unflatten(-1, (heads, -1)).softmax(-1),
            sharpness=1 + sharpness,
        )
        return address, erase.unflatten(-1, (self.writes, -1)), add.unflatten(-1, (self.writes, -1))


def read(memory: Tensor, weights: Tensor) -> Tensor:
    """Rows by their weights: (B, M, W), (B, R, M) -> (B, R, W)."""
    return weights @ memory


def write(memory: Tensor, weights: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """row · Π(1 - w ⊗ erase) + Σ w ⊗ add: (B, M, W), (B, U, M), (B, U, W), (B, U, W) -> (B, M, W)."""
    where = weights.mT  # (B, M, U)
    if weights.shape[1] == 1:  # a sum over one head is a product of two, and a matrix product is the fastest of those
        kept = torch.addcmul(memory, memory, where @ erase, value=-1)
    else:
        kept = memory * (1 - weights[..., None] * erase[:, :, None]).prod(1)
    return torch.baddbmm(kept, where, add)


@dataclass(frozen=True, kw_only=True)
class TuringConfig:
    """Every setting of a machine."""

    d_input: int
    d_output: int
    d_control: int = 100
    controller: Literal["lstm", "feed-forward"] = "lstm"
    rows: int = 128
    row_width: int = 20
    reads: int = 1
    writes: int = 1
    reach: int = 1

    def __post_init__(self) -> None:
        for name in ("d_input", "d_output", "d_control"):
            if getattr(self, name) < 1:
                raise MeshcapError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.controller not in ("lstm", "feed-forward"):
            raise MeshcapError(f"there is no controller {self.controller!r}, expected lstm or feed-forward")


class TuringMachine(nn.Module):
    """Controller, memory, output. The output of a step depends on its input and on what is read at that step.

    The state is the memory's, and `hidden` and `cell` (B, d_control) of an LSTM.
    """

    def __init__(self, config: TuringConfig):
        super().__init__()
        self.config = config
        d_control, d_reads = config.d_control, config.reads * config.row_width
        self.memory = Memory(
            d_control,
            rows=config.rows,
            row_width=config.row_width,
            reads=config.reads,
            writes=config.writes,
            reach=config.reach,
        )
        self.lstm = config.controller == "lstm"
        width = 4 * d_control if self.lstm else d_control
        self.input = nn.Linear(config.d_input, width)
        # What the controller reads and its hidden state of a step ago, by one product.
        self.recurrent = nn.Linear(d_reads + d_control * self.lstm, width, bias=False)
        self.output = nn.Linear(d_control + d_reads, config.d_output)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.input, self.recurrent, self.output):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if self.lstm:  # begin by remembering: a forget gate that is half closed hinders learning over many steps
            nn.init.ones_(self.input.bias[self.config.d_control : 2 * self.config.d_control])
        self.memory.reset_parameters()

    def start(self, batch: int, *, memory: Tensor | None = None, rows: int | None = None) -> State:
        """The state before the first step, as `Memory.start` has it."""
        state = self.memory.start(batch, memory=memory, rows=rows)
        if self.lstm:
            zeros = state["reads"].new_zeros(batch, self.config.d_control)
            state |= {"hidden": zeros, "cell": zeros}
        return state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x (B, d_input) -> output (B, d_output), and the state after it."""
        features, state = self.advance(self.input(x), state)
        return self.output(features), state

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """A whole sequence: x (B, T, d_input) -> outputs (B, T, d_output), and the state after it."""
        state = self.start(x.shape[0]) if state is None else state
        outputs = []
        for projected in self.input(x).unbind(1):  # what needs no memory is computed for all steps at once
            one, state = self.advance(projected, state)
            outputs.append(one)
        return self.output(torch.stack(outputs, 1)), state

    def trace(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """As `forward`; the state is that after every step: memory (B, T, M, W), weights (B, T, H, M) and so on."""
        state = self.start(x.shape[0]) if state is None else state
        outputs, states = [], []
        for one in x.unbind(1):
            output, state = self.step(one, state)
            outputs.append(output)
            states.append(state)
        return torch.stack(outputs, 1), {name: torch.stack([s[name] for s in states], 1) for name in state}

    def advance(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """Controller, then memory: (B, d_control + R·W) for the output, and the next state."""
        if self.lstm:
            gates = projected + self.recurrent(torch.cat((state["reads"], state["hidden"]), 1))
            inward, forget, outward, candidate = gates.split(self.config.d_control, dim=1)
            cell = forget.sigmoid() * state["cell"] + inward.sigmoid() * candidate.tanh()
            control = outward.sigmoid() * cell.tanh()
            new = {"hidden": control, "cell": cell}
        else:
            control = F.relu(projected + self.recurrent(state["reads"]))
            new = {}
        state = self.memory(control, state) | new
        return torch.cat((control, state["reads"]), 1), state
