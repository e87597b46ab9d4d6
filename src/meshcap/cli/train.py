"""`meshcap train`."""

from __future__ import annotations

import json as json_format
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from meshcap.cli import options

# Which setting each option of the command is.
NAMES = {
    "data": "data.path", "pictures": "data.pictures", "features": "data.features", "without": "data.without",
    "skip_broken": "data.skip_broken",
    "start": "model.start", "arch": "model.arch", "vision": "model.vision", "size": "model.size",
    "batch_size": "xe.batch", "xe_epochs": "xe.epochs", "xe_steps": "xe.steps", "lr": "xe.lr",
    "lr_vision": "xe.lr_vision", "scst_epochs": "scst.epochs", "scst_steps": "scst.steps", "scst_lr": "scst.lr",
    "out": "run.out", "stages": "run.stages", "track": "run.track", "threads": "run.threads", "seed": "run.seed",
}  # fmt: skip


def train(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")],
    out: Annotated[Path, typer.Option(help="The run's folder, which becomes the model folder.")],
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    without: Annotated[
        Path | None, typer.Option(help="A file of training pictures' ids, one a line, that are left out.")
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out broken records and unreadable pictures.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its settings.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and what it costs, and stop.")] = False,
    start: Annotated[str | None, typer.Option("--from", help="Begin with this model instead of a new one.")] = None,
    arch: Annotated[str, typer.Option(help="The architecture of a new model.")] = "m2",
    vision: Annotated[
        str | None,
        typer.Option(
            help="Image encoder: efficientnet-lite2, small-cnn, patches, hf:NAME, or that of a model (default).",
            show_default="by size",
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Pixels along a side.", show_default="the vision's")] = None,
    stages: Annotated[str, typer.Option(help="xe, scst, or both.")] = "xe,scst",
    batch_size: Annotated[int | None, typer.Option(help="Pictures of a step.", show_default="by size")] = None,
    xe_epochs: Annotated[float | None, typer.Option(help="Of cross-entropy.", show_default="by size")] = None,
    xe_steps: Annotated[int | None, typer.Option(help="Instead of epochs.", show_default="by size")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default="by size")] = None,
    lr_vision: Annotated[
        float | None, typer.Option(help="Of the vision; 0: it is frozen.", show_default="by device")
    ] = None,
    scst_epochs: Annotated[float | None, typer.Option(help="Self-critical ones.", show_default="by size")] = None,
    scst_steps: Annotated[int | None, typer.Option(help="Instead of epochs.", show_default="by size")] = None,
    scst_lr: Annotated[float | None, typer.Option(help="Of self-critical training.", show_default="by size")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting by its name, as listed above; repeatable."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="tensorboard, wandb, trackio or none.", show_default="tensorboard, where installed"),
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Another seed, another model.")] = 0,
    json: options.Json = False,
) -> None:
    """Train a captioner on your own pictures: words, cross-entropy, self-critical training, the best by validation.

    Example: meshcap train my-pictures.jsonl --out my-captioner

    Settings for --set, as in --set xe.lr_vision=1e-5 or --set model.mesh=last (docs/training.md explains each):

    data. path, pictures, features, without, skip_broken, val_share, val_pictures, tokenizer, min_count,
    vocabulary, max_length, size, cache, workers

    model. arch, start, vision, size, geometry, d_model, heads, d_ff, encoder_layers, decoder_layers,
    slots, dropout, and whatever else the model has

    xe. and scst. steps, epochs, batch, captions, lr, lr_vision, layer_decay, frozen_stages, warmup, last_rate,
    weight_decay, clip, ema, augment, compress, turn, region_dropout

    xe. label_smoothing

    scst. samples, max_length, search, temperature, top_k, xe_weight, objects, object_penalty, object_bonus,
    facts, fact_penalty, fact_bonus

    run. out, stages, seed, precision, compile, compile_cache, threads, accumulate, validate_every, val_beams,
    checkpoint_every, patience, keep, track
    """
    from rich.console import Console

    from meshcap.training.distributed import World
    from meshcap.training.folder import check_folder, claimed, resumed
    from meshcap.training.log import Watch
    from meshcap.training.plan import describe, total_steps
    from meshcap.training.run import Run, warnings_of
    from meshcap.training.settings import TrainSettings, parse

    where, _ = options.apply(device, "auto", threads, seed)
    given = {NAMES[name]: plain(value) for name, value in context.params.items() if name in NAMES}
    by_name = dict(parse(one) for one in set_ or [])
    if resume:
        typed = {NAMES[name] for name in NAMES if was_typed(context, name)}
        settings = resumed(out, {name: value for name, value in given.items() if name in typed} | by_name)
    else:
        settings = TrainSettings.named(given | by_name)
    world = World.join(where)
    with ExitStack() as stack:
        stack.callback(world.leave)
        if not dry_run:
            check_folder(out, resume=resume)
            if resume and world.first:
                stack.enter_context(claimed(out, resume=True))
        console = Console(stderr=True, quiet=not world.first)
        watch = stack.enter_context(Watch(0, console, quiet=json or not world.first))
        run = Run.prepare(settings, world, watch)
        watch.expect(total_steps(run.settings))
        weights = sum(weight.numel() for weight in run.parts.model.parameters())
        lines = describe(run.settings, run.data.counts(), weights, len(run.parts.vocabulary))
        for name, value in lines + (run.estimate() if dry_run else []):
            watch.say(f"{name:>14}  {value}")
        for line in warnings_of(run.data, run.settings):
            watch.say(line)
        if dry_run:
            return
        if not resume:
            run.read_pictures()
            if world.first:
                stack.enter_context(claimed(out, resume=False))
        world.wait()
        summary = run.finish(run.fit(resume=resume))
    if json and world.first:
        typer.echo(json_format.dumps(summary))


def plain(value: Any) -> Any:
    """As settings are saved."""
    return str(value) if isinstance(value, Path) else value


def was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
