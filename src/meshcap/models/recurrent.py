"""Recurrent captioners: what they share, and the plain one, sequence to sequence.

Words are read one after the other, and a carry goes along:

    i, f, o, g = split(W x + b + U r)      x the word, r what is recalled: the last hidden state, and more
    c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g)         the LSTM of Hochreiter and Schmidhuber, 1997
    h' = σ(o) ⊙ tanh(c')

- A subclass says what it keeps of the pictures (`remember`), with which carry a caption begins (`begin`), how one word
  changes it (`advance`) and what the output reads (`readout`). Stepping, reordering and reading follow.
- The carry is a dict of tensors (B, W, …). `advance` returns a new one, so that gradients flow through a whole caption;
  only `step` writes, into its own state.
- What needs no carry is computed for all words of a caption at once: W x before the loop, the output after it.
- c is float32 in any precision: it is a sum over all words so far.

B pictures, N regions, W hypotheses or captions of each, T words, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshcap.attention import State
from meshcap.models.base import CaptionModel, ModelConfig
from meshcap.models.layers import BoxEmbedding, Norm, Output, Words
from meshcap.regions import Regions

Carry = dict[str, Tensor]
Looks = dict[str, Tensor]  # what one word did: `words` (B, W, N), and more (B, W, …) where a mechanism has more

CARRY, KEPT, OUTPUT = "carry.", "kept.", "output."  # prefixes of a state's names


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """The settings of every recurrent captioner; `d_model` is the width of its regions, words and LSTM."""


class RegionReader(nn.Module):
    """LN(relu(W x + box)): regions as M²'s encoder begins with them."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.project = nn.Linear(config.d_input, config.d_model)
        self.box = BoxEmbedding(config.d_model) if config.boxes else None
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, regions: Regions) -> Tensor:
        """(B, N, D)."""
        x = self.project(regions.features.to(self.norm.weight.dtype))
        if self.box is not None:
            x = x + self.box(regions.boxes)
        return self.norm(self.dropout(torch.relu(x)))


