"""`meshcap blend`."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import torch

    from meshcap.captioner import Captioner
    from meshcap.data import Sample


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
    from meshcap.data import read_dataset
    from meshcap.training.blend import Blend, unpacked

    chosen = read_shares(shares)
    if data is None and out is None:
        raise MeshcapError("nothing to do: give --data to compare shares, --out to write a blend, or both")
    if out is not None and len(chosen) != 1:
        raise MeshcapError(f"--out takes one blend and {len(chosen)} shares were given: give one")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeshcapError(f"{out} exists and is not an empty folder: choose another one")
    between = Blend(unpacked(first), unpacked(second))
    if out is not None:
        write_whole(out, between.set(chosen[0]), 32, card=Path(second) / "README.md")
        typer.echo(f"{out}: {1 - chosen[0]:.0%} of {first}, {chosen[0]:.0%} of {second}", err=json)
    if data is not None:
        where, precision = options.apply(device, dtype, threads, None)
        samples = read_dataset(data, pictures=pictures).split(split)
        rows = [{"share": one, **scores_of(between.set(one), samples, beams, where, precision)} for one in chosen]
        if json:
            typer.echo(json_format.dumps(rows))
        else:
            show(rows, f"{split} of {Path(data).name}, beam {beams}")


def read_shares(text: str) -> list[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= 1 for one in found):
        raise MeshcapError(f"--shares {text!r}: expected numbers from 0 to 1 with commas between them")
    return found


def scores_of(
    captioner: Captioner, samples: Sequence[Sample], beams: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """What a captioner's captions of some pictures score; its parts are moved to the device."""
    import torch

    from meshcap.decoding import Beam
    from meshcap.training.examine import caption_samples, graded

    for part in (captioner.model, captioner.vision):
        if part is not None:
            part.to(device=device, dtype=torch.float32 if dtype == torch.int8 else dtype)
    longest = min(20, captioner.model.config.max_length)
    captions = caption_samples(captioner, samples, strategy=Beam(beams), max_length=longest)
    result = graded(samples, captions, tokenizer=captioner.vocabulary.tokenizer).result
    return {**result.scores, **result.diversity}


def show(rows: list[dict[str, Any]], title: str) -> None:
    """What was varied comes first in each row."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    varied = next(iter(rows[0]))
    for name in (varied, "CIDEr", "BLEU-4", "vocabulary", "bad endings"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row[varied]:g}",
            f"{row['CIDEr'] * 100:.1f}",
            f"{row['BLEU-4'] * 100:.1f}",
            f"{row['vocabulary']:,.0f}",
            f"{row.get('bad endings', 0.0):.1%}",
        )
    Console().print(table)
