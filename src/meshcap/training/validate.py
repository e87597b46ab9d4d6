"""Validation: captions of the val split while the weights change, and their scores."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from meshcap.caption import Caption
from meshcap.captioner import Captioner
from meshcap.data.dataset import Sample
from meshcap.evaluation.evaluation import Evaluation, WrittenCaption, evaluate, thumbnail_of
from meshcap.options import CaptionOptions
from meshcap.training.build import Parts
from meshcap.training.distributed import World
from meshcap.training.pictures import Views, regions_of
from meshcap.training.tasks import autocast
from meshcap.training.track import Example


class Validator:
    """Captions the same pictures again and again while the weights change.

    Searches run on a copy of the model in the precision `dtype`, brought up to date each time, so that steps captured
    on a GPU stay valid and the model that trains is left alone.
    """

    def __init__(
        self,
        parts: Parts,
        views: Views,
        samples: Sequence[Sample],
        world: World,
        *,
        dtype: torch.dtype,
        beams: int,
        max_length: int,
        tokenizer: str = "ptb",
        batch: int = 250,
    ):
        self.parts, self.views, self.samples, self.world, self.dtype = parts, views, samples, world, dtype
        self.tokenizer, self.batch = tokenizer, batch
        longest = min(max_length, parts.model.config.max_length)
        # As published figures are made: captions may end on any word.
        self.options = CaptionOptions(beams=beams, max_words=longest - 1, good_endings=False, shorten=False)
        self.captioner = Captioner(copy.deepcopy(parts.model).to(dtype).requires_grad_(False), parts.vocabulary)

    @torch.no_grad()
    def captions(self) -> list[Caption]:
        """In the order of the samples; ranks share the work."""
        torch._foreach_copy_(list(self.captioner.model.parameters()), list(self.parts.model.parameters()))
        vision = self.parts.vision
        was_training = vision is not None and vision.training
        if vision is not None:
            vision.eval()
        mine = torch.arange(self.world.rank, len(self.samples), self.world.size)
        blocks = mine.split(self.batch)
        found: list[object] = []
        for place, block in enumerate(blocks):
            if place + 1 < len(blocks):
                self.views.ahead(blocks[place + 1])
            with autocast(self.world.device, self.dtype):
                regions = regions_of(vision, self.views.view(block, training=False))
            captions = self.captioner.describe(regions, self.options)
            found.extend(zip(block.tolist(), captions, strict=True))
        if vision is not None:
            vision.train(was_training)
        everyone: dict[int, Caption] = dict(self.world.gather(found))  # type: ignore[arg-type]
        return [everyone[place] for place in range(len(self.samples))]

    def examples(self, captions: Sequence[Caption | WrittenCaption], count: int = 8) -> list[Example]:
        """The first pictures with their captions, for trackers."""
        pairs = zip(self.samples[:count], captions, strict=False)
        return [(thumbnail_of(sample), caption.text, sample.captions) for sample, caption in pairs]

    def validate(
        self, *, metrics: Sequence[str] = ("CIDEr",), bootstrap: int = 0, calibrate: bool = False, data_name: str = ""
    ) -> Evaluation:
        """Arguments are those of `meshcap.evaluation.evaluate`."""
        return evaluate(
            self.captioner,
            self.samples,
            split="val",
            options=self.options,
            captions=self.captions(),
            tokenizer=self.tokenizer,
            metrics=metrics,
            bootstrap=bootstrap,
            calibrate=calibrate,
            data_name=data_name,
        )
