"""One more level of the mesh: captions of remembered pictures that are like this one.

A store (`meshcap.memory.store`) gives the captions of the nearest pictures that it remembers. An M² whose own weights
stay as they are listens to them through a `MemoryLevel`:

- a small encoder reads each caption by itself: the decoder's own word embeddings, positions, the place of the picture
  among the nearest, how similar it is;
- each decoder layer attends to all words of all captions, with a gate of its own as the mesh has one for each level:

      M'(X̃, Y) = M(X̃, Y) + α_mem ⊙ C_mem        C_mem = W_o attention(Y, memory)        α_mem = σ(W [Y; C] + W' s + b)

  where s says how similar the nearest picture is. W_o begins with zeros: training begins with the captioner as it is;
- words can be copied (See et al., 2017): p'(w) = (1 - g) p(w) + g Σ_{i: w_i = w} a_i with a pointer a over the words of
  memory and a switch g. So words that the vocabulary lacks are said, "words for the moment" with ids from V on. Inside,
  each is read as its stand-in, a word of the vocabulary that is used alike, with a mark that it is new.

Pictures without memories get exactly what they get without this level.

B pictures, C captions of each, T words, N = C · T, Q queries (words of all captions of a picture), D model width,
V vocabulary, E words for the moment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.attention import SelfAttention, State, additive_mask
from meshcap.attention.multi_head import attend_groups, attend_with_weights, join_heads, split_heads
from meshcap.errors import MeshcapError
from meshcap.folders import Bits
from meshcap.models.layers import Norm
from meshcap.models.m2 import M2, Recall, Trace, sinusoids, summarise
from meshcap.regions import Regions
from meshcap.weights import build_for, load_weights, save_weights, stored

LONGEST = 32  # words of a remembered caption that are read
CENTRES = tuple(i / 10 for i in range(11))  # of the bumps that a similarity is seen through
LEAST_LOG = -12.0  # a word that the model finds less likely is as unlikely to be pointed at
OF_THE_MODEL = ("d_input", "d_model", "heads", "decoder_layers", "vocab_size", "pad")
PREFIX = "memory."  # of its tensors in a state


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Sizes of a level; the first six are those of the M² that it belongs to."""

    d_input: int
    d_model: int
    heads: int
    decoder_layers: int
    vocab_size: int
    pad: int
    d_head: int = 64
    reader_head: int = 32  # width of a head of the encoder
    d_ff: int = 256
    d_pointer: int = 128
    captions: int = 12  # that are read of each picture, at most
    # What was measured on pictures that it had not learned from: how many remembered pictures the captions are taken
    # from, how similar one must be to be listened to at all, and how like the pictures of a name for that to be said.
    entries: int = 12
    least_similarity: float = 0.0
    name_similarity: float = 0.89  # `python benchmarks/memory.py names`
    agreement: float = 16.0  # what a point of CIDEr-D with all that is near counts beside a log-probability

    @classmethod
    def of(cls, model: M2, **sizes: Any) -> MemoryConfig:
        return cls(**{name: getattr(model.config, name) for name in OF_THE_MODEL}, **sizes)


@dataclass(frozen=True)
class Memories:
    """The captions that a store gave for B pictures, as ids.

    ids (B, C, T): words, then `<pad>`; from V on, words for the moment. similarity (B, C) of the picture and the one
    that a caption belongs to, and its rank (B, C) among the nearest, from 0. stand_in (E,): of words for the moment.
    """

    ids: Tensor
    similarity: Tensor
    rank: Tensor
    stand_in: Tensor

    def to(self, device: Any) -> Memories:
        return Memories(*(one.to(device) for one in (self.ids, self.similarity, self.rank, self.stand_in)))

    def state(self) -> State:
        return {PREFIX + name: getattr(self, name) for name in ("ids", "similarity", "rank", "stand_in")}


