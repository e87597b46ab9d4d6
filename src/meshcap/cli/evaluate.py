"""`meshcap evaluate`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError


def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder, a run, or a name on the Hugging Face hub.")],
    data: Annotated[str, typer.Argument(help="Pictures with captions: a folder, a file or a pattern.")],
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder for captions, scores and report.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of the beam search; 1 is greedy.")] = 5,
    max_length: Annotated[int, typer.Option(min=2, help="Most words, the end counted as one.")] = 20,
    metrics: Annotated[str, typer.Option(help="As of meshcap score: bleu, ROUGE-L, CIDEr, METEOR, …")] = "",
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples for the 95 % intervals; 0: none.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures captioned together.")] = 64,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Caption a split, score the captions as the field does, and write a report.

    Example: meshcap evaluate my-captioner my-pictures.jsonl --split test --out evaluation
    """
    from rich.console import Console
    from rich.progress import Progress

    from meshcap.bench.measure import machine
    from meshcap.captioner import Captioner
    from meshcap.cli.score import show_result
    from meshcap.data import read_dataset
    from meshcap.data.truth import truth_lines, truths
    from meshcap.decoding import Beam
    from meshcap.evaluation.page import ReportContent, write_report
    from meshcap.metrics.names import DEFAULT
    from meshcap.training.examine import caption_samples, graded
    from meshcap.training.finish import cards, write_captions, write_json
    from meshcap.vision.precomputed import open_features

    where, precision = options.apply(device, dtype, threads, None)
    samples = read_dataset(data, pictures=pictures).split(split)
    captioner = Captioner.from_pretrained(model, device=where, dtype=precision)
    store = None if features is None else open_features(features)
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MeshcapError(f"{out} cannot be made: {error.strerror}") from error
    console = Console(stderr=True)
    with Progress(console=console, disable=json or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(f"captioning {split}", total=len(samples))
        captions = caption_samples(
            captioner,
            samples,
            store,
            batch=batch_size,
            tell=lambda done, total: progress.update(task, completed=done),
            strategy=Beam(beams),
            max_length=min(max_length, captioner.model.config.max_length),
        )
    names = [name for name in metrics.split(",") if name] or DEFAULT
    exam = graded(samples, captions, tokenizer=captioner.vocabulary.tokenizer, metrics=names, bootstrap=bootstrap)
    truth = truths(samples, (" ".join(caption.words) for caption in captions))  # None of pictures that were not drawn
    told = exam.result.to_dict() | ({} if truth is None else {"truth": truth})
    truth_told = [] if truth is None else truth_lines(truth)
    if json:
        typer.echo(json_format.dumps(told))
    else:
        show_result(exam.result)
        for what, value in truth_told:
            typer.echo(f"{what}: {value}")
    if out is not None:
        write_captions(out / f"captions-{split}.json", samples, exam)
        write_json(out / f"scores-{split}.json", told)
        facts = [
            ("model", model),
            ("data", f"{data}, {split}: {len(samples):,} pictures"),
            ("search", f"beam {beams}, {precision}".replace("torch.", "")),
            ("machine", machine(where)),
            *truth_told,
        ]
        write_report(
            out / f"report-{split}.html",
            ReportContent(
                title=f"{Path(model).name} on {Path(data).name}, {split}",
                facts=facts,
                results={split: exam.result},
                samples=cards(samples, exam),
            ),
        )
        if not json:
            typer.echo(f"see {out / f'report-{split}.html'}")
