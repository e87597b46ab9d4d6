"""M², the Meshed-Memory Transformer (Cornia et al., CVPR 2020), top to bottom.

- The encoder refines a *set* of regions: no positions, but each region's own box is embedded (setting `boxes`).
- Its self-attention also looks at learned slots (`meshcap.memory`); the output of every layer, a level, is kept.
- The decoder attends to all levels with one shared cross-attention; a gate for each level and number decides how much
  of it passes (`mesh="full"`). The paper's ablations are settings: `mesh`, `gates`, `slots`.
- Post-norm residuals, ReLU feed-forwards, sinusoidal positions, unscaled embeddings, an untied output without bias
  (`tied_words`: the words' own matrix).
- All captions of a picture are read together: keys and values of its regions are projected once, never per caption
  or per beam.

B pictures, N regions, L levels, S captions or W hypotheses of each picture, T words, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.attention import (
    CrossAttention,
    SelfAttention,
    State,
    additive_mask,
    empty_history,
    open_history,
    reorder_history,
)
from meshcap.errors import MeshcapError
from meshcap.kernels import can_embed, can_linear_relu, can_mix_levels, can_top_k_logits, embed, linear_relu, mix_levels
from meshcap.memory import MemorySlots
from meshcap.models.base import CaptionModel, ModelConfig
from meshcap.models.layers import BoxEmbedding, Norm, Output, Words
from meshcap.regions import Regions

Mesh = Literal["full", "last", "one-to-one"]
Trace = dict[str, list[Tensor]]
Recall = Callable[[Tensor, Tensor], Tensor]


class DecoderMemory(Protocol):
    """What a decoder may listen to beside the picture: `meshcap.models.memory_level`."""

    def layer(self, index: int) -> Recall:
        """Of a decoder layer: y and what its mesh found, (B, Q, D) both -> the latter with what memory adds."""

    def say(self, y: Tensor, log_probs: Tensor) -> Tensor:
        """The last layer's y and log-probabilities (B, Q, V) -> log-probabilities, maybe of more words."""


@dataclass(frozen=True, kw_only=True)
class M2Config(ModelConfig):
    """Every setting of an M². The defaults are the paper's."""

    heads: int = 8
    d_head: int | None = None  # None: d_model / heads
    d_ff: int = 2048
    encoder_layers: int = 3
    decoder_layers: int = 3
    slots: int = 40
    mesh: Mesh = "full"
    gates: Literal["sigmoid", "softmax"] = "sigmoid"
    # Pictures with fewer regions are filled up to this many with zeros that are looked at like real regions: what
    # the public implementation's mask amounts to, and what its checkpoints were trained with.
    attend_padding: int = 0

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.heads

    def check(self) -> None:
        super().check()
        self.expect_at_least(heads=1, d_ff=1)
        if self.d_head is not None:
            self.expect_at_least(d_head=1)
        elif self.d_model % self.heads:
            raise MeshcapError(
                f"d_model is {self.d_model}, expected a multiple of heads = {self.heads} (or set d_head)"
            )
        self.expect_one_of("mesh", ("full", "last", "one-to-one"))
        self.expect_one_of("gates", ("sigmoid", "softmax"))
        self.expect_at_least(encoder_layers=1, decoder_layers=1, slots=0, attend_padding=0)
        if self.mesh == "one-to-one" and self.encoder_layers != self.decoder_layers:
            raise MeshcapError(
                f"mesh 'one-to-one' joins equal stacks, and there are {self.encoder_layers} encoder and "
                f"{self.decoder_layers} decoder layers"
            )
        if self.attend_padding and self.boxes:
            raise MeshcapError("attend_padding fills up with regions that have no box: set boxes to false")


class FeedForward(nn.Module):
    """LN(x + W₂ relu(W₁ x)), the same for every position."""

    def __init__(self, config: M2Config):
        super().__init__()
        self.expand = nn.Linear(config.d_model, config.d_ff)
        self.contract = nn.Linear(config.d_ff, config.d_model)
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = linear_relu(x, self.expand) if can_linear_relu(x, self.expand) else F.relu(self.expand(x))
        return self.norm.add(x, self.dropout(self.contract(self.dropout(inner))))


