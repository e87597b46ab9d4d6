"""`meshcap bench decode`, `caption` and `runtimes`: how fast pictures become sentences."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.cli.bench_shared import Pictures, Repeat, tell
from meshcap.errors import MeshcapError


def decode(
    pictures: Pictures = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    length: Annotated[int, typer.Option(min=2, max=54, help="Words of each caption.")] = 20,
    repeat: Repeat = 10,
    compare: Annotated[int, typer.Option(min=1, help="Pictures captioned to count equal captions.")] = 50,
    device: options.Device = "auto",
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Time beam search with an M² of the paper's sizes (random weights).

    Example: meshcap bench decode --pictures 1 --pictures 250 --device cuda
    """
    from meshcap.bench.decode import bench_decode

    where, _ = options.apply(device, "auto", threads, seed)
    counts = tuple(pictures or ((1, 250) if where.type == "cuda" else (1,)))
    rows = bench_decode(
        where, pictures=counts, beams=beams, length=length, repeat=repeat, compare=compare, seed=seed or 0
    )
    tell("Beam search", rows, where, json)


def caption(
    model: options.Model = "default",
    peers: Annotated[
        bool, typer.Option(help="Measure BLIP-base, GIT-base and ViT-GPT2 too (random weights; needs the extra hf).")
    ] = True,
    pictures: Annotated[int, typer.Option(min=1, help="Photos of the folder, 640 × 480 pixels.")] = 64,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    words: Annotated[int, typer.Option(min=2, max=54, help="Words of each caption, its end counted.")] = 12,
    repeat: Annotated[int, typer.Option(min=1, help="Photos timed one by one; the median counts.")] = 3,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32, bfloat16, float16 or int8; may be given several times.", show_default="(by CPU)"),
    ] = None,
    threads: options.Threads = 2,
    json: options.Json = False,
) -> None:
    """Time captions on a CPU, from a cold start to a folder of photos, beside captioners of transformers.

    Example: meshcap bench caption --model my-captioner --no-peers
    """
    from dataclasses import asdict

    import torch

    from meshcap.bench.caption import bench_caption, show
    from meshcap.bench.caption_peers import PEERS
    from meshcap.bench.measure import machine
    from meshcap.folders import folder_of
    from meshcap.models.packed import can_pack

    folder = folder_of(model)
    if not folder.is_dir():
        raise MeshcapError(f"{model} is no model folder here, and only such can be measured: expected one")
    for one in dtype or []:
        if one not in ("float32", "bfloat16", "float16", "int8"):
            raise MeshcapError(f"--dtype is {one!r}, expected float32, bfloat16, float16 or int8")
    usual = [torch.float32, *(kind for kind in (torch.bfloat16, torch.int8) if can_pack(kind))]
    where, _ = options.apply("cpu", "auto", threads, None)
    rows = bench_caption(
        folder,
        dtypes=dtype or [str(kind).removeprefix("torch.") for kind in usual],
        peers=tuple(PEERS) if peers else (),
        pictures=pictures,
        beams=beams,
        words=words,
        repeat=repeat,
        threads=torch.get_num_threads(),
        say=lambda line: typer.echo(line, err=True),
    )
    if json:
        typer.echo(json_format.dumps({"machine": machine(where), "rows": [asdict(row) for row in rows]}))
    else:
        show(f"Captions, beam {beams}, {words} words: {machine(where)}", rows)


def runtimes(
    model: Annotated[
        str | None,
        typer.Option(help="A model folder or name.", show_default="random weights, as large as the one in the package"),
    ] = None,
    pictures: Annotated[
        list[Path] | None,
        typer.Option("--picture", help="A picture; may be given several times.", show_default="sixteen drawn scenes"),
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    repeat: Annotated[int, typer.Option(min=1, help="Captions of each picture; the median counts.")] = 3,
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Caption with torch, onnxruntime and torch.export, in 32 and 8 bits, each in a process of its own.

    Example: meshcap bench runtimes --model my-captioner --picture photo.jpg
    """
    from dataclasses import asdict

    from meshcap.bench.measure import machine
    from meshcap.bench.runtimes import bench_runtimes, show

    where, _ = options.apply("cpu", "auto", threads, seed)
    rows = bench_runtimes(
        model,
        pictures or [],
        beams=beams,
        repeat=repeat,
        threads=threads or 1,
        seed=seed or 0,
        say=lambda line: typer.echo(line, err=True),
    )
    if json:
        typer.echo(json_format.dumps({"machine": machine(where), "rows": [asdict(row) for row in rows]}))
    else:
        show(f"Runtimes, beam {beams}: {machine(where)}", rows)
