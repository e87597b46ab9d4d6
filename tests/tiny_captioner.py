"""A tiny captioner with vision and vocabulary, in a folder. It speaks nonsense, other for each picture."""

from pathlib import Path

import tiny
from meshcap.calibration import Calibration
from meshcap.captioner import Captioner
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *"a dog cat horse on in grass with red of the".split()]
LONGEST = 25


def build(calibration: Calibration | None = None, *, seed: int = 10) -> Captioner:
    vision = create_vision("patches", size=48)
    model = tiny.build("m2", seed=seed, vocab_size=len(WORDS), d_input=vision.width, max_length=LONGEST)
    return Captioner(model, Vocabulary(WORDS), vision, calibration)


MUSIC = ["<unk>", "<pad>", "<bos>", "<eos>", *"a slow moderate piece bars in c-major g-major where rises".split()]


def of_music() -> Captioner:
    vision = create_vision("score")
    model = tiny.build("m2", seed=3, vocab_size=len(MUSIC), d_input=vision.width, max_length=24)
    return Captioner(model, Vocabulary(MUSIC), vision)


def saved(folder: Path, calibration: Calibration | None = None) -> Path:
    build(calibration).save_pretrained(folder)
    return folder
