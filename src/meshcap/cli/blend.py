"""`meshcap blend`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.cli.variants import check, compare
from meshcap.errors import MeshcapError


def blend(
    first: Annotated[str, typer.Argument(help="A model folder, say RUN/before-scst.")],
    second: Annotated[str, typer.Argument(help="One that was trained on from it, say RUN.")],
    shares: Annotated[str, typer.Option(help="Of the second model, from 0 to 1; several to compare them.")] = "0.5",
    data: Annotated[str | None, typer.Option(help="Pictures with captions to compare shares by.")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "val",
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the blend into this new model folder.")] = None,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of the beam search; 1 is greedy.")] = 5,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """A model between two: what it scores against how many words it knows to use.

    Example: meshcap blend run/before-scst run --data my-pictures.jsonl --shares 0,0.5,0.7,0.8,0.9,1
    """
    from meshcap.cli.quantise import write_whole
    from meshcap.training.blend import Blend, unpacked

    chosen = read_shares(shares)
    check(chosen, data, out, what="shares")
    between = Blend(unpacked(first), unpacked(second))
    if out is not None:
        write_whole(out, between.set(chosen[0]), 32, card=Path(second) / "README.md")
        typer.echo(f"{out}: {1 - chosen[0]:.0%} of {first}, {chosen[0]:.0%} of {second}", err=json)
    if data is not None:
        where, precision = options.apply(device, dtype, threads, None)
        variants = ((share, between.set(share)) for share in chosen)
        compare(variants, data, split, pictures, beams, where, precision, varied="share", json=json)


def read_shares(text: str) -> list[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= 1 for one in found):
        raise MeshcapError(f"--shares {text!r}: expected numbers from 0 to 1 with commas between them")
    return found
