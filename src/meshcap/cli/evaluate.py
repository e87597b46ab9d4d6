"""`meshcap evaluate`."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions

if TYPE_CHECKING:
    from rich.table import Table

    from meshcap.evaluation.calibration_fit import Trial

FEW = 500  # captions: below that, figures of confidences are said to be rough


@options.caption_options(only=("beams", "max_words"))
def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder, a run, or a name on the Hugging Face hub.")],
    data: Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")],
    split: Annotated[
        str | None,
        typer.Option(help="Which part of the data, or all.", show_default="test, or val with --calibrate"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for captions, scores and report.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    memory: options.NamedMemory = None,
    captions: Annotated[
        Path | None, typer.Option(help="Captions that train or evaluate wrote of the split: nothing is captioned.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit confidences to the share of a caption's content words that people used too, and write "
            "calibration.json into the model folder, or into --out. Not on pictures that were trained on.",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="With --calibrate: draw the reliability diagram, a .svg or .png.")
    ] = None,
    metrics: Annotated[str, typer.Option(help="As of meshcap score, between commas.")] = "",
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples for the 95 % intervals; 0: none.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures captioned together.")] = 64,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
    **given: Any,
) -> None:
    """Caption a split, score the captions as the field does, and write a report.

    With --captions neither pictures nor a GPU are needed, only what people said: COCO's or Karpathy's file, or any
    other that training reads.

    Example: meshcap evaluate my-captioner my-pictures.jsonl --split test --out evaluation
    """
    wanted = CaptionOptions.parse(given)
    split = split or ("val" if calibrate else "test")
    keep_in = calibration_folder(model, out) if calibrate else None
    if plot is not None:
        check_plot(plot, calibrate)

    from rich.console import Console
    from rich.progress import Progress

    from meshcap.calibration import CALIBRATION
    from meshcap.cli.score import show_result
    from meshcap.evaluation.drawing import trial_drawing
    from meshcap.evaluation.evaluation import AS_PUBLISHED, named_samples, read_captions, samples_of
    from meshcap.evaluation.evaluation import evaluate as evaluate_split
    from meshcap.folders import VOCABULARY, find_file
    from meshcap.metrics.result import DEFAULT
    from meshcap.text import Vocabulary

    tokenizer = Vocabulary.load(find_file(model, VOCABULARY)).tokenizer
    samples = samples_of(data, split, pictures)
    captioner, written = None, None
    if captions is not None:
        given = read_captions(captions)
        total = len(samples)
        samples, written = named_samples(samples, given, f"{data}, {split}"), list(given.values())
        if len(samples) < total:
            missing = f"{captions} has no caption of {total - len(samples):,} of {total:,} pictures: left out"
            typer.echo(f"warning: {missing}", err=True)
    else:
        captioner = options.load_captioner(model, device, dtype, threads)
        options.attach_memory(captioner, memory)
    console = Console(stderr=True)
    with Progress(console=console, disable=json or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"captioning {split}", total=len(samples))
        found = evaluate_split(
            captioner,
            samples,
            split=split,
            options=replace(AS_PUBLISHED, beams=wanted.beams, max_words=wanted.max_words),
            out=out,
            features=features,
            captions=written,
            metrics=[name for name in metrics.split(",") if name] or DEFAULT,
            bootstrap=bootstrap,
            calibrate=calibrate,
            batch_size=batch_size,
            tokenizer=tokenizer,
            name=Path(model).name,
            data_name=Path(data).name or data,
            progress=lambda done, total: progress.update(task, completed=done),
        )
    trial = found.trial
    if trial is not None and keep_in is not None:
        trial.calibration.save(keep_in)
        if plot is not None:
            trial_drawing(f"{Path(model).name} on {Path(data).name}, {split}", trial).write(plot)
    if json:
        more = {} if keep_in is None else {"calibration": str(keep_in / CALIBRATION)}
        typer.echo(json_format.dumps(found.to_dict() | more, ensure_ascii=False))
        return
    show_result(found.result)
    if trial is not None and keep_in is not None:
        show_confidence(trial, found.ciders(), keep_in / CALIBRATION)
    for path in (plot, None if out is None else out / f"report-{split}.html"):
        if path is not None:
            typer.echo(f"see {path}")


def calibration_folder(model: str, out: Path | None) -> Path:
    """Where calibration.json goes."""
    if out is None and not Path(model).is_dir():
        raise MeshcapError(f"{model} is no folder here: give --out for calibration.json")
    return Path(model) if out is None else out


def check_plot(plot: Path, calibrate: bool) -> None:
    """Before minutes of captioning, not after."""
    if not calibrate:
        raise MeshcapError(f"--plot {plot} draws what --calibrate measures: give both")
    if plot.suffix.lower() not in (".svg", ".png"):
        raise MeshcapError(f"--plot is {plot}, expected a name that ends in .svg or .png")
    if not plot.parent.is_dir():
        raise MeshcapError(f"{plot.parent} is not a folder: expected one to write {plot.name} into")


def show_confidence(trial: Trial, cider: Sequence[float], path: Path) -> None:
    """Tables of how far confidences hold, before and after the calibration, and what withholding the unsure does."""
    from rich.console import Console

    console = Console()
    figures = trial.to_dict(cider)
    console.print(reliability_table(figures))
    for name in ("before", "after"):
        console.print(withheld_table(name, figures[name]["withheld"]))
    shares = trial.shares
    rough = f" ({len(shares)} captions: rough figures)" if len(shares) < FEW else ""
    signal = " + ".join(f"{weight:.3g} × {name}" for name, weight in trial.calibration.weights.items())
    typer.echo(
        f"people used {shares.mean():.1%} of the content words{rough}; "
        f"{path}: {trial.calibration.fitted_on['curve']} curve of {signal}"
    )


def reliability_table(figures: Mapping[str, Any]) -> Table:
    table = make_table("How far confidences hold", ("", "before", "after"))
    pair = [figures["before"], figures["after"]]
    table.add_row("calibration error", *(f"{one['error']:.4f}" for one in pair))
    table.add_row("  by chance alone", *(f"{one['noise']:.4f}" for one in pair))
    table.add_row("squared error", *(f"{one['squared_error']:.4f}" for one in pair))
    table.add_row("  always the mean", *[f"{figures['variance']:.4f}"] * 2)
    table.add_row("rank correlation", *(f"{one['order']:.3f}" for one in pair))
    return table


def withheld_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("below", "withheld", "share", "CIDEr", "shown: share", "CIDEr")
    table = make_table(f"Withheld by --min-confidence, {name} (× 100)", heads)
    for one in rows:
        values = (one[key] for key in ("withheld_share", "withheld_cider", "kept_share", "kept_cider"))
        cells = ["–" if value is None else f"{100 * value:.1f}" for value in values]
        table.add_row(f"{one['level']:.1f}", f"{one['withheld']:.1%}", *cells)
    return table


def make_table(title: str, heads: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    return table