class EncoderLayer(nn.Module):
    """Memory-augmented self-attention, then a feed-forward."""

    def __init__(self, config: M2Config):
        super().__init__()
        memory = MemorySlots(config.slots, config.heads, config.head_width) if config.slots else None
        self.attention = SelfAttention(config.d_model, config.heads, config.head_width, memory=memory)
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor | None, trace: Trace | None = None) -> Tensor:
        if trace is None:
            attended = self.attention(x, mask=mask)
        else:
            attended, weights = self.attention.with_weights(x, mask=mask)
            trace["encoder"].append(weights)  # (B, H, N, N + slots)
        return self.feed_forward(self.norm.add(x, self.dropout(attended)))


class Encoder(nn.Module):
    """Regions to levels."""

    def __init__(self, config: M2Config, layer: type[nn.Module] = EncoderLayer):
        super().__init__()
        self.project = nn.Linear(config.d_input, config.d_model)
        self.box = BoxEmbedding(config.d_model, boost_low=config.boost_low_frequencies) if config.boxes else None
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.encoder_layers))
        self.slots = config.slots

    def forward(self, regions: Regions, trace: Trace | None = None) -> Tensor:
        """Every layer's output, (L, B, N, D)."""
        x = self.project(regions.features.to(self.norm.weight.dtype))
        if self.box is not None:
            x = x + self.box(regions.boxes)
        x = self.norm(self.dropout(F.relu(x)))  # (B, N, D)
        mask = None
        if regions.mask is not None:  # padded regions are hidden, slots never are
            mask = additive_mask(F.pad(regions.mask, (0, self.slots), value=True), x.dtype)[:, None, None]
        levels = []
        for layer in self.layers:
            x = layer(x, mask, trace)
            levels.append(x)
        return torch.stack(levels)


class Gates(nn.Module):
    """α_i = σ(W_i [Y; C_i] + b_i), one number between 0 and 1 for each level, word and dimension.

    W_i is kept as its two halves: the half that reads Y is one product for all levels.
    """

    def __init__(self, d_model: int, levels: int, kind: str):
        super().__init__()
        self.levels, self.kind = levels, kind
        self.query = nn.Linear(d_model, levels * d_model)
        self.context = nn.ModuleList(nn.Linear(d_model, d_model, bias=False) for _ in range(levels))

    def forward(self, y: Tensor, context: Tensor) -> Tensor:
        """y (B, Q, D), context (L, B, Q, D) -> α of the context's shape."""
        from_query = self.query(y).unflatten(-1, (self.levels, -1)).movedim(-2, 0)  # (L, B, Q, D)
        from_context = torch.stack([half(c) for half, c in zip(self.context, context, strict=True)])
        scores = from_query + from_context
        return scores.sigmoid() if self.kind == "sigmoid" else scores.softmax(0)


class Stacked(NamedTuple):
    """The weights of a mesh, those that read the same as one matrix: a step is then fewer, larger products."""

    query: Tensor  # (H·d + L·D, D) cross-attention's query and the gates'
    query_bias: Tensor
    context: Tensor  # (L, D, D) the gates' other halves

    def named(self, layer: int) -> State:
        """As tensors of a state."""
        return {f"mesh_{name}.{layer}": tensor for name, tensor in self._asdict().items()}

    @classmethod
    def of(cls, state: State, layer: int) -> Stacked | None:
        found = [state.get(f"mesh_{name}.{layer}") for name in cls._fields]
        return cls._make(one for one in found if one is not None) if found[0] is not None else None


