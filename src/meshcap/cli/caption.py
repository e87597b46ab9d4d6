"""`meshcap caption`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.captioner import Caption, Captioner
    from meshcap.decoding import Strategy
    from meshcap.regions import Regions

BATCH = 16  # pictures captioned together: captions begin to appear soon


def caption(
    paths: Annotated[
        list[Path], typer.Argument(help="Pictures, folders of them, or region features (.npy, .npz, .safetensors).")
    ],
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

    A picture that cannot be read is told on stderr, the others are captioned, and the exit code is 2.

    Example: meshcap caption holiday/*.jpg --model my-captioner --n-best 3
    """
    from meshcap.captioner import Captioner
    from meshcap.decoding import Beam, DiverseBeam, Sample

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
    files = spread(paths)
    captioner = Captioner.from_pretrained(model, device=where, dtype=precision)
    wishes: dict[str, Any] = {
        "strategy": strategy,
        "n_best": n_best,
        "max_length": max_length,
        "min_length": min_length,
        "mention": [one.split("|") for one in mention or []],
        "avoid": avoid or [],
        "no_repeat_ngram": no_repeat_ngram,
        "good_endings": good_endings,
    }
    broken = 0
    for start in range(0, len(files), BATCH):
        block = files[start : start + BATCH]
        regions, readable, complaints = seen(captioner, block)
        for line in complaints:
            typer.echo(f"error: {line}", err=True)
        broken += len(complaints)
        captions = captioner.describe(regions, **wishes) if regions is not None else []
        for path, found in zip(readable, captions, strict=True):
            if json:
                typer.echo(json_format.dumps({"file": str(path), **as_json(found)}, ensure_ascii=False))
            else:
                for one in (found, *found.alternatives):
                    typer.echo(f"{path}\t{one.confidence:.2f}\t{one.text}")
    if broken:
        raise typer.Exit(2)


def spread(paths: list[Path]) -> list[Path]:
    """Files, and the pictures inside folders, by name."""
    from meshcap.vision.pictures import is_picture_path

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
        elif inside := sorted(one for one in path.iterdir() if one.is_file() and is_picture_path(one)):
            found += inside
        else:
            raise MeshcapError(f"{path} is a folder without pictures: expected pictures, or a folder of them")
    return found


def seen(captioner: Captioner, files: list[Path]) -> tuple[Regions | None, list[Path], list[str]]:
    """Regions of what can be read, whose they are, and a line about each of the others."""
    from meshcap.data.features import SUFFIXES, read_features
    from meshcap.regions import Regions
    from meshcap.vision.pictures import read_picture

    precomputed = [path for path in files if path.suffix in SUFFIXES]
    if precomputed and len(precomputed) < len(files):
        raise MeshcapError(f"{precomputed[0]} holds region features and others are pictures: expected one kind")
    if not precomputed and captioner.vision is None:
        raise MeshcapError(
            f"this model reads region features and cannot look at {files[0]}: expected {', '.join(SUFFIXES)}"
        )
    found: list[Any] = []
    readable: list[Path] = []
    complaints: list[str] = []
    for path in files:
        try:
            if precomputed:
                found.append(read_features(path))
            else:
                assert captioner.vision is not None
                found.append(read_picture(path, at_least=captioner.vision.preprocess.size))
            readable.append(path)
        except MeshcapError as error:
            complaints.append(str(error))
    if not found:
        return None, [], complaints
    if not precomputed:
        return captioner.look(found), readable, complaints
    boxes = [b for _, b in found if b is not None]
    if boxes and len(boxes) < len(found):
        raise MeshcapError(f"{len(boxes)} of {len(found)} files have boxes: expected all or none")
    return Regions.collate([features for features, _ in found], boxes or None), readable, complaints


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
