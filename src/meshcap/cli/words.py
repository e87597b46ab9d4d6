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
    from meshcap.training.rare_words import WordUse


def words(
    model: Annotated[str, typer.Argument(help="A model folder, or default.")],
    captions: Annotated[str, typer.Argument(help="Pictures with captions that it learned from.")],
    strengths: Annotated[
        str, typer.Option(help="How far rare words are raised; 0: not at all; several to compare them.")
    ] = "1",
    rare: Annotated[float, typer.Option(help="Words are rare below this share of all that people say.")] = 3e-4,
    count: Annotated[int, typer.Option(help="Pictures that the model's own words are measured on.")] = 1000,
    train_split: Annotated[str, typer.Option(help="Which part of CAPTIONS.")] = "train",
    train_pictures: Annotated[
        Path | None, typer.Option(help="Where the pictures of CAPTIONS are.", show_default="--pictures")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Pictures with captions to compare strengths by.")] = None,
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "val",
    pictures: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the captions.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the model with this strength into a new folder.")] = None,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of the beam search; 1 is greedy.")] = 5,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Give a model back the rare words that self-critical training took: what it then says and scores.

    Each rare word's logit gets a number of its own. A model that has such numbers already gets new ones instead, as
    if it had none; strength 0 takes them away.

    Example: meshcap words run my-pictures.jsonl --data my-pictures.jsonl --strengths 0,0.5,1,1.5
    """
    from meshcap.cli.quantise import write_whole
    from meshcap.data import read_dataset
    from meshcap.training.blend import unpacked
    from meshcap.training.rare_words import with_rare_words

    chosen = read_strengths(strengths)
    check(chosen, data, out, what="strengths")
    if not 0 <= rare <= 1:
        raise MeshcapError(f"--rare {rare:g}: expected a share from 0 to 1")
    if count < 1:
        raise MeshcapError(f"--count {count}: expected at least one picture")
    where, precision = options.apply(device, dtype, threads, None)
    captioner = unpacked(model)
    samples = read_dataset(captions, pictures=train_pictures or pictures).split(train_split)
    use = _measured(captioner, samples, count, where, quiet=json)
    biases = [use.bias(strength, rare) for strength in chosen]
    if out is not None:
        raised = biases[0][biases[0] > 0]
        other = with_rare_words(captioner, biases[0] if len(raised) else None)
        write_whole(out, other, 32, card=Path(model) / "README.md")
        by = f" by {raised.mean():.2f} on average" if len(raised) else ""
        typer.echo(f"{out}: {model}, {len(raised):,} of {len(biases[0]):,} words raised{by}", err=json)
    if data is not None:
        # A copy at a time, in float32 until it is compared.
        variants = ((strength, with_rare_words(captioner, bias)) for strength, bias in zip(chosen, biases, strict=True))
        compare(variants, data, split, pictures, beams, where, precision, varied="strength", json=json)


def read_strengths(text: str) -> list[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one < float("inf") for one in found):
        raise MeshcapError(f"--strengths {text!r}: expected numbers of at least 0 with commas between them")
    return found


def _measured(captioner: Captioner, samples: list[Sample], count: int, device: torch.device, *, quiet: bool) -> WordUse:
    from rich.console import Console
    from rich.progress import Progress

    from meshcap.training.rare_words import measure

    for part in (captioner.model, captioner.vision):
        if part is not None:
            part.to(device)
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("reading captions", total=None)
        return measure(
            captioner,
            samples,
            count=count,
            tell=lambda done, total: progress.update(task, completed=done, total=total),
        )
