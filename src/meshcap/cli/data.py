"""`meshcap data`."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.files import write_text

if TYPE_CHECKING:
    from rich.console import Console

    from meshcap.data.check import DatasetReport, Pair, Size
    from meshcap.data.pack import Pack

app = typer.Typer(
    help="Check, pack and draw datasets; compute features. Example: meshcap data check photos/", no_args_is_help=True
)

Data = Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")]
Pictures = Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave unreadable pictures out instead of stopping.")]
ShardMb = Annotated[float, typer.Option(help="Most megabytes of a shard.")]

SHOWN = 10  # pictures or pairs of a kind; --json has them all
NAMED = 3  # broken pictures that are named


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
        Path | None, typer.Option(help="Check it as training would see it with the ids of this file left out.")
    ] = None,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Check a dataset: counts, broken pictures, duplicates, leaks between splits.

    Leaves with exit code 1 if something must be fixed.

    Example: meshcap data check flickr8k/Flickr8k.token.txt --pictures flickr8k/Images
    """
    from meshcap.data import read_dataset
    from meshcap.data.check import check as check_dataset

    if leave_out is not None and fast:
        raise MeshcapError("--fast opens no picture, so it finds none to leave out: give one of --fast, --leave-out")
    dataset = read_dataset(data, pictures=pictures)
    if without is not None:
        from meshcap.data.dataset import without as leave

        dataset = leave(dataset, without)
    with _progress("checking pictures", len(dataset)) as progress:
        report = check_dataset(dataset, fast=fast, workers=workers, progress=progress)
    if leave_out is not None:
        text = "".join(f"{id}\n" for id in report.to_leave_out)
        write_text(leave_out, text)
    if json:
        typer.echo(json_format.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show_report(report)
    if report.must_fix:
        raise typer.Exit(1)


@app.command("pack")
def pack(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="A new folder, or one whose packing was stopped.")],
    pictures: Pictures = None,
    size: Annotated[int, typer.Option(help="Pixels along each side; 0 keeps pictures as they are.")] = 256,
    geometry: Annotated[
        Literal["squash", "crop"], typer.Option(help="The whole picture, distorted to a square, or its middle.")
    ] = "squash",
    format: Annotated[Literal["webp", "jpg", "avif"], typer.Option(help="How pictures are encoded.")] = "webp",
    quality: Annotated[int, typer.Option(min=1, max=100, help="Of the encoding.")] = 45,
    shard_mb: ShardMb = 20,
    skip_broken: SkipBroken = False,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Make pictures small and put them into tar shards with their captions. Called again, it goes on where it stopped.

    Example: meshcap data pack dataset_coco.json --out coco-256 --pictures train2017 --skip-broken
    """
    from meshcap.data import read_dataset
    from meshcap.data.check import some_of
    from meshcap.data.pack import PackSettings
    from meshcap.data.pack import pack as pack_all

    settings = PackSettings(size=size, geometry=geometry, format=format, quality=quality)
    dataset = read_dataset(data, pictures=pictures, skip_broken=skip_broken)
    if dataset.left_out.broken:
        typer.echo(
            f"warning: {len(dataset.left_out.broken):,} bad records left out: {some_of(dataset.left_out.broken)}",
            err=True,
        )
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
    _show_pack(out, made, json)


@app.command("draw")
def draw(
    out: Annotated[Path, typer.Option("--out", help="A new folder, or one whose drawing was stopped.")],
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

    Example: meshcap data draw --out scenes --count 1000
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
    _show_pack(out, made, json)


@app.command("features")
def features(
    data: Annotated[Path, typer.Argument(help="A dataset (see `meshcap data check`), or a folder of pictures.")],
    out: Annotated[Path, typer.Option("--out", help="A .hdf5 file, or a folder for one file a picture.")],
    vision: Annotated[
        str, typer.Option("--vision", help="The backbone: efficientnet-lite2, hf:NAME, …, or a model folder.")
    ] = "efficientnet-lite2",
    pictures: Pictures = None,
    split: Annotated[str | None, typer.Option("--split", help="Only this one.", show_default="all")] = None,
    format: Annotated[
        Literal["hdf5", "safetensors", "npy"] | None,
        typer.Option("--format", help="Of the files.", show_default="by the suffix of --out; safetensors in folders"),
    ] = None,
    store: Annotated[
        Literal["float16", "float32"], typer.Option("--store", help="Numbers to store features with.")
    ] = "float16",
    size: Annotated[int | None, typer.Option("--size", help="Pixels along each side.", show_default="its own")] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", help="Of detectors: regions of a picture.", show_default="50")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Pictures to compute together.")] = 32,
    skip_broken: SkipBroken = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Compute the regions of every picture once, for training to read.

    Called again, it goes on where it was stopped.

    Example: meshcap data features dataset_coco.json --pictures coco/ --vision hf:PekingU/rtdetr_r50vd --out coco.hdf5
    """
    from meshcap.data.feature_writer import compute_features, picture_sources
    from meshcap.vision import create_vision

    if dtype == "int8":
        raise MeshcapError("--dtype int8 is for captioning: use float32, bfloat16 or float16 here")
    where, precision = options.apply(device, dtype, threads, None)
    sources = picture_sources(data, pictures, split)
    more: dict[str, Any] = {} if keep is None else {"keep": keep}
    backbone = create_vision(vision, size=size, **more).to(where, precision).eval().requires_grad_(False)
    with _progress("computing features", len(sources)) as progress:
        made = compute_features(
            sources,
            backbone,
            out,
            format=format,
            precision=store,
            batch_size=batch_size,
            skip_broken=skip_broken,
            progress=progress,
        )
    if made.broken:
        first = "; ".join(made.broken[:NAMED]) + ("; …" if len(made.broken) > NAMED else "")
        typer.echo(f"warning: {len(made.broken):,} of {len(sources):,} pictures left out: {first}", err=True)
    if json:
        typer.echo(json_format.dumps({"file": str(out), **vars(made)}, ensure_ascii=False))
    else:
        typer.echo(f"{out}: {made.pictures:,} pictures, {made.new:,} of them new, {made.width:,} numbers a region")


