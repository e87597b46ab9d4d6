"""Sequence to sequence (Sutskever et al.; Cho et al., 2014): one LSTM reads the regions, another tells the caption.

    e_n = LSTM(x_n, e_{n-1})                 over the regions, in reading order
    c = e_N                                  the context, one vector, is all that passes
    h_0, c_0 = tanh(W c + b)
    h_t = LSTM(y_{t-1}, h_{t-1}, c)          over the words
    p(y_t) ∝ exp(W_o h_t)

- The information bottleneck that attention was invented for: however many regions there are, the decoder knows of them
  what fits into c.
- Regions are a set, and an LSTM needs an order. They are read by the place of their boxes, from top to bottom and from
  left to right, so that the order in which they come changes nothing. Regions of the same place and size, and all
  where boxes are not read, are read as they come.
- c reaches the decoder at every word, by a product that is done once a picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshcap.attention import State
from meshcap.models.recurrent import Carry, Cell, Looks, RecurrentCaptioner, RecurrentConfig, for_each
from meshcap.regions import Regions

ROWS = 100  # boxes whose middles fall into the same hundredth of a picture's height stand in one row


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(RecurrentConfig):
    """Every setting of a Seq2Seq."""


class Seq2Seq(RecurrentCaptioner):
    """Two LSTMs with one vector between them."""

    name = "seq2seq"
    config_class = Seq2SeqConfig
    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(config)
        width = config.d_model
        self.reader = Cell(width, width, width)
        self.cell = Cell(width, width, width)
        self.context = nn.Linear(width, 4 * width, bias=False)
        self.first = nn.Linear(width, 2 * width)
        self.reset_parameters()

    def remember(self, x: Tensor, regions: Regions) -> State:
        context = self.read_regions(x, regions)  # (B, D)
        # Nothing is looked at: every word sees the same vector, in which every region counts alike.
        real = torch.ones_like(x[..., 0], dtype=torch.float32) if regions.mask is None else regions.mask.float()
        even = real / real.sum(1, keepdim=True).clamp_min(1)
        return {"first": self.first(context).tanh(), "context": self.context(context), "even": even}

    def read_regions(self, x: Tensor, regions: Regions) -> Tensor:
        """The state after the last region, (B, D). A region that is not real leaves the state as it was."""
        order = reading_order(regions.boxes if self.config.boxes else None, regions.mask, x)  # (B, N)
        x = x.gather(1, order[..., None].expand_as(x))
        real = None if regions.mask is None else regions.mask.gather(1, order)
        hidden, cell = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0], dtype=torch.float32)
        for place, heard in enumerate(self.reader.hear(x).unbind(1)):
            after = self.reader(heard, hidden, cell)
            if real is None:
                hidden, cell = after
            else:
                hidden, cell = (
                    torch.where(real[:, place, None], new, old) for new, old in zip(after, (hidden, cell), strict=True)
                )
        return hidden

    def begin(self, kept: State, width: int) -> Carry:
        hidden, cell = for_each(kept["first"], width).chunk(2, -1)
        return {"hidden": hidden, "cell": cell.float()}

    def advance(self, heard: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        hidden, cell = self.cell(heard + kept["context"][:, None], carry["hidden"], carry["cell"])
        return hidden, {"hidden": hidden, "cell": cell}, {"words": for_each(kept["even"], heard.shape[1])}


def reading_order(boxes: Tensor | None, mask: Tensor | None, x: Tensor) -> Tensor:
    """Which region is read first, second, …: (B, N), from top to bottom, then from left to right; padding last.

    By stable sorts from the least important key to the most important one.
    """
    keys = []
    if boxes is not None:
        (left, top), (right, bottom) = (corner.float().unbind(-1) for corner in boxes.chunk(2, -1))
        keys += [bottom - top, right - left, left + right, ((top + bottom) / 2 * ROWS).floor()]
    if mask is not None:
        keys.append((~mask).float())
    order = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    for key in keys:
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return order
