"""A captioner learns to tell what is in drawn scenes, from nothing, on a CPU: `make demo-train`.

    python recipes/drawn_scenes.py --steps 300 --scst-steps 0 --out quick.png

What `meshcap data draw`, `meshcap train` and `meshcap evaluate` do, in a folder that is thrown away: scenes are drawn;
image encoder and M² learn together, by cross-entropy and then by self-critical training; scenes that they have never
seen are captioned by beam search. What comes out is printed and put into one picture, with where the model looked.
"""

from __future__ import annotations

import io
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from torch import Tensor

from meshcap.captioner import Caption, Captioner
from meshcap.data import Sample, read_dataset
from meshcap.data.scene_captions import AFTER, RELATIONS, SIDES, SIZES, SPOTS, WHERE, Thing, between, holds, spots
from meshcap.data.scenes import draw_dataset, facts_of
from meshcap.data.shapes import COLOURS, SHAPES
from meshcap.errors import MeshcapError
from meshcap.explain.heatmap import wrapped
from meshcap.files import write_file
from meshcap.training.distributed import World
from meshcap.training.folder import claimed
from meshcap.training.log import Watch
from meshcap.training.plan import total_steps
from meshcap.training.run import Run
from meshcap.training.settings import TrainSettings

SHOWN = 8
# The picture, in pixels.
COLUMNS, LARGE, LITTLE, GAP = 4, 224, 104, 16
BELOW = 76  # room for three lines of caption
PAPER, INK, FAINT = "white", (30, 30, 40), (120, 120, 130)

console = Console(highlight=False)


# Whether a caption is true of a scene: by the tables that true captions are made of.

FILLERS = {"there", "is", "which", "a", "picture", "of", ",", "and", "with", "of the picture"}


def _phrases() -> dict[str, tuple[str, str]]:
    """Every phrase of the tables, with what it is and the key it stands for."""
    found = {phrase: ("filler", phrase) for phrase in FILLERS} | {"between": ("between", "between")}
    for what, one_each in (("spot", SPOTS), ("side", SIDES)):
        found |= {phrase: (what, key) for key, phrase in one_each.items()}
    for what, table in (("relation", RELATIONS), ("after", AFTER), ("where", WHERE)):
        found |= {phrase: (what, key) for key, phrases in table.items() for phrase in phrases}
    return found


_PHRASES = _phrases()
_SIZE_OF = {word: size for size, words in SIZES.items() for word in words}
_NOUN = rf"an? (?:(?P<size>{'|'.join(_SIZE_OF)}) )?(?P<colour>{'|'.join(COLOURS)}) (?P<kind>{'|'.join(SHAPES)})"
_PIECES = re.compile(rf"(?<!\S)(?:{_NOUN}|{'|'.join(sorted(_PHRASES, key=len, reverse=True))}|\S+)(?!\S)")


