"""What clients are answered: models for OpenAPI, and plain dicts of the same form."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, Field
from torch import Tensor

from meshcap.captioner import Caption
from meshcap.errors import FailedError, MeshcapError
from meshcap.explain.heat import grid
from meshcap.serving.limits import RefusalError
from meshcap.serving.service import Found

DIGITS = 4


class Word(BaseModel):
    word: str
    probability: float
    attention: list[float] | None = Field(None, description="A weight for each region, where it was asked for.")


class CaptionOut(BaseModel):
    caption: str = Field(description="As a person would write it.")
    confidence: float = Field(description="0 to 1: how far the caption may be trusted.")
    probability: float = Field(description="The geometric mean of the words' probabilities, the end included.")
    score: float = Field(description="What the search ranked it by.")
    words: list[Word]
    finished: bool = Field(description="False: cut off at the greatest length.")
    missing: int = Field(description="Required words that could not be mentioned.")


class RegionsOut(BaseModel):
    boxes: list[list[float]] = Field(description="x1, y1, x2, y2 of each region, in parts of the window.")
    window: list[float] = Field(description="x1, y1, x2, y2: what was seen, in parts of the picture.")
    grid: list[int] | None = Field(None, description="Rows and columns, where the regions are cells row by row.")


class ErrorOut(BaseModel):
    status: int
    message: str = Field(description="One sentence.")


class PictureOut(BaseModel):
    """A caption with its alternatives, or an error."""

    caption: str | None = None
    confidence: float | None = None
    probability: float | None = None
    score: float | None = None
    words: list[Word] | None = None
    finished: bool | None = None
    missing: int | None = None
    alternatives: list[CaptionOut] | None = Field(None, description="The next best, where n_best is above 1.")
    regions: RegionsOut | None = Field(None, description="Where attention was asked for.")
    error: ErrorOut | None = None


class Answer(BaseModel):
    model: str
    results: list[PictureOut] = Field(description="One for each picture, in their order.")
    seconds: float


class Refused(BaseModel):
    error: ErrorOut


def told(found: Found | MeshcapError) -> dict[str, Any]:
    """A `PictureOut`."""
    if isinstance(found, MeshcapError):
        return error_told(found)
    caption = found.seen.caption
    answer = _caption(caption)
    if caption.alternatives:
        answer["alternatives"] = [_caption(one) for one in caption.alternatives]
    if caption.attention is not None and found.seen.boxes is not None:
        boxes = found.seen.boxes
        cells = grid(boxes[:, 0].numpy(), boxes.numpy())
        answer["regions"] = {
            "boxes": [_rounded(box) for box in boxes],
            "window": [round(part, DIGITS) for part in found.window],
            "grid": None if cells is None or not _row_by_row(boxes) else list(cells.shape),
        }
    return answer


def error_told(error: MeshcapError) -> dict[str, Any]:
    """A `Refused`."""
    status = error.status if isinstance(error, RefusalError) else 500 if isinstance(error, FailedError) else 422
    return {"error": {"status": status, "message": " ".join(str(error).split())}}


def _caption(caption: Caption) -> dict[str, Any]:
    words: list[dict[str, Any]] = [
        {"word": word, "probability": round(math.exp(chance), DIGITS)}
        for word, chance in zip(caption.words, caption.log_probs, strict=False)  # the last may be of the end
    ]
    if caption.attention is not None:
        for word, weights in zip(words, caption.attention, strict=True):
            word["attention"] = _rounded(weights)
    return {
        "caption": caption.text,
        "confidence": round(caption.confidence, DIGITS),
        "probability": round(caption.probability, DIGITS),
        "score": round(caption.score, DIGITS),
        "words": words,
        "finished": caption.finished,
        "missing": caption.missing,
    }


def _row_by_row(boxes: Tensor) -> bool:
    order = [(round(y, 3), round(x, 3)) for x, y, *_ in boxes.tolist()]
    return order == sorted(order)


def _rounded(numbers: Tensor) -> list[float]:
    return [round(number, DIGITS) for number in numbers.tolist()]
