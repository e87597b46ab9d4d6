"""`meshcap sizes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.cli.variants import check, compare
from meshcap.errors import MeshcapError


def sizes(
    model: Annotated[str, typer.Argument(help="A model folder, or default.")],
    sizes: Annotated[str, typer.Option(help="Pixels along a side of what the eyes read; several to compare them.")],
    pre_resize: Annotated[
        int | None,
        typer.Option(help="First shrink pictures to so many pixels, as those were that it learned from; 0: do not."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Pictures with captions to compare sizes by.")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "val",
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the model for this size into a new folder.")] = None,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of the beam search; 1 is greedy.")] = 5,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """The same model shown larger or smaller pictures: what that scores, and a model folder for one size.

    Example: meshcap sizes run --data my-pictures.jsonl --sizes 260,288,304,320
    """
    from meshcap.cli.quantise import write_whole
    from meshcap.training.blend import unpacked
    from meshcap.training.sizes import at_size

    chosen = read_sizes(sizes)
    check(chosen, data, out, what="sizes")
    captioner = unpacked(model)
    variants = [(size, at_size(captioner, size, pre_resize)) for size in chosen]  # refused before anything is scored
    if out is not None:
        write_whole(out, variants[0][1], 32, card=Path(model) / "README.md")
        typer.echo(f"{out}: {model}, shown pictures of {chosen[0]} pixels", err=json)
    if data is not None:
        where, precision = options.apply(device, dtype, threads, None)
        compare(variants, data, split, pictures, beams, where, precision, varied="size", json=json)


def read_sizes(text: str) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found:
        raise MeshcapError(f"--sizes {text!r}: expected numbers of pixels with commas between them")
    return found
