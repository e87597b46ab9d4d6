"""Layers that all captioners share: norm, box embedding, word embedding, output.

B pictures, N regions, D model width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.kernels import add_norm, can_add_norm, can_log_softmax, log_softmax_rows


class Norm(nn.LayerNorm):
    """`nn.LayerNorm`, with the residual stream kept as narrow as the matrix products around it.

    Autocast would return float32 from every norm, and half of a training step's memory traffic would be spent on
    that. The mean and the variance are computed in float32 inside the kernel either way.
    """

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
        x = x.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)

    def add(self, x: Tensor, added: Tensor) -> Tensor:
        """Of x + added, the end of a residual block: x (…, D), added (…, D) or (L, …, D) for L levels."""
        if can_add_norm(x, added):
            return add_norm(x, added, self.weight, self.bias, self.eps)
        return self(x + added)


LOW_GAIN = 3.0  # of the low frequencies, where they are boosted: a box then weighs about as much as the features


class BoxEmbedding(nn.Module):
    """Centre, width and height of a box as Fourier features, mapped linearly to the model's width.

    Sines and cosines of several frequencies let a linear map tell "upper left" from "a little further down", which
    four raw numbers cannot. With `boost_low`, low frequencies are amplified: they carry left, right, above and below,
    and the high ones, which only separate neighbours, would hide them for most of a short training from scratch.
    """

    frequencies: Tensor
    gains: Tensor

    def __init__(self, d_model: int, waves: int = 6, *, boost_low: bool = False):
        super().__init__()
        # Powers of two, which half precision holds exactly. (As tensors of meta they would import torch's compiler.)
        self.register_buffer("frequencies", torch.tensor([2.0**n for n in range(waves)]), persistent=False)
        gains = [LOW_GAIN * 2.0 ** -max(0, n - 1) if boost_low else 1.0 for n in range(waves)]
        self.place_gain = LOW_GAIN if boost_low else 1.0
        self.register_buffer("gains", torch.tensor(gains), persistent=False)
        self.linear = nn.Linear(4 * (1 + 2 * waves), d_model)

    def forward(self, boxes: Tensor) -> Tensor:
        """boxes (B, N, 4) as x1, y1, x2, y2 in 0-1 coordinates -> (B, N, D)."""
        low, high = boxes.float().chunk(2, dim=-1)
        place = torch.cat(((low + high) / 2, high - low), dim=-1)  # (B, N, 4)
        phase = (math.pi * place[..., None] * self.frequencies.float()).flatten(-2)  # (B, N, 4·waves)
        gains = self.gains.float().repeat(4)
        waves = torch.cat((self.place_gain * place, gains * phase.sin(), gains * phase.cos()), dim=-1)
        return self.linear(waves.to(self.frequencies.dtype))


class Words(nn.Embedding):
    """The word embedding, of the same scale as the sinusoidal positions that M² adds to it.

    A table that is also the output matrix (`TiedOutput`) has to be smaller: y has about one unit in each of D numbers,
    and logits y·E of a standard deviation near one need rows of length near one. So it is stored √D smaller and read
    √D larger, as in the Transformer of Vaswani et al. Dividing the logits by √D instead would begin with the same
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


class TiedOutput(nn.Module):
    """A linear map without bias, y (…, D) -> (…, V), whose matrix is the table of `Words`."""

    bias = None

    def __init__(self, words: Words):
        super().__init__()
        self.owner = (words,)  # in a tuple, so that torch does not register it twice: it is saved and trained once

    @property
    def weight(self) -> Tensor:
        return self.owner[0].weight

    def forward(self, y: Tensor) -> Tensor:
        return F.linear(y, self.weight)


Aligned = tuple[Tensor, Tensor]


class Output(nn.Module):
    """A linear map and a log-softmax: the decoder's last layer to log-probabilities; suppressed words get -inf.

    The map has a matrix of its own, or that of the `tied` words, and no bias.
    """

    suppression: Tensor

    def __init__(self, d_model: int, vocab_size: int, suppressed: tuple[int, ...], tied: Words | None = None):
        super().__init__()
        self.vocab_size = vocab_size
        self.words = nn.Linear(d_model, vocab_size, bias=False) if tied is None else TiedOutput(tied)
        suppression = torch.zeros(vocab_size)
        suppression[list(suppressed)] = float("-inf")
        self.register_buffer("suppression", suppression, persistent=False)

    def aligned(self) -> Aligned:
        """Weight and bias with rows added to a multiple of 8, without which a GPU's matrix kernels are slow."""
        missing = -self.vocab_size % 8
        return F.pad(self.words.weight, (0, 0, 0, missing)), F.pad(self.suppression, (0, missing), value=float("-inf"))

    def forward(self, y: Tensor, aligned: Aligned | None = None) -> Tensor:
        """y (…, D) -> (…, V) in float32."""
        if aligned is None:
            logits = self.words(y)
            logits = logits + self.suppression.to(logits.dtype)
        else:
            logits = self.logits(y, aligned)
            if can_log_softmax(logits, self.vocab_size):
                return log_softmax_rows(logits, self.vocab_size)
        return torch.log_softmax(logits, -1, dtype=torch.float32)[..., : self.vocab_size]

    def logits(self, y: Tensor, aligned: Aligned) -> Tensor:
        """What `forward` takes the softmax of, with the rows that were added."""
        return F.linear(y, *aligned)
