"""`meshcap caption`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import CaptionOptions

if TYPE_CHECKING:
    from meshcap.caption import Caption
    from meshcap.captioner import Captioner

MANY = 8  # pictures that are worth a progress bar


@options.caption_options()
def caption(
    pictures: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURES...",
            help="Pictures, folders, patterns, tar shards, lists of paths (.csv, .tsv, .parquet, .txt), - for one "
            "picture from standard input; or region features (.npy, .npz, .safetensors).",
            show_default=False,
        ),
    ],
    model: options.Model = "default",
    memory: options.Memory = None,
    confidence: Annotated[bool, typer.Option("--confidence", help="Also print the confidence of captions.")] = False,
    allow_urls: Annotated[bool, typer.Option("--allow-urls", help="Fetch pictures from public web addresses.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Also draw the pictures, in a terminal with colours.")] = False,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
    **given: Any,
) -> None:
    """Write a sentence for each picture.

    Of one picture just the sentence; of several a line each: the path, a tab, the sentence. With --json, each line is
    an object. Pictures that cannot be read are reported at the end, on stderr; the others are captioned, and the exit
    code is 1.

    Example: meshcap caption photo.jpg holiday/ --n 3
    """
    if show and json:
        raise MeshcapError("--show is for people and --json for programs: leave one out")
    wanted = CaptionOptions.parse(given)
    sources, alone = list_sources(pictures, allow_urls=allow_urls)

    from meshcap.cli.caption_output import CaptionPrinter, print_gallery

    captioner = options.load_captioner(model, device, dtype, threads)
    options.attach_memory(captioner, memory, own=True)
    printer = CaptionPrinter(json, alone, confidence, wanted.min_confidence, captioner.calibration is not None)
    if show:
        batch_size = 1  # so that the time beside each picture is its own
    with closing(captions(captioner, sources, wanted, batch_size)) as results:
        if not (show and print_gallery(results, printer)):
            for source, result in with_progress(results, len(sources)):
                printer.add(source, result)
    if printer.finish():
        raise typer.Exit(1)


class StandardInput(io.BytesIO):
    """A picture that came through a pipe."""

    name = "standard input"  # in messages

    def __str__(self) -> str:
        return "-"


@dataclass(frozen=True)
class WebPicture:
    """A picture at a web address, fetched when it is captioned."""

    url: str

    def read(self) -> bytes:
        from meshcap.serving.fetch import Fetcher
        from meshcap.serving.limits import Limits

        return Fetcher(Limits().bytes)(self.url)

    def __str__(self) -> str:
        return self.url


def list_sources(names: Sequence[str], *, allow_urls: bool = False) -> tuple[list[Any], bool]:
    """Pictures in order, each once, listed as `meshcap batch` lists them; and whether one picture alone was named.

    A file that is missing among others is reported later, as a broken one is.

    Raises:
        MeshcapError: a folder without pictures, a pattern that matches nothing, no file at all, standard input without
            a picture or given twice.
    """
    from meshcap.batch.inputs import is_url, list_pictures

    if names.count("-") > 1:
        raise MeshcapError("- was given twice, and standard input holds one picture")
    sources: list[Any] = []
    for single, part in groupby(names, key=lambda name: name == "-" or is_url(name)):
        if not single:
            sources += [picture.source() or picture.path for picture in list_pictures([*part], allow_missing=True)]
            continue
        for name in part:
            if name != "-" and not allow_urls:
                raise MeshcapError(f"{name} is a web address, and nothing is fetched: --allow-urls allows it")
            sources.append(read_standard_input() if name == "-" else WebPicture(name))
    if all(isinstance(one, str) and not os.path.exists(one) for one in sources):
        raise MeshcapError(f"{sources[0]} is not a file: expected pictures, folders of them, or - for standard input")
    return sources, len(names) == len(sources) == 1 and str(sources[0]) == names[0]


def read_standard_input() -> StandardInput:
    if sys.stdin.isatty():
        raise MeshcapError("- reads a picture from standard input: send one, as in `meshcap caption - < photo.jpg`")
    content = sys.stdin.buffer.read()
    if not content:
        raise MeshcapError("standard input is empty, expected the bytes of a picture")
    return StandardInput(content)


def captions(
    captioner: Captioner, sources: Sequence[Any], wanted: CaptionOptions, batch_size: int | None
) -> Generator[tuple[Any, Caption | MeshcapError], None, None]:
    """Every source with its caption, or with why there is none, as soon as it is known."""
    from meshcap.data.features import SUFFIXES

    features = [one for one in sources if isinstance(one, str) and one.endswith(tuple(SUFFIXES))]
    if features and len(features) < len(sources):
        raise MeshcapError(f"{features[0]} holds region features and others are pictures: expected one kind")
    if features:
        return of_features(captioner, features, wanted, batch_size or captioner.batch_size)
    if not captioner.reads_pictures:
        raise MeshcapError(
            f"this model reads region features and cannot see {sources[0]}: expected {', '.join(SUFFIXES)}"
        )
    return captioner.stream(sources, wanted, batch_size=batch_size)


def of_features(
    captioner: Captioner, paths: Sequence[str], wanted: CaptionOptions, batch_size: int
) -> Generator[tuple[Any, Caption | MeshcapError], None, None]:
    """The same for files of region features."""
    from pathlib import Path

    from meshcap.data.features import read_features
    from meshcap.regions import Regions

    for start in range(0, len(paths), batch_size):
        read: list[Any] = []
        for path in paths[start : start + batch_size]:
            try:
                read.append(read_features(Path(path)))
            except MeshcapError as error:
                read.append(error)
        good = [one for one in read if not isinstance(one, MeshcapError)]
        boxes = [box for _, box in good if box is not None]
        if boxes and len(boxes) < len(good):
            raise MeshcapError(f"{len(boxes)} of {len(good)} files have boxes: expected all or none")
        regions = Regions.collate([features for features, _ in good], boxes or None) if good else None
        found = iter([] if regions is None else captioner.describe(regions, wanted))
        for path, one in zip(paths[start : start + batch_size], read, strict=True):
            yield path, one if isinstance(one, MeshcapError) else next(found)


def with_progress(results: Iterable[Any], total: int) -> Iterable[Any]:
    """With a bar on stderr, for many pictures, where stderr is a terminal and captions go elsewhere."""
    if total < MANY or not sys.stderr.isatty() or sys.stdout.isatty():
        return results
    from rich.console import Console
    from rich.progress import track

    return track(results, "captions", total, console=Console(stderr=True))
