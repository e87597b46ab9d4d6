"""`meshcap caption`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.captioner import Caption
    from meshcap.decoding import Strategy


def caption(
    paths: Annotated[list[Path], typer.Argument(help="Region features: .npy, .npz or .safetensors, one a picture.")],
    model: Annotated[str, typer.Option(help="A model folder, or a name on the Hugging Face hub.")],
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of a beam search; 1 is greedy.")] = 5,
    groups: Annotated[int, typer.Option(min=1, help="Groups of beams that avoid each other's words.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample: below 1 bolder, above 1 wilder.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Of --sample: among the k likeliest words; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Of --sample: among the likeliest words that reach p.")] = 1.0,
    n_best: Annotated[int, typer.Option(min=1, help="Captions of each picture.")] = 1,
    max_length: Annotated[int, typer.Option(min=1, help="Most words, the end counted as one.")] = 20,
    min_length: Annotated[int, typer.Option(min=1, help="Fewest words, the end counted as one.")] = 2,
    length_penalty: Annotated[float, typer.Option(help="Compare scores / length ** this.")] = 0.0,
    mention: Annotated[
        list[str] | None, typer.Option(help="Must appear; alternatives by |, as in 'dog|puppy'.")
    ] = None,
    avoid: Annotated[list[str] | None, typer.Option(help="Must not appear.")] = None,
    no_repeat_ngram: Annotated[int, typer.Option(min=0, help="No so many words in a row twice.")] = 0,
    good_endings: Annotated[bool, typer.Option("--good-endings", help="Never end in 'a', 'of', 'with' …")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = None,
    json: options.Json = False,
) -> None:
    """Write a sentence for each picture.

    Example: meshcap caption features/*.npy --model m2-public --n-best 3
    """
    from meshcap.captioner import Captioner
    from meshcap.data.features import read_features
    from meshcap.decoding import Beam, DiverseBeam, Sample
    from meshcap.regions import Regions

    where, precision = options.apply(device, dtype, threads, seed)
    strategy: Strategy
    if sample:
        if mention:
            raise MeshcapError("--mention needs a beam search: leave out --sample")
        strategy = Sample(max(n_best, 1), temperature, top_k, top_p, 0 if seed is None else seed)
    elif groups > 1:
        strategy = DiverseBeam(max(beams, n_best), groups, length_penalty=length_penalty)
    else:
        strategy = Beam(max(beams, n_best), length_penalty)
    pairs = [read_features(path) for path in paths]
    boxes = [b for _, b in pairs if b is not None]
    if boxes and len(boxes) < len(pairs):
        raise MeshcapError(f"{len(boxes)} of {len(pairs)} files have boxes: expected all or none")
    captioner = Captioner.from_pretrained(model, device=where, dtype=precision)
    captions = captioner.caption(
        Regions.collate([features for features, _ in pairs], boxes or None),
        strategy=strategy,
        n_best=n_best,
        max_length=max_length,
        min_length=min_length,
        mention=[one.split("|") for one in mention or []],
        avoid=avoid or [],
        no_repeat_ngram=no_repeat_ngram,
        good_endings=good_endings,
    )
    for path, found in zip(paths, captions, strict=True):
        if json:
            typer.echo(json_format.dumps({"file": str(path), **as_json(found)}, ensure_ascii=False))
        else:
            for one in (found, *found.alternatives):
                typer.echo(f"{path}\t{one.confidence:.2f}\t{one.text}")


def as_json(found: Caption) -> dict[str, Any]:
    """What a program may want to know of a caption."""
    told: dict[str, Any] = {
        "caption": found.text,
        "confidence": found.confidence,
        "score": found.score,
        "words": found.words,
        "log_probs": found.log_probs,
        "finished": found.finished,
        "missing": found.missing,
    }
    if found.alternatives:
        told["alternatives"] = [as_json(one) for one in found.alternatives]
    return told
