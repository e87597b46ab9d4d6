"""Teacher-forced cross-entropy."""

from __future__ import annotations

from torch import Tensor

from meshcap.models import CaptionModel
from meshcap.regions import Regions


def xe_loss(model: CaptionModel, regions: Regions, ids: Tensor) -> Tensor:
    """The mean negative log-probability of each next word.

    Args:
        ids: (B, T) or (B, S, T), from `<bos>` to `<eos>`, filled up with `<pad>`, which is not counted.
    """
    words = ids[..., 1:]
    log_probs = model(regions, ids[..., :-1]).gather(-1, words[..., None])[..., 0]  # (B, S, T - 1)
    said = words != model.config.pad
    return -log_probs.where(said, 0).sum() / said.sum().clamp_min(1)