class MeshedAttention(nn.Module):
    """M(X̃, Y) = Σ α_i ⊙ C(X̃_i, Y): one cross-attention for all levels, weighted by gates.

    With a single level there is nothing to weight, and this is the plain cross-attention of a Transformer.
    """

    def __init__(self, config: M2Config):
        super().__init__()
        levels = config.encoder_layers if config.mesh == "full" else 1
        self.cross = CrossAttention(config.d_model, config.heads, config.head_width)
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.gates = Gates(config.d_model, levels, config.gates) if levels > 1 else None
        # Independent gates add up to more than one level's worth; softmax gates add up to exactly one.
        self.scale = levels**-0.5 if config.gates == "sigmoid" else 1.0

    def forward(
        self, y: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, trace: Trace | None = None
    ) -> Tensor:
        """y (B, Q, D); keys and values (L·B, H, N, d) of the levels; mask (L·B, 1, 1, N)."""
        if trace is None:
            attended = self.cross(y, keys, values, mask=mask)  # (L, B, Q, D)
        else:
            attended, weights = self.cross.with_weights(y, keys, values, mask=mask)
            trace["regions"].append(weights.mean(2))  # (L, B, Q, N)
        context = self.norm.add(y, self.dropout(attended))
        if self.gates is None:
            if trace is not None:
                trace["gates"].append(torch.ones_like(context[..., 0]))
            return context[0]
        alpha = self.gates(y, context)
        if trace is not None:
            trace["gates"].append(alpha.mean(-1))  # (L, B, Q)
        return (alpha * context).sum(0) * self.scale

    def stacked(self, like: Tensor) -> Stacked | None:
        """What `step` reads, in the dtype of `like`; None where there is only one level."""
        if self.gates is None:
            return None
        both = self.cross.query, self.gates.query
        context = torch.stack([half.get_parameter("weight") for half in self.gates.context])
        parts = torch.cat([one.weight for one in both]), torch.cat([one.bias for one in both]), context
        return Stacked._make(part.to(like.dtype) for part in parts)

    def step(self, y: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, stacked: Stacked) -> Tensor:
        """As `forward` where `can_mix_levels`."""
        assert self.gates is not None
        levels, width = self.gates.levels, y.shape[-1]
        both = F.linear(y, stacked.query, stacked.query_bias)
        query, gate_query = both.split([both.shape[-1] - levels * width, levels * width], -1)
        context = self.norm.add(y, self.dropout(self.cross.ask(query, keys, values, mask=mask)))
        halves = torch.bmm(context.flatten(1, -2), stacked.context.transpose(1, 2)).view_as(context)
        return mix_levels(gate_query, halves, context, kind=self.gates.kind, scale=self.scale)


class DecoderLayer(nn.Module):
    """Self-attention over the words so far, meshed attention to the picture, a feed-forward."""

    def __init__(self, config: M2Config):
        super().__init__()
        self.attention = SelfAttention(config.d_model, config.heads, config.head_width)
        self.norm = Norm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.mesh = MeshedAttention(config)
        self.feed_forward = FeedForward(config)

    def add_words(self, y: Tensor, words: Tensor) -> Tensor:
        return self.norm.add(y, self.dropout(words))

    def attend_regions(
        self,
        y: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        trace: Trace | None = None,
        recall: Recall | None = None,
        stacked: Stacked | None = None,
    ) -> Tensor:
        if stacked is not None and can_mix_levels(y):
            found = self.mesh.step(y, keys, values, mask, stacked)
        else:
            found = self.mesh(y, keys, values, mask, trace)
        return self.feed_forward(found if recall is None else recall(y, found))


