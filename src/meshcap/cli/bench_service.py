"""`meshcap bench serve` and `batch`: many pictures from many people."""

from __future__ import annotations

from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.cli.bench_shared import Repeat, tell


def serve(
    model: options.Model = "default",
    clients: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Clients at once; may be given several times.", show_default="1, 8, 64"),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each row.")] = 400,
    soak: Annotated[int, typer.Option(min=0, help="Requests of a long run that watches memory.")] = 2000,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Time `meshcap serve`: clients at once, with and without captioning their pictures together; then a long run.

    Example: meshcap bench serve --model my-captioner --clients 8 --soak 0
    """
    from meshcap.bench.serve import bench_serve, bench_soak, failed

    where, _ = options.apply(device, dtype, threads, None)
    asked = ["--device", device, "--dtype", dtype, *([] if threads is None else ["--threads", str(threads)])]

    def say(line: str) -> None:
        typer.echo(line, err=True)

    rows = bench_serve(model, asked, clients=clients or (1, 8, 64), requests=requests, say=say)
    if soak:
        rows += bench_soak(model, asked, requests=max(soak, 10), say=say)
    tell("Serving (time: the median answer)", rows, where, json)
    failed(rows)


def batch(
    pictures: Annotated[int, typer.Option(min=64, help="Pictures of a job.")] = 256,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    lanes: Annotated[int, typer.Option(min=1, help="Batches captioned side by side in this process.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Of a Ray cluster of this machine; 0: none.")] = 0,
    listed: Annotated[int, typer.Option(min=0, help="Also list so many paths; 0: none.")] = 1_000_000,
    model: Annotated[str | None, typer.Option(help="A model.", show_default="random, of the shipped size")] = None,
    repeat: Repeat = 3,
    json: options.Json = False,
) -> None:
    """Time whole jobs of `meshcap batch` on this machine's CPU: photos of 640 × 480, in this process and with Ray.

    Example: meshcap bench batch --workers 2
    """
    import torch

    from meshcap.bench.batch import bench_batch, bench_listing

    where, _ = options.apply("cpu", "float32", 1, 0)
    rows = bench_batch(pictures=pictures, beams=beams, lanes=lanes, workers=workers, model=model, repeat=repeat)
    rows += [bench_listing(listed)] if listed else []
    tell("Batch", rows, torch.device(where), json)
