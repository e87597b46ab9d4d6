"""`meshcap explain`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions


@options.caption_options(without=("attention", "min_confidence"))
def explain(
    photo: Annotated[Path, typer.Argument(help="A picture, or a score (MIDI, ABC).")],
    model: options.Model = "default",
    memory: options.Memory = None,
    out: Annotated[
        Path | None, typer.Option(help="A page (.html) or a picture (.png).", show_default="<photo>.explain.html")
    ] = None,
    caption: Annotated[
        str | None, typer.Option(help="A sentence to explain.", show_default="the model's own caption")
    ] = None,
    attribution: Annotated[
        bool, typer.Option("--attribution/--no-attribution", help="Also what counted for a word, by gradients: slow.")
    ] = False,
    baseline: Annotated[
        Literal["zero", "mean"],
        typer.Option(
            help="What attribution compares the picture with: features of zero, or its mean region everywhere."
        ),
    ] = "zero",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
    **given: Any,
) -> None:
    """Show, word by word, why a caption says what it says.

    For each word: how sure the model was, what it would have said instead and where it looked; with --attribution, also
    what counted. After the caption stand the names in it that COCO has no word for, with their probabilities. With
    --json, the numbers go to stdout, and a file is written only where --out names one.

    Example: meshcap explain photo.jpg --caption "a dog on a beach"
    """
    wanted = CaptionOptions.parse(given)
    if out is not None and out.suffix.lower() not in (".html", ".htm", ".png"):
        raise MeshcapError(f"--out is {out}, expected a name that ends in .html or .png")
    if out is None and not json:
        out = Path(f"{photo.stem}.explain.html")
    if out is not None and out.is_dir():
        raise MeshcapError(f"--out is {out}, which is a folder: expected the name of a file")
    if out is not None and not out.parent.is_dir():
        raise MeshcapError(f"{out.parent} is not a folder: expected one to write {out.name} into")

    import torch
    from rich.console import Console
    from rich.progress import Progress

    from meshcap.captioner import Captioner
    from meshcap.explain import explain as explained
    from meshcap.explain.heatmap import write_sheet
    from meshcap.explain.page import write_page
    from meshcap.folders import DEFAULT, MUSIC
    from meshcap.music.score import is_score
    from meshcap.vision.score import picture_of

    if model == DEFAULT and is_score(photo):
        model = MUSIC
    if str(photo).startswith(("http:/", "https:/")):
        raise MeshcapError(f"{photo} is a web address, and nothing is fetched: download the picture, and give its file")
    if not photo.is_file():
        picture_of(photo, at_least=1)  # says what is wrong, before a model is read for nothing
    if threads is not None:
        torch.set_num_threads(threads)
    captioner = Captioner.from_pretrained(model, device=device, dtype=dtype, backend="torch")
    options.attach_memory(captioner, memory, own=True)
    if not captioner.reads_pictures:
        raise MeshcapError(f"this model reads region features and cannot see {photo}: expected one with a vision")
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (attribution and console.is_terminal)) as bar:
        task = bar.add_task("gradients", total=None)
        found = explained(
            captioner,
            photo,
            caption=caption,
            options=wanted,
            attribution=attribution,
            baseline=baseline,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if out is not None and out.suffix.lower() == ".png":
        write_sheet(out, found)
    elif out is not None:
        write_page(out, found, photo.name)
    if json:
        typer.echo(json_format.dumps({"file": str(photo), **found.to_dict()}, ensure_ascii=False))
    else:
        names = ", ".join(f"{one.word} {one.probability:.2f}" for one in found.names)
        typer.echo(f"{out}\t{found.confidence:.2f}\t{found.text}" + (f"\t{names}" if names else ""))
