"""Scores as sets of bars: what a captioner of music looks with. No weights.

`ScoreVision` stands beside the backbones: it has a way to read a source and makes Regions of what was read. A bar is a
region, its numbers are those of `meshcap.music.features`, and its box is its place in the piece and its range of pitch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.music.features import WIDTH, Bars
from meshcap.music.roll import draw_roll
from meshcap.music.score import Part, Score, is_score, read_score
from meshcap.regions import Regions
from meshcap.vision.backbone import Vision
from meshcap.vision.pictures import Source, Stored, read_picture
from meshcap.vision.preprocess import Preprocess


@dataclass(frozen=True, kw_only=True)
class ReadScore(Preprocess):
    """How a score is read. There is nothing to choose."""

    words: ClassVar[int | None] = 100  # what is true of a piece takes more words than what is in a picture

    def read(self, source: Source) -> np.ndarray:
        if isinstance(source, Stored):
            source = source.read()
        if isinstance(source, Image.Image | np.ndarray | Tensor) or (
            isinstance(source, str) and not is_score(source) and _is_picture(source)
        ):
            raise MeshcapError(f"{_name(source)} is a picture, and this captioner reads scores (MIDI, ABC)")
        return Bars.measured(read_score(source))

    def example(self) -> bytes:
        """A bar of one note, as a MIDI file."""
        note = Part("", np.array([0.0]), np.array([1.0]), np.array([60]), np.array([80]))
        return Score((note,), np.array([0.0, 4.0]), ((4, 4),), np.array([120.0])).to_midi()

    def __str__(self) -> str:
        return "bars of a score"


def _is_picture(path: str) -> bool:
    from meshcap.vision.pictures import is_picture_path

    return is_picture_path(path)


def _name(source: object) -> str:
    return source if isinstance(source, str) else "what was given"


class ScoreVision(Vision):
    """A score's bars as Regions."""

    name: ClassVar[str] = "score"
    sets: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.preprocess = ReadScore()
        self.width = WIDTH

    def stack(self, read: Sequence[np.ndarray]) -> Tensor:
        """(B, N, WIDTH + 5): shorter pieces are filled up; the last number says which bars are real."""
        longest = max(len(one) for one in read)
        found = torch.zeros(len(read), longest, WIDTH + 5)
        for row, one in enumerate(read):
            found[row, : len(one), :-1] = torch.from_numpy(np.asarray(one, np.float32))
            found[row, : len(one), -1] = 1
        return found

    def forward(self, pixels: Tensor) -> Regions:
        features, boxes, real = pixels.split((WIDTH, 4, 1), -1)
        mask = real[..., 0] > 0.5
        return Regions(features.contiguous(), boxes.contiguous(), None if bool(mask.all()) else mask)

    def settings(self) -> dict[str, Any]:
        return {}


def picture_of(source: Source, *, at_least: int = 0) -> Image.Image:
    """What a person is shown of a source: the picture, or the piano roll of a score."""
    return draw_roll(read_score(source)) if is_score(source) else read_picture(source, at_least=at_least)  # type: ignore[arg-type]
