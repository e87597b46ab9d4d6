"""Weights of regions as light on the picture they came from: dark where nothing is, clear where much is.

A map is painted in the *original* picture's proportions: what preprocessing cut away was not seen, and stays darkest.
No colour scale has to be read: the picture itself is what the light shows. Where weights are below zero, the light is
blue, which every kind of eye tells from no tint.
"""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

from meshcap.errors import MeshcapError

Window = tuple[float, float, float, float]
WHOLE: Window = (0.0, 0.0, 1.0, 1.0)
NIGHT, AGAINST = (12, 14, 26), (40, 110, 235)
DARKEST, UNSEEN, TINT = 0.84, 0.94, 0.62  # how much night covers: no weight at all, never seen, full weight against


def light(
    weights: Tensor, boxes: Tensor, size: tuple[int, int], window: Window | None = None, least: float = 0.0
) -> np.ndarray:
    """(height, width) of a picture of `size` = (width, height): 1 at the largest weight, NaN where nothing was seen.

    Args:
        weights: (N,), one for each region, also below zero.
        boxes: (N, 4) from 0 to 1 within the window.
        window: what was seen of the picture, in parts of its size; all of it unless told.
        least: a largest weight below this one is not raised to 1: noise must not look like news.

    Grid cells are smoothly joined; boxes of objects are painted, and where they overlap their weights add up.
    """
    if len(weights) != len(boxes):
        raise MeshcapError(f"{len(weights)} weights for {len(boxes)} boxes, expected one each")
    width, height = size
    left, top, right, bottom = window or WHOLE
    x1, x2 = round(left * width), max(round(left * width) + 1, round(right * width))
    y1, y2 = round(top * height), max(round(top * height) + 1, round(bottom * height))
    seen = (x2 - x1, y2 - y1)
    values, corners = weights.detach().float().cpu().numpy(), boxes.detach().float().cpu().numpy()
    cells = grid(values, corners)
    inside = _objects(values, corners, seen) if cells is None else _smooth(cells, seen)
    inside = inside / max(float(np.abs(inside).max()), least, 1e-12)
    field = np.full((height, width), np.nan, dtype=np.float32)
    field[y1:y2, x1:x2] = inside[: height - y1, : width - x1]
    return field


def grid(values: np.ndarray, boxes: np.ndarray) -> np.ndarray | None:
    """(rows, columns) where the boxes are the cells of a grid, in whatever order; else None."""
    rows, columns = (len(np.unique(boxes[:, axis].round(4))) for axis in (1, 0))
    if rows * columns != len(values):
        return None
    row, column = (boxes[:, 1] * rows).round().astype(int), (boxes[:, 0] * columns).round().astype(int)
    cells = np.stack((column / columns, row / rows, (column + 1) / columns, (row + 1) / rows), -1)
    if not np.allclose(boxes, cells, atol=2e-3) or len(set(zip(row, column, strict=True))) < len(values):
        return None
    found = np.zeros((rows, columns), dtype=np.float32)
    found[row, column] = values
    return found


def shade(field: np.ndarray) -> Image.Image:
    """What to lay over the picture: night where there is no light, blue where weights are below zero. RGBA."""
    seen = np.nan_to_num(field)
    strength = np.abs(seen).clip(0, 1)[..., None]
    against = (seen < 0)[..., None]
    covered = DARKEST * (1 - strength) + np.where(against, TINT * strength, 0)
    # Colours are mixed by how much each of the two covers, so that no dark ring parts blue light from night.
    blue = np.where(against, TINT * strength / np.maximum(covered, 1e-6), 0)
    colour = np.array(NIGHT) * (1 - blue) + np.array(AGAINST) * blue
    covered = np.where(np.isnan(field)[..., None], UNSEEN, covered)
    colour = np.where(np.isnan(field)[..., None], np.array(NIGHT), colour)
    return Image.fromarray(np.concatenate((colour, 255 * covered), -1).round().astype(np.uint8), "RGBA")


def lit(
    picture: Image.Image, weights: Tensor, boxes: Tensor, window: Window | None = None, least: float = 0.0
) -> Image.Image:
    """The picture under its shade, RGB, of the same size."""
    cover = shade(light(weights, boxes, picture.size, window, least))
    return Image.alpha_composite(picture.convert("RGBA"), cover).convert("RGB")


def place(field: np.ndarray) -> str:
    """Where the light is brightest, in words, for whoever cannot see it."""
    height, width = field.shape
    row, column = np.unravel_index(int(np.abs(np.nan_to_num(field)).argmax()), field.shape)
    down = ("top", "middle", "bottom")[int(3 * row / height)]
    across = ("left", "middle", "right")[int(3 * column / width)]
    return down if across == "middle" else across if down == "middle" else f"{down} {across}"


def _smooth(cells: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Cells as smooth light; bilinear, because smoother kinds overshoot and would paint a zero as less than zero."""
    return np.asarray(Image.fromarray(cells, "F").resize(size, Image.Resampling.BILINEAR))


def _objects(values: np.ndarray, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    width, height = size
    field = np.zeros((height, width), dtype=np.float32)
    for value, (left, top, right, bottom) in zip(values, boxes.clip(0, 1), strict=True):
        x, y = min(width - 1, round(left * width)), min(height - 1, round(top * height))
        # An object smaller than a pixel was looked at all the same.
        field[y : max(y + 1, round(bottom * height)), x : max(x + 1, round(right * width))] += value
    return field
