"""A tiny captioner with a vision, and pictures that it says different things of."""

from pathlib import Path

import tiny
from meshcap import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(30))]


def captioner() -> Captioner:
    vision = create_vision("patches", size=48)
    model = tiny.build("m2", seed=4, d_input=vision.width, vocab_size=len(WORDS), suppressed_ids=(0, 1, 2))
    return Captioner(model, Vocabulary(WORDS), vision)


def draw(folder: Path, count: int, *, first: int = 0, suffix: str = ".png", **options: object) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03}{suffix}" for number in range(first, first + count)]
    for number, path in enumerate(paths, first):
        draw_scene(number, 64).image.convert("RGB").save(path, **options)
    return paths
