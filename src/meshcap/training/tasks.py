"""What a step computes: cross-entropy, or self-critical training. Two small tasks on one trainer.

A task gets the numbers of the whole batch's pictures and does its rank's share: forward, backward, gradients that add
up over ranks to those of the whole batch. Random choices depend on the seed and the step alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from meshcap.decoding import Hypotheses
from meshcap.metrics.reward import CiderReward
from meshcap.models import CaptionModel
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.augment import hide_some, only, some_places
from meshcap.training.captions import Array, CaptionTable, rectangles
from meshcap.training.distributed import World
from meshcap.training.eyes import Eyes, View, see
from meshcap.training.scst import Speaker, advantages, scst_sum
from meshcap.training.settings import TrainSettings
from meshcap.training.xe import xe_sum
from meshcap.vision.backbone import Vision

Measures = dict[str, Tensor]
CAPTIONS = 5  # of each picture in a step, where settings leave it open


@dataclass
class Parts:
    """What a run trains."""

    model: CaptionModel
    vocabulary: Vocabulary
    vision: Vision | None


class Task(Protocol):
    """One stage of training."""

    name: str

    def ready(self) -> None:
        """Before every stretch of steps: dropout on or off."""

    def ahead(self, everyone: Array) -> None:
        """The pictures of the step after this one."""

    def backward(self, everyone: Array, step: int) -> Measures:
        """Gradients of this rank's share, and scalars on the device whose sum over ranks is worth logging."""


class CrossEntropy:
    """Every caption of every picture of the batch, read word by word."""

    name = "xe"

    def __init__(
        self, parts: Parts, eyes: Eyes, table: CaptionTable, settings: TrainSettings, world: World, *, compiled: bool
    ):
        self.parts, self.eyes, self.table, self.settings, self.world = parts, eyes, table, settings, world
        self.precision = precision(settings)
        self.captions = settings.captions or CAPTIONS
        self.shapes = rectangles(table, self.captions)
        self.loss: Callable[..., Tensor] = torch.compile(self._loss, dynamic=False) if compiled else self._loss

    def ready(self) -> None:
        self.parts.model.train()
        if self.parts.vision is not None:
            self.parts.vision.train()

    def ahead(self, everyone: Array) -> None:
        for share in shares(everyone, self.world, self.settings.accumulate):
            self.eyes.ahead(torch.from_numpy(everyone[share]))

    def _loss(self, view: View, ids: list[Tensor]) -> Tensor:
        regions = see(self.parts.vision, view)
        if self.settings.region_dropout:
            regions = hide_some(regions, self.settings.region_dropout)
        return xe_sum(self.parts.model, regions, ids, self.settings.label_smoothing or 0.0)

    def backward(self, everyone: Array, step: int) -> Measures:
        chosen = self.table.choose(everyone, self.captions, rng(self.settings.seed, step))
        words = max(1, self.table.words(chosen, self.shapes))
        measured = torch.zeros((), device=self.world.device)
        for share in shares(everyone, self.world, self.settings.accumulate):
            view = self.eyes.view(torch.from_numpy(everyone[share]), training=True)
            ids = [one.to(self.world.device, non_blocking=True) for one in self.table.cut(chosen[share], self.shapes)]
            with autocast(self.world.device, self.precision):
                loss = self.loss(view, ids) / words
            loss.backward()
            measured += loss.detach()
        return {"loss": measured}


