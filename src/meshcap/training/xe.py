"""Teacher-forced cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshcap.models import CaptionModel
from meshcap.regions import Regions


def targets(ids: Tensor, *, pad: int, unk: int, suppressed: Sequence[int]) -> Tensor:
    """Which of the next words count, of ids (…, T): not padding, and not `<unk>` where it is suppressed."""
    words = ids[..., 1:]
    counted = words != pad
    return counted & (words != unk) if unk in suppressed else counted


def xe_sum(model: CaptionModel, regions: Regions, rectangles: Sequence[Tensor], smoothing: float = 0.0) -> Tensor:
    """The summed cross-entropy of every next word; pictures are encoded once for all their captions.

    A captioner whose mechanism needs more to learn from (`CaptionModel.study`) adds a sum of its own.

    Args:
        rectangles: (B, S, T) each, from `<bos>` to `<eos>`, filled up with `<pad>`, which is not counted.
        smoothing: this share of the probability should be spread evenly over all words that may be said.
    """
    config = model.config
    encoded = model.encode(regions)
    total = torch.zeros((), device=regions.features.device)
    sayable = config.vocab_size - len(set(config.suppressed))
    for ids in rectangles:
        counted = targets(ids, pad=config.pad, unk=config.unk, suppressed=config.suppressed)
        log_probs, noticed = model.study(encoded, ids[..., :-1])  # (B, S, T - 1, V)
        said = log_probs.gather(-1, ids[..., 1:, None])[..., 0]
        loss = -said
        if smoothing:
            even = -log_probs.masked_fill(log_probs == float("-inf"), 0).sum(-1) / sayable
            loss = (1 - smoothing) * loss + smoothing * even
        total = total + loss.where(counted, 0).sum()
        if noticed is not None:
            total = total + model.extra_loss(noticed, said, counted)
    return total


def xe_loss(model: CaptionModel, regions: Regions, ids: Tensor, smoothing: float = 0.0) -> Tensor:
    """The mean cross-entropy of each next word of ids (B, T) or (B, S, T)."""
    config = model.config
    captions = ids if ids.dim() == 3 else ids[:, None]
    counted = targets(captions, pad=config.pad, unk=config.unk, suppressed=config.suppressed)
    return xe_sum(model, regions, [captions], smoothing) / counted.sum().clamp_min(1)
