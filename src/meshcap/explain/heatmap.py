"""Weights of regions drawn on their picture: dark where they are zero, clear where they are large; and an explanation
as one PNG.

A map has the proportions of the *original* picture: what preprocessing cut away was not seen, and is darkest. No colour
scale has to be read. Weights below zero are tinted blue, which people with colour blindness can tell from no tint.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.explain.explanation import Explanation, WordExplanation
from meshcap.files import write_file
from meshcap.vision.pictures import thumbnail

Window = tuple[float, float, float, float]
WHOLE: Window = (0.0, 0.0, 1.0, 1.0)
DARK, NEGATIVE = (12, 14, 26), (40, 110, 235)
DARKEST, UNSEEN, TINT = 0.84, 0.94, 0.62  # opacity: no weight, outside the window, full negative weight
WIDE, LARGE, LITTLE, GAP = 1120, 340, 128, 16
PAPER, INK, FAINT, BAR, TRACK = "white", (28, 32, 38), (92, 100, 112), (42, 111, 219), (226, 227, 224)


def heat_field(
    weights: Tensor, boxes: Tensor, size: tuple[int, int], window: Window | None = None, least: float = 0.0
) -> np.ndarray:
    """(height, width) of a picture of `size` = (width, height): 1 at the largest weight, NaN where nothing was seen.

    Args:
        weights: (N,), one for each region, also below zero.
        boxes: (N, 4) from 0 to 1 within the window.
        window: what was seen of the picture, in parts of its size; all of it by default.
        least: a largest weight below this one is not raised to 1, so that noise stays dark.

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
    cells = as_grid(values, corners)
    inside = _objects(values, corners, seen) if cells is None else _smooth(cells, seen)
    inside = inside / max(float(np.abs(inside).max()), least, 1e-12)
    field = np.full((height, width), np.nan, dtype=np.float32)
    field[y1:y2, x1:x2] = inside[: height - y1, : width - x1]
    return field


def as_grid(values: np.ndarray, boxes: np.ndarray) -> np.ndarray | None:
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


def overlay(field: np.ndarray) -> Image.Image:
    """RGBA to lay over the picture: dark where the field is 0, blue where it is negative."""
    seen = np.nan_to_num(field)
    strength = np.abs(seen).clip(0, 1)[..., None]
    against = (seen < 0)[..., None]
    covered = DARKEST * (1 - strength) + np.where(against, TINT * strength, 0)
    # Colours are mixed by how much each of the two covers, so that no dark ring separates them.
    blue = np.where(against, TINT * strength / np.maximum(covered, 1e-6), 0)
    colour = np.array(DARK) * (1 - blue) + np.array(NEGATIVE) * blue
    covered = np.where(np.isnan(field)[..., None], UNSEEN, covered)
    colour = np.where(np.isnan(field)[..., None], np.array(DARK), colour)
    return Image.fromarray(np.concatenate((colour, 255 * covered), -1).round().astype(np.uint8), "RGBA")


def with_overlay(
    picture: Image.Image, weights: Tensor, boxes: Tensor, window: Window | None = None, least: float = 0.0
) -> Image.Image:
    """The picture under its overlay, RGB, of the same size."""
    cover = overlay(heat_field(weights, boxes, picture.size, window, least))
    return Image.alpha_composite(picture.convert("RGBA"), cover).convert("RGB")


def brightest_place(field: np.ndarray) -> str:
    """Where the field is largest, in words, for screen readers."""
    height, width = field.shape
    row, column = np.unravel_index(int(np.abs(np.nan_to_num(field)).argmax()), field.shape)
    down = ("top", "middle", "bottom")[int(3 * row / height)]
    across = ("left", "middle", "right")[int(3 * column / width)]
    return down if across == "middle" else across if down == "middle" else f"{down} {across}"