def _show_pack(out: Path, made: Pack, json: bool) -> None:
    left_out = [one.id for failed in made.left_out.values() for one in failed]
    if json:
        summary = {"folder": str(out), "shards": len(made.shards), "pictures": made.samples(), "left_out": left_out}
        typer.echo(json_format.dumps(summary, ensure_ascii=False))
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


def _show_report(report: DatasetReport) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    captions = report.captions
    table = Table(title=escape(report.name), title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)
    rows = [
        ("pictures", f"{sum(report.splits.values()):,}: " + ", ".join(f"{s} {n:,}" for s, n in report.splits.items())),
        ("captions", f"{captions.captions:,}"),
        ("… of a picture", f"{captions.fewest:,} to {captions.most:,}, {captions.mean:.2f} on average"),
        (
            "words of a caption",
            f"{captions.words_mean:.1f} on average, 95 of 100 have at most {captions.words_95:.0f}, "
            f"the longest {captions.words_most:,} (of {captions.longest})",
        ),
        (f"words in {captions.vocabulary_of}", f"{captions.distinct_words:,}"),
        ("… seen 5 times", f"{captions.frequent_words:,}, {100 * captions.frequent_share:.1f} % of the text"),
        ("repeated captions", f"{captions.repeated:,}, of which {captions.repeated_of_picture:,} of the same picture"),
        ("missing pictures", f"{len(report.missing):,}"),
    ]
    if report.opened:
        rows += [
            ("unreadable pictures", f"{len(report.unreadable):,}"),
            ("smallest, largest", f"{_size(report.smallest)}, {_size(report.largest)}"),
            ("same pictures", _pairs(report.same)),
            ("nearly the same", _pairs(report.near)),
        ]
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)
    _list(console, "missing", [f"{one.id} ({one.split}): {one.why}" for one in report.missing])
    _list(console, "unreadable", [f"{one.id} ({one.split}): {one.why}" for one in report.unreadable])
    _list(console, "the same in two splits", [_pair_line(pair) for pair in report.leaks])
    pairs = (report.same or []) + (report.near or [])
    _list(console, "the same in one split", [_pair_line(pair) for pair in pairs if not pair.across])
    advice = report.advice()
    console.print("what to do" if advice else "nothing to do", style="bold", highlight=False)
    for line in advice:
        mark = "[red]must[/]  " if line.must else "[yellow]may[/]   "
        console.print(f"  {mark}{escape(line.text)}", highlight=False, soft_wrap=True)


def _list(console: Console, title: str, lines: list[str]) -> None:
    from rich.markup import escape

    if not lines:
        return
    console.print(title, style="bold", highlight=False)
    for line in lines[:SHOWN]:
        console.print("  " + escape(line), highlight=False, soft_wrap=True)
    if len(lines) > SHOWN:
        console.print(f"  … and {len(lines) - SHOWN:,} more (--json lists all)", highlight=False)


def _size(size: Size | None) -> str:
    return "none" if size is None else f"{size.width} × {size.height} ({size.id})"


def _pairs(pairs: list[Pair] | None) -> str:
    pairs = pairs or []
    return f"{len(pairs):,} pairs, {sum(pair.across for pair in pairs):,} of them across splits"


def _pair_line(pair: Pair) -> str:
    return f"{pair.first} ({pair.first_split}) and {pair.second} ({pair.second_split})"
