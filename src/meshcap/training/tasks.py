"""The two stages of training as tasks for one trainer: cross-entropy and self-critical training.

A task gets the numbers of the whole batch's pictures and does its rank's share: forward, backward, gradients that add
up over ranks to those of the whole batch. Random choices depend on the seed and the step alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor

from meshcap.attention import State
from meshcap.decoding import Beam, Graphs, Hypotheses, Rules, Sampling, Strategy, decode
from meshcap.metrics.reward import CiderReward
from meshcap.metrics.reward_facts import FactReward
from meshcap.metrics.reward_objects import ObjectReward
from meshcap.models import CaptionModel
from meshcap.regions import Regions
from meshcap.training.augment import hide_some, only, some_places
from meshcap.training.build import Parts
from meshcap.training.captions import Array, CaptionTable, rectangles
from meshcap.training.distributed import World
from meshcap.training.losses import AttentionLoss, advantages, scst_sum, xe_sum
from meshcap.training.pictures import View, Views, regions_of
from meshcap.training.settings import SCSTSettings, XESettings
from meshcap.vision import Vision

Measures = dict[str, Tensor]
CAPTIONS = 5  # of each picture in a step, where settings leave it open


class Task(Protocol):
    """One stage of training."""

    name: str

    def ready(self) -> None:
        """Before every stretch of steps: dropout on or off."""

    def ahead(self, everyone: Array) -> None:
        """The pictures of the step after this one."""

    def backward(self, everyone: Array, step: int) -> Measures:
        """Gradients of this rank's share, and scalars on the device whose sum over ranks is worth logging."""

    def state(self) -> dict[str, Tensor]:
        """What later steps depend on beside the weights; checkpoints keep it."""


class CrossEntropy:
    """Every caption of every picture of the batch, read word by word."""

    name = "xe"

    def __init__(
        self,
        parts: Parts,
        views: Views,
        table: CaptionTable,
        settings: XESettings,
        world: World,
        *,
        precision: torch.dtype = torch.float32,
        seed: int = 0,
        accumulate: int = 1,
        compiled: bool = False,
    ):
        self.parts, self.views, self.table, self.settings, self.world = parts, views, table, settings, world
        self.precision, self.seed, self.accumulate = precision, seed, accumulate
        self.captions = settings.captions or CAPTIONS
        self.shapes = rectangles(table, self.captions)
        self.attention_loss = AttentionLoss.of(parts.model)
        self.loss: Callable[..., Tensor] = torch.compile(self._loss, dynamic=False) if compiled else self._loss

    def ready(self) -> None:
        self.parts.model.train()
        if self.parts.vision is not None:
            self.parts.vision.train()

    def state(self) -> dict[str, Tensor]:
        return {} if self.attention_loss is None else self.attention_loss.state()

    def ahead(self, everyone: Array) -> None:
        for share in shares(everyone, self.world, self.accumulate):
            self.views.ahead(torch.from_numpy(everyone[share]))

    def _loss(self, view: View, ids: list[Tensor]) -> Tensor:
        regions = regions_of(self.parts.vision, view)
        if self.settings.region_dropout:
            regions = hide_some(regions, self.settings.region_dropout)
        return xe_sum(self.parts.model, regions, ids, self.settings.label_smoothing or 0.0, self.attention_loss)

    def backward(self, everyone: Array, step: int) -> Measures:
        chosen = self.table.choose(everyone, self.captions, rng(self.seed, step))
        words = max(1, self.table.words(chosen, self.shapes))
        measured = torch.zeros((), device=self.world.device)
        for share in shares(everyone, self.world, self.accumulate):
            view = self.views.view(torch.from_numpy(everyone[share]), training=True)
            ids = [one.to(self.world.device, non_blocking=True) for one in self.table.cut(chosen[share], self.shapes)]
            with autocast(self.world.device, self.precision):
                loss = self.loss(view, ids) / words
            loss.backward()
            measured += loss.detach()
        return {"loss": measured}


class Drawn(NamedTuple):
    """Captions that were drawn for a part of the batch, and what they were drawn from."""

    view: View
    places: Tensor | None  # the regions that were not hidden
    encoded: State
    found: Hypotheses
    rewards: Tensor  # (B, S)
    objects: Tensor | None  # (B, S) what naming objects, or true statements, are worth, where that counts


