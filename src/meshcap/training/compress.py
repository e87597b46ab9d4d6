"""Pictures as JPEG would leave them, on the device, for a whole batch at once.

Photos on the web have been compressed, some of them badly. Eyes that learned from good pictures alone lose twice as
much on bad ones as eyes that learned from bad ones, which in turn lose nothing on good ones.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

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
