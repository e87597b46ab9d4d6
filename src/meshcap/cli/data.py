"""`meshcap data`."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshcap.cli import options
from meshcap.cli.data_features import features
from meshcap.errors import MeshcapError
from meshcap.files import write_text

if TYPE_CHECKING:
    from meshcap.data.pack import Pack

app = typer.Typer(help="Look over, pack and draw datasets. Example: meshcap data check photos/", no_args_is_help=True)

Data = Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")]
Pictures = Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")]
ShardMb = Annotated[float, typer.Option(help="Most megabytes of a shard.")]


@app.command("check")
def check(
    data: Data,
    pictures: Pictures = None,
    fast: Annotated[bool, typer.Option("--fast", help="Open no picture; only look whether they are there.")] = False,
    leave_out: Annotated[
        Path | None,
        typer.Option(
            help="Write the ids of training pictures that val or test has too, for `meshcap train --without`."
        ),
    ] = None,
    without: Annotated[
        Path | None, typer.Option(help="Look it over as training with this file of ids left out would see it.")
    ] = None,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Look a dataset over: counts, broken pictures, duplicates, leaks between splits.

    Leaves with exit code 1 if something must be fixed.

    Example: meshcap data check flickr8k/Flickr8k.token.txt --pictures flickr8k/Images
    """
    from meshcap.data import read_dataset
    from meshcap.data.check import check as look_over

    if leave_out is not None and fast:
        raise MeshcapError("--fast opens no picture, so it finds none to leave out: give one of --fast, --leave-out")
    dataset = read_dataset(data, pictures=pictures)
    if without is not None:
        from meshcap.data.dataset import without as leave

        dataset = leave(dataset, without)
    with _progress("looking at pictures", len(dataset)) as progress:
        report = look_over(dataset, fast=fast, workers=workers, progress=progress)
    if leave_out is not None:
        text = "".join(f"{id}\n" for id in report.to_leave_out)
        write_text(leave_out, text)
    if json:
        typer.echo(json_format.dumps(report.to_dict(), ensure_ascii=False))
    else:
        from meshcap.cli.data_report import show

        show(report)
    if report.must_fix:
        raise typer.Exit(1)


@app.command("pack")
def pack(
    data: Data,
    out: Annotated[Path, typer.Argument(help="A new folder, or one whose packing was stopped.")],
    pictures: Pictures = None,
    size: Annotated[int, typer.Option(help="Pixels along each side; 0 keeps pictures as they are.")] = 256,
    geometry: Annotated[
        Literal["squash", "crop"], typer.Option(help="The whole picture, distorted to a square, or its middle.")
    ] = "squash",
    format: Annotated[Literal["webp", "jpg", "avif"], typer.Option(help="How pictures are encoded.")] = "webp",
    quality: Annotated[int, typer.Option(min=1, max=100, help="Of the encoding.")] = 45,
    shard_mb: ShardMb = 20,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave unreadable pictures out.")] = False,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Make pictures small and put them into tar shards with their captions. Called again, it goes on where it stopped.

    Example: meshcap data pack dataset_coco.json coco-256 --pictures train2017 --skip-broken
    """
    from meshcap.data import read_dataset
    from meshcap.data.pack import PackSettings
    from meshcap.data.pack import pack as pack_all

    settings = PackSettings(size=size, geometry=geometry, format=format, quality=quality)
    dataset = read_dataset(data, pictures=pictures)
    with _progress("packing", len(dataset)) as progress:
        made = pack_all(
            dataset,
            out,
            settings,
            shard_mb=shard_mb,
            skip_broken=skip_broken,
            workers=workers,
            progress=progress,
        )
    _tell(out, made, json)


@app.command("draw")
def draw(
    out: Annotated[Path, typer.Argument(help="A new folder, or one whose drawing was stopped.")],
    count: Annotated[int, typer.Option(min=0, help="Scenes to train on.")] = 6000,
    val: Annotated[int, typer.Option(min=0, help="Scenes to watch training by.")] = 200,
    test: Annotated[int, typer.Option(min=0, help="Scenes to judge by.")] = 500,
    size: Annotated[int, typer.Option(help="Pixels along each side.")] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other scenes.")] = 0,
    shard_mb: ShardMb = 20,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Draw scenes with true captions: a dataset to try everything on, without a download.

    Example: meshcap data draw scenes --count 1000
    """
    from meshcap.data.scenes import draw_dataset

    with _progress("drawing", count + val + test) as progress:
        made = draw_dataset(
            out,
            train=count,
            val=val,
            test=test,
            size=size,
            seed=seed,
            shard_mb=shard_mb,
            workers=workers,
            progress=progress,
        )
    _tell(out, made, json)


app.command("features")(features)


def _tell(out: Path, made: Pack, json: bool) -> None:
    left_out = [one.id for failed in made.left_out.values() for one in failed]
    if json:
        told = {"folder": str(out), "shards": len(made.shards), "pictures": made.samples(), "left_out": left_out}
        typer.echo(json_format.dumps(told, ensure_ascii=False))
        return
    counts = ", ".join(f"{split} {number:,}" for split, number in made.samples().items())
    size = sum(shard.size for shard in made.shards) / 1e6
    typer.echo(f"{out}: {counts} pictures in {len(made.shards):,} shards, {size:,.1f} MB")
    if left_out:
        more = f" … and {len(left_out) - 10:,} more, see pack.json" * (len(left_out) > 10)
        typer.echo(f"left out: {', '.join(left_out[:10])}{more}")


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, which leaves nothing behind where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)