class Reader(nn.Module):
    """What one decoder layer takes from memory."""

    def __init__(self, config: MemoryConfig):
        super().__init__()
        width = config.heads * config.d_head
        self.heads = config.heads
        self.query = nn.Linear(config.d_model, width)
        self.output = nn.Linear(width, config.d_model, bias=False)
        self.gate_query = nn.Linear(config.d_model, config.d_model)
        self.gate_context = nn.Linear(width, config.d_model, bias=False)
        self.gate_near = nn.Linear(len(CENTRES), config.d_model, bias=False)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.gate_near.weight)

    def forward(self, y: Tensor, found: Tensor, near: Tensor, state: State, trace: Trace | None = None) -> Tensor:
        """y and what the mesh found, (B, Q, D) -> the latter with what memory adds. near: what `gate_near` gives."""
        keys, values, mask = state[PREFIX + "keys"], state[PREFIX + "values"], state.get(PREFIX + "mask")
        query, opened = self.ask(y)
        query = split_heads(query.to(keys.dtype), self.heads)
        if trace is None:
            attended = attend_groups(query, keys, values, mask=mask)
        else:
            attended, weights = attend_with_weights(query, keys, values, mask=mask)
            trace["memory_words"].append(weights.mean(1)[..., : state[PREFIX + "ids"].shape[1]])  # (B, Q, N)
        told, opened_by_it = self.tell(join_heads(attended).to(y.dtype))
        alpha = (opened + opened_by_it + near).sigmoid()  # (B, Q, D)
        added = alpha * told  # nothing of pictures without memories: their values are zeros
        if trace is not None:
            trace["memory_gates"].append(alpha.mean(-1) * state[PREFIX + "present"][..., 0])
            sizes = added.float().norm(dim=-1), found.float().norm(dim=-1)
            trace["memory_parts"].append(sizes[0] / (sizes[0] + sizes[1]).clamp_min(1e-9))  # (B, Q)
        return found + added.to(found.dtype)

    def ask(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, and y's part of the gate."""
        return self.query(y), self.gate_query(y)

    def tell(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What was found, and its part of the gate."""
        return self.output(context), self.gate_context(context)


class FoldedReader(Reader):
    """A `Reader` for inference alone: maps of the same numbers are one."""

    def __init__(self, reader: Reader):
        nn.Module.__init__(self)
        self.heads, self.gate_near = reader.heads, reader.gate_near
        self.of_y, self.of_context = joined(reader.query, reader.gate_query), joined(reader.output, reader.gate_context)
        self.parts = reader.query.out_features, reader.output.out_features

    def ask(self, y: Tensor) -> tuple[Tensor, Tensor]:
        query, opened = self.of_y(y).tensor_split(self.parts[:1], -1)
        return query, opened

    def tell(self, context: Tensor) -> tuple[Tensor, Tensor]:
        told, opened = self.of_context(context).tensor_split(self.parts[1:], -1)
        return told, opened


class Switch(nn.Linear):
    """A map to one number from several parts, which are known at different times."""

    def __init__(self, parts: Sequence[int]):
        super().__init__(sum(parts), 1)
        self.parts = tuple(parts)

    def weights(self) -> tuple[Tensor, ...]:
        return self.weight.split(self.parts, -1)

    def part(self, index: int, x: Tensor) -> Tensor:
        """What a part x (…, n) adds, (…)."""
        return F.linear(x, self.weights()[index])[..., 0]


def joined(*maps: nn.Linear) -> nn.Linear:
    """One map that gives what several give, one after the other; all of them have a bias, or none."""
    bias = maps[0].bias is not None
    found = nn.Linear(maps[0].in_features, sum(one.out_features for one in maps), bias=bias, device="meta")
    for name in ("weight", "bias") if bias else ("weight",):
        parts = torch.cat([one.get_parameter(name).detach() for one in maps])
        setattr(found, name, nn.Parameter(parts, requires_grad=False))
    return found


class MemoryLevel(nn.Module):
    """All that is learned beside an M²: 3.6 M weights of the shipped captioner's size."""

    positions: Tensor
    nouns: Tensor

    def __init__(self, config: MemoryConfig):
        super().__init__()
        self.config, d = config, config.d_model
        self.register_buffer("positions", sinusoids(LONGEST + 1, d)[1:], persistent=False)
        self.register_buffer("nouns", torch.zeros(config.vocab_size, dtype=torch.uint8))  # 1: things have this name
        self.rank = nn.Embedding(config.captions, d)
        self.near = nn.Linear(len(CENTRES), d)
        self.new = nn.Parameter(torch.zeros(d))
        self.norm = Norm(d)
        self.attention = SelfAttention(d, config.heads, config.reader_head)
        self.attention_norm = Norm(d)
        self.expand, self.contract = nn.Linear(d, config.d_ff), nn.Linear(config.d_ff, d)
        self.feed_forward_norm = Norm(d)
        width = config.heads * config.d_head
        self.key_value = nn.Linear(d, 2 * width)
        self.nothing = nn.Parameter(torch.zeros(2, config.heads, 1, config.d_head))  # a place to look when nothing fits
        self.readers = nn.ModuleList(Reader(config) for _ in range(config.decoder_layers))
        self.pointer_query = nn.Linear(d, config.d_pointer)
        self.pointer_key = nn.Linear(d, config.d_pointer)
        self.agree = nn.Parameter(torch.tensor([0.5]))  # how far pointing follows what the model itself would say
        self.switch = Switch((d, config.d_pointer + 1, 1, len(CENTRES)))
        nn.init.normal_(self.rank.weight, std=0.02)
        nn.init.zeros_(self.switch.weight)
        nn.init.constant_(self.switch.bias, -4.0)  # nothing is copied at first

    def reader(self, index: int) -> Reader:
        """Of a decoder layer."""
        reader = self.readers[index]
        assert isinstance(reader, Reader)
        return reader

    def encode(self, words: nn.Module, memories: State) -> State:
        """Memories in the state of a search: keys, values and what is pointed at, once for each picture.

        Args:
            words: the decoder's word embedding.
            memories: `Memories.state()`.
        """
        ids, stand_in = memories[PREFIX + "ids"], memories[PREFIX + "stand_in"]
        similarity, rank = memories[PREFIX + "similarity"], memories[PREFIX + "rank"]
        vocab = self.config.vocab_size
        pictures, captions, length = ids.shape
        dtype = self.new.dtype
        new = ids >= vocab
        known = known_ids(ids, stand_in, vocab)
        real = known != self.config.pad  # (B, C, T)
        near = bumps(similarity).to(dtype)  # (B, C, 11)
        whole = self.rank(rank.clamp(0, self.config.captions - 1)) + self.near(near)  # (B, C, D)
        x = words(known).to(dtype) + self.positions[:length] + whole[:, :, None] + new[..., None].to(dtype) * self.new
        x = self.norm(x.flatten(0, 1))  # (B·C, T, D)
        seen = real.flatten(0, 1).clone()
        seen[:, 0] = True  # a caption that is not there reads its own padding, and is not listened to
        mask = additive_mask(seen, x.dtype)[:, None, None]
        x = self.attention_norm(x + self.attention(x, mask=mask))
        x = self.feed_forward_norm(x + self.contract(F.relu(self.expand(x))))
        x = x.unflatten(0, (pictures, captions)).flatten(1, 2)  # (B, N, D)
        real = real.flatten(1)
        keys, values = (split_heads(half, self.config.heads) for half in self.key_value(x).chunk(2, -1))
        pointer, marks = self.pointer_key(x), new.flatten(1)[..., None].to(dtype)
        present = real.any(-1)[:, None, None].to(dtype)  # (B, 1, 1)
        nothing = self.nothing.to(keys.dtype)[:, None].expand(-1, pictures, -1, -1, -1)
        keys, values = torch.cat((keys, nothing[0]), 2), torch.cat((values, nothing[1]), 2)
        values = values * present[..., None].to(values.dtype)
        filled = -keys.shape[2] % 8  # a multiple of 8 keeps masks aligned for the fused kernels
        nearest = similarity.masked_fill(~real.unflatten(1, (captions, length)).any(-1), -1).amax(-1)  # (B,)
        near = bumps(nearest)[:, None].to(dtype)  # (B, 1, 11)
        return {
            PREFIX + "keys": F.pad(keys, (0, 0, 0, filled)),  # (B, H, N + 1 + …, d)
            PREFIX + "values": F.pad(values, (0, 0, 0, filled)),
            PREFIX + "mask": additive_mask(F.pad(F.pad(real, (0, 1), value=True), (0, filled)), keys.dtype)[
                :, None, None
            ],
            PREFIX + "pointer": pointer,  # (B, N, P)
            PREFIX + "told": self.switch.part(1, torch.cat((pointer, marks), -1)).float(),  # (B, N)
            PREFIX + "real": real,
            PREFIX + "ids": ids.flatten(1),
            PREFIX + "known": known.flatten(1),
            PREFIX + "near": (self.switch.part(3, near) + self.switch.bias).float(),  # (B, 1)
            PREFIX + "gates": torch.stack([self.reader(index).gate_near(near) for index in range(len(self.readers))]),
            PREFIX + "present": present,
            PREFIX + "stand_in": stand_in,
        }

    def fold(self) -> None:
        """Get ready to be searched with and do nothing else."""
        self.readers = nn.ModuleList(FoldedReader(one) if type(one) is Reader else one for one in self.readers)

    def lay_out(self, encoded: State) -> State:
        """What `encode` gave as a search on a CPU reads it fastest.

        Words that are padding in all pictures are left out, and small products are those of float32, whose kernels
        begin sooner. On a GPU shapes stay, for steps that are captured.
        """
        real = encoded[PREFIX + "real"]
        if real.device.type != "cpu" or not real.any():
            return encoded
        at = real.any(0).nonzero()[:, 0]
        with_nothing = F.pad(at, (0, 1), value=real.shape[1])
        found = dict(encoded)
        for name in ("real", "ids", "known", "told"):
            found[PREFIX + name] = encoded[PREFIX + name].index_select(1, at)
        found[PREFIX + "pointer"] = encoded[PREFIX + "pointer"].index_select(1, at).float()
        for name in ("keys", "values"):
            found[PREFIX + name] = encoded[PREFIX + name].index_select(2, with_nothing).float()
        found[PREFIX + "mask"] = encoded[PREFIX + "mask"].index_select(3, with_nothing).float()
        if found[PREFIX + "real"].all():
            del found[PREFIX + "mask"], found[PREFIX + "real"]
        return found

    def point(self, y: Tensor, log_probs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The pointer (B, Q, N) over the words of memory and the switch (B, Q, 1), float32 both.

        y (B, Q, D) of the last decoder layer, log_probs (B, Q, V) of the model.
        """
        keys, real = state[PREFIX + "pointer"], state.get(PREFIX + "real")
        query = self.pointer_query(y)
        known = state[PREFIX + "known"][:, None].expand(-1, y.shape[1], -1)
        model = log_probs.gather(-1, known).clamp_min(LEAST_LOG)  # (B, Q, N)
        scores = (query.to(keys.dtype) @ keys.transpose(1, 2)).float()
        scores = torch.add(self.agree.float() * model, scores, alpha=query.shape[-1] ** -0.5)
        if real is not None:
            scores = scores.masked_fill(~real[:, None], -1e4)
        weights = scores.softmax(-1)
        told = torch.addcmul(state[PREFIX + "told"][:, None], model.exp(), self.switch.weights()[2].float())
        near = self.switch.part(0, y).float() + state[PREFIX + "near"]  # (B, Q)
        switch = (near + (weights * told).sum(-1)).sigmoid().clamp(1e-6, 1 - 1e-6)[..., None]
        return weights, switch * state[PREFIX + "present"].float()

    def save(self, path: str | Path, bits: Bits = 8) -> None:
        """Write the weights as a safetensors file, and the sizes as JSON beside it."""
        from meshcap.files import write_text

        save_weights(path, stored(self, bits))
        write_text(Path(path).with_suffix(".json"), json.dumps(asdict(self.config), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path, *, dtype: torch.dtype = torch.float32) -> MemoryLevel:
        """
        Raises:
            MeshcapError: files that cannot be read or do not fit each other.
        """
        path = Path(path)
        try:
            settings = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            config = MemoryConfig(**settings)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise MeshcapError(f"{path.with_suffix('.json')} does not say the sizes of a memory ({reason})") from error
        level = build_for(lambda: cls(config), settings, path, dtype=dtype)
        load_weights(level, path)
        return level.eval()


class Listening:
    """A level with the state of one search: what a decoder calls while it speaks (`meshcap.models.m2.DecoderMemory`).

    Args:
        words: E, how many words for the moment there are.
        targets: (B, Q): give the log-probabilities (B, Q) of these words alone. (Training needs no more.)
    """

    def __init__(
        self,
        level: MemoryLevel,
        state: State,
        words: int,
        trace: Trace | None = None,
        targets: Tensor | None = None,
    ):
        self.level, self.state, self.words, self.trace, self.targets = level, state, words, trace, targets

    def layer(self, index: int) -> Recall:
        near = self.state[PREFIX + "gates"][index]
        return partial(self.level.reader(index), near=near, state=self.state, trace=self.trace)

    def say(self, y: Tensor, log_probs: Tensor) -> Tensor:
        weights, switch = self.level.point(y, log_probs, self.state)
        ids = self.state[PREFIX + "ids"]  # (B, N)
        if self.trace is not None:
            self.trace["memory_copied"].append(switch[..., 0])
            self.trace["memory_pointer"].append(weights)
        if self.targets is not None:
            vocab = log_probs.shape[-1]
            own = log_probs.gather(-1, self.targets.clamp_max(vocab - 1)[..., None])[..., 0]
            own = own.masked_fill(self.targets >= vocab, float("-inf"))
            copied = (weights * (ids[:, None] == self.targets[..., None])).sum(-1)
            keep, take = (1 - switch[..., 0]).log(), (switch[..., 0] * copied).clamp_min(1e-12).log()
            return torch.logaddexp(own.clamp_min(-60) + keep, take)
        # Only the words of memory get more than (1 - g) p; a word that is there several times gets the same each time.
        ids = ids[:, None].expand_as(weights)
        mixed = log_probs + (1 - switch).log()
        mixed = F.pad(mixed, (0, self.words), value=float("-inf")) if self.words else mixed
        copied = torch.zeros_like(mixed).scatter_add_(-1, ids, weights).gather(-1, ids)
        return mixed.scatter_(-1, ids, torch.logaddexp(mixed.gather(-1, ids), (switch * copied).log()))


@dataclass(frozen=True)
class RememberingConfig:
    """The settings of an M² that a search reads, with room for more words."""

    vocab_size: int
    max_length: int
    unk: int
    pad: int
    bos: int
    eos: int


class Remembering:
    """An M² that listens to memories: a `Decodable` (`meshcap.decoding.search`).

    Args:
        memories: of the pictures that it will be shown; None: whoever encodes them gives these with `recall`.
        words: E, how many words for the moment its memories have.
    """

    def __init__(self, model: M2, level: MemoryLevel, memories: Memories | None = None, *, words: int | None = None):
        fits = MemoryConfig.of(model)
        for name in OF_THE_MODEL:
            ours, theirs = getattr(level.config, name), getattr(fits, name)
            if ours != theirs:
                raise MeshcapError(f"the memory was made for {name} {ours}, and this model has {theirs}")
        self.model, self.level, self.memories = model, level, memories
        self.words = words if words is not None else len(memories.stand_in) if memories is not None else 0
        c = model.config
        self.config = RememberingConfig(c.vocab_size + self.words, c.max_length, c.unk, c.pad, c.bos, c.eos)

    def recall(self, encoded: State, memories: State) -> State:
        """Pictures as the model has encoded them, with memories."""
        return encoded | self.level.encode(self.model.decoder.words, memories)

    def encode(self, regions: Regions) -> State:
        assert self.memories is not None
        return self.recall(self.model.encode(regions), self.memories.to(regions.features.device).state())

    def start(self, encoded: State, *, width: int, length: int) -> State:
        own = {name: tensor for name, tensor in encoded.items() if name.startswith(PREFIX)}
        rest = {name: tensor for name, tensor in encoded.items() if name not in own}
        return self.model.start(rest, width=width, length=length) | self.level.lay_out(own)

    def step(self, ids: Tensor, state: State) -> Tensor:
        known = known_ids(ids, state[PREFIX + "stand_in"], self.model.config.vocab_size)
        return self.model.decoder.step(known, state, Listening(self.level, state, self.words))

    def reorder(self, state: State, parents: Tensor) -> None:
        self.model.reorder(state, parents)

    def read(self, encoded: State, ids: Tensor, targets: Tensor | None = None, trace: Trace | None = None) -> Tensor:
        """Teacher-forced: ids (B, S, T) -> log-probabilities (B, S, T, V + E), or (B, S, T) of the targets alone."""
        self.model.expect_length(ids.shape[-1])
        known = known_ids(ids, encoded[PREFIX + "stand_in"], self.model.config.vocab_size)
        wanted = None if targets is None else targets.flatten(1)
        memory = Listening(self.level, encoded, self.words, trace, wanted)
        return self.model.decoder(encoded["levels"], encoded.get("visible"), known, trace, memory)

    def __call__(self, regions: Regions, ids: Tensor, *, attention: bool = False) -> Any:
        captions = ids if ids.dim() == 3 else ids[:, None]  # (B, S, T)
        names = ("encoder", "regions", "gates", *TRACED)
        trace: Trace | None = {name: [] for name in names} if attention else None
        assert self.memories is not None
        encoded = self.model.encode(regions, trace)
        encoded = self.recall(encoded, self.memories.to(regions.features.device).state())
        log_probs = self.read(encoded, captions, trace=trace).view(*ids.shape, -1)
        if trace is None:
            return log_probs
        summary = summarise(trace, regions=encoded["levels"].shape[2], shape=ids.shape[1:])
        return log_probs, summary | summarise_memory(trace, self.memories.ids.shape[1], ids.shape[1:])


TRACED = ("memory_words", "memory_gates", "memory_parts", "memory_copied", "memory_pointer")


def summarise_memory(trace: Trace, captions: int, shape: torch.Size) -> dict[str, Tensor]:
    """What was taken from memory in a few tensors (`shape` is (T,) or (S, T)).

    - listened (B, *shape): the part of what decoder layers found that came from memory, or the switch if it is more;
    - recalled (B, *shape, C): attention to each remembered caption, the pointer's where words were copied.
    """
    copied = trace["memory_copied"][0].float()  # (B, Q)
    listened = torch.maximum(torch.stack(trace["memory_parts"]).mean(0), copied)
    looked = torch.stack([one.float() for one in trace["memory_words"]]).mean(0)  # (B, Q, N)
    looked = looked + copied[..., None] * (trace["memory_pointer"][0] - looked)
    recalled = looked.unflatten(-1, (captions, -1)).sum(-1)
    return {"listened": listened.unflatten(1, shape), "recalled": recalled.unflatten(1, shape)}


def picture_vectors(regions: Regions, centre: Tensor | None = None) -> Tensor:
    """What pictures are compared by, (B, D) of length 1: the mean of their regions, each of length 1, less the centre.

    The centre is what all pictures share, which says nothing of any of them. Against people's ratings of pairs of
    pictures, unit regions rank better than the plain mean, and centred better still (docs/long-term-memory.md).
    """
    features = F.normalize(regions.features.float(), dim=-1)
    if regions.mask is None:
        mean = features.mean(1)
    else:
        mean = (features * regions.mask[..., None]).sum(1) / regions.mask.sum(1, keepdim=True)
    return F.normalize(mean if centre is None else mean - centre.to(mean.device, mean.dtype), dim=-1)


def known_ids(ids: Tensor, stand_in: Tensor, vocab_size: int) -> Tensor:
    """Ids as the model reads them: stand-ins (E,) in place of ids from V on."""
    if not len(stand_in):
        return ids
    return torch.where(ids < vocab_size, ids, stand_in[(ids - vocab_size).clamp(0, len(stand_in) - 1)])


def bumps(similarity: Tensor) -> Tensor:
    """A number (…) seen through bumps (…, 11) at 0, 0.1, … 1: what a linear map can tell near from far by."""
    centres = torch.tensor(CENTRES, device=similarity.device)
    return torch.exp(-(((similarity.float()[..., None] - centres) / 0.1) ** 2))


def pack_memories(
    captions: Sequence[Sequence[tuple[Sequence[int], float, int]]], stand_in: Sequence[int], *, pad: int, most: int
) -> Memories:
    """Captions of each picture, as (ids, similarity, rank), padded to equal shapes; the first `most` of each."""
    longest = min(LONGEST, max((len(ids) for one in captions for ids, _, _ in one), default=1) or 1)
    count = max(1, min(most, max(map(len, captions), default=1)))
    rows = [[*picture[:count], *[((), 0.0, 0)] * (count - len(picture))] for picture in captions]
    found = [[[*ids[:longest], *[pad] * (longest - len(ids))] for ids, _, _ in row] for row in rows]
    return Memories(
        torch.tensor(found, dtype=torch.long),
        torch.tensor([[near for _, near, _ in row] for row in rows], dtype=torch.float32),
        torch.tensor([[at for _, _, at in row] for row in rows], dtype=torch.long),
        torch.tensor(list(stand_in), dtype=torch.long),
    )
