"""How a picture of any size becomes a square: the part of preprocessing that needs no torch.

`Preprocess` shows pictures so to a vision, and `meshcap.runtime` to an exported one: to the same pixels.
"""

from __future__ import annotations

from PIL import Image


def window(geometry: str, width: int, height: int) -> tuple[float, float, float, float]:
    """The part of a picture of this size that is seen: x1, y1, x2, y2 in its pixels."""
    if geometry == "squash":
        return 0.0, 0.0, float(width), float(height)
    side = min(width, height)
    x, y = (width - side) / 2, (height - side) / 2
    return x, y, x + side, y + side


def shown(image: Image.Image, size: int, geometry: str, through: int = 0) -> Image.Image:
    """An RGB picture as a square of `size` pixels, made from one of `through` pixels where that is not 0."""
    if through:
        image, geometry = shown(image, through, geometry), "squash"
    if image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BICUBIC, box=window(geometry, *image.size), reducing_gap=3.0)
