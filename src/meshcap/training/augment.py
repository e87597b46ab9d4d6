"""Other views of the same pictures, made on the device for a whole batch at once.

- `augment`: parts of pictures, mirror images, other light.
- `compress_some`: pictures as JPEG would leave them. Photos on the web have been compressed, some of them badly. A
  vision that learned from good pictures alone loses twice as much on bad ones as one that learned from bad ones too,
  which in turn loses nothing on good ones.
- `hide_some`: fewer regions of each picture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

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


def augment(pixels: Tensor, mirror: Tensor, strength: float, turn: float = 0.0, size: int | None = None) -> Tensor:
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
    grid = F.affine_grid(view, [count, 3, *((size, size) if size else pixels.shape[-2:])], align_corners=False)
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


WORST, BEST = 10, 60  # quality of what is compressed
# How coarsely each frequency of an 8 × 8 block is kept at quality 50: annex K of the JPEG standard.
BRIGHTNESS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
COLOUR = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def compress_some(seen: Tensor, share: float) -> Tensor:
    """This share of the pictures (B, 3, H, W), floats from 0 to 255, compressed, each to a quality of its own."""
    # A whole number that is right on average, drawn on the CPU: the device need not be waited for.
    count = int(share * len(seen) + float(torch.rand(())))
    if not count:
        return seen
    chosen = torch.rand(len(seen), device=seen.device).topk(count).indices
    quality = torch.rand(count, device=seen.device) * (BEST - WORST) + WORST
    return seen.index_copy(0, chosen, compressed(seen[chosen], quality))


def compressed(pictures: Tensor, quality: Tensor) -> Tensor:
    """Pictures (B, 3, H, W), floats from 0 to 255, as JPEG of quality (B,) from 1 to 100 leaves them (4:4:4)."""
    height, width = pictures.shape[-2:]
    whole = F.pad(pictures.float(), (0, -width % 8, 0, -height % 8), mode="replicate")
    to_ycc, to_rgb, waves, _ = _constants(pictures.device)
    ycc = torch.einsum("ij,bjhw->bihw", to_ycc, whole)
    ycc[:, 0] -= 128
    blocks = ycc.unflatten(3, (-1, 8)).unflatten(2, (-1, 8))  # (B, 3, rows, 8, columns, 8)
    found = torch.einsum("ui,bcridj,vj->bcrudv", waves, blocks, waves)
    steps = steps_at(quality)[:, :, None, :, None, :]  # (B, 3, 1, 8, 1, 8)
    kept = (found / steps).round() * steps
    ycc = torch.einsum("ui,bcrudv,vj->bcridj", waves, kept, waves).flatten(4).flatten(2, 3)
    ycc = torch.cat((ycc[:, :1] + 128, ycc[:, 1:]), 1)
    rgb = torch.einsum("ij,bjhw->bihw", to_rgb, ycc)
    return rgb[..., :height, :width].clamp(0, 255)


def steps_at(quality: Tensor) -> Tensor:
    """(B, 3, 8, 8) whole numbers: how coarsely each frequency is kept at quality (B,)."""
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50)[:, None, None, None]
    return (_constants(quality.device)[-1] * scale + 0.5).floor().clamp(1, 255)


@lru_cache(maxsize=8)
def _constants(device: torch.device) -> tuple[Tensor, ...]:
    """On a device, where they stay, since bringing them there waits for it in every step.

    RGB to brightness and two colours (3, 3), and back; a block's cosines (8, 8); the steps (3, 8, 8) at quality 50.
    """
    to_ycc = torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
    places = torch.arange(8)
    waves = torch.cos((2 * places[None] + 1) * places[:, None] * math.pi / 16) / 2
    waves[0] /= math.sqrt(2)
    tables = torch.tensor([BRIGHTNESS, COLOUR, COLOUR]).float()
    return tuple(one.to(device) for one in (to_ycc, torch.linalg.inv(to_ycc), waves, tables))