class SelfCritical:
    """Captions that the model draws itself, each pushed by how much better it is than the others of its picture.

    Regions are encoded once: captions are drawn from the encoded pictures, and the teacher-forced pass with gradients
    reads the same. For both passes to speak of the same policy, both run without dropout, with the same words banned
    (the model itself never says `<pad>`, `<bos>` or `<unk>`) and the same truncation. Where only the search bans a
    word, probability leaks into ids that are never drawn and so never punished, and captions get worse: `disagreement`
    watches for that in every run.

    Where a batch is computed in parts because memory is short, captions of all parts are drawn first, since the loss is
    a mean over the words of the whole batch; each part is then encoded a second time for its gradient.
    """

    name = "scst"

    def __init__(
        self,
        parts: Parts,
        views: Views,
        reward: CiderReward,
        table: CaptionTable,
        settings: SCSTSettings,
        world: World,
        *,
        max_length: int,
        precision: torch.dtype = torch.float32,
        seed: int = 0,
        accumulate: int = 1,
        compiled: bool = False,
        objects: ObjectReward | FactReward | None = None,
    ):
        self.parts, self.views, self.table, self.settings, self.world = parts, views, table, settings, world
        self.reward, self.objects = reward, objects
        self.precision, self.seed, self.accumulate = precision, seed, accumulate
        self.vision_learns = bool(settings.lr_vision) and parts.vision is not None
        self.captions = settings.captions or CAPTIONS
        self.shapes = rectangles(table, self.captions)
        self.sampler = Sampler(
            parts.model,
            dtype=precision,
            samples=settings.samples,
            max_length=min(settings.max_length or max_length, max_length),
            search=settings.search,
            temperature=settings.temperature,
            top_k=settings.top_k,
        )

        def maybe_compiled(work: Any) -> Any:
            return torch.compile(work, dynamic=False) if compiled else work

        self.look, self.encode = maybe_compiled(_parts_of_regions), maybe_compiled(parts.model.encode)
        self.loss, self.xe = maybe_compiled(scst_sum), maybe_compiled(xe_sum)

    def ready(self) -> None:
        # No dropout: the words were drawn without.
        self.parts.model.eval()
        if self.parts.vision is not None:
            self.parts.vision.eval()

    def state(self) -> dict[str, Tensor]:
        return {}

    def ahead(self, everyone: Array) -> None:
        for share in shares(everyone, self.world, self.accumulate):
            self.views.ahead(torch.from_numpy(everyone[share]))

    def backward(self, everyone: Array, step: int) -> Measures:
        device, settings, model = self.world.device, self.settings, self.parts.model
        pad, pictures = model.config.pad, len(everyone)
        parts = shares(everyone, self.world, self.accumulate)
        drawn = [self._draw(everyone[share], step, place, keep=len(parts) == 1) for place, share in enumerate(parts)]
        words = self.world.sum(torch.stack([(one.found.ids != pad).sum() for one in drawn]).sum().float())
        chosen, xe_words = self.references(everyone, step) if settings.xe_weight else (None, 1)
        names = ["loss", "reward", "spread", "length", "disagreement"] + ["objects"] * (self.objects is not None)
        measured = {name: torch.zeros((), device=device) for name in names}
        for share, (view, places, encoded, found, rewards, objects) in zip(parts, drawn, strict=True):
            if len(parts) > 1:
                encoded = self._encode(only(self._regions(view, keep=True), places), keep=True)
            # The encoder's own backward comes once, after everything that was read from what it made.
            leaves = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in encoded.items()}
            with autocast(device, self.precision):
                loss, gap = self.loss(
                    model,
                    leaves,
                    found.ids,
                    found.log_probs,
                    advantages(rewards if objects is None else rewards + objects),
                    settings.temperature,
                    settings.top_k,
                )
            (loss / words).backward()
            if chosen is not None:
                ids = [one.to(device) for one in self.table.cut(chosen[share], self.shapes)]
                with autocast(device, self.precision):
                    mixed = self.xe(model, leaves, ids) * ((settings.xe_weight or 0.0) / xe_words)
                mixed.backward()
            learned = [name for name, leaf in leaves.items() if leaf.grad is not None]
            torch.autograd.backward([encoded[name] for name in learned], [leaves[name].grad for name in learned])
            measured["loss"] += (loss / words).detach()
            measured["disagreement"] += gap / words
            measured["reward"] += rewards.mean(1).sum() / pictures
            if objects is not None:
                measured["objects"] += objects.mean(1).sum() / pictures
            measured["spread"] += rewards.std(1).sum() / pictures
            measured["length"] += (found.ids != pad).sum() / (pictures * settings.samples)
        return measured

    def _draw(self, pictures: Array, step: int, place: int, *, keep: bool) -> Drawn:
        """Captions of a part of the batch; with `keep`, what they were drawn from is kept for a gradient."""
        numbers = torch.from_numpy(pictures)
        view = self.views.view(numbers, training=True)
        regions = self._regions(view, keep=keep)
        places = some_places(regions, self.settings.region_dropout or 0.0)
        regions = only(regions, places)
        encoded = self._encode(regions, keep=keep)
        # Ranks and parts draw different words.
        seed = int(rng(self.seed, step, self.world.rank, place).integers(2**62))
        found = self.sampler.draw(regions.each(Tensor.detach), seed, encoded)
        numbers = numbers.to(self.world.device, non_blocking=True)  # nothing here waits for the device
        objects = None if self.objects is None else self.objects(found.ids, numbers)
        return Drawn(view, places, encoded if keep else {}, found, self.reward(found.ids, numbers), objects)

    def _regions(self, view: View, *, keep: bool) -> Regions:
        if isinstance(view, Regions):
            return view
        with torch.set_grad_enabled(self.vision_learns and keep), autocast(self.world.device, self.precision):
            return Regions(*self.look(self.parts.vision, view))

    def _encode(self, regions: Regions, *, keep: bool) -> State:
        with torch.set_grad_enabled(keep), autocast(self.world.device, self.precision):
            encoded: State = self.encode(regions)
        return encoded

    def references(self, everyone: Array, step: int) -> tuple[Any, int]:
        """The captions of people that are mixed in, and how many words of them a loss counts."""
        chosen = self.table.choose(everyone, self.captions, rng(self.seed, step))
        return chosen, max(1, self.table.words(chosen, self.shapes))


