"""An explanation as one picture: the photo with its caption, and below it the photo once for each word."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from meshcap.errors import MeshcapError
from meshcap.evaluation.page import thumbnail
from meshcap.explain.explanation import Explanation, WordExplanation
from meshcap.explain.heat import lit
from meshcap.files import write_file

WIDE, LARGE, LITTLE, GAP = 1120, 340, 128, 16
PAPER, INK, FAINT, BAR, TRACK = "white", (28, 32, 38), (92, 100, 112), (42, 111, 219), (226, 227, 224)


def write_sheet(path: Path, explanation: Explanation) -> None:
    """Write the PNG; a reader sees the old one or the new one."""
    paper = sheet(explanation)
    write_file(path, lambda part: paper.save(part, "PNG", optimize=True))


def sheet(explanation: Explanation) -> Image.Image:
    """Rows of words, each with where the model looked and, where it was asked for, what the picture did for it.

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
    top = GAP + large.height + GAP + 26
    paper = Image.new("RGB", (WIDE, top + len(strips) * strip + GAP), PAPER)
    draw = ImageDraw.Draw(paper)
    paper.paste(large, (GAP, GAP))
    _beside(draw, explanation, GAP + large.width + 2 * GAP)
    told = "Each word with its probability, and where the model looked"
    told += "; below, what counted for the word, in blue what counted against it" if credits else ""
    draw.text((GAP, top - 28), told, FAINT, _font(15))
    for row, words in enumerate(strips):
        for column, one in enumerate(words):
            x, y = GAP + column * (LITTLE + GAP // 2), top + row * strip
            _heading(draw, one, x, y)
            for place, (maps, least) in enumerate(rows):
                seen = lit(little, maps[row * per_row + column], explanation.boxes, explanation.window, least)
                paper.paste(seen, (x + (LITTLE - little.width) // 2, y + 46 + place * (little.height + 8)))
    return paper


def _heading(draw: ImageDraw.ImageDraw, one: WordExplanation, x: int, y: int) -> None:
    chance = f"{100 * one.probability:.0f} %"
    room = LITTLE - int(_font(14).getlength(chance)) - 8
    draw.text((x, y), _fitting(one.word, room, 17), INK, _font(17))
    draw.text((x + LITTLE, y + 3), chance, FAINT, _font(14), anchor="ra")
    draw.rectangle((x, y + 27, x + LITTLE - 1, y + 32), TRACK)
    draw.rectangle((x, y + 27, x + max(1, round(one.probability * (LITTLE - 1))), y + 32), BAR)


def _beside(draw: ImageDraw.ImageDraw, explanation: Explanation, x: int) -> None:
    """The caption large, and what else the model thought of."""
    y = GAP
    for line in wrapped(explanation.text, WIDE - x - GAP, 28)[:4]:
        draw.text((x, y), line, INK, _font(28))
        y += 36
    who = "the model's caption" if explanation.own else "your sentence"
    draw.text((x, y + 2), f"{who}, confidence {100 * explanation.confidence:.0f} %", FAINT, _font(16))
    others = explanation.best[1:] if explanation.own else explanation.best
    y += 44
    if others:
        draw.text((x, y), "it also thought of" if explanation.own else "the model itself says", FAINT, _font(15))
    for text, confidence in others[:5]:
        y += 26
        draw.text((x, y), f"{100 * confidence:.0f} %", FAINT, _font(15))
        draw.text((x + 48, y), _fitting(text, WIDE - x - GAP - 48, 15), INK, _font(15))
    y += 40
    if y < GAP + LARGE - 20:
        told = ", ".join(value for name, value in explanation.facts if name in ("model", "looks with"))
        draw.text((x, y), _fitting(told, WIDE - x - GAP, 15), FAINT, _font(15))


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
