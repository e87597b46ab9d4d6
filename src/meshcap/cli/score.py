"""`meshcap score`."""

from __future__ import annotations

import csv
import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from meshcap.captioner import Captioner
    from meshcap.metrics import Comparison, Result, Systems

COUNTED = ("vocabulary", "length")  # of what is people about habits: these are numbers, the others shares or scores
SCORES = ("Div-1", "Div-2", "mBLEU-4", "self-CIDEr")


def score(
    candidates: Annotated[
        list[Path],
        typer.Argument(help="Captions to score: JSON, JSONL, CSV or TSV, also gzipped. Several systems are compared."),
    ],
    references: Annotated[
        Path | None,
        typer.Option(help="What people said: COCO or Karpathy JSON, or as CANDIDATES. --model and --clip need none."),
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Captions of another system, to compare with.")] = None,
    metrics: Annotated[
        str, typer.Option(help="Some of bleu, rouge-l, cider, cider-plain, meteor, spice between commas; or all.")
    ] = "bleu,rouge-l,cider",
    meteor: Annotated[bool, typer.Option("--meteor", help="METEOR too (extra meteor).")] = False,
    spice: Annotated[bool, typer.Option("--spice", help="SPICE too (extra spice; Java 8 or 11).")] = False,
    tokenizer: Annotated[
        Literal["ptb", "unicode", "char"], typer.Option(help="How to split captions into words; papers use ptb.")
    ] = "ptb",
    language: Annotated[str, typer.Option(help="Of METEOR: en, or cz with its paraphrases.")] = "en",
    split: Annotated[
        str | None, typer.Option(help="Of Karpathy's JSON; several with +, or all.", show_default="test")
    ] = None,
    subset: Annotated[bool, typer.Option("--subset", help="Score only pictures that have both.")] = False,
    training: Annotated[Path | None, typer.Option(help="Training captions: count candidates not in there.")] = None,
    objects: Annotated[Path | None, typer.Option(help="Objects in the pictures (COCO instances), for CHAIR.")] = None,
    synonyms: Annotated[Path | None, typer.Option(help="CHAIR's own synonyms file, instead of ours.")] = None,
    clip: Annotated[Path | None, typer.Option(help="A CLIP folder, for CLIPScore (extra hf).")] = None,
    model: Annotated[
        str | None, typer.Option(help="A captioner (default, or a folder), for PMI: how much it helps to see.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(help="The folder of the pictures, for CLIPScore and PMI.")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples for the intervals; 0: none.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the resamples.")] = 0,
    table: Annotated[
        Literal["markdown", "latex"] | None, typer.Option(help="Print the table of a paper: systems, intervals, marks.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write each picture's scores to this CSV file.")] = None,
    json: options.Json = False,
) -> None:
    """Score captions as the field does: BLEU, ROUGE-L, CIDEr, with 95 % intervals and a signature.

    Example: meshcap score results.json --references dataset_coco.json --against other.json
    """
    from rich.console import Console

    from meshcap.data.caption_files import read_candidates, read_references, read_training
    from meshcap.metrics import compare, compare_systems
    from meshcap.metrics import table as tables
    from meshcap.metrics.hallucination import Synonyms, read_objects

    files = [*candidates, *([against] if against and table else [])]
    if len(candidates) > 1 and against:
        raise MeshcapError("--against is for one file of captions: give all systems one after the other instead")
    if len(files) > 1 and out:
        raise MeshcapError("--out is for one file of captions, and several were given")

    if synonyms and not objects:
        raise MeshcapError("--synonyms is for CHAIR, which needs --objects")
    if pictures and not (clip or model):
        raise MeshcapError("--pictures is for CLIPScore, which needs --clip, and for PMI, which needs --model")
    if (clip or model) and not pictures:
        raise MeshcapError(f"{'--clip' if clip else '--model'} needs --pictures, the folder of the pictures")
    if not references and not (clip or model):
        raise MeshcapError("give --references, what people said; --model and --clip alone score without")
    chosen = [name.strip() for name in metrics.split(",") if name.strip()]
    words = Synonyms.read(synonyms) if synonyms else Synonyms.ours()
    systems = {name: read_candidates(path, split=split) for name, path in _names(files).items()}
    captions = next(iter(systems.values()))
    other = read_candidates(against, split=split) if against and not table else None
    people = read_references(references, split=split, like=captions) if references else None
    reference_captions = people.captions if people else None
    with Console(stderr=True).status("reading") as status:
        settings = {
            "tokenizer": tokenizer,
            "language": language,
            "metrics": chosen + ["meteor"] * meteor + ["spice"] * spice,
            "bootstrap": bootstrap,
            "seed": seed,
            "subset": subset,
            "domains": people.domains if people else None,
            "training": read_training(training) if training else None,
            "objects": read_objects(objects, words) if objects else None,
            "synonyms": words,
            "clip": clip,
            "model": _captioner(model) if model else None,
            "pictures": pictures,
            "files": people.files if people else None,
            "report": status.update,
        }
        comparison = None if other is None else compare(captions, other, reference_captions, **settings)
        found = None if comparison else compare_systems(systems, reference_captions, **settings)
    results = [comparison.first, comparison.second] if comparison else list(found.results.values()) if found else []
    warnings = [*(people.warnings if people else ()), *results[0].warnings]
    for name, result in zip([*systems, against][1:], results[1:], strict=False):
        warnings += [f"{name}: {line}" for line in result.warnings if line not in results[0].warnings]
    for line in warnings:
        typer.echo(f"warning: {line}", err=True)
    if out:
        _write_table(out, results[0], captions)
    if json:
        whole = comparison or (found if found and len(results) > 1 else results[0])
        typer.echo(json_format.dumps(whole.to_dict() | {"warnings": warnings}, ensure_ascii=False, allow_nan=False))
    elif table and found:
        typer.echo(tables.table(found, table))
    elif found and len(results) > 1:
        _show_systems(found)
    else:
        show_result(results[0], comparison)


def _captioner(name_or_folder: str) -> Captioner:
    from meshcap.captioner import Captioner  # here: the other metrics need no torch

    captioner = Captioner.from_pretrained(name_or_folder)
    if not captioner.reads_pictures:
        raise MeshcapError(f"{name_or_folder} has no vision of its own, and PMI is of pictures: use another model")
    captioner.optimize()
    return captioner


def _names(files: list[Path]) -> dict[str, Path]:
    """Systems by the names of their files, by their paths where two are called the same."""
    stems = [path.name.split(".")[0] or path.name for path in files]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in files]
    if len(set(names)) < len(names):
        raise MeshcapError(f"{max(names, key=names.count)} was given twice")
    return dict(zip(names, files, strict=True))


