"""`meshcap calibrate`."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rich.table import Table

    from meshcap.data.dataset import Sample
    from meshcap.evaluation.calibration_fit import Reliability, Withheld

FEW = 500  # captions: below that, figures are told to be rough


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder, a run, or a name on the Hugging Face hub.")],
    data: Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")],
    split: Annotated[str, typer.Option(help="Which part of the data, or all; nothing that was trained on.")] = "val",
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for calibration.json.", show_default="MODEL")] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Captions that train or evaluate wrote of the split: none is made anew.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of the beam search; 1 is greedy.")] = 5,
    max_length: Annotated[int, typer.Option(min=2, help="Most words, the end counted as one.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="Draw the reliability diagram: a .svg or .png.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures captioned together.")] = 64,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Make confidences mean something: the share of a caption's content words that people used too.

    Captions the split, fits a curve from the words' probabilities to that share, and writes calibration.json into the
    model folder, where the captioner finds it. Figures are of captions that the fit had not seen.

    Training ends with the same on its own val split. With --captions neither pictures nor a GPU are needed, only what
    people said: COCO's or Karpathy's file, or any other that training reads.

    Example: meshcap calibrate my-captioner my-pictures.jsonl --plot reliability.svg
    """
    folder = _folder(model, out)
    if plot is not None:
        _check_plot(plot)

    import numpy

    from meshcap.captioner import VOCABULARY
    from meshcap.data import read_dataset
    from meshcap.evaluation.calibration import CALIBRATION, FEWEST
    from meshcap.evaluation.calibration_fit import try_calibration, withheld
    from meshcap.folders import find_file
    from meshcap.metrics import score
    from meshcap.text import Vocabulary

    tokenizer = Vocabulary.load(find_file(model, VOCABULARY)).tokenizer
    given = None if captions is None else read_log_probs(captions)
    dataset = read_dataset(data, pictures=pictures)
    samples = list(dataset) if split == "all" else dataset.split(split)
    about: dict[str, Any] = {"data": Path(data).name or data, "split": split}
    if given is not None:
        told_of = len(samples)
        samples = named_samples(samples, given, f"{data}, {split}")
        if len(samples) < told_of:
            typer.echo(
                f"warning: {captions} has no caption of {told_of - len(samples):,} of {told_of:,} pictures: left out",
                err=True,
            )
    if len(samples) < FEWEST:
        raise MeshcapError(f"{data} has {len(samples)} pictures in {split}: expected {FEWEST} at least to calibrate on")
    if given is not None:
        texts, log_probs = [text for text, _ in given.values()], [one for _, one in given.values()]
    else:
        where, precision = options.apply(device, dtype, threads, None)
        texts, log_probs = _captioned(
            model, samples, features, where, precision, beams, max_length, batch_size, quiet=json
        )
        about["beams"] = beams
    references = [sample.captions for sample in samples]
    ids = [sample.id for sample in samples]
    scored = score(
        dict(zip(ids, texts, strict=True)),
        dict(zip(ids, map(list, references), strict=True)),
        tokenizer=tokenizer,
        metrics="CIDEr",
        bootstrap=0,
    )
    cider = numpy.array([scored.per_image[id]["CIDEr"] or 0.0 for id in ids])
    trial = try_calibration(texts, references, log_probs, tokenizer=tokenizer, fitted_on=about)
    calibration, shares = trial.calibration, trial.shares
    found = {"before": trial.before, "after": trial.after}
    levels = {
        "before": withheld(trial.plain, shares, cider),
        "after": withheld(trial.expected, shares, cider),
    }
    calibration.save(folder)
    if plot is not None:
        from meshcap.evaluation.drawing import trial_drawing

        trial_drawing(f"{Path(model).name} on {about['data']}, {split}", trial).write(plot)
    if json:
        told: dict[str, Any] = {
            "calibration": str(folder / CALIBRATION),
            "signal": calibration.weights,
            "fitted_on": calibration.fitted_on,
            "mean_share": float(shares.mean()),
            "variance": float(shares.var()),
            "candidates": [asdict(one) for one in trial.candidates],
            "before": asdict(found["before"]) | {"withheld": [asdict(one) for one in levels["before"]]},
            "after": asdict(found["after"]) | {"withheld": [asdict(one) for one in levels["after"]]},
        }
        typer.echo(json_format.dumps(told, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console()
    console.print(_reliabilities(found, float(shares.var())))
    for name, rows in levels.items():
        console.print(_levels(name, rows))
    rough = f" ({len(shares)} captions: rough figures)" if len(shares) < FEW else ""
    signal = " + ".join(f"{weight:.3g} × {name}" for name, weight in calibration.weights.items())
    typer.echo(
        f"people used {shares.mean():.1%} of the content words{rough}; "
        f"{folder / CALIBRATION}: {calibration.fitted_on['curve']} curve of {signal}"
    )
    if plot is not None:
        typer.echo(f"see {plot}")


def _folder(model: str, out: Path | None) -> Path:
    """Where calibration.json goes."""
    if out is None:
        if not Path(model).is_dir():
            raise MeshcapError(f"{model} is no folder here: give --out for calibration.json")
        return Path(model)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{out} cannot be made: {error.strerror}") from error
    return out


def _check_plot(plot: Path) -> None:
    """Before minutes of captioning, not after."""
    if plot.suffix.lower() not in (".svg", ".png"):
        raise MeshcapError(f"--plot is {plot}, expected a name that ends in .svg or .png")
    if not plot.parent.is_dir():
        raise MeshcapError(f"{plot.parent} is not a folder: expected one to write {plot.name} into")


def read_log_probs(path: Path) -> dict[str, tuple[str, list[float]]]:
    """Caption and log-probabilities by picture, from what train or evaluate wrote.

    Raises:
        MeshcapError: another file, or a picture that is there twice.
    """
    from meshcap.metrics.layouts import read_json

    content = read_json(path)
    known: dict[str, tuple[str, list[float]]] = {}
    for one in content if isinstance(content, list) else [content]:
        if not isinstance(one, dict) or "image_id" not in one or not isinstance(one.get("caption"), str):
            raise MeshcapError(f"{path} holds no records with image_id and caption: expected what evaluate writes")
        id, given = str(one["image_id"]), one.get("log_probs")
        if not isinstance(given, list) or not given or not all(type(value) in (int, float) for value in given):
            raise MeshcapError(f"{path}: the caption of {id!r} has no log_probs: write it anew with meshcap evaluate")
        if id in known:
            raise MeshcapError(f"{path}: picture {id!r} has two captions, expected one")
        known[id] = one["caption"], list(map(float, given))
    return known


def named_samples(samples: list[Sample], ids: Collection[str], where: str) -> list[Sample]:
    """The samples that captions are of, in the order of the captions, which name them by id or by file.

    Raises:
        MeshcapError: a caption of a picture that is not among them.
    """
    by_id = {sample.id: sample for sample in samples}
    by_file = {sample.filename: sample for sample in samples if sample.filename is not None}
    names: Mapping[str, Sample] = max((by_id, by_file), key=lambda names: len(names.keys() & set(ids)))
    missing = [id for id in ids if id not in names]
    if missing:
        raise MeshcapError(
            f"{len(missing):,} of the {len(ids):,} captions are of no picture in {where} (first: {missing[0]}): "
            "expected those of the same data and split; --split all takes every split"
        )
    return [names[id] for id in ids]


def _captioned(
    model: str,
    samples: list[Sample],
    features: Path | None,
    where: Any,
    precision: Any,
    beams: int,
    max_length: int,
    batch: int,
    *,
    quiet: bool,
) -> tuple[list[str], list[list[float]]]:
    from rich.console import Console
    from rich.progress import Progress

    from meshcap.captioner import Captioner
    from meshcap.decoding import Beam
    from meshcap.training.examine import caption_samples
    from meshcap.vision.precomputed import open_features

    captioner = Captioner.from_pretrained(model, device=where, dtype=precision)
    store = None if features is None else open_features(features)
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("captioning", total=len(samples))
        found = caption_samples(
            captioner,
            samples,
            store,
            batch=batch,
            tell=lambda done, total: progress.update(task, completed=done),
            strategy=Beam(beams),
            max_length=min(max_length, captioner.model.config.max_length),
        )
    return [one.text for one in found], [one.log_probs for one in found]


def _reliabilities(found: dict[str, Reliability], variance: float) -> Table:
    table = _table("How far confidences hold", ("", *found))
    rows = [
        ("calibration error", [f"{one.error:.4f}" for one in found.values()]),
        ("  by chance alone", [f"{one.noise:.4f}" for one in found.values()]),
        ("squared error", [f"{one.squared_error:.4f}" for one in found.values()]),
        ("  always the mean", [f"{variance:.4f}"] * len(found)),
        ("rank correlation", [f"{one.order:.3f}" for one in found.values()]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _levels(name: str, rows: list[Withheld]) -> Table:
    heads = ("below", "withheld", "share", "CIDEr", "shown: share", "CIDEr")
    table = _table(f"Withheld by --min-confidence, {name} (× 100)", heads)
    for one in rows:
        values = (one.withheld_share, one.withheld_cider, one.kept_share, one.kept_cider)
        cells = ["–" if value is None else f"{100 * value:.1f}" for value in values]
        table.add_row(f"{one.level:.1f}", f"{one.withheld:.1%}", *cells)
    return table


def _table(title: str, heads: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    return table
