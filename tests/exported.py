"""A tiny captioner with a vision, and its exports, made once for all tests that run them."""

import logging
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import skimage.data

import tiny
from meshcap.calibration import Calibration
from meshcap.captioner import Captioner
from meshcap.export import export_captioner
from meshcap.text import Vocabulary
from meshcap.vision import Vision, create_vision

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", "'s", "red", "ball", "of"]
_kept: list[tempfile.TemporaryDirectory] = []  # deleted when Python leaves


def pictures() -> list[np.ndarray]:
    """Photographs."""
    return [getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket", "camera", "moon")]


def small(name: str = "m2", vision: Vision | None = None, **settings) -> Captioner:
    vision = vision or create_vision("patches", cells=4, gain=4.0)
    return Captioner(tiny.build(name, d_input=vision.width, max_length=14, **settings), Vocabulary(WORDS), vision)


@cache
def captioner() -> Captioner:
    found = small(encoder_layers=2, decoder_layers=1, seed=7)  # one with captions of several lengths
    found.calibration = Calibration({"mean": 1.0}, (-3.0, 0.0), (0.25, 0.75))
    return found


@cache
def folder(format: str, bits: int = 32) -> Path:
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)  # pytest would keep all that it says, slowly
    _kept.append(tempfile.TemporaryDirectory())
    place = Path(_kept[-1].name) / format
    export_captioner(captioner(), place, format=format, bits=bits)
    return place
