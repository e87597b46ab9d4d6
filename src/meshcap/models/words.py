"""Words as vectors: the table that captions are read with, and, where it is tied, said with."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Words(nn.Embedding):
    """A vector for each word, as loud as the sinusoidal positions that M² adds to it.

    A table that also says words (`SharedWords`) has to be quieter: y has about one unit in each of D numbers, and
    logits y·E of a standard deviation near one need rows of length near one. So it is kept √D quieter and read √D
    louder, as in the Transformer of Vaswani et al. Dividing the logits by √D instead would begin with the same
    captions, but Adam moves every number alike, and √D larger ones would learn √D more slowly.
    """

    gain: float = 1.0

    def __init__(self, vocab_size: int, d_model: int, *, tied: bool = False):
        super().__init__(vocab_size, d_model)
        if tied:
            self.gain = d_model**0.5

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=2**-0.5 / self.gain)

    def forward(self, ids: Tensor) -> Tensor:
        found = super().forward(ids)
        return found if self.gain == 1 else found * self.gain


class SharedWords(nn.Module):
    """A linear map without bias, y (…, D) -> (…, V), whose matrix is the table of `Words`."""

    bias = None

    def __init__(self, words: Words):
        super().__init__()
        self.lender = (words,)  # in a tuple, where torch does not take it for a part: it is saved and trained once

    @property
    def weight(self) -> Tensor:
        return self.lender[0].weight

    def forward(self, y: Tensor) -> Tensor:
        return F.linear(y, self.weight)
