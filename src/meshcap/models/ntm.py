"""A Neural Turing Machine that captions: Show, Attend and Tell with a memory beside it that it writes while it speaks.

    z_t = β Σ_n α_n x_n                              soft attention by h_{t-1}
    h_t = LSTM(y_{t-1}, [h_{t-1}, z_t, r_{t-1}])     the controller: heard, seen, read
    M_t, r_t = heads(h_t, M_{t-1})                   erase and add where the writing heads are, then read
    p(y_t) ∝ exp(W_o (y_{t-1} + W [h_t, z_t, r_t]))

- `meshcap.memory.Memory` is the memory: heads find rows by content and by shifting from where they were.
- Every caption begins with a blank memory of `memory_rows` rows of `memory_width` numbers.
- The memory is part of the carry, (B, W, rows, width): a beam search that drops a hypothesis drops what it had noted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshcap.attention import State
from meshcap.memory import Memory
from meshcap.models.recurrent import Carry, Looks
from meshcap.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig

NOTED = ("memory", "weights", "reads")  # the state of a `Memory`


@dataclass(frozen=True, kw_only=True)
class NTMConfig(ShowAttendTellConfig):
    """Every setting of an NTM."""

    memory_rows: int = 24
    memory_width: int = 32
    read_heads: int = 1
    write_heads: int = 1

    def check(self) -> None:
        super().check()
        self.expect_at_least(memory_rows=3, memory_width=1, read_heads=1, write_heads=1)


class NTM(ShowAttendTell):
    """Its controller is the LSTM that tells the words."""

    name = "ntm"
    config_class = NTMConfig
    config: NTMConfig

    def __init__(self, config: NTMConfig):
        super().__init__(config, d_recalled=config.read_heads * config.memory_width)
        self.memory = Memory(
            config.d_model,
            rows=config.memory_rows,
            row_width=config.memory_width,
            reads=config.read_heads,
            writes=config.write_heads,
        )

    def begin(self, kept: State, width: int) -> Carry:
        carry = super().begin(kept, width)
        blank = self.memory.start(kept["first"].shape[0] * width)  # of any size where this is traced
        return carry | {name: blank[name].unflatten(0, (-1, width)) for name in NOTED}

    def advance(self, heard: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        context, looks = self.gated_look(carry["hidden"], kept)
        recalled = torch.cat((carry["hidden"], context, carry["reads"]), -1)
        hidden, cell = self.cell(heard, recalled, carry["cell"])
        # The memory knows sequences, not pictures: every hypothesis is one.
        noted = self.memory(hidden.flatten(0, 1), {name: carry[name].flatten(0, 1) for name in NOTED})
        after = {name: noted[name].unflatten(0, hidden.shape[:2]) for name in NOTED}
        reading, writing = after["weights"].split((self.memory.reads, self.memory.writes), dim=2)  # (B, W, heads, rows)
        looks |= {"memory_reads": reading, "memory_writes": writing}
        found = torch.cat((hidden, context, after["reads"]), -1)
        return found, {"hidden": hidden, "cell": cell} | after, looks
