"""`meshcap quantise`."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.captioner import Captioner
    from meshcap.folders import Bits


def quantise(
    model: Annotated[str, typer.Argument(help="A model folder, a run, or a name on the Hugging Face hub.")],
    out: Annotated[Path, typer.Argument(help="The model folder to make.")],
    bits: Annotated[Literal["8", "16"], typer.Option(help="Bits of a weight: a quarter or half of the size.")] = "8",
) -> None:
    """Make a captioner's files smaller: weights of 8 or 16 bits instead of 32.

    The new folder is used like any other one.

    Example: meshcap quantise my-captioner my-small-captioner
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeshcapError(f"{out} exists and is not an empty folder: choose another one")
    from meshcap.captioner import VOCABULARY, Captioner, load_calibration
    from meshcap.folders import VISION_FOLDER, WEIGHTS, find_file
    from meshcap.models import load_model
    from meshcap.text import Vocabulary
    from meshcap.vision import load_vision
    from meshcap.weights import largest_error, stored

    width: Bits = 8 if bits == "8" else 16
    # Not as Captioner.from_pretrained reads it: weights that are laid out for the CPU cannot be written.
    words = Vocabulary.load(find_file(model, VOCABULARY))
    captioner = Captioner(load_model(model), words, load_vision(model), load_calibration(model))
    write_whole(out, captioner, width, card=Path(model) / "README.md")
    before, after, worst = 0, 0, 0.0
    for network, file in ((captioner.model, WEIGHTS), (captioner.vision, f"{VISION_FOLDER}/{WEIGHTS}")):
        if network is not None and (weights := stored(network)):  # some eyes have none
            before += find_file(model, file).stat().st_size
            after += (out / file).stat().st_size
            worst = max(worst, largest_error(weights, stored(network, width)))
    typer.echo(
        f"{out}: {before / 1e6:.2f} MB of weights before, {after / 1e6:.2f} MB in {bits} bits; "
        f"largest error {worst:.2%} of the largest weight beside it"
    )


def write_whole(out: Path, captioner: Captioner, bits: Bits, *, card: Path) -> None:
    """The folder appears whole or not at all: written under another name, then renamed."""
    place = out.resolve()
    part = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    try:
        captioner.save_pretrained(part, bits=bits)
        if card.is_file():
            shutil.copyfile(card, part / card.name)
        if place.exists():
            place.rmdir()
        part.rename(place)
    except OSError as error:
        raise MeshcapError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
