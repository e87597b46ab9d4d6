"""`meshcap bench`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import torch

    from meshcap.bench.measure import Row

app = typer.Typer(help="Measure this machine. Example: meshcap bench decode --threads 1", no_args_is_help=True)

Pictures = Annotated[list[int] | None, typer.Option(help="Pictures in a batch; may be given several times.")]
Repeat = Annotated[int, typer.Option(min=1, help="Measured runs; the median counts.")]


@app.command("decode")
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


@app.command("caption")
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
    from meshcap.models.packed import can_pack
    from meshcap.models.pretrained import folder_of

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


@app.command("train-step")
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


@app.command("train")
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


@app.command("score")
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


@app.command("runtimes")
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


@app.command("mechanisms")
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


@app.command("serve")
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


@app.command("batch")
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


def tell(title: str, rows: list[Row], where: torch.device, json: bool) -> None:
    from dataclasses import asdict

    from meshcap.bench.measure import machine, show

    if json:
        typer.echo(json_format.dumps({"machine": machine(where), "rows": [asdict(row) for row in rows]}))
    else:
        show(f"{title}: {machine(where)}", rows)
