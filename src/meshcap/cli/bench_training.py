"""`meshcap bench train-step`, `train`, `score` and `mechanisms`: how fast captioners learn, and which."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.cli.bench_shared import Pictures, Repeat, tell
from meshcap.errors import MeshcapError


def train_step(
    pictures: Pictures = None,
    captions: Annotated[int, typer.Option(min=1, help="Captions of each picture.")] = 5,
    length: Annotated[int, typer.Option(min=2, max=54, help="Words of each caption.")] = 20,
    repeat: Repeat = 10,
    compiled: Annotated[bool, typer.Option(help="Compile the step (CUDA only, by default).")] = True,
    device: options.Device = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Time a cross-entropy step with an M² of the paper's sizes: forward, backward and AdamW, dropout on.

    Example: meshcap bench train-step --pictures 512 --pictures 1024 --device cuda
    """
    from meshcap.bench.train_step import bench_train_step

    where, _ = options.apply(device, "auto", threads, seed)
    counts = tuple(pictures or ((256, 512, 1024) if where.type == "cuda" else (10,)))
    rows = bench_train_step(
        where,
        pictures=counts,
        captions=captions,
        length=length,
        repeat=repeat if where.type == "cuda" else min(repeat, 3),
        compiled=compiled and where.type == "cuda",
        seed=seed or 0,
    )
    tell("Training step", rows, where, json)


def train(
    work: Annotated[
        list[str] | None, typer.Option(help="cells, pictures or scst; may be given several times.", show_default="all")
    ] = None,
    batch: Annotated[int, typer.Option(min=2, help="Pictures of a step; four times as many of cells.")] = 256,
    pictures: Annotated[int, typer.Option(min=8, help="Made-up pictures with captions.")] = 20_000,
    steps: Annotated[int, typer.Option(min=1, help="Steps to time.")] = 20,
    width: Annotated[int, typer.Option(min=64, help="Width of the model.")] = 512,
    layers: Annotated[int, typer.Option(min=1, help="Of encoder and decoder each.")] = 3,
    vision: Annotated[str, typer.Option(help="Eyes that learn.")] = "efficientnet-lite2",
    size: Annotated[int, typer.Option(min=32, help="Pixels of a picture.")] = 256,
    compiled: Annotated[bool, typer.Option(help="Compile the steps (CUDA only, by default).")] = True,
    device: options.Device = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Time the steps of real training runs: cross-entropy with frozen and with learning eyes, and self-critical.

    Example: meshcap bench train --device cuda
    """
    from meshcap.bench.train import bench_train

    where, _ = options.apply(device, "auto", threads, seed)
    chosen = tuple(work or ("cells", "pictures", "scst"))
    for one in chosen:
        if one not in ("cells", "pictures", "scst"):
            raise MeshcapError(f"there is no work {one!r} to time, expected cells, pictures or scst")
    rows = bench_train(
        where,
        work=chosen,
        batch=batch,
        pictures=pictures,
        steps=steps,
        compiled=compiled and where.type == "cuda",
        d_model=width,
        layers=layers,
        vision_name=vision,
        size=size,
        seed=seed or 0,
    )
    tell("Training", rows, where, json)


def score(
    data: Annotated[
        Path | None,
        typer.Option(help="Karpathy's dataset_coco.json, or .json.gz.", show_default="made-up captions"),
    ] = None,
    pictures: Annotated[int, typer.Option(min=2, help="Test pictures to score.")] = 5000,
    training: Annotated[
        int | None,
        typer.Option(
            min=2, help="Training pictures for frequencies and rewards.", show_default="all, or 20000 made up"
        ),
    ] = None,
    repeat: Repeat = 5,
    compare: Annotated[bool, typer.Option(help="Time pycocoevalcap too, where it is installed.")] = True,
    device: options.Device = "auto",
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Time the tokenizer, the metrics and the rewards of self-critical training, beside pycocoevalcap.

    Example: meshcap bench score --data dataset_coco.json.gz
    """
    from meshcap.bench.score import bench_score

    where, _ = options.apply(device, "auto", threads, seed)
    rows = bench_score(
        where,
        data=data,
        pictures=pictures,
        training=training or (20_000 if data is None else 10**9),
        repeat=repeat,
        compare=compare,
        seed=seed or 0,
    )
    tell("Scores and rewards", rows, where, json)


def mechanisms(
    data: Annotated[str, typer.Argument(help="Pictures with captions, as for `meshcap train`.")],
    out: Annotated[Path, typer.Option(help="Where results are kept; what is done is not done again.")],
    steps: Annotated[int, typer.Option(min=1, help="Of cross-entropy, for every captioner.")] = 2000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each captioner.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Beginning of a name; may be given several times.", show_default="all")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of encoders and decoders each.")] = 3,
    vision: Annotated[str | None, typer.Option(help="Eyes, which do not learn.", show_default="(by size)")] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other training setting, as in d_model=256.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs side by side, each in a process of its own; on a GPU far sooner done.")
    ] = 1,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Measure the speed of each captioner alone, before the runs.")
    ] = True,
    meteor: Annotated[
        bool,
        typer.Option(
            "--meteor",
            help="Only add METEOR to a finished bench in --out and write its page again: seeds, layers and steps are "
            "the bench's own, nothing is trained, no GPU is needed (Java and the extra java-metrics are).",
        ),
    ] = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Train every captioner and M²'s ablations alike, and compare what they say with M², picture by picture.

    Example: meshcap bench mechanisms scenes.jsonl --out bench --steps 500 --only m2 --only transformer
    """
    from dataclasses import asdict

    from rich.console import Console

    from meshcap.bench.mechanisms import PAGE, bench_mechanisms, bench_meteor
    from meshcap.bench.mechanisms_results import Bench
    from meshcap.cli.train import with_others
    from meshcap.training.distributed import World
    from meshcap.training.progress import Watch

    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        if not json:
            console.print(line)

    if meteor:
        rows = bench_meteor(data, out, only=only or (), say=say)
    else:
        where, _ = options.apply(device, "auto", threads, 0)
        given = {
            "data": data, "out": str(out), "model": "m2", "vision": vision, "xe_steps": steps, "threads": threads,
            "features": None if features is None else str(features),
        }  # fmt: skip
        settings = with_others(given, set_ or [])
        world = World.join(where)
        try:
            with Watch(0, console, quiet=True) as watch:
                rows = bench_mechanisms(
                    settings,
                    out,
                    world,
                    watch,
                    seeds=range(seeds),
                    layers=layers,
                    only=only or (),
                    jobs=jobs,
                    timing=timing,
                    say=say,
                )
        finally:
            world.leave()
    if json:
        machine = Bench.load(out).machine  # where the runs were made, which need not be here
        typer.echo(json_format.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}))
    else:
        typer.echo((out / PAGE).read_text(encoding="utf-8"))
