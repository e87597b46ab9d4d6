"""A piece as a picture: its piano roll, low notes below. Boxes of bars lie on it as they are."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from meshcap.music.score import BASS, MELODY, Score

HEIGHT, NARROWEST, WIDEST = 384, 768, 3072  # pixels
BAR = 48  # pixels of a bar, where the picture is not wider than that
PAPER, LINES, OCTAVES = (250, 249, 246), (205, 203, 198), (232, 230, 225)
INK = {MELODY: (196, 58, 49), BASS: (38, 84, 124)}
OTHERS = (96, 125, 110)


def draw_roll(score: Score) -> Image.Image:
    """Red is the melody, blue the bass, green what accompanies. All 128 pitches have their place, as in boxes."""
    width = int(np.clip(BAR * len(score), NARROWEST, WIDEST))
    image = Image.new("RGB", (width, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    across = (width - 1) / float(score.bars[-1])
    up = (HEIGHT - 1) / 128
    for pitch in range(0, 128, 12):
        draw.line((0, HEIGHT - 1 - pitch * up, width, HEIGHT - 1 - pitch * up), OCTAVES)
    for start in score.bars:
        draw.line((start * across, 0, start * across, HEIGHT), LINES)
    notes = score.notes
    order = np.argsort(notes["role"] == MELODY, kind="stable")  # the melody lies on top
    for place in order:
        onset, end = notes["onset"][place], min(notes["onset"][place] + notes["duration"][place], score.bars[-1])
        top = HEIGHT - 1 - (notes["pitch"][place] + 1) * up
        box = (onset * across, top, max(onset * across + 2, end * across - 1), top + max(2.0, up))
        draw.rectangle(box, INK.get(int(notes["role"][place]), OTHERS))
    return image
