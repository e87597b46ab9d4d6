"""What `meshcap blend`, `sizes` and `words` share: variants of a model, compared on data, and one of them written."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import torch

    from meshcap.captioner import Captioner
    from meshcap.data import Sample


def check(chosen: Sequence[float], data: str | None, out: Path | None, *, what: str) -> None:
    """Refuse what cannot be meant, before anything is read."""
    if data is None and out is None:
        raise MeshcapError(f"nothing to do: give --data to compare {what}, --out to write one, or both")
    if out is not None and len(chosen) != 1:
        raise MeshcapError(f"--out takes one and {len(chosen)} {what} were given: give one")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeshcapError(f"{out} exists and is not an empty folder: choose another one")


def compare(
    variants: Iterable[tuple[float, Captioner]],
    data: str,
    split: str,
    pictures: Path | None,
    beams: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    varied: str,
    json: bool,
) -> None:
    """Print the scores of each variant, one after the other."""
    from meshcap.data import read_dataset

    samples = read_dataset(data, pictures=pictures).split(split)
    rows = [{varied: value, **scores_of(one, samples, beams, device, dtype)} for value, one in variants]
    if json:
        typer.echo(json_format.dumps(rows))
    else:
        show(rows, varied, f"{split} of {Path(data).name}, beam {beams}")


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


def show(rows: list[dict[str, Any]], varied: str, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
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