def named(caption: str) -> list[str]:
    """The things that a caption names, as "colour kind"."""
    return [f"{piece['colour']} {piece['kind']}" for piece in _PIECES.finditer(caption) if piece["kind"]]


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a caption, and what that is about: object, size, relation, place, background or words."""

    about: str
    text: str


# What a phrase of each kind is about.
_ABOUT = {"where": "background", "spot": "place", "unknown": "words"} | dict.fromkeys(
    ("side", "relation", "after", "between"), "relation"
)


def statements(caption: str) -> Counter[str]:
    """How many statements a caption makes about objects, sizes, relations, places and the background."""
    pieces = list(_PIECES.finditer(caption))
    said = Counter(_ABOUT.get(_PHRASES.get(piece[0], ("unknown", ""))[0], "") for piece in pieces if not piece["kind"])
    said["object"] = sum(bool(piece["kind"]) for piece in pieces)
    said["size"] = sum(bool(piece["size"]) for piece in pieces)
    return Counter({about: count for about, count in said.items() if about and count})


def mistakes(caption: str, things: Sequence[Thing], background: str) -> list[Mistake]:
    """All that is wrong with a caption: things missing, invented or named twice, and every statement that is not true.

    What cannot be understood counts as wrong.
    """
    expected, given = Counter(thing.name for thing in things), Counter(named(caption))
    wrong = [Mistake("object", f"does not name the {name}") for name in expected - given]
    wrong += [Mistake("object", f"names a {name} too many") for name in given - expected]
    if wrong:
        return wrong  # where things are is of no interest if they are not there
    by_name = {thing.name: thing for thing in things}
    pieces = list(_PIECES.finditer(caption))
    mentioned: list[Thing] = []  # in the order of the caption
    for place, piece in enumerate(pieces):
        ahead = [by_name[f"{p['colour']} {p['kind']}"] for p in pieces[place + 1 :] if p["kind"]]
        what, key = _PHRASES.get(piece[0], ("unknown", ""))
        match what:
            case _ if piece["kind"]:
                mentioned.append(by_name[f"{piece['colour']} {piece['kind']}"])
                true = piece["size"] is None or _SIZE_OF[piece["size"]] == mentioned[-1].size
            case "filler":
                true = True
            case "where":
                true = key == background
            case "spot":
                true = bool(mentioned) and key in spots(mentioned[-1])
            case "side":
                # the thing that is named next, seen from all the others
                true = bool(ahead) and all(holds(key, ahead[0], thing) for thing in things if thing is not ahead[0])
            case "relation":
                # "a above b and c" says it of both
                both = [p[0] for p in pieces[place + 2 : place + 3]] == ["and"]
                others = ahead[: 2 if both else 1]
                true = bool(mentioned and others) and all(holds(key, mentioned[-1], other) for other in others)
            case "after":
                true = len(mentioned) > 1 and holds(key, mentioned[-1], mentioned[-2])
            case "between":
                true = bool(mentioned) and len(ahead) == 2 and between(mentioned[-1], *ahead)
            case _:
                true = False
        if not true:
            about = "size" if piece["kind"] else _ABOUT[what]
            wrong.append(Mistake(about, f"says “{piece[0]}”, which is not so"))
    return wrong


def train(scenes: Path, out: Path, *, steps: int | None = None, scst_steps: int | None = None, seed: int = 0) -> Run:
    """A captioner of these scenes in a new folder, with the settings that `meshcap train` would choose."""
    settings = TrainSettings.named(
        {
            "data.path": str(scenes),
            "model.vision": "small-cnn",
            "xe.steps": steps,
            "scst.steps": scst_steps or None,
            "run.out": str(out),
            "run.stages": ("xe",) if scst_steps == 0 else ("xe", "scst"),
            "run.seed": seed,
            "run.track": (),
        }
    )
    with Watch(0, console) as watch:
        run = Run.prepare(settings, World.join(torch.device("cpu")), watch)
        watch.expect(total_steps(run.settings))
        with claimed(out, resume=False):
            run.fit()
    return run


def caption(model: Path, samples: Sequence[Sample]) -> list[Caption]:
    captioner = Captioner.from_pretrained(str(model))
    pictures = tuple(sample.picture.read() for sample in samples if sample.picture is not None)
    longest = captioner.model.config.max_length
    return captioner.caption(pictures, max_words=longest - 1, attention=True)


def main(
    steps: Annotated[int | None, typer.Option(min=1, help="Of cross-entropy.", show_default="as train")] = None,
    scst_steps: Annotated[
        int | None, typer.Option(min=0, help="Self-critical ones; 0: none.", show_default="as train")
    ] = None,
    scenes: Annotated[int, typer.Option(min=1, help="Scenes to learn from.")] = 6000,
    unseen: Annotated[int, typer.Option(min=1, help="Scenes to try it on.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other scenes and another model.")] = 0,
    # One: the matrices are small, and on a machine that has other work threads would mostly wait for each other.
    threads: Annotated[int, typer.Option(min=1, help="CPU threads to use.")] = 1,
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("demo.png"),
) -> None:
    """Train a small captioner on drawn scenes, caption unseen ones, and show where it looked."""
    if not out.parent.is_dir():
        raise MeshcapError(f"{out.parent} is not a folder: choose another --out")
    start = time.monotonic()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="meshcap-demo-") as name:
        folder = Path(name)
        with console.status(f"drawing {scenes:,} scenes"):
            draw_dataset(folder / "scenes", train=scenes, val=min(200, scenes), test=unseen, seed=seed)
        run = train(folder / "scenes", folder / "run", steps=steps, scst_steps=scst_steps, seed=seed)
        tried = read_dataset(folder / "scenes").split("test")
        captions = caption(run.folder, tried)
        images = [Image.open(io.BytesIO(one.picture.read())).convert("RGB") for one in tried[:SHOWN] if one.picture]
    for sample, found in list(zip(tried, captions, strict=True))[:SHOWN]:
        console.print(f"[bold]{found.text}[/]  [dim]({found.confidence:.2f}; drawn as: {sample.captions[0]})[/]")
    truth = truths(tried, (" ".join(found.words) for found in captions))
    assert truth is not None
    for what, value in truth_lines(truth):
        console.print(f"unseen scenes, {what}: {value}")
    picture = sheet(images, captions[:SHOWN])
    write_file(out, lambda part: picture.save(part, format="PNG", optimize=True))
    console.print(f"{time.monotonic() - start:.0f} seconds; see {out}")


def truths(samples: Sequence[Sample], captions: Iterable[str]) -> dict[str, Any] | None:
    """Counts over captions of samples, in their order; None where a sample is no drawn scene, or there is none.

    Args:
        captions: words with spaces between, lower-case, as references of drawn scenes are.

    Returns:
        `of` captions, those where `objects` are all named with their colours and no others are, those where every
        statement is `true`; in `said` the statements of each kind, and in `wrong` the mistakes.
    """
    if not samples or any("facts" not in (sample.more or {}) for sample in samples):
        return None
    counts: Counter[str] = Counter()
    said: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for sample, caption in zip(samples, captions, strict=True):
        found = mistakes(caption, *facts_of(sample.more))
        counts["true"] += not found
        counts["objects"] += not any(one.about == "object" for one in found)
        said += statements(caption)
        wrong.update(one.about for one in found)
    return {
        "of": len(samples),
        "objects": counts["objects"],
        "true": counts["true"],
        "said": dict(said.most_common()),
        "wrong": dict(wrong.most_common()),
    }


def truth_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people to read."""
    told = ", ".join(f"{about} {count}" for about, count in found["wrong"].items())
    return [
        ("every statement true", f"{found['true']:,} of {found['of']:,}" + (f" (wrong: {told})" if told else "")),
        ("all objects named", f"{found['objects']:,} of {found['of']:,}"),
    ]


