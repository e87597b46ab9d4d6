"""Scores as sets of bars: what a captioner of music looks with. No weights.

`Score` stands beside the backbones: it has a way to read a source and makes Regions of what was read. A bar is a
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
from meshcap.music.captions import read_caption
from meshcap.music.facts import Facts
from meshcap.music.features import WIDTH, measure
from meshcap.music.hearing import Heard, place_of
from meshcap.music.roll import draw_roll
from meshcap.music.score import is_score, read_score
from meshcap.regions import Regions
from meshcap.vision.backbone import Vision
from meshcap.vision.pictures import Source, read_picture
from meshcap.vision.preprocess import Preprocess

HARMONY = ("progression", "degrees", "opening", "closing", "cadence", "loop")  # said of chords that were heard


class Bars(np.ndarray):
    """Numbers of a piece's bars (N, WIDTH + 4), boxes last, with the facts that were found on the way."""

    facts: Facts
    heard: Heard

    def report(self, text: str) -> dict[str, Any]:
        """What is known of the piece, and each statement of a caption: whether it agrees, and how sure that is."""
        known, heard = self.facts, self.heard
        best = np.where(heard.sounding, heard.chords.max(1), 0.0)
        sure = float(heard.keys.max())
        statements = []
        for one in read_caption(text)[0]:
            confidence = 1.0
            if one.kind == "key":
                confidence = float(heard.keys[place_of(one.value)]) if one.holds(known) else 1 - sure  # type: ignore[arg-type]
            elif one.kind in HARMONY:
                spans = {"opening": best[:1], "closing": best[-1:], "cadence": best[-2:], "loop": best[:8]}
                confidence = float(spans.get(one.kind, best[:4]).prod())
                confidence *= sure if one.kind in ("cadence", "degrees") else 1.0
            true = one.holds(known)
            said = {"kind": one.kind, "words": one.words, "agrees": true, "confidence": round(confidence, 4)}
            statements.append(said)
        return {"piece": known.to_dict() | {"key_confidence": round(sure, 4)}, "statements": statements}


@dataclass(frozen=True, kw_only=True)
class ReadScore(Preprocess):
    """How a score is read. There is nothing to choose."""

    def read(self, source: Source) -> np.ndarray:
        if isinstance(source, Image.Image | np.ndarray | Tensor) or (
            isinstance(source, str) and not is_score(source) and _is_picture(source)
        ):
            raise MeshcapError(f"{_name(source)} is a picture, and this captioner reads scores (MIDI, ABC)")
        features, boxes, facts, heard = measure(read_score(source))
        found = np.concatenate((features, boxes), 1).view(Bars)
        found.facts, found.heard = facts, heard
        return found

    def __str__(self) -> str:
        return "bars of a score"


def _is_picture(path: str) -> bool:
    from meshcap.vision.pictures import is_picture_path

    return is_picture_path(path)


def _name(source: object) -> str:
    return source if isinstance(source, str) else "what was given"


class Score(Vision):
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
