"""The picture that the demo leaves: scenes with their captions, and where the model looked for each word."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meshcap.captioner import Caption
from meshcap.explain.heatmap import wrapped

COLUMNS, LARGE, LITTLE, GAP = 4, 224, 104, 16
BELOW = 76  # room for three lines of caption
PAPER, INK, FAINT = "white", (30, 30, 40), (120, 120, 130)


def sheet(scenes: Sequence[Image.Image], captions: Sequence[Caption]) -> Image.Image:
    """Scenes with captions in rows; below, the first scene once for each word, dark where the model did not look."""
    rows = -(-len(scenes) // COLUMNS)
    width = COLUMNS * (LARGE + GAP) + GAP
    shown = captions[0].words
    per_row = (width - GAP) // (LITTLE + GAP // 2)
    height = GAP + rows * (LARGE + BELOW) + 30 + -(-len(shown) // per_row) * (LITTLE + 28) + GAP
    paper = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(paper)
    for place, (scene, caption) in enumerate(zip(scenes, captions, strict=True)):
        x, y = GAP + place % COLUMNS * (LARGE + GAP), GAP + place // COLUMNS * (LARGE + BELOW)
        paper.paste(scene.resize((LARGE, LARGE), Image.Resampling.LANCZOS), (x, y))
        lines = "\n".join(wrapped(caption.text, LARGE, 15))
        draw.multiline_text((x, y + LARGE + 6), lines, INK, ImageFont.load_default(size=15))
    top = GAP + rows * (LARGE + BELOW)
    draw.text((GAP, top), "where it looked for each word of the first caption", FAINT, ImageFont.load_default(size=14))
    assert captions[0].attention is not None
    for place, (word, look) in enumerate(zip(shown, captions[0].attention, strict=True)):
        x, y = GAP + place % per_row * (LITTLE + GAP // 2), top + 30 + place // per_row * (LITTLE + 28)
        paper.paste(lit(scenes[0], look), (x, y))
        draw.text((x + LITTLE // 2, y + LITTLE + 4), word, INK, ImageFont.load_default(size=14), anchor="ma")
    return paper


def lit(image: Image.Image, look: Tensor) -> Image.Image:
    """The picture in the dark, lit where the weights (cells²,) of a grid are high."""
    cells = math.isqrt(len(look))
    light = (look / look.max().clamp_min(1e-9) * 255).round().byte().view(cells, cells)
    mask = Image.frombytes("L", (cells, cells), bytes(light.flatten().tolist()))
    mask = mask.resize((LITTLE, LITTLE), Image.Resampling.BICUBIC)
    small = image.resize((LITTLE, LITTLE), Image.Resampling.LANCZOS)
    dark = Image.blend(small.convert("L").convert("RGB"), Image.new("RGB", small.size, (18, 18, 28)), 0.72)
    return Image.composite(small, dark, mask)
