"""From the decoder's last layer to the next word's log-probabilities."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.models.words import SharedWords, Words

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of torch, or a platform without Triton
    triton = None

Aligned = tuple[Tensor, Tensor]


class Output(nn.Module):
    """A linear map, and a log-softmax; words that are never said get -inf.

    The map has a matrix of its own, or that of the `tied` words, and no bias.
    """

    silence: Tensor

    def __init__(self, d_model: int, vocab_size: int, never: tuple[int, ...], tied: Words | None = None):
        super().__init__()
        self.vocab_size = vocab_size
        self.words = nn.Linear(d_model, vocab_size, bias=False) if tied is None else SharedWords(tied)
        silence = torch.zeros(vocab_size)
        silence[list(never)] = float("-inf")
        self.register_buffer("silence", silence, persistent=False)

    def aligned(self) -> Aligned:
        """Weight and silence with rows added to a multiple of 8, without which a GPU's matrix kernels are slow."""
        missing = -self.vocab_size % 8
        return F.pad(self.words.weight, (0, 0, 0, missing)), F.pad(self.silence, (0, missing), value=float("-inf"))

    def forward(self, y: Tensor, aligned: Aligned | None = None) -> Tensor:
        """y (…, D) -> (…, V) in float32."""
        if aligned is None:
            logits = self.words(y)
            logits = logits + self.silence.to(logits.dtype)
        else:
            logits = F.linear(y, *aligned)
            if triton is not None and not torch.is_grad_enabled() and self.vocab_size <= 32_768:
                return log_softmax_rows(logits, self.vocab_size)
        return torch.log_softmax(logits, -1, dtype=torch.float32)[..., : self.vocab_size]


def log_softmax_rows(logits: Tensor, count: int) -> Tensor:
    """float32 log-softmax of the first `count` columns, each row read and written once (torch converts it first)."""
    rows = logits.flatten(0, -2)
    result = rows.new_empty(rows.shape[0], count, dtype=torch.float32)
    block = triton.next_power_of_2(count)
    _log_softmax[(rows.shape[0],)](rows, result, rows.stride(0), count, block=block, num_warps=8)
    return result.view(*logits.shape[:-1], count)


if triton is not None:

    @triton.jit
    def _log_softmax(rows, result, stride, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        places = tl.arange(0, block)
        x = tl.load(rows + row * stride + places, mask=places < count, other=float("-inf")).to(tl.float32)
        x = x - tl.max(x, 0)
        tl.store(result + row * count + places, x - tl.log(tl.sum(tl.exp(x), 0)), mask=places < count)
