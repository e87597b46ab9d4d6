"""Caption: a sentence about a picture, and how the model came to it. Nothing here needs torch."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

SHOWN, SMALL = 320, 96  # pixels of a picture in a notebook, and of the one beside each word


@dataclass(frozen=True)
class Tag:
    """A keyword of a picture."""

    name: str
    kind: str  # object, scene, name (of a kind of animal or thing) or colour
    probability: float  # that it is there; of a colour, its share of the picture

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "probability": round(self.probability, 4)}


@dataclass(frozen=True)
class Caption:
    """`str(caption)` is the sentence. In a notebook it shows the picture too, and where the model looked."""

    text: str  # as a person would write it
    words: list[str]
    log_probs: list[float]  # of each word, and of the end where it was reached
    confidence: float  # 0-1: how far to trust it, as measured where the model is calibrated; else the probability
    probability: float  # 0-1: the geometric mean of the words' probabilities
    score: float  # what the search ranked it by
    finished: bool  # False: cut off at the greatest length
    missing: int = 0  # how many of the required words could not be fitted in
    warning: str | None = None  # what a reader should know: required words that do not suit the picture
    withheld: bool = False  # below the confidence that was asked for: no text, no words
    shortened: bool = False  # trusted little as a whole: what was not sure is left out
    tags: tuple[Tag, ...] = ()  # keywords, likeliest first, where they were asked for
    attention: Tensor | None = None  # (words, regions): where the model looked for each word
    memory: list[float] | None = None  # with attention, where a memory was read: how far each word listened to it, 0-1
    facts: dict[str, Any] | None = None  # what rules know of the source and of each statement: see `vision.score`
    alternatives: tuple[Caption, ...] = ()  # the next best, where more than one was asked for
    # What a notebook shows: the pixels (3, S, S) that the model read, and the boxes (regions, 4) of its regions.
    picture: np.ndarray | None = field(default=None, repr=False, compare=False)
    boxes: Tensor | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them; what is None or empty is left out."""
        found: dict[str, Any] = {
            "caption": self.text,
            "confidence": self.confidence,
            "withheld": self.withheld,
        }
        if not self.withheld:
            found |= {
                "probability": self.probability,
                "score": self.score,
                "words": list(self.words),
                "log_probs": list(self.log_probs),
                "finished": self.finished,
                "missing": self.missing,
            }
        if self.shortened and not self.withheld:
            found["shortened"] = True
        if self.warning:
            found["warning"] = self.warning
        if self.tags:
            found["tags"] = [tag.to_dict() for tag in self.tags]
        if self.attention is not None:
            found["attention"] = self.attention.tolist()
        if self.memory is not None:
            found["memory"] = list(self.memory)
        if self.facts is not None and not self.withheld:
            found["facts"] = self.facts
        if self.alternatives:
            found["alternatives"] = [one.to_dict() for one in self.alternatives]
        return found

    def withhold(self) -> Caption:
        """The same without anything that gives the sentence away."""
        return replace(self, text="", words=[], log_probs=[], withheld=True, warning=None, attention=None, memory=None)

    def _repr_html_(self) -> str:
        """For notebooks: picture, sentence, and for each word where the model looked."""
        sentence = html.escape(self.text) or "<i>withheld</i>"
        lines = [f"<p><b>{sentence}</b> <span style='opacity:.6'>{self.confidence:.0%}</span></p>"]
        if self.warning:
            lines.append(f"<p>⚠ {html.escape(self.warning)}</p>")
        if self.tags:
            lines.append(f"<p style='opacity:.6'>{html.escape(', '.join(tag.name for tag in self.tags))}</p>")
        lines += [f"<p style='margin:0'>{html.escape(one.text)}</p>" for one in self.alternatives]
        if self.picture is not None:
            lines.insert(0, _image(_pillow(self.picture), SHOWN))
            if self.attention is not None and self.boxes is not None:
                lines.append("<div style='display:flex;flex-wrap:wrap;gap:4px'>")
                for word, weights in zip(self.words, self.attention.tolist(), strict=False):
                    lit = _image(_lit(self.picture, weights, self.boxes.tolist()), SMALL)
                    lines.append(f"<figure style='margin:0'>{lit}<figcaption>{html.escape(word)}</figcaption></figure>")
                lines.append("</div>")
        return "<div>" + "\n".join(lines) + "</div>"


def _pillow(pixels: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(pixels.transpose(1, 2, 0))


def _image(picture: Any, size: int) -> str:
    buffer = io.BytesIO()
    picture.resize((size, size)).save(buffer, "JPEG", quality=85)
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"<img width='{size}' height='{size}' src='data:image/jpeg;base64,{content}'>"


def _lit(pixels: np.ndarray, weights: list[float], boxes: list[list[float]]) -> Any:
    """A small picture, bright where the weights of its regions are large."""
    import numpy as np
    from PIL import Image

    picture = np.asarray(_pillow(pixels).resize((SMALL, SMALL)), np.float32)
    light = np.zeros((SMALL, SMALL), np.float32)
    for weight, (left, top, right, bottom) in zip(weights, boxes, strict=False):
        x1, y1, x2, y2 = (int(SMALL * edge) for edge in (left, top, right, bottom))
        light[y1 : y2 + 1, x1 : x2 + 1] = np.maximum(light[y1 : y2 + 1, x1 : x2 + 1], weight)
    light = 0.2 + 0.8 * light / max(float(light.max()), 1e-9)
    return Image.fromarray((picture * light[..., None]).astype(np.uint8))
