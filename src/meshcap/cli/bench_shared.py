"""What the commands of `meshcap bench` share."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from meshcap.bench.measure import Row

Pictures = Annotated[list[int] | None, typer.Option(help="Pictures in a batch; may be given several times.")]
Repeat = Annotated[int, typer.Option(min=1, help="Measured runs; the median counts.")]


def tell(title: str, rows: list[Row], where: torch.device, json: bool) -> None:
    from dataclasses import asdict

    from meshcap.bench.measure import machine, show

    if json:
        typer.echo(json_format.dumps({"machine": machine(where), "rows": [asdict(row) for row in rows]}))
    else:
        show(f"{title}: {machine(where)}", rows)
