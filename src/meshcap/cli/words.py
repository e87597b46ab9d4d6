"""`meshcap words`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshcap.cli import options
from meshcap.cli.variants import check, compare
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import torch

    from meshcap.captioner import Captioner
    from meshcap.data import Sample
    from meshcap.training.unsaid_words import Heard


def words(
    model: Annotated[str, typer.Argument(help="A model folder, or default.")],
    heard: Annotated[str, typer.Argument(help="Pictures to listen on, which it did not learn from.")],
    limits: Annotated[
        str, typer.Option(help="How far unsaid words are raised at most; 0: not at all; several to compare them.")
    ] = "3",
    heard_split: Annotated[str, typer.Option(help="Which part of HEARD.")] = "val",
    data: Annotated[str | None, typer.Option(help="Pictures with captions to compare limits by.")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "val",
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the model with this limit into a new folder.")] = None,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of the beam search; 1 is greedy.")] = 5,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Raise the words that a model nearly says and never does: what it then says and scores.

    The model captions the pictures of HEARD. Each word that it never says, and that lacked no more than the limit to
    be the likeliest somewhere, gets a number of its own that is added to its logit: just enough for that place. A model
    that has such numbers already gets new ones instead, as if it had none; limit 0 takes them away.

    Example: meshcap words run my-pictures.jsonl --data my-pictures.jsonl --limits 0,2,3,4
    """
    from meshcap.cli.quantise import write_whole
    from meshcap.data import read_dataset
    from meshcap.training.blend import unpacked
    from meshcap.training.unsaid_words import with_word_bias

    chosen = read_limits(limits)
    check(chosen, data, out, what="limits")
    where, precision = options.apply(device, dtype, threads, None)
    captioner = unpacked(model)
    samples = read_dataset(heard, pictures=pictures).split(heard_split)
    found = _heard(captioner, samples, beams, where, quiet=json)
    biases = [found.bias(limit) for limit in chosen]
    if out is not None:
        raised = biases[0][biases[0] > 0]
        other = with_word_bias(captioner, biases[0] if len(raised) else None)
        write_whole(out, other, 32, card=Path(model) / "README.md")
        by = f" by {raised.mean():.2f} on average" if len(raised) else ""
        typer.echo(f"{out}: {model}, {len(raised):,} of {len(biases[0]):,} words raised{by}", err=json)
    if data is not None:
        # A copy at a time, in float32 until it is compared.
        variants = ((limit, with_word_bias(captioner, bias)) for limit, bias in zip(chosen, biases, strict=True))
        compare(variants, data, split, pictures, beams, where, precision, varied="limit", json=json)


def read_limits(text: str) -> list[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one < float("inf") for one in found):
        raise MeshcapError(f"--limits {text!r}: expected numbers of at least 0 with commas between them")
    return found


def _heard(captioner: Captioner, samples: list[Sample], beams: int, device: torch.device, *, quiet: bool) -> Heard:
    from rich.console import Console
    from rich.progress import Progress

    from meshcap.training.unsaid_words import listen

    for part in (captioner.model, captioner.vision):
        if part is not None:
            part.to(device)
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("listening", total=None)
        return listen(
            captioner,
            samples,
            beams=beams,
            tell=lambda done, total: progress.update(task, completed=done, total=total),
        )
