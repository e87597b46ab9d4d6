"""`python -m meshcap.demo`: a captioner learns to tell what is in drawn scenes, in about a minute on one CPU core.

Scenes are drawn, cut into grid cells and captioned; a small M² learns by cross-entropy; scenes that it has never seen
are captioned by beam search. What comes out is printed and put into one picture, with where the model looked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from meshcap.captioner import Caption, Captioner
from meshcap.data.draw import SQUARES, Scene, draw_scene
from meshcap.data.patches import patches
from meshcap.data.tell import mistakes, named
from meshcap.decoding import Beam
from meshcap.demo_sheet import sheet
from meshcap.errors import MeshcapError
from meshcap.files import write_beside
from meshcap.models import M2, M2Config
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.xe import xe_loss

UNSEEN = 1_000_000  # numbers of scenes from here on are never trained on
BATCH, CAPTIONS = 32, 2  # scenes of a step, captions of each
console = Console(highlight=False)


@dataclass(frozen=True)
class Scenes:
    """Drawn scenes as a model reads them; `ids` (scenes, 5, T) are their captions."""

    regions: Regions
    ids: Tensor
    vocabulary: Vocabulary


def read(scenes: list[Scene]) -> Regions:
    cells = [patches(scene.image, SQUARES) for scene in scenes]
    # Pixels from -2 to 2: twice as loud as patches are, so that the first layer learns as fast as the rest.
    return Regions(2 * torch.stack([features for features, _ in cells]), torch.stack([boxes for _, boxes in cells]))


def prepare(count: int) -> Scenes:
    scenes = [draw_scene(number) for number in range(count)]
    tokens = [[caption.split() for caption in scene.captions] for scene in scenes]
    vocabulary = Vocabulary.build([caption for captions in tokens for caption in captions], minimum=1)
    longest = max(len(caption) for captions in tokens for caption in captions) + 2
    ids = torch.full((count, len(tokens[0]), longest), vocabulary.pad)
    for scene, captions in enumerate(tokens):
        for place, caption in enumerate(captions):
            said = [vocabulary.bos, *vocabulary.encode(caption), vocabulary.eos]
            ids[scene, place, : len(said)] = torch.tensor(said)
    return Scenes(read(scenes), ids, vocabulary)


def train(data: Scenes, steps: int, *, seed: int = 0, report: Progress | None = None) -> tuple[Captioner, list[float]]:
    """A small M² after so many steps, and the loss of each."""
    torch.manual_seed(seed)
    sizes = {"d_model": 96, "heads": 4, "d_ff": 192, "encoder_layers": 2, "decoder_layers": 2, "slots": 8}
    model = M2(
        M2Config(
            vocab_size=len(data.vocabulary),
            d_input=data.regions.features.shape[-1],
            max_length=data.ids.shape[-1],
            dropout=0.0,  # scenes are endless and steps are few: nothing is learned by heart
            **sizes,  # type: ignore[arg-type]
        )
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: schedule(step, steps))
    task = None if report is None else report.add_task("learning", total=steps, loss=float("nan"))
    losses: list[float] = []
    for _ in range(steps):
        scenes = torch.randint(len(data.ids), (BATCH,))
        captions = torch.rand(BATCH, data.ids.shape[1]).argsort(1)[:, :CAPTIONS]
        ids = data.ids[scenes[:, None], captions]
        loss = xe_loss(model, data.regions[scenes], ids[..., : int((ids != model.config.pad).sum(-1).max())])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        rate.step()
        losses.append(loss.item())
        if report is not None and task is not None:
            report.update(task, advance=1, loss=sum(losses[-50:]) / len(losses[-50:]))
    return Captioner(model, data.vocabulary), losses


def schedule(step: int, steps: int) -> float:
    """A tenth of the steps to warm up, then half a cosine down to nothing."""
    warm = max(1, steps // 10)
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 1e-3)


def caption(captioner: Captioner, scenes: list[Scene], *, attention: bool = False) -> list[Caption]:
    longest = captioner.model.config.max_length
    return captioner.caption(read(scenes), strategy=Beam(5), max_length=longest, no_repeat_ngram=3, attention=attention)


def main(
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 800,
    scenes: Annotated[int, typer.Option(min=1, help="Scenes to learn from.")] = 6000,
    unseen: Annotated[int, typer.Option(min=1, help="Scenes to try it on.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another model.")] = 0,
    # One: the matrices are so small that threads would mostly wait for each other.
    threads: Annotated[int, typer.Option(min=1, help="CPU threads to use.")] = 1,
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("demo.png"),
) -> None:
    """Train a small captioner on drawn scenes, caption unseen ones, and show where it looked.

    Example: python -m meshcap.demo --steps 300 --out quick.png
    """
    if not out.parent.is_dir():
        raise MeshcapError(f"{out.parent} is not a folder: choose another --out")
    torch.set_num_threads(threads)
    with console.status(f"drawing {scenes:,} scenes"):
        data = prepare(scenes)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("loss {task.fields[loss]:.2f}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        captioner, _ = train(data, steps, seed=seed, report=progress)
    tried = [draw_scene(UNSEEN + number) for number in range(unseen)]
    captions = caption(captioner, tried, attention=True)
    for scene, found in list(zip(tried, captions, strict=True))[:8]:
        console.print(f"[bold]{found.text}[/]  [dim]({found.confidence:.2f}; drawn as: {scene.captions[0]})[/]")
    told = [(" ".join(found.words), scene) for scene, found in zip(tried, captions, strict=True)]
    right = sum(sorted(named(said)) == sorted(thing.name for thing in scene.objects) for said, scene in told)
    true = sum(not mistakes(said, scene.objects, scene.background) for said, scene in told)
    console.print(f"all objects named, with their colours, and no others: {right} of {unseen} unseen scenes")
    console.print(f"and all that is said of them true: {true} of {unseen} unseen scenes")
    picture = sheet(tried[:8], captions[:8], SQUARES)
    write_beside(out, lambda part: picture.save(part, format="PNG", optimize=True))
    console.print(f"see {out}")


if __name__ == "__main__":
    typer.run(main)
