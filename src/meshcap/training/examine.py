"""Captions for a split, and their scores: what validation, evaluation and reports are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.data.dataset import Sample
from meshcap.data.features import FeatureStore
from meshcap.errors import MeshcapError
from meshcap.metrics import Result, score
from meshcap.regions import Regions
from meshcap.training.distributed import World
from meshcap.training.eyes import Eyes, Looking, Precomputed, see
from meshcap.training.pixels import Pixels
from meshcap.training.tasks import Parts, autocast
from meshcap.training.track import Sample as Example
from meshcap.vision.pictures import read_picture

SHOWN = 256  # pixels of a picture that people look at


@dataclass(frozen=True)
class Exam:
    """What a model said of a split, and what that is worth."""

    captions: list[Caption]
    result: Result

    @property
    def cider(self) -> float:
        return self.result.scores["CIDEr"]

    @property
    def bad_endings(self) -> float:
        return self.result.diversity.get("bad endings", 0.0)

    @property
    def words(self) -> int:
        """Different ones, in all captions together."""
        return int(self.result.diversity.get("vocabulary", 0))


class Examiner:
    """Captions the same pictures again and again while the weights change.

    Searches run on a copy of the model in the precision `dtype`, brought up to date each time, so that steps captured
    on a GPU stay valid and the model that trains is left alone.
    """

    def __init__(
        self,
        parts: Parts,
        eyes: Eyes,
        samples: Sequence[Sample],
        world: World,
        *,
        dtype: torch.dtype,
        beams: int,
        max_length: int,
        tokenizer: str = "ptb",
        batch: int = 250,
    ):
        self.parts, self.eyes, self.samples, self.world, self.dtype = parts, eyes, samples, world, dtype
        self.beams, self.max_length, self.tokenizer, self.batch = beams, max_length, tokenizer, batch
        self.captioner = Captioner(copy.deepcopy(parts.model).to(dtype).requires_grad_(False), parts.vocabulary)

    @torch.no_grad()
    def captions(self, tell: Callable[[int, int], object] = lambda done, total: None) -> list[Caption]:
        """In the order of the samples; ranks share the work."""
        torch._foreach_copy_(list(self.captioner.model.parameters()), list(self.parts.model.parameters()))
        vision = self.parts.vision
        learning = vision is not None and vision.training
        if vision is not None:
            vision.eval()
        mine = torch.arange(self.world.rank, len(self.samples), self.world.size)
        blocks = mine.split(self.batch)
        found: list[object] = []
        for place, block in enumerate(blocks):
            if place + 1 < len(blocks):
                self.eyes.ahead(blocks[place + 1])
            with autocast(self.world.device, self.dtype):
                regions = see(vision, self.eyes.view(block, training=False))
            longest = min(self.max_length, self.captioner.model.config.max_length) - 1
            said = self.captioner.caption(
                regions, beams=self.beams, max_words=longest, good_endings=False, batch_size=self.batch
            )
            found.extend(zip(block.tolist(), said, strict=True))
            tell(len(found), len(mine))
        if vision is not None:
            vision.train(learning)
        everyone: dict[int, Caption] = dict(self.world.gather(found))  # type: ignore[arg-type]
        return [everyone[place] for place in range(len(self.samples))]

    def examples(self, captions: Sequence[Caption], count: int = 8) -> list[Example]:
        """The first pictures with what was said of them, to look at."""
        found: list[Example] = []
        for sample, caption in zip(self.samples[:count], captions, strict=False):
            found.append((shown(sample), caption.text, sample.captions))
        return found

    def examine(self, *, metrics: Sequence[str] | str = ("CIDEr",), bootstrap: int = 0) -> Exam:
        return graded(self.samples, self.captions(), tokenizer=self.tokenizer, metrics=metrics, bootstrap=bootstrap)


def shown(sample: Sample) -> Image.Image | None:
    """A sample's picture, where it has one that can be read: what is shown to people may lack a picture."""
    if sample.picture is None:
        return None
    try:
        return read_picture(sample.picture.read(), at_least=SHOWN)
    except MeshcapError:
        return None


def graded(samples: Sequence[Sample], captions: Sequence[Caption], **options: Any) -> Exam:
    """What captions of samples are worth; options are those of `meshcap.metrics.score`."""
    candidates = {sample.id: caption.text for sample, caption in zip(samples, captions, strict=True)}
    references = {sample.id: list(sample.captions) for sample in samples}
    return Exam(list(captions), score(candidates, references, **options))


def caption_samples(
    captioner: Captioner,
    samples: Sequence[Sample],
    store: FeatureStore | None = None,
    *,
    batch: int = 64,
    tell: Callable[[int, int], object] = lambda done, total: None,
    **options: Any,
) -> list[Caption]:
    """Captions by a finished captioner, as its users run it; the next pictures are read while it speaks.

    Raises:
        MeshcapError: pictures or features that are missing or cannot be read.
    """
    found: list[Caption] = []
    for regions in seen(captioner, samples, store, batch=batch):
        found += captioner.describe(regions, **options)
        tell(len(found), len(samples))
    return found


def seen(
    captioner: Captioner, samples: Sequence[Sample], store: FeatureStore | None = None, *, batch: int
) -> Iterator[Regions]:
    """What a captioner sees of samples, so many at a time; the next pictures are read meanwhile.

    Raises:
        MeshcapError: pictures or features that are missing or cannot be read.
    """
    eyes: Eyes
    if store is not None:
        eyes = Precomputed(store, [sample.id for sample in samples], captioner.model.device)
    elif captioner.vision is not None:
        pixels = Pixels(samples, captioner.vision.preprocess, keep="none", device=captioner.vision.device)
        eyes = Looking(pixels, torch.zeros(len(samples), dtype=torch.bool), 0.0)
    else:
        raise MeshcapError("this model reads precomputed features and cannot look at pictures: give --features")
    blocks = torch.arange(len(samples)).split(batch)
    eyes.ahead(blocks[0])
    for place, block in enumerate(blocks):
        if place + 1 < len(blocks):
            eyes.ahead(blocks[place + 1])
        with torch.no_grad():
            regions = see(captioner.vision, eyes.view(block, training=False))
        yield regions
