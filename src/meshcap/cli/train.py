"""`meshcap train`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.training.run import Run
    from meshcap.training.settings import TrainSettings


# What may be said anew when a run goes on; everything else is the run's own.
OF_THE_MOMENT = ("data", "out", "threads", "track")


def train(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")],
    out: Annotated[Path, typer.Option(help="The run's folder, which becomes the model folder.")],
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    without: Annotated[
        Path | None, typer.Option(help="A file of training pictures' ids, one a line, that are left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its settings.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and what it costs, and stop.")] = False,
    start: Annotated[str | None, typer.Option("--from", help="Begin with this model instead of a new one.")] = None,
    model: Annotated[str, typer.Option(help="The captioner to make.")] = "m2",
    vision: Annotated[
        str | None, typer.Option(help="Eyes: efficientnet-lite2, small-cnn, patches, hf:NAME.", show_default="by size")
    ] = None,
    stages: Annotated[str, typer.Option(help="xe, scst, or both.")] = "xe,scst",
    size: Annotated[int | None, typer.Option(help="Pixels along a side.", show_default="the vision's")] = None,
    geometry: Annotated[
        Literal["squash", "crop"] | None, typer.Option(help="Whole picture or its middle.", show_default="squash")
    ] = None,
    train_vision: Annotated[
        bool | None,
        typer.Option("--train-vision/--freeze-vision", help="Let the eyes learn.", show_default="by device"),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures of a step.", show_default="by size")] = None,
    xe_epochs: Annotated[float | None, typer.Option(help="Of cross-entropy.", show_default="by size")] = None,
    xe_steps: Annotated[int | None, typer.Option(help="Instead of epochs.", show_default="by size")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default="by size")] = None,
    scst_epochs: Annotated[float | None, typer.Option(help="Self-critical ones.", show_default="by size")] = None,
    scst_steps: Annotated[int | None, typer.Option(help="Instead of epochs.", show_default="by size")] = None,
    scst_lr: Annotated[float | None, typer.Option(help="Of self-critical training.", show_default="by size")] = None,
    samples: Annotated[int, typer.Option(help="Captions of a picture that are judged by each other.")] = 5,
    min_count: Annotated[
        int | None, typer.Option(help="Words seen less often are unknown.", show_default="by size")
    ] = None,
    max_words: Annotated[int | None, typer.Option(help="Size of the vocabulary.", show_default="no limit")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting, as in d_model=256 or mesh=last; see docs/training.md."),
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
    """
    from rich.console import Console

    from meshcap.training.distributed import World
    from meshcap.training.finish import finish_run
    from meshcap.training.folder import check_folder, make_folder
    from meshcap.training.progress import Watch
    from meshcap.training.run import Run
    from meshcap.training.settings import TrainSettings

    where, _ = options.apply(device, "auto", threads, seed)
    given = {
        "data": data, "out": str(out), "start": start, "model": model, "vision": vision, "size": size,
        "pictures": None if pictures is None else str(pictures),
        "features": None if features is None else str(features),
        "without": None if without is None else str(without),
        "stages": tuple(part.strip() for part in stages.split(",") if part.strip()),
        "geometry": geometry, "train_vision": train_vision, "batch": batch, "xe_epochs": xe_epochs,
        "xe_steps": xe_steps, "lr": lr, "scst_epochs": scst_epochs, "scst_steps": scst_steps, "scst_lr": scst_lr,
        "samples": samples, "min_count": min_count, "max_words": max_words, "seed": seed,
        "track": track, "threads": threads,
    }  # fmt: skip
    settings = with_others(given, set_ or [])
    if resume:
        said = [name for name in given if was_said(context, name)] + [one.partition("=")[0] for one in set_ or []]
        settings = of_the_run(TrainSettings.load(out), settings, said)
    world = World.join(where)
    quiet = json or not world.first
    console = Console(stderr=True, quiet=not world.first)
    total = 0
    try:
        if not dry_run:
            check_folder(out, resume=resume)
        with Watch(total, console, quiet=quiet) as watch:
            run = Run.prepare(settings, world, watch)
            settings = run.settings
            watch.expect(
                sum(
                    steps or 0
                    for stage, steps in (("xe", settings.xe_steps), ("scst", settings.scst_steps))
                    if stage in settings.stages
                )
            )
            for name, value in plan_lines(run):
                watch.say(f"{name:>14}  {value}")
            if dry_run:
                for name, value in cost_lines(run):
                    watch.say(f"{name:>14}  {value}")
                return
            if not resume:
                run.open_eyes()
            if world.first:
                make_folder(out)
            world.wait()
            told = finish_run(run, run.fit(resume=resume))
    finally:
        world.leave()
    if json and world.first:
        typer.echo(json_format.dumps(told))


def was_said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def of_the_run(saved: TrainSettings, asked: TrainSettings, said: list[str]) -> TrainSettings:
    """The settings of a run that goes on. The same command with --resume is fine; other settings are another run.

    Args:
        said: names of what was said on the command line.
    """
    for name in said:
        old = saved.options.get(name) if name in asked.options else getattr(saved, name)
        new = asked.options[name] if name in asked.options else getattr(asked, name)
        # Epochs were turned into steps, and a batch may have been larger than the data.
        settled = name.endswith("_epochs") or (name.endswith("batch") and new >= old)
        if name not in OF_THE_MOMENT and new != old and not settled:
            raise MeshcapError(f"{name} is {new} and was {old} in this run: --resume goes on with the run's settings")
    more = {"threads": asked.threads} if "threads" in said else {}
    return saved.but(data=asked.data, out=asked.out, **more)


def with_others(given: dict[str, Any], others: list[str]) -> TrainSettings:
    """Settings with those of --set, whose names are TrainSettings' or the model's own."""
    from dataclasses import fields

    from meshcap.models.registry import model_class
    from meshcap.training.settings import TrainSettings

    known = {field.name for field in fields(TrainSettings)}
    own = {field.name for field in fields(model_class(given["model"]).config_class)}
    more: dict[str, Any] = {}
    for one in others:
        name, equals, text = one.partition("=")
        if not equals:
            raise MeshcapError(f"--set {one!r}: expected name=value")
        try:
            value = json_format.loads(text)
        except ValueError:
            value = text
        if name in known and name != "options":
            given[name] = value
        elif name in own:
            more[name] = value
        else:
            raise MeshcapError(f"--set {name}: neither training nor {given['model']} has such a setting")
    try:
        return TrainSettings(**given, options=more)
    except TypeError as error:
        raise MeshcapError(f"a setting has the wrong kind of value ({error})") from error


def plan_lines(run: Run) -> list[tuple[str, str]]:
    from meshcap.training.plan import describe

    weights = sum(weight.numel() for weight in run.parts.model.parameters())
    return describe(run.settings, run.data.counts(), weights, len(run.parts.vocabulary))


def cost_lines(run: Run) -> list[tuple[str, str]]:
    """Memory and time, measured on the first steps of each stage rather than guessed."""
    from meshcap.training.estimate import estimate

    return estimate(run)
