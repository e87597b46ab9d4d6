"""`meshcap import-reference`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshcap.files import expect_free, new_folder


def import_reference(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint of the public M² implementation (.pth).")],
    vocab: Annotated[Path, typer.Option(help="Its vocabulary: vocab.pkl, or a JSON or text list of words.")],
    out: Annotated[Path, typer.Option(help="The model folder to make.")],
    regions: Annotated[int, typer.Option(min=1, help="How many regions its pictures were filled up to.")] = 50,
    head_width: Annotated[int, typer.Option(min=1, help="Numbers of an attention head.")] = 64,
) -> None:
    """Turn a public M² checkpoint and its vocabulary into a model folder.

    Nothing in the files is executed.

    Example: meshcap import-reference meshed_memory_transformer.pth --vocab vocab.pkl --out m2-public
    """
    expect_free(out)
    from meshcap.captioner import Captioner
    from meshcap.models.reference import read_reference
    from meshcap.text.vocabulary_import import read_vocabulary

    words = read_vocabulary(vocab)
    captioner = Captioner(read_reference(checkpoint, regions=regions, d_head=head_width), words)
    with new_folder(out) as part:
        captioner.save_pretrained(part)
    weights = sum(p.numel() for p in captioner.model.parameters())
    typer.echo(f"{out}: M² with {weights / 1e6:.1f} M weights and {len(words):,} words")