class SelfCritical:
    """Captions the model says itself, each pushed by how much better it is than the others of its picture."""

    name = "scst"

    def __init__(
        self,
        parts: Parts,
        eyes: Eyes,
        reward: CiderReward,
        table: CaptionTable,
        settings: TrainSettings,
        world: World,
        *,
        compiled: bool,
    ):
        self.parts, self.eyes, self.table, self.settings, self.world = parts, eyes, table, settings, world
        self.reward = reward
        self.precision = precision(settings)
        self.learning_to_see = settings.scst_lr_vision > 0 and parts.vision is not None
        self.captions = settings.xe_captions or settings.captions or CAPTIONS
        self.shapes = rectangles(table, self.captions)
        self.speaker = Speaker(
            parts.model,
            dtype=self.precision,
            samples=settings.samples,
            max_length=min(settings.scst_length or settings.max_length, settings.max_length),
            search=settings.search,
            temperature=settings.temperature,
            top_k=settings.top_k,
        )
        self.look: Any = torch.compile(_parts_seen, dynamic=False) if compiled else _parts_seen
        self.loss: Any = torch.compile(self._loss, dynamic=False) if compiled else self._loss
        self.xe: Any = torch.compile(xe_sum, dynamic=False) if compiled else xe_sum

    def ready(self) -> None:
        # No dropout: the words were drawn without.
        self.parts.model.eval()
        if self.parts.vision is not None:
            self.parts.vision.eval()

    def ahead(self, everyone: Array) -> None:
        for share in shares(everyone, self.world, self.settings.accumulate):
            self.eyes.ahead(torch.from_numpy(everyone[share]))

    def _loss(self, regions: Regions, ids: Tensor, drawn: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        return scst_sum(
            self.parts.model, regions, ids, drawn, advantage, self.settings.temperature, self.settings.top_k
        )

    def backward(self, everyone: Array, step: int) -> Measures:
        device, settings, pad = self.world.device, self.settings, self.parts.model.config.pad
        parts = shares(everyone, self.world, settings.accumulate)
        spoken: list[tuple[View, Regions, Tensor | None, Hypotheses, Tensor]] = []
        for place, share in enumerate(parts):
            pictures = torch.from_numpy(everyone[share])
            view = self.eyes.view(pictures, training=True)
            regions = self._regions(view, keep=len(parts) == 1)
            # The same regions are hidden while words are drawn and while they are judged.
            places = some_places(regions, settings.scst_region_dropout)
            regions = only(regions, places)
            # Ranks and parts draw different words.
            seed = int(rng(settings.seed, step, self.world.rank, place).integers(2**62))
            pictures = pictures.to(device, non_blocking=True)  # nothing here waits for the device
            found = self.speaker.speak(regions.each(Tensor.detach), seed)
            spoken.append((view, regions, places, found, self.reward(found.ids, pictures)))
        words = self.world.sum(torch.stack([(found.ids != pad).sum() for *_, found, _ in spoken]).sum().float())
        chosen, xe_words = self._told_by_people(everyone, step) if settings.xe_weight else (None, 1)
        names = ["loss", "reward", "spread", "length", "disagreement"]
        measured = {name: torch.zeros((), device=device) for name in names}
        pictures_of_all = len(everyone)
        for share, (view, regions, places, found, rewards) in zip(parts, spoken, strict=True):
            if self.learning_to_see and len(parts) > 1:  # memory is short: what was seen was not kept for a gradient
                regions = only(self._regions(view, keep=True), places)
            # The vision's own backward comes once, after everything that was made of what it saw.
            leaf = regions.each(Tensor.detach)
            leaf.features.requires_grad_(self.learning_to_see)
            advantage = advantages(rewards)
            with autocast(device, self.precision):
                loss, gap = self.loss(leaf, found.ids, found.log_probs, advantage)
            (loss / words).backward()
            if chosen is not None:
                ids = [one.to(device) for one in self.table.cut(chosen[share], self.shapes)]
                with autocast(device, self.precision):
                    mixed = self.xe(self.parts.model, leaf, ids) * ((settings.xe_weight or 0.0) / xe_words)
                mixed.backward()
            if self.learning_to_see:
                regions.features.backward(leaf.features.grad)
            measured["loss"] += (loss / words).detach()
            measured["disagreement"] += gap / words
            measured["reward"] += rewards.mean(1).sum() / pictures_of_all
            measured["spread"] += rewards.std(1).sum() / pictures_of_all
            measured["length"] += (found.ids != pad).sum() / (pictures_of_all * settings.samples)
        return measured

    def _regions(self, view: View, *, keep: bool) -> Regions:
        """What is seen; for a gradient too, where the vision learns and it is to be kept."""
        if isinstance(view, Regions):
            return view
        with torch.set_grad_enabled(self.learning_to_see and keep), autocast(self.world.device, self.precision):
            return Regions(*self.look(self.parts.vision, view))

    def _told_by_people(self, everyone: Array, step: int) -> tuple[Any, int]:
        chosen = self.table.choose(everyone, self.captions, rng(self.settings.seed, step))
        return chosen, max(1, self.table.words(chosen, self.shapes))


def _parts_seen(vision: Vision, pixels: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return vision(pixels).parts()


def precision(settings: TrainSettings) -> torch.dtype:
    return torch.bfloat16 if settings.precision == "bfloat16" else torch.float32


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