def _show_systems(found: Systems) -> None:
    from rich.console import Console

    from meshcap.metrics.table import marked, notes

    first = next(iter(found.results.values()))
    table = _table("Scores × 100 (CIDEr is CIDEr-D)", ("metric", *found.results))
    for metric in first.scores:
        cells = []
        for name, result in found.results.items():
            star = "*" if marked(found.differences.get(name, {}).get(metric)) else ""
            ends = result.intervals.get(metric)
            span = f" ({_span(ends)})" if ends else ""
            cells.append(f"{100 * result.scores[metric]:.2f}{star}{span}")
        table.add_row(metric, *cells)
    console = Console()
    console.print(table)
    console.print(_habits(found.results))
    for line in notes(found):
        typer.echo(line)


def show_result(result: Result, comparison: Comparison | None = None) -> None:
    """Tables for a person."""
    from rich.console import Console

    console = Console()
    console.print(_differences(comparison) if comparison else _scores(result))
    if result.domains:
        console.print(_domains(result))
    console.print(_habits({"A": result, "B": comparison.second} if comparison else {"": result}))
    typer.echo(result.signature)


def _scores(result: Result) -> Table:
    table = _table("Scores × 100 (CIDEr is CIDEr-D)", ("metric", "score", "95 % interval"))
    for name, value in result.scores.items():
        table.add_row(name, f"{100 * value:.2f}", _span(result.intervals.get(name)))
    return table


def _differences(found: Comparison) -> Table:
    head = ("metric", "A", "95 % interval", "B", "A − B", "95 % interval", "p")
    table = _table("Scores × 100 (CIDEr is CIDEr-D), pictures resampled together", head)
    for name, apart in found.differences.items():
        mine, other = found.first.scores[name], found.second.scores[name]
        table.add_row(
            name,
            f"{100 * mine:.2f}",
            _span(found.first.intervals.get(name)),
            f"{100 * other:.2f}",
            f"{100 * apart.value:+.2f}",
            _span(apart.interval, "+"),
            "" if apart.p is None else f"{apart.p:.3f}",
        )
    return table


def _domains(result: Result) -> Table:
    heads = [f"{name} ({part['pictures']:,})" for name, part in result.domains.items()]
    table = _table("Scores × 100 by domain", ("metric", *heads))
    for name in result.scores:
        table.add_row(name, *(f"{100 * part['scores'][name]:.2f}" for part in result.domains.values()))
    return table


def _habits(results: dict[str, Result]) -> Table:
    table = _table("What is said", ("", *results))
    names = dict.fromkeys(name for result in results.values() for name in result.diversity)
    for name in names:
        table.add_row(name, *(_habit(name, result.diversity.get(name)) for result in results.values()))
    return table


def _habit(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.startswith(COUNTED):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"
    return f"{value:.3f}" if name in SCORES else f"{100 * value:.1f} %"


def _table(title: str, heads: Iterable[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    return table


def _span(ends: tuple[float, float] | None, sign: str = "") -> str:
    return "" if ends is None else f"{100 * ends[0]:{sign}.2f} – {100 * ends[1]:{sign}.2f}"


def _write_table(path: Path, result: Result, captions: dict[str, list[str]]) -> None:
    from meshcap.files import write_file

    def write(part: Path) -> None:
        with open(part, "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["id", "caption", *result.scores])
            for id, scores in result.per_image.items():
                rows.writerow([id, captions[id][0], *("" if value is None else value for value in scores.values())])

    write_file(path, write)
