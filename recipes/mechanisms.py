"""The pictures of docs/mechanisms.md: what a trained captioner of each kind did while it told one drawn scene.

python recipes/mechanisms.py OUT docs/images

Draws scenes into OUT, trains nine small captioners on them in turn (one CPU thread, one to four minutes each), and
draws a picture of each mechanism. What is in OUT already is kept: a stopped run goes on where it was, and pictures are
drawn anew from captioners that are trained.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meshcap.captioner import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.explain import Explanation, explain
from meshcap.explain.heatmap import as_grid, overlay, wrapped
from meshcap.files import write_file
from meshcap.models.recurrent import reading_order

MESHCAP = [sys.executable, "-m", "meshcap"]
STEPS, SCENE = 800, 700_000_025  # a scene of the test split
KINDS = {  # folders, and what is each captioner's own; all else is the same for all
    "seq2seq": ["--arch", "seq2seq"],
    "soft": ["--arch", "show-attend-tell"],
    "hard": ["--arch", "show-attend-tell", "--set", "model.attention=hard"],
    "hierarchical": ["--arch", "hierarchical"],
    "ntm": ["--arch", "ntm", "--set", "model.memory_rows=12"],
    "hopfield": ["--arch", "hopfield", "--set", "model.patterns=16"],
    "transformer": ["--arch", "transformer"],
    "m2": ["--arch", "m2", "--set", "model.slots=16"],
}

# Lengths are in pixels of a page 720 wide; a file has twice as many.
TIMES, WIDE, EDGE, SIDE, GAP, LARGE, MOST = 2, 720, 12, 94, 4, 86, 54
HEAVIEST = 58_000  # bytes of a picture
PAPER, INK, FAINT, TRACK, BLUE, ORANGE = "#ffffff", "#1c2026", "#5c6470", "#e2e3e0", "#2a6fdb", "#d4611c"


def main(out: Path, pictures: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    train(out)
    torch.set_num_threads(1)
    stories = {name: tell(out / name) for name in (*KINDS, "hardened")}
    for name, story in stories.items():
        print(f"{name}: {story.note}: {story.found.text}")
    for name, draw in PICTURES.items():
        path = pictures / f"mechanism-{name}.webp"
        content = packed(draw(stories))
        write_file(path, partial(Path.write_bytes, data=content))
        print(f"{path}: {len(content) / 1000:.0f} KB")


def train(out: Path) -> None:
    """Scenes, and a captioner of each kind, as far as they are not there yet."""
    subprocess.run([*MESHCAP, "data", "draw", str(out / "scenes")], check=True)
    for name, own in KINDS.items():
        new = ["--vision", "small-cnn", "--xe-steps", str(STEPS), "--set", "model.encoder_layers=2"]
        _train(out, name, [*own, *new])
    if not (out / "hardened-start").exists():
        harden(out / "soft", out / "hardened-start")
    _train(out, "hardened", ["--from", str(out / "hardened-start"), "--xe-steps", str(STEPS // 2)])


def _train(out: Path, name: str, options: list[str]) -> None:
    if not (out / name / "scores.json").exists():  # which is written last
        begun = ["--resume"] if (out / name).exists() else []
        same = ["--stages", "xe", "--threads", "1", "--device", "cpu", "--track", "none"]
        command = [*MESHCAP, "train", str(out / "scenes"), "--out", str(out / name), *options, *same, *begun]
        subprocess.run(command, check=True)


def harden(soft: Path, out: Path) -> None:
    """The captioner with soft attention as one that looks at a single region, to be trained on: by draws alone, hard
    attention takes far longer to find out where to look."""
    old = Captioner.from_pretrained(soft, device="cpu")
    model = type(old.model)(replace(old.model.config, attention="hard"))  # type: ignore[call-arg]
    model.load_state_dict({**model.state_dict(), **old.model.state_dict()})
    Captioner(model, old.vocabulary, old.vision).save_pretrained(out)


@dataclass(frozen=True)
class Story:
    """What a captioner said of the scene, and what it did meanwhile."""

    captioner: Captioner
    scene: Image.Image
    found: Explanation
    note: str = ""

    @property
    def words(self) -> list[str]:
        return [one.word for one in self.found.words if not one.is_end]

    def of_words(self, name: str) -> Tensor:
        """(T, …), the end left out."""
        return self.found.other[name][: len(self.words)]

    @property
    def looks(self) -> Tensor:
        """(T, N)."""
        return torch.stack([one.attention for one in self.found.words[: len(self.words)]])

    def lit(self, weights: Tensor, side: float, most: float | None = None) -> Image.Image:
        """The scene under weights (N,): clear where they are largest, cell by cell, dark where there are none."""
        assert self.found.boxes is not None
        cells = as_grid(weights.numpy(), self.found.boxes.numpy())
        assert cells is not None
        return lit(self.scene, cells, side, most)


def tell(folder: Path) -> Story:
    scores = json.loads((folder / "scores.json").read_text())
    cider = 100 * scores["val"]["scores"]["CIDEr"]
    note = f"{scores['steps']} steps of training, CIDEr {cider:.0f} on 200 other scenes"
    return told(Captioner.from_pretrained(folder, device="cpu"), note)


def told(captioner: Captioner, note: str = "") -> Story:
    seen, shown = draw_scene(SCENE), draw_scene(SCENE, size=288)  # the same scene, large enough to be looked at
    return Story(captioner, shown.image, explain(captioner, seen.image, attribution=False), note)


def packed(paper: Image.Image) -> bytes:
    """As WebP, as good as it can be in HEAVIEST bytes."""
    for quality in range(80, 30, -5):
        content = io.BytesIO()
        paper.save(content, "WEBP", quality=quality, method=6)
        if content.tell() <= HEAVIEST:
            break
    return content.getvalue()


# What each picture shows.


def draw_seq2seq(stories: dict[str, Story]) -> Image.Image:
    story = stories["seq2seq"]
    with overheard(story.captioner.model, "read_regions") as heard:
        told(story.captioner)
    vector = heard[-1][0].detach()  # (D,)
    boxes = story.found.boxes
    assert boxes is not None
    path = boxes[reading_order(boxes[None], None, boxes[None])[0]].unflatten(-1, (2, 2)).mean(1)  # (N, 2), middles
    order = lit(story.scene, np.full((1, 1), 0.6), LARGE, 1)
    ImageDraw.Draw(order).line([tuple(px(LARGE) * middle) for middle in path.numpy()], "white", px(1.5))
    numbers = matrix(vector.view(8, -1), LARGE / 8, LARGE / 8)
    lower = beside(
        [
            ("Regions are read once, in the order of this line …", order),
            (f"… and these {len(vector)} numbers are all that the words are told from.", numbers),
        ]
    )
    rows = [("looks at:\nall alike", tiles(story)), shares(story)]
    return stacked([heading(story, "Sequence to sequence"), strips(story, rows), lower])


def draw_show_attend_tell(stories: dict[str, Story]) -> Image.Image:
    soft, hard = stories["soft"], stories["hardened"]
    odds = hard.of_words("odds")
    return stacked(
        [
            heading(soft, "Soft attention"),
            strips(soft, [("looks at", tiles(soft)), shares(soft), gates(soft)]),
            heading(hard, "Hard attention, trained on from soft"),
            strips(
                hard,
                [
                    ("odds", lambda t, side: hard.lit(odds[t], side)),
                    ("looks at:\nthe likeliest", tiles(hard)),
                    gates(hard),
                ],
            ),
        ]
    )


def draw_hierarchical(stories: dict[str, Story]) -> Image.Image:
    story = stories["hierarchical"]
    within, groups = story.of_words("within"), story.of_words("groups")
    across = round(groups.shape[-1] ** 0.5)

    def inside(t: int, side: float) -> Image.Image:
        tile = story.lit(within[t], side, 1)
        pen = ImageDraw.Draw(tile)
        for line in range(1, across):
            at = round(line * tile.width / across)
            pen.line(((at, 0), (at, tile.height)), "white", px(1))
            pen.line(((0, at), (tile.width, at)), "white", px(1))
        return tile

    def over(t: int, side: float) -> Image.Image:
        return lit(story.scene, groups[t].view(across, across).numpy(), side)

    rows = [("where in\neach group", inside), ("which\ngroup", over), ("together", tiles(story)), shares(story)]
    return stacked([heading(story, "Hierarchical attention"), strips(story, rows)])


def draw_ntm(stories: dict[str, Story]) -> Image.Image:
    story = stories["ntm"]
    writes, reads = (story.of_words(name).mean(1) for name in ("memory_writes", "memory_reads"))  # (T, rows)

    def column(weights: Tensor, colour: str) -> Callable[[int, float], Image.Image]:
        return lambda t, side: matrix(weights[t, :, None] / weights.max(), side, 7, colour)

    count = writes.shape[1]
    rows = [
        ("looks at", tiles(story)),
        shares(story),
        (f"writes into\n{count} rows of\nits memory", column(writes, ORANGE)),
        ("reads from\nthe same\nrows", column(reads, BLUE)),
    ]
    return stacked([heading(story, "Neural Turing Machine"), strips(story, rows)])


def draw_hopfield(stories: dict[str, Story]) -> Image.Image:
    story = stories["hopfield"]
    assert story.found.patterns is not None
    patterns = story.found.patterns[-1]  # (N, P)
    count = patterns.shape[1]
    line = f"Last encoder layer: which regions were reminded of each of its {count} patterns, and its mean share"
    maps = [(f"{number}: {100 * float(one.mean()):.0f} %", one) for number, one in enumerate(patterns.T, 1)]
    return stacked(
        [
            heading(story, "Hopfield retrieval"),
            strips(story, [("looks at", tiles(story)), shares(story)]),
            paragraph(line),
            small_maps(story, maps, float(patterns.max())),
        ]
    )


def draw_transformer(stories: dict[str, Story]) -> Image.Image:
    story = stories["transformer"]
    last = story.captioner.model.get_submodule("decoder.layers")[-1].mesh.cross  # type: ignore[index]
    with overheard(last, "with_weights") as heard:
        told(story.captioner)
    heads = heard[-1][1][0, 0].detach()  # (H, T, N)

    def head(number: int) -> Callable[[int, float], Image.Image]:
        return lambda t, side: story.lit(heads[number, t], side)

    rows = [("looks at:\nmean of all", tiles(story)), shares(story)]
    rows += [(f"last layer,\nhead {number + 1}", head(number)) for number in range(len(heads))]
    return stacked([heading(story, "Transformer"), strips(story, rows)])


def draw_m2(stories: dict[str, Story]) -> Image.Image:
    story = stories["m2"]
    assert story.found.gates is not None and story.found.memory is not None
    gates = story.found.gates.mean(1)  # (T, L)
    rows = [("looks at", tiles(story)), shares(story)]
    for level in range(gates.shape[1]):
        rows.append(bars(f"gate, level {level + 1}", gates[:, level].tolist(), BLUE))
    slots = [one.memory or 0.0 for one in story.found.words]
    rows.append(bars("share of slots", slots, ORANGE))
    parts = [heading(story, "Meshed-Memory Transformer"), strips(story, rows)]
    maps = []
    for layer, share in enumerate(story.found.memory):  # (N,)
        line = f"Encoder layer {layer + 1}: regions gave {100 * float(share.mean()):.0f} % of their attention to slots"
        maps.append((line, story.lit(share, LARGE, float(story.found.memory.max()))))
    parts.append(beside(maps))
    return stacked(parts)


PICTURES: dict[str, Callable[[dict[str, Story]], Image.Image]] = {
    "seq2seq": draw_seq2seq,
    "show-attend-tell": draw_show_attend_tell,
    "hierarchical": draw_hierarchical,
    "ntm": draw_ntm,
    "hopfield": draw_hopfield,
    "transformer": draw_transformer,
    "m2": draw_m2,
}

# Rows of things that belong to words, each under its word.

Row = tuple[str, Callable[[int, float], Image.Image]]  # a label, and the image of word t, so many pixels wide


def tiles(story: Story) -> Callable[[int, float], Image.Image]:
    """Where each word looked, on the scene; the brightest cell of each is the one looked at most."""
    looks = story.looks
    return lambda t, side: story.lit(looks[t], side)


def shares(story: Story) -> Row:
    """How much of its attention went to the region looked at most, which a picture alone does not tell."""
    return "largest share", lambda t, side: figure(f"{100 * float(story.looks[t].max()):.0f} %", side)


def gates(story: Story) -> Row:
    return bars("gate", story.of_words("gate").flatten().tolist(), BLUE)


def bars(label: str, values: Sequence[float], colour: str) -> Row:
    """From 0 to 1, with the number beside."""

    def draw(t: int, side: float) -> Image.Image:
        tile = figure(f"{values[t]:.2f}", side, 26)
        pen = ImageDraw.Draw(tile)
        pen.rectangle((0, px(20), tile.width - 1, px(25)), TRACK)
        pen.rectangle((0, px(20), max(1, round(values[t] * (tile.width - 1))), px(25)), colour)
        return tile

    return label, draw


def strips(story: Story, rows: Sequence[Row]) -> Image.Image:
    """Words from left to right, and what belongs to each below it; a long caption in several strips."""
    words = story.words
    room = WIDE - 2 * EDGE - SIDE
    count = -(-len(words) // 11)
    columns = -(-len(words) // count)
    side = min(MOST, room / columns - GAP)
    starts = range(0, len(words), columns)
    return stacked([_strip(words, rows, range(at, min(at + columns, len(words))), side) for at in starts], 4)


def _strip(words: Sequence[str], rows: Sequence[Row], chosen: range, side: float) -> Image.Image:
    drawn = [(label, [draw(t, side) for t in chosen]) for label, draw in rows]
    heights = [max(image.height for image in images) + px(6) for _, images in drawn]
    paper = blank(WIDE, 0, px(24) + sum(heights))
    pen = ImageDraw.Draw(paper)
    places = [px(EDGE + SIDE + column * (side + GAP)) for column in range(len(chosen))]
    for left, t in zip(places, chosen, strict=True):
        size = min(15.0, 15 * side / max(1e-9, font(15).getlength(words[t]) / TIMES))
        pen.text((left, px(18)), words[t], INK, font(size), "ls", stroke_width=0.5)
    top = px(24)
    for (label, images), height in zip(drawn, heights, strict=True):
        middle = top + (height - px(6)) / 2
        pen.multiline_text((px(EDGE), middle), label, FAINT, font(13), "lm", spacing=px(3))
        for left, image in zip(places, images, strict=True):
            paper.paste(image, (left, top))
        top += height
    return paper


# Parts of a page.


def heading(story: Story, title: str) -> Image.Image:
    """The scene, the mechanism, and the caption that is shown word by word."""
    paper = blank(WIDE, LARGE)
    pen = ImageDraw.Draw(paper)
    paper.paste(story.scene.resize((px(LARGE), px(LARGE)), Image.Resampling.LANCZOS), (px(EDGE), 0))
    left = px(EDGE + SIDE)
    pen.text((left, px(18)), title, INK, font(18), "ls", stroke_width=0.7)
    lines = wrapped(f"“{story.found.text}”", px(WIDE - SIDE - 2 * EDGE), px(17))
    for number, line in enumerate(lines[:2]):
        pen.text((left, px(43 + 21 * number)), line, INK, font(17), "ls")
    pen.text((left, px(43 + 21 * len(lines[:2]))), story.note, FAINT, font(13), "ls")
    return paper


def paragraph(text: str) -> Image.Image:
    paper = blank(WIDE, 18)
    ImageDraw.Draw(paper).text((px(EDGE), px(14)), text, FAINT, font(13), "ls")
    return paper


def small_maps(story: Story, maps: Sequence[tuple[str, Tensor]], most: float) -> Image.Image:
    """Many small scenes with a few words below each, as many beside each other as there is room for."""
    across = min(8, len(maps))
    side = min(84.0, (WIDE - 2 * EDGE) / across - GAP)
    high = side + 20
    paper = blank(WIDE, high * -(-len(maps) // across))
    pen = ImageDraw.Draw(paper)
    for place, (label, weights) in enumerate(maps):
        row, column = divmod(place, across)
        left, top = px(EDGE + column * (side + GAP)), px(row * high)
        paper.paste(story.lit(weights, side, most), (left, top))
        pen.text((left, top + px(side + 13)), label, FAINT, font(13), "ls")
    return paper


def beside(things: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """Images with what they are written to the right of each."""
    paper = blank(WIDE, LARGE)
    pen = ImageDraw.Draw(paper)
    for number, (text, image) in enumerate(things):
        left = px(EDGE + number * (WIDE - EDGE) / len(things))
        paper.paste(image, (left, 0))
        beyond = left + image.width + px(10)
        room = px((WIDE - EDGE) / len(things)) - image.width - px(20)
        for line, words in enumerate(wrapped(text, room, px(14))):
            pen.text((beyond, px(20 + 18 * line)), words, FAINT, font(14), "ls")
    return paper


def stacked(images: Sequence[Image.Image], gap: float = 8) -> Image.Image:
    """Below each other, with some room around the whole."""
    paper = blank(WIDE, 0, px(gap) * (len(images) + 1) + sum(image.height for image in images))
    top = px(gap)
    for image in images:
        paper.paste(image, (0, top))
        top += image.height + px(gap)
    return paper


def figure(text: str, side: float, height: float = 17) -> Image.Image:
    tile = blank(side, height)
    ImageDraw.Draw(tile).text((0, px(14)), text, INK, font(13), "ls")
    return tile


def matrix(values: Tensor, across: float, down: float, colour: str | None = None) -> Image.Image:
    """Numbers (rows, columns) as squares: from paper to `colour` as they go from 0 to 1; without one, blue below 0 and
    orange above."""
    rows, columns = values.shape
    tile = Image.new("RGB", (px(across * columns), px(down * rows) + 2), TRACK)
    pen = ImageDraw.Draw(tile)
    for row in range(rows):
        for column in range(columns):
            value = float(values[row, column])
            filled = mixed(colour or (BLUE if value < 0 else ORANGE), min(1.0, abs(value)))
            left, top = px(across * column) + 2, px(down * row) + 2  # of lines between
            pen.rectangle((left, top, px(across * (column + 1)) - 1, px(down * (row + 1)) - 1), filled)
    return tile


def mixed(colour: str, part: float) -> tuple[int, ...]:
    return tuple(round(255 + part * (int(colour[at : at + 2], 16) - 255)) for at in (1, 3, 5))


def lit(scene: Image.Image, cells: np.ndarray, side: float, most: float | None = None) -> Image.Image:
    """The scene `side` pixels wide under cells (rows, columns), sharp: a captioner sees nothing finer than a cell."""
    size = (px(side), px(side))
    light = cells / max(most or float(cells.max()), 1e-12)
    field = np.asarray(Image.fromarray(light.astype(np.float32), "F").resize(size, Image.Resampling.NEAREST))
    picture = scene.resize(size, Image.Resampling.LANCZOS).convert("RGBA")
    return Image.alpha_composite(picture, overlay(field)).convert("RGB")


def blank(width: float, height: float, pixels: int | None = None) -> Image.Image:
    return Image.new("RGB", (px(width), px(height) if pixels is None else pixels), PAPER)


def px(length: float) -> int:
    return round(length * TIMES)


def font(size: float) -> Any:
    return ImageFont.load_default(size * TIMES)


@contextmanager
def overheard(owner: Any, method: str) -> Iterator[list[Any]]:
    """What a method returns meanwhile, call by call."""
    heard: list[Any] = []
    plain = getattr(owner, method)

    def listening(*given: Any, **named: Any) -> Any:
        heard.append(plain(*given, **named))
        return heard[-1]

    setattr(owner, method, listening)
    try:
        yield heard
    finally:
        delattr(owner, method)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