def sheet(scenes: Sequence[Image.Image], captions: Sequence[Caption]) -> Image.Image:
    """Scenes with captions in rows; below, the first scene once for each word, dark where the model did not look."""
    rows = -(-len(scenes) // COLUMNS)
    width = COLUMNS * (LARGE + GAP) + GAP
    shown = captions[0].words
    per_row = (width - GAP) // (LITTLE + GAP // 2)
    height = GAP + rows * (LARGE + BELOW) + 30 + -(-len(shown) // per_row) * (LITTLE + 28) + GAP
    paper = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(paper)
    for place, (scene, caption) in enumerate(zip(scenes, captions, strict=True)):
        x, y = GAP + place % COLUMNS * (LARGE + GAP), GAP + place // COLUMNS * (LARGE + BELOW)
        paper.paste(scene.resize((LARGE, LARGE), Image.Resampling.LANCZOS), (x, y))
        lines = "\n".join(wrapped(caption.text, LARGE, 15))
        draw.multiline_text((x, y + LARGE + 6), lines, INK, ImageFont.load_default(size=15))
    top = GAP + rows * (LARGE + BELOW)
    draw.text((GAP, top), "where it looked for each word of the first caption", FAINT, ImageFont.load_default(size=14))
    assert captions[0].attention is not None
    for place, (word, look) in enumerate(zip(shown, captions[0].attention, strict=True)):
        x, y = GAP + place % per_row * (LITTLE + GAP // 2), top + 30 + place // per_row * (LITTLE + 28)
        paper.paste(lit(scenes[0], look), (x, y))
        draw.text((x + LITTLE // 2, y + LITTLE + 4), word, INK, ImageFont.load_default(size=14), anchor="ma")
    return paper


def lit(image: Image.Image, look: Tensor) -> Image.Image:
    """The picture in the dark, lit where the weights (cells²,) of a grid are high."""
    cells = math.isqrt(len(look))
    light = (look / look.max().clamp_min(1e-9) * 255).round().byte().view(cells, cells)
    mask = Image.frombytes("L", (cells, cells), bytes(light.flatten().tolist()))
    mask = mask.resize((LITTLE, LITTLE), Image.Resampling.BICUBIC)
    small = image.resize((LITTLE, LITTLE), Image.Resampling.LANCZOS)
    dark = Image.blend(small.convert("L").convert("RGB"), Image.new("RGB", small.size, (18, 18, 28)), 0.72)
    return Image.composite(small, dark, mask)


if __name__ == "__main__":
    try:
        typer.run(main)
    except MeshcapError as mistake:
        print("error:", mistake, file=sys.stderr)
        sys.exit(2)