class Decoder(nn.Module):
    """Levels and the words so far to the next word's log-probabilities."""

    positions: Tensor

    def __init__(self, config: M2Config):
        super().__init__()
        self.mesh = config.mesh
        self.words = Words(config.vocab_size, config.d_model, tied=config.tied_words)
        self.register_buffer("positions", sinusoids(config.max_length + 1, config.d_model))
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.output = Output(
            config.d_model,
            config.vocab_size,
            config.suppressed,
            self.words if config.tied_words else None,
        )

    def sources(self, levels: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values (G·B, H, N, d) of the levels that a layer looks at."""
        if self.mesh == "last":
            levels = levels[-1:]
        elif self.mesh == "one-to-one":
            levels = levels[layer : layer + 1]
        return self.layer(layer).mesh.cross.project(levels.flatten(0, 1))

    def layer(self, index: int) -> DecoderLayer:
        layer = self.layers[index]
        assert isinstance(layer, DecoderLayer)
        return layer

    def mask(self, levels: Tensor, visible: Tensor | None) -> Tensor | None:
        """The additive mask (G·B, 1, 1, N) for `sources`."""
        if visible is None:
            return None
        groups = len(levels) if self.mesh == "full" else 1
        return additive_mask(visible, levels.dtype)[:, None, None].repeat(groups, 1, 1, 1)

    def forward(
        self,
        levels: Tensor,
        visible: Tensor | None,
        ids: Tensor,
        trace: Trace | None = None,
        memory: DecoderMemory | None = None,
        projected: State | None = None,
    ) -> Tensor:
        """Teacher-forced: ids (B, S, T) -> log-probabilities (B, S, T, V) of the word after each.

        `projected`: what `M2.project` made of the levels, so that it is not made again.

        Captions are padded on the right, and a causal mask hides what comes later: padding needs no mask of its own.
        """
        pictures, captions, length = ids.shape
        y = self.words(ids) + self.positions[1 : length + 1]  # (B, S, T, D)
        y = y.flatten(1, 2)  # every word of a picture's captions looks at that picture
        mask = self.mask(levels, visible)
        for index in range(len(self.layers)):
            layer = self.layer(index)
            words = y.view(pictures * captions, length, -1)
            y = layer.add_words(y, layer.attention(words, causal=True).view_as(y))
            recall = None if memory is None else memory.layer(index)
            if projected is None:
                keys, values = self.sources(levels, index)
            else:
                keys, values = projected[f"region_keys.{index}"], projected[f"region_values.{index}"]
            y = layer.attend_regions(y, keys, values, mask, trace, recall)
        log_probs = self.output(y, self.output.aligned() if y.is_cuda else None)
        return (log_probs if memory is None else memory.say(y, log_probs)).unflatten(1, (captions, length))

    def place(self, ids: Tensor, step: Tensor) -> Tensor:
        """Words (B, W) said at place `step` (1,), as the first layer reads them: (B, W, D)."""
        if can_embed(self.words.weight, self.positions):
            return embed(ids, self.words.weight, self.words.gain, self.positions, step)
        return self.words(ids) + self.positions.index_select(0, step + 1)

    def step(self, ids: Tensor, state: State, memory: DecoderMemory | None = None) -> Tensor:
        """One word further: ids (B, W) -> log-probabilities (B, W, V); `state` advances in place."""
        y = self.advance(ids, state, memory)
        log_probs = self.output(y, (state["output_weight"], state["output_bias"]) if y.is_cuda else None)
        return log_probs if memory is None else memory.say(y, log_probs)

    def logits(self, ids: Tensor, state: State) -> Tensor:
        """As `step`, without memory, before the softmax: on a GPU alone."""
        aligned = state["output_weight"], state["output_bias"]
        return self.output.logits(self.advance(ids, state), aligned)[..., : self.output.vocab_size]

    def advance(self, ids: Tensor, state: State, memory: DecoderMemory | None = None) -> Tensor:
        """One word further: ids (B, W) -> the last layer's y (B, W, D)."""
        y = self.place(ids, state["step"])  # (B, W, D)
        cache = open_history(state, y.dtype)
        mask = state.get("regions_visible")
        for index in range(len(self.layers)):
            layer = self.layer(index)
            y = layer.add_words(y, layer.attention.cached(y, cache, index))
            recall = None if memory is None else memory.layer(index)
            keys, values = state[f"region_keys.{index}"], state[f"region_values.{index}"]
            y = layer.attend_regions(y, keys, values, mask, recall=recall, stacked=Stacked.of(state, index))
        state["step"] += 1
        return y


class M2(CaptionModel):
    """The captioner. See `meshcap.decoding.search` for what its methods promise."""

    name = "m2"
    config_class = M2Config
    config: M2Config
    encoder_layer: ClassVar[type[nn.Module]] = EncoderLayer

    def __init__(self, config: M2Config):
        super().__init__(config)
        self.encoder = Encoder(config, self.encoder_layer)
        self.decoder = Decoder(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for matrices; words as large as the sinusoidal positions they are added to; slots by themselves."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, MemorySlots):
                module.reset_parameters()
        self.decoder.words.reset_parameters()

    def encode(self, regions: Regions, trace: Trace | None = None) -> State:
        self.expect_regions(regions)
        if self.config.attend_padding:
            regions = regions.padded_to(self.config.attend_padding)
        encoded = {"levels": self.encoder(regions, trace)}
        if regions.mask is not None:
            encoded["visible"] = regions.mask
        return encoded

    def project(self, encoded: State) -> State:
        """Encoded pictures with the keys and values that decoder layers read: made once for `read` and `start`."""
        projected = dict(encoded)
        for layer in range(self.config.decoder_layers):
            keys, values = self.decoder.sources(encoded["levels"], layer)
            if not keys.is_cuda:  # read at every step: laid out once as products on a CPU are fastest
                keys, values = keys.contiguous(), values.contiguous()
            projected[f"region_keys.{layer}"], projected[f"region_values.{layer}"] = keys, values
        return projected

    def start(self, encoded: State, *, width: int, length: int) -> State:
        self.expect_length(length)
        levels = encoded["levels"]
        if "region_keys.0" not in encoded:
            encoded = self.project(encoded)
        state: State = {}
        mask = self.decoder.mask(levels, encoded.get("visible"))
        if mask is not None:
            state["regions_visible"] = mask
        for layer in range(self.config.decoder_layers):
            for name in (f"region_keys.{layer}", f"region_values.{layer}"):
                state[name] = encoded[name]
            stacked = self.decoder.layer(layer).mesh.stacked(levels) if can_mix_levels(levels) else None
            state |= {} if stacked is None else stacked.named(layer)
        layers, keys = self.config.decoder_layers, state["region_keys.0"]
        state |= empty_history(keys, layers=layers, pictures=levels.shape[1], width=width, length=length)
        if levels.is_cuda:
            weight, bias = self.decoder.output.aligned()
            state["output_weight"], state["output_bias"] = weight, bias.to(weight.dtype)
        return state

    def step(self, ids: Tensor, state: State) -> Tensor:
        return self.decoder.step(ids, state)

    def logits(self, ids: Tensor, state: State) -> Tensor | None:
        if "output_weight" not in state or not can_top_k_logits(state["keys"], self.config.vocab_size):
            return None
        return self.decoder.logits(ids, state)

    def reorder(self, state: State, parents: Tensor) -> None:
        reorder_history(state, parents)

    def read(self, encoded: State, ids: Tensor) -> Tensor:
        self.expect_length(ids.shape[-1])
        projected = encoded if "region_keys.0" in encoded else None
        return self.decoder(encoded["levels"], encoded.get("visible"), ids, projected=projected)

    def forward(self, regions: Regions, ids: Tensor, *, attention: bool = False) -> Tensor | tuple[Tensor, State]:
        self.expect_length(ids.shape[-1])
        captions = ids if ids.dim() == 3 else ids[:, None]  # (B, S, T)
        trace: Trace | None = {"encoder": [], "regions": [], "gates": []} if attention else None
        encoded = self.encode(regions, trace)
        levels = encoded["levels"]
        log_probs = self.decoder(levels, encoded.get("visible"), captions, trace).view(*ids.shape, -1)
        if trace is None:
            return log_probs
        return log_probs, summarise(trace, regions=levels.shape[2], shape=ids.shape[1:])


def summarise(trace: Trace, *, regions: int, shape: torch.Size) -> dict[str, Tensor]:
    """The attention weights of one pass in a few tensors (`shape` is (T,) or (S, T)).

    - words (B, *shape, N): attention of each word to each region, levels weighted by their gates, layers averaged;
    - gates (layers, L, B, *shape): how open each level's gate was;
    - memory (layers, B, N): the share of each region's attention that the slots took, in each encoder layer;
    - patterns (layers, B, N, P): attention of each region to stored patterns, where an encoder has some.
    """
    weights = torch.stack(trace["regions"])  # (layers, L, B, Q, N)
    gates = torch.stack(trace["gates"])  # (layers, L, B, Q)
    shares = gates / gates.sum(1, keepdim=True).clamp_min(1e-9)
    words = (weights * shares[..., None]).sum(1).mean(0)
    summary = {"words": words.unflatten(1, shape), "gates": gates.unflatten(-1, shape)}
    if trace.get("encoder"):
        summary["memory"] = torch.stack([weights[..., regions:].sum(-1).mean(1) for weights in trace["encoder"]])
    if trace.get("patterns"):
        summary["patterns"] = torch.stack(trace["patterns"])
    return summary


def sinusoids(rows: int, width: int) -> Tensor:
    """The Transformer's positions; row 0 belongs to padding and is zero, words start at row 1."""
    if torch.get_default_device().type == "meta":  # shapes alone: torch would import its compiler to compute them
        return torch.empty(rows, width)
    place = torch.arange(rows, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    table = torch.zeros(rows, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(place * rate)
    table[:, 1::2] = torch.cos(place * rate)[:, : width // 2]
    table[0] = 0
    return table.float()


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(M2Config):
    """An `M2Config` whose memory and mesh are switched off."""

    slots: int = 0
    mesh: str = "last"  # type: ignore[assignment]

    def check(self) -> None:
        super().check()
        if self.slots or self.mesh != "last":
            raise MeshcapError("a plain Transformer has no slots and looks at the last level: use model 'm2' for those")


class Transformer(M2):
    """The Transformer that M² is measured against: the same parts, no slots, no mesh.

    Its decoder looks at the last encoder layer alone by plain cross-attention. With three or six layers this is the
    baseline of the paper's table.
    """

    name = "transformer"
    config_class = TransformerConfig
