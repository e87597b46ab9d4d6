"""`meshcap words`."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from meshcap.cli import options
from meshcap.cli.variants import check, compare
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import torch

    from meshcap.captioner import Captioner
    from meshcap.data import Dataset, Sample
    from meshcap.training.heard import Heard


def words(
    model: Annotated[str, typer.Argument(help="A model folder, or default.")],
    heard: Annotated[str, typer.Argument(help="Pictures with captions to listen on.")],
    limits: Annotated[
        str, typer.Option(help="How far words are raised at most; 0: not at all; several to compare them.")
    ] = "3",
    price: Annotated[float, typer.Option(help="What a word is paid for: the higher, the fewer are raised.")] = 0.5,
    heard_split: Annotated[str, typer.Option(help="Which parts of HEARD, with commas between them.")] = "val",
    heard_pictures: Annotated[int | None, typer.Option(min=1, help="Of each part at most so many, drawn.")] = None,
    strength: Annotated[
        float, typer.Option(min=0, max=1, help="Share of what words lack that they get.", show_default="all of it")
    ] = 1.0,
    more: Annotated[bool, typer.Option("--more", help="On top of what was raised before, instead of anew.")] = False,
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
    """Raise the words that a model nearly says and hardly does: what it then says and scores.

    The model captions the pictures of HEARD. A word that it hardly says, and that came near somewhere, gets a number of
    its own that is added to its logit: as much as the places need where it came nearest, if people say the word of
    enough of those pictures to be worth its price. A model that has such numbers already gets new ones instead, as if
    it had none, and limit 0 takes them away; with --more they are added to those that it has, as one needs that was
    trained on with them. Training on needs less than saying: with --strength 0.75 words are drawn now and then, and
    self-critical training learns where they are right.

    Example: meshcap words run my-pictures.jsonl --data my-pictures.jsonl --limits 0,2,3,4
    """
    from meshcap.cli.quantise import write_whole
    from meshcap.data import read_dataset
    from meshcap.training.blend import unpacked
    from meshcap.training.unsaid_words import with_word_bias, word_bias

    chosen = read_limits(limits)
    if not 0 <= price < float("inf"):
        raise MeshcapError(f"--price {price}: expected a number of at least 0")
    parts = [part.strip() for part in heard_split.split(",")]
    check(chosen, data, out, what="limits")
    where, precision = options.apply(device, dtype, threads, None)
    captioner = unpacked(model)
    dataset = read_dataset(heard, pictures=pictures)
    found = _heard(captioner, dataset, parts, heard_pictures, beams, where, more=more, quiet=json)
    before = word_bias(captioner) if more else 0.0
    biases = [before + strength * found.bias(limit, price) for limit in chosen]
    if out is not None:
        raised = (biases[0] - before)[biases[0] > before]
        other = with_word_bias(captioner, biases[0] if biases[0].any() else None)
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


def _heard(
    captioner: Captioner,
    dataset: Dataset,
    parts: list[str],
    most: int | None,
    beams: int,
    device: torch.device,
    *,
    more: bool,
    quiet: bool,
) -> Heard:
    from rich.console import Console
    from rich.progress import Progress

    from meshcap.training.captions import tokenized
    from meshcap.training.unsaid_words import follows, listen

    samples: list[Sample] = []
    for part in parts:
        of_part = dataset.split(part)
        if most is not None and most < len(of_part):
            of_part = [of_part[at] for at in sorted(Random(0).sample(range(len(of_part)), most))]
        samples += of_part
    learned = dataset.split("train") if dataset.counts().get("train") else []
    people = {sample.id: sample for sample in (*learned, *samples)}  # each once: a part may be train
    may_follow = follows(tokenized(list(people.values()), "ptb"), captioner.vocabulary)
    for part_of_it in (captioner.model, captioner.vision):
        if part_of_it is not None:
            part_of_it.to(device)
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("listening", total=None)
        return listen(
            captioner,
            samples,
            may_follow=may_follow,
            beams=beams,
            more=more,
            tell=lambda done, total: progress.update(task, completed=done, total=total),
        )