def _smooth(cells: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Cells interpolated; bilinear, because bicubic overshoots below zero."""
    return np.asarray(Image.fromarray(cells, "F").resize(size, Image.Resampling.BILINEAR))


def _objects(values: np.ndarray, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    width, height = size
    field = np.zeros((height, width), dtype=np.float32)
    for value, (left, top, right, bottom) in zip(values, boxes.clip(0, 1), strict=True):
        x, y = min(width - 1, round(left * width)), min(height - 1, round(top * height))
        # An object smaller than a pixel still gets one pixel.
        field[y : max(y + 1, round(bottom * height)), x : max(x + 1, round(right * width))] += value
    return field


def write_sheet(path: Path, explanation: Explanation) -> None:
    """Write the PNG; a reader sees the old one or the new one."""
    paper = draw_sheet(explanation)
    write_file(path, lambda part: paper.save(part, "PNG", optimize=True))


def draw_sheet(explanation: Explanation) -> Image.Image:
    """Rows of words, each with where the model looked and, with attribution, what counted for it.

    Raises:
        MeshcapError: there is no picture, or nothing is known of where its regions lie.
    """
    if explanation.picture is None or explanation.boxes is None:
        raise MeshcapError("an explanation of regions alone has no picture to draw on: expected a photo")
    large, little = thumbnail(explanation.picture, LARGE), thumbnail(explanation.picture, LITTLE)
    rows = [([one.attention for one in explanation.words], 0.0)]
    credits = [one.attribution for one in explanation.words if one.attribution is not None]
    if credits:
        rows.append((credits, explanation.least))
    most = (WIDE - GAP) // (LITTLE + GAP // 2)
    per_row = -(-len(explanation.words) // -(-len(explanation.words) // most))  # rows of about equal length
    strips = [explanation.words[at : at + per_row] for at in range(0, len(explanation.words), per_row)]
    strip = 50 + len(rows) * (little.height + 8) + GAP
    text = _beside(ImageDraw.Draw(Image.new("RGB", (1, 1))), explanation, GAP + large.width + 2 * GAP)
    top = max(GAP + large.height, text) + GAP + 26  # a piano roll is lower than what stands beside it
    paper = Image.new("RGB", (WIDE, top + len(strips) * strip + GAP), PAPER)
    draw = ImageDraw.Draw(paper)
    paper.paste(large, (GAP, GAP))
    _beside(draw, explanation, GAP + large.width + 2 * GAP)
    note = "Each word with its probability, and where the model looked"
    note += "; below, what counted for the word, in blue what counted against it" if credits else ""
    draw.text((GAP, top - 28), note, FAINT, _font(15))
    for row, words in enumerate(strips):
        for column, one in enumerate(words):
            x, y = GAP + column * (LITTLE + GAP // 2), top + row * strip
            _heading(draw, one, x, y)
            for place, (maps, least) in enumerate(rows):
                seen = with_overlay(little, maps[row * per_row + column], explanation.boxes, explanation.window, least)
                paper.paste(seen, (x + (LITTLE - little.width) // 2, y + 46 + place * (little.height + 8)))
    return paper


def _heading(draw: ImageDraw.ImageDraw, one: WordExplanation, x: int, y: int) -> None:
    chance = f"{100 * one.probability:.0f} %"
    room = LITTLE - int(_font(14).getlength(chance)) - 8
    draw.text((x, y), _fitting(one.word, room, 17), INK, _font(17))
    draw.text((x + LITTLE, y + 3), chance, FAINT, _font(14), anchor="ra")
    draw.rectangle((x, y + 27, x + LITTLE - 1, y + 32), TRACK)
    draw.rectangle((x, y + 27, x + max(1, round(one.probability * (LITTLE - 1))), y + 32), BAR)


def _beside(draw: ImageDraw.ImageDraw, explanation: Explanation, x: int) -> int:
    """The caption large, and the model's other captions; returns where they end."""
    y = GAP
    for line in wrapped(explanation.text, WIDE - x - GAP, 28)[:4]:
        draw.text((x, y), line, INK, _font(28))
        y += 36
    who = "the model's caption" if explanation.own else "your sentence"
    draw.text((x, y + 2), f"{who}, confidence {100 * explanation.confidence:.0f} %", FAINT, _font(16))
    if explanation.names:
        y += 24
        named = ", ".join(f"{one.word} {100 * one.probability:.0f} %" for one in explanation.names)
        draw.text((x, y + 2), _fitting(f"names that were seen: {named}", WIDE - x - GAP, 16), FAINT, _font(16))
    others = explanation.best[1:] if explanation.own else explanation.best
    y += 44
    if others:
        draw.text((x, y), "other captions" if explanation.own else "the model itself says", FAINT, _font(15))
    for text, confidence in others[:5]:
        y += 26
        draw.text((x, y), f"{100 * confidence:.0f} %", FAINT, _font(15))
        draw.text((x + 48, y), _fitting(text, WIDE - x - GAP - 48, 15), INK, _font(15))
    y += 40
    if y < GAP + LARGE - 20:
        facts = ", ".join(value for name, value in explanation.facts if name in ("model", "looks with"))
        draw.text((x, y), _fitting(facts, WIDE - x - GAP, 15), FAINT, _font(15))
    return y + 8


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def _fitting(text: str, width: float, size: int) -> str:
    font = _font(size)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, width: float, size: int) -> list[str]:
    """Lines no longer than `width` pixels."""
    font, lines = _font(size), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
