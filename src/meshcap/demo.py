"""`python -m meshcap.demo`: a captioner learns to tell what is in drawn scenes, from nothing, on a CPU.

What `meshcap data draw`, `meshcap train` and `meshcap evaluate` do, in a folder that is thrown away: scenes are drawn;
eyes and an M² learn together, by cross-entropy and then by self-critical training; scenes that they have never seen
are captioned by beam search. What comes out is printed and put into one picture, with where the model looked.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from PIL import Image
from rich.console import Console

from meshcap.captioner import Caption, Captioner
from meshcap.data import Sample, read_dataset
from meshcap.data.drawn import draw_dataset
from meshcap.data.truth import truth_lines, truths
from meshcap.decoding import Beam
from meshcap.demo_sheet import sheet
from meshcap.errors import MeshcapError
from meshcap.files import write_file
from meshcap.training.distributed import World
from meshcap.training.folder import make_folder
from meshcap.training.progress import Watch
from meshcap.training.run import Run
from meshcap.training.settings import TrainSettings

SHOWN = 8
console = Console(highlight=False)


def train(scenes: Path, out: Path, *, steps: int | None = None, scst_steps: int | None = None, seed: int = 0) -> Run:
    """A captioner of these scenes in a new folder, with the settings that `meshcap train` would choose."""
    settings = TrainSettings(
        data=str(scenes),
        out=str(out),
        vision="small-cnn",
        stages=("xe",) if scst_steps == 0 else ("xe", "scst"),
        xe_steps=steps,
        scst_steps=scst_steps or None,
        seed=seed,
        track=(),
    )
    with Watch(0, console) as watch:
        run = Run.prepare(settings, World.join(torch.device("cpu")), watch)
        stages = {"xe": run.settings.xe_steps, "scst": run.settings.scst_steps}
        watch.expect(sum(stages[stage] or 0 for stage in run.settings.stages))
        make_folder(out)
        run.fit()
    return run


def caption(model: Path, samples: Sequence[Sample]) -> list[Caption]:
    captioner = Captioner.from_pretrained(str(model))
    pictures = tuple(sample.picture.read() for sample in samples if sample.picture is not None)
    longest = captioner.model.config.max_length
    return captioner.caption(pictures, strategy=Beam(5), max_length=longest, attention=True)


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
    """Train a small captioner on drawn scenes, caption unseen ones, and show where it looked.

    Example: python -m meshcap.demo --steps 300 --scst-steps 0 --out quick.png
    """
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


if __name__ == "__main__":
    try:
        typer.run(main)
    except MeshcapError as mistake:
        print("error:", mistake, file=sys.stderr)
        sys.exit(2)
