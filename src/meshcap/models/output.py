"""From the decoder's last layer to the next word's log-probabilities."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.kernels import can_log_softmax, log_softmax_rows
from meshcap.models.words import SharedWords, Words

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
            if can_log_softmax(logits, self.vocab_size):
                return log_softmax_rows(logits, self.vocab_size)
        return torch.log_softmax(logits, -1, dtype=torch.float32)[..., : self.vocab_size]