class Cell(nn.Module):
    """An LSTM cell in two halves: `input` maps all words at once, then come the steps with the recurrent part.

    Args:
        d_recalled: numbers of r, the hidden state's own included.
    """

    def __init__(self, d_input: int, d_recalled: int, d_hidden: int):
        super().__init__()
        self.d_hidden = d_hidden
        self.input = nn.Linear(d_input, 4 * d_hidden)
        self.recurrent = nn.Linear(d_recalled, 4 * d_hidden, bias=False)

    def reset_parameters(self) -> None:
        # Begin by remembering: a forget gate that is half closed hinders learning over many words.
        nn.init.ones_(self.input.bias[self.d_hidden : 2 * self.d_hidden])

    def forward(self, projected: Tensor, recalled: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """projected (…, 4D) from `input`, recalled (…, R), cell (…, D) -> the hidden state (…, D) and the next cell."""
        inward, forget, outward, candidate = (projected + self.recurrent(recalled)).chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + inward.sigmoid() * candidate.tanh()  # as wide as the wider: float32
        return (outward.sigmoid() * cell.tanh()).to(projected.dtype), cell


class RecurrentCaptioner(CaptionModel):
    """Base of recurrent captioners. A subclass ends its constructor with `reset_parameters`."""

    config: RecurrentConfig
    cell: Cell

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.regions = RegionReader(config)
        self.words = Words(config.vocab_size, config.d_model, tied=config.tied_words)
        self.dropout = nn.Dropout(config.dropout)
        self.output = Output(
            config.d_model,
            config.vocab_size,
            config.suppressed,
            self.words if config.tied_words else None,
        )

    def reset_parameters(self) -> None:
        """Xavier for matrices, words as in M²; cells and memories initialise themselves."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, Cell):
                module.reset_parameters()
        self.words.reset_parameters()

    # What a subclass says.
    def remember(self, x: Tensor, regions: Regions) -> State:
        """What is kept of the pictures, whose regions are read as x (B, N, D)."""
        raise NotImplementedError

    def begin(self, kept: State, width: int) -> Carry:
        """The carry before the first word of `width` captions."""
        raise NotImplementedError

    def advance(self, projected: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        """One word further, projected (B, W, 4D): what `readout` takes (B, W, ·), the next carry, the attention."""
        raise NotImplementedError

    def readout(self, x: Tensor, found: Tensor) -> Tensor:
        """Embedded words x (B, W, …, D) and what `advance` found (B, W, …, ·) -> what the output reads (B, W, …, D)."""
        return self.dropout(found)

    # What follows from it.
    def encode(self, regions: Regions) -> State:
        self.expect_regions(regions)
        return self.remember(self.regions(regions), regions)

    def start(self, encoded: State, *, width: int, length: int) -> State:
        self.expect_length(length)
        state = {KEPT + name: tensor for name, tensor in encoded.items()}
        # Of its own memory: a step writes into it.
        state |= {CARRY + name: tensor.clone() for name, tensor in self.begin(encoded, width).items()}
        if self.words.weight.is_cuda:
            weight, bias = self.output.aligned()
            state |= {OUTPUT + "weight": weight, OUTPUT + "bias": bias.to(weight.dtype)}
        return state

    def step(self, ids: Tensor, state: State) -> Tensor:
        x = self.words(ids)
        found, carry, _ = self.advance(self.cell.input(x), part(state, KEPT), part(state, CARRY))
        for name, tensor in carry.items():
            state[CARRY + name].copy_(tensor)
        return self.output(
            self.readout(x, found), (state[OUTPUT + "weight"], state[OUTPUT + "bias"]) if x.is_cuda else None
        )

    def reorder(self, state: State, parents: Tensor) -> None:
        for tensor in part(state, CARRY).values():
            index = parents.view(*parents.shape, *[1] * (tensor.dim() - 2)).expand_as(tensor)
            tensor.copy_(tensor.gather(1, index))

    def read(self, encoded: State, ids: Tensor) -> Tensor:
        return self.read_with_attention(encoded, ids)[0]

    def read_with_attention(self, encoded: State, ids: Tensor) -> tuple[Tensor, list[Looks]]:
        """ids (B, S, T) -> log-probabilities (B, S, T, V), and where each of the T words looked."""
        self.expect_length(ids.shape[-1])
        x = self.dropout(self.words(ids))  # (B, S, T, D)
        carry = self.begin(encoded, ids.shape[1])
        outputs, looks = [], []
        for projected in self.cell.input(x).unbind(2):
            found, carry, look = self.advance(projected, encoded, carry)
            outputs.append(found)
            looks.append(look)
        y = self.readout(x, torch.stack(outputs, 2))
        return self.output(y, self.output.aligned() if y.is_cuda else None), looks

    def forward(self, regions: Regions, ids: Tensor, *, attention: bool = False) -> Tensor | tuple[Tensor, State]:
        captions = ids if ids.dim() == 3 else ids[:, None]
        log_probs, looks = self.read_with_attention(self.encode(regions), captions)
        log_probs = log_probs.view(*ids.shape, -1)
        if not attention:
            return log_probs
        seen = joined(looks)  # (B, S, T, …)
        return log_probs, seen if ids.dim() == 3 else {name: tensor[:, 0] for name, tensor in seen.items()}


def part(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def joined(looks: list[Looks]) -> State:
    """The looks of T words, (B, S, …) each, as (B, S, T, …)."""
    return {name: torch.stack([look[name] for look in looks], 2) for name in looks[0]}


def for_each(x: Tensor, width: int) -> Tensor:
    """What a picture has (B, …), for each of its hypotheses (B, W, …), without a copy."""
    return x[:, None].expand(-1, width, *x.shape[1:])


def mean_region(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, D) -> (B, D), of the real regions."""
    if mask is None:
        return x.mean(1)
    real = mask[..., None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1).clamp_min(1)


ROWS = 100  # boxes whose middles fall into the same hundredth of a picture's height stand in one row


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(RecurrentConfig):
    """Every setting of a Seq2Seq."""


class Seq2Seq(RecurrentCaptioner):
    """Sequence to sequence (Sutskever et al.; Cho et al., 2014): one LSTM reads the regions, one writes the caption.

        e_n = LSTM(x_n, e_{n-1})                 over the regions, in reading order
        c = e_N                                  the context, one vector, is all that passes
        h_0, c_0 = tanh(W c + b)
        h_t = LSTM(y_{t-1}, h_{t-1}, c)          over the words
        p(y_t) ∝ exp(W_o h_t)

    - This is the information bottleneck that attention removes: however many regions there are, the decoder knows of
      them what fits into c.
    - Regions are a set, and an LSTM needs an order. They are read by the place of their boxes, from top to bottom and
      from left to right, so that the order in which they come changes nothing. Regions of the same place and size, and
      all where boxes are not read, are read as they come.
    - c reaches the decoder at every word, by a product that is done once a picture.
    """

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
        for place, projected in enumerate(self.reader.input(x).unbind(1)):
            after = self.reader(projected, hidden, cell)
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

    def advance(self, projected: Tensor, kept: State, carry: Carry) -> tuple[Tensor, Carry, Looks]:
        hidden, cell = self.cell(projected + kept["context"][:, None], carry["hidden"], carry["cell"])
        return hidden, {"hidden": hidden, "cell": cell}, {"words": for_each(kept["even"], projected.shape[1])}


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
