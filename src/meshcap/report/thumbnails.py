"""Small copies of pictures, for pages and trackers that show many at once."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageOps

SIDE, QUALITY = 256, 70  # pixels of the longer side; of JPEG: some 12 kB for a photograph


def thumbnail(image: Image.Image, side: int = SIDE) -> Image.Image:
    """A copy in RGB, upright, no side longer than `side`. What is transparent becomes white."""
    palette = image.mode in ("1", "P")  # whose colours cannot be mixed
    small = image.convert("RGBA" if image.has_transparency_data else "RGB") if palette else image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    small = ImageOps.exif_transpose(small)
    if small.has_transparency_data:
        small = small.convert("RGBA")
        small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small)
    return small.convert("RGB")


def data_url(image: Image.Image, side: int = SIDE) -> tuple[str, int, int]:
    """The thumbnail as a JPEG inside a URL, with its width and height."""
    small = thumbnail(image, side)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"), *small.size
