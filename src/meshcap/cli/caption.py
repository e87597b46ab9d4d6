"""`meshcap caption`."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions


def caption(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURES...",
            help="Pictures, folders, patterns, tar shards, lists of paths (.csv, .tsv, .parquet, .txt), - for one "
            "picture from standard input; or region features (.npy, .npz, .safetensors).",
            show_default=False,
        ),
    ],
    model: options.Model = "default",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Captions of each picture.")] = 1,
    beams: Annotated[
        int | None,
        typer.Option("--beams", min=1, help="Hypotheses of the search; 1 is greedy.", show_default="5"),
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="Groups of beams that avoid each other's words.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample: below 1 bolder, above 1 wilder.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Of --sample: among the k likeliest words; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Of --sample: among the likeliest words that reach p.")] = 1.0,
    must: Annotated[
        list[str] | None,
        typer.Option("--must", help="Must appear; alternatives by |, as in 'dog|puppy'."),
    ] = None,
    must_not: Annotated[list[str] | None, typer.Option("--must-not", help="Must not appear.")] = None,
    max_words: Annotated[
        int | None, typer.Option(min=1, help="Most words of a caption.", show_default="19, or what the model can say")
    ] = None,
    min_words: Annotated[int, typer.Option(min=1, help="Fewest words of a caption.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Compare scores / length ** this.")] = 0.0,
    no_repeat_ngram: Annotated[int, typer.Option(min=0, help="No so many words in a row twice.")] = 0,
    good_endings: Annotated[
        bool, typer.Option("--good-endings/--no-good-endings", help="Never end in 'a', 'of', 'with' …")
    ] = True,
    confidence: Annotated[bool, typer.Option("--confidence", help="Also say how far to trust each caption.")] = False,
    min_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Withhold captions that are trusted less.", show_default="none is withheld"),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Draw the pictures too, in a terminal with colours.")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = None,
    json: options.Json = False,
) -> None:
    """Write a sentence for each picture.

    Of one picture just the sentence; of several a line each: the path, a tab, the sentence. With --json, each line is
    an object. Pictures that cannot be read are told at the end, on stderr; the others are captioned, and the exit code
    is 1.

    Example: meshcap caption photo.jpg holiday/ --n 3
    """
    from meshcap.cli.caption_sources import sources, told

    if show and json:
        raise MeshcapError("--show is for people and --json for programs: leave one out")
    wanted = CaptionOptions.parse(
        n=n,
        strategy="sample" if sample else None,
        beams=beams,
        groups=groups if groups > 1 else None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        must=must,
        must_not=must_not,
        max_words=max_words,
        min_words=min_words,
        length_penalty=length_penalty,
        no_repeat_ngram=no_repeat_ngram,
        good_endings=good_endings,
    )
    asked, alone = sources(paths)

    from meshcap.captioner import Captioner
    from meshcap.cli.caption_lines import Lines, draw, watched

    where, precision = options.apply(device, dtype, threads, seed)
    captioner = Captioner.from_pretrained(model, device=where, dtype=precision, threads=threads).optimize()
    lines = Lines(
        json=json,
        alone=alone,
        confidence=confidence,
        least=min_confidence,
        calibrated=captioner.calibration is not None,
    )
    # Pictures that are drawn come one by one, so that the time beside each is its own.
    batch = 1 if show else captioner.batch_size
    with closing(told(captioner, asked, batch, wanted)) as captions:
        if not (show and draw(captions, lines)):
            for source, caption_or_error in watched(captions, len(asked)):
                lines.tell(source, caption_or_error)
    if lines.close():
        raise typer.Exit(1)