class Sampler:
    """Draws captions from a copy of the model in the precision that searches run in, updated before each search."""

    def __init__(
        self,
        model: CaptionModel,
        *,
        dtype: torch.dtype,
        samples: int,
        max_length: int,
        search: str = "sample",
        temperature: float = 1.0,
        top_k: int = 0,
    ):
        self.model = model
        self.copy = copy.deepcopy(model).to(dtype).requires_grad_(False).eval()
        self.samples, self.search, self.temperature, self.top_k = samples, search, temperature, top_k
        self.rules = Rules(max_length=max_length)
        self.graphs = Graphs()

    @torch.no_grad()
    def draw(self, regions: Regions, seed: int, encoded: State | None = None) -> Hypotheses:
        """`samples` captions of each picture, (B, S, T).

        Args:
            encoded: the regions as the model itself has encoded them; None: they are encoded here.
        """
        torch._foreach_copy_(list(self.copy.parameters()), list(self.model.parameters()))
        strategy: Strategy = Beam(self.samples)
        if self.search == "sample":
            strategy = Sampling(self.samples, self.temperature, self.top_k, seed=seed)
        if encoded is not None:
            dtype = self.copy.dtype
            encoded = {
                name: tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
                for name, tensor in encoded.items()
            }
        return decode(
            self.copy,
            regions.to(dtype=self.copy.dtype),
            strategy,
            self.rules,
            n_best=strategy.width,
            graphs=self.graphs,
            encoded=encoded,
            # Of so many captions one is nearly always as long as can be: a look would only hold up the next launches.
            stop_early=not regions.features.is_cuda,
        )


def _parts_of_regions(vision: Vision, pixels: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return vision(pixels).parts()


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    # Weights change in every step, so a cache of their casts would only keep memory.
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype != torch.float32, cache_enabled=False)


def rng(*numbers: int) -> numpy.random.Generator:
    """Random numbers that belong to a seed, a step, a rank, … and to no history."""
    return numpy.random.default_rng(numbers)


def shares(everyone: Array, world: World, parts: int) -> list[Array]:
    """Places in the batch that this rank computes, in so many parts."""
    mine = numpy.arange(len(everyone))[world.rank :: world.size]
    return [part for part in numpy.array_split(mine, parts) if len(part)]


def batch_of(step: int, size: int, count: int, seed: int) -> Array:
    """The pictures of a step: `count` pictures in random order, then all of them in another, and so on."""
    places = numpy.arange(step * size, (step + 1) * size)
    epochs = places // count
    found = numpy.empty(size, dtype=numpy.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        inside = epochs == epoch
        found[inside] = order(seed, epoch, count)[places[inside] % count]
    return found


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, count: int) -> Array:
    """All pictures in the order of an epoch."""
    return rng(seed, 1_000_003, epoch).permutation(count)
