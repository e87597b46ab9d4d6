"""Between two models that grew from one: each weight a mean of theirs.

Self-critical training says what scores and forgets rare words; cross-entropy keeps them and scores less. Where one
model was trained on from the other, the weights between them work, and better than a mean of what the two score:
Wortsman et al. 2022 (model soups), Ramé et al. 2023 (rewarded soups).
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from meshcap.captioner import VOCABULARY, Captioner
from meshcap.errors import MeshcapError
from meshcap.folders import find_file
from meshcap.models import load_model
from meshcap.text import Vocabulary
from meshcap.vision import load_vision

EXPECTED = "expected one that was trained on from the other"


def unpacked(model: str | Path) -> Captioner:
    """A captioner whose weights may be changed and saved: `Captioner.from_pretrained` lays them out for the CPU."""
    return Captioner(load_model(model), Vocabulary.load(find_file(model, VOCABULARY)), load_vision(model))


class Blend:
    """A captioner that can be set anywhere between two others, as often as one likes.

    Raises:
        MeshcapError: the two differ in their settings, words or eyes.
    """

    def __init__(self, first: Captioner, second: Captioner):
        if first.model.name != second.model.name or first.model.config != second.model.config:
            raise MeshcapError(f"the two models have different settings: {EXPECTED}")
        if first.vocabulary.words != second.vocabulary.words:
            raise MeshcapError(f"the two models have different words: {EXPECTED}")
        eyes = [None if one.vision is None else (one.vision.name, one.vision.settings()) for one in (first, second)]
        if eyes[0] != eyes[1]:
            raise MeshcapError(f"the two models see differently: {EXPECTED}")
        self.first, self.second = first, second
        self.captioner = Captioner(
            copy.deepcopy(first.model).requires_grad_(False),
            first.vocabulary,
            None if first.vision is None else copy.deepcopy(first.vision).requires_grad_(False),
        )

    @torch.no_grad()
    def set(self, share: float) -> Captioner:
        """`share` of the second model: 0 is the first, 1 the second. In place: what was set before is gone."""
        if not 0 <= share <= 1:
            raise MeshcapError(f"the share is {share}, expected a number from 0 to 1")
        mix(self.captioner.model, self.first.model, self.second.model, share)
        if self.captioner.vision is not None:
            assert self.first.vision is not None and self.second.vision is not None
            mix(self.captioner.vision, self.first.vision, self.second.vision, share)
        return self.captioner


def mix(into: nn.Module, first: nn.Module, second: nn.Module, share: float) -> None:
    ends = first.state_dict(), second.state_dict()
    for name, weight in into.state_dict().items():
        if weight.is_floating_point():
            # Not from one end only: at 0 and 1 the ends themselves come out, to the bit.
            weight.copy_(ends[0][name] * (1 - share) + ends[1][name] * share)
