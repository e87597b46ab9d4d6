"""Other views of the same picture: parts, mirror images, other light. On the device, for a whole batch at once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap.data.dataset import Sample
from meshcap.regions import Regions

# A mirror image would make these untrue. Words in a picture ("a sign that says…") are mirrored too, and are few.
SIDES = re.compile(r"\b((left|right)(most|wards?|hand(ed)?)?|(counter|anti)?clockwise)\b", re.IGNORECASE)


def may_be_mirrored(samples: Sequence[Sample]) -> Tensor:
    """(N,) bool: no caption of the picture speaks of left or right."""
    return torch.tensor([not any(SIDES.search(caption) for caption in sample.captions) for sample in samples])


def augment(pixels: Tensor, mirror: Tensor, strength: float, turn: float = 0.0) -> Tensor:
    """Random views of pictures (B, 3, H, W) uint8: floats from 0 to 255.

    At strength 1 a view shows as little as 40 % of the picture, three to four to four to three, and brightness,
    contrast and colour change by up to 40 %. Pictures whose `mirror` (B,) is true are mirrored half of the time. Views
    are turned by up to `turn` degrees either way; what then lies outside of the picture repeats its edge.
    """
    count, device = len(pixels), pixels.device

    def between(low: float, high: float) -> Tensor:
        return torch.rand(count, device=device) * (high - low) + low

    area = between(1 - 0.6 * strength, 1)
    ratio = torch.exp(between(-1, 1) * math.log(4 / 3) * strength)
    width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    flip = torch.where(mirror & (torch.rand(count, device=device) < 0.5), -1.0, 1.0)
    # grid_sample's coordinates run from -1 to 1, so a view of half the width can move by half either way.
    view = torch.zeros(count, 2, 3, device=device)
    view[:, 0, 0], view[:, 1, 1] = width * flip, height
    view[:, 0, 2], view[:, 1, 2] = between(-1, 1) * (1 - width), between(-1, 1) * (1 - height)
    if turn:
        angle = between(-1, 1) * math.radians(turn)
        cosine, sine = angle.cos(), angle.sin()
        view[:, 0, 0], view[:, 0, 1] = width * flip * cosine, -height * sine
        view[:, 1, 0], view[:, 1, 1] = width * flip * sine, height * cosine
    grid = F.affine_grid(view, list(pixels.shape), align_corners=False)
    seen = F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False)

    most = 0.4 * strength
    brightness, contrast, colour = (between(1 - most, 1 + most)[:, None, None, None] for _ in range(3))
    seen = seen * brightness
    grey = seen.mean(1, keepdim=True)
    seen = grey + (seen - grey) * colour
    middle = seen.mean((1, 2, 3), keepdim=True)
    return (middle + (seen - middle) * contrast).clamp(0, 255)


def hide_some(regions: Regions, share: float) -> Regions:
    """A random choice of the regions of each picture, the same number in all: fewer to look at, and no mask."""
    return only(regions, some_places(regions, share))


def some_places(regions: Regions, share: float) -> Tensor | None:
    """(B, N') the regions of each picture that are not hidden; None: all are seen."""
    count = regions.features.shape[1]
    kept = max(1, round(count * (1 - share)))
    if kept == count or regions.mask is not None:
        return None
    return torch.rand(regions.features.shape[:2], device=regions.features.device).topk(kept).indices


def only(regions: Regions, places: Tensor | None) -> Regions:
    """These regions (B, N') of each picture."""
    if places is None:
        return regions

    def pick(tensor: Tensor) -> Tensor:
        return tensor.gather(1, places[..., None].expand(-1, -1, tensor.shape[-1]))

    return Regions(pick(regions.features), None if regions.boxes is None else pick(regions.boxes))
