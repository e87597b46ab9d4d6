"""What `meshcap caption` is asked to look at, and the captions of it, one after the other."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshcap.batch.inputs import list_pictures
from meshcap.data.shards import TarSource
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.caption import Caption
    from meshcap.captioner import Captioner
    from meshcap.options import CaptionOptions


class StandardInput(io.BytesIO):
    """A picture that came through a pipe."""

    name = "standard input"  # in messages

    def __str__(self) -> str:
        return "-"


Asked = str | TarSource | StandardInput
Told = tuple[Any, "Caption | MeshcapError"]


def sources(names: Sequence[str]) -> tuple[list[Asked], bool]:
    """Pictures in order, each once, listed as `meshcap batch` lists them; and whether one picture alone was named.

    A file that is missing among others is reported later, as a broken one is.

    Raises:
        MeshcapError: a folder without pictures, a pattern that matches nothing, no file at all, standard input without
            a picture or given twice.
    """
    if names.count("-") > 1:
        raise MeshcapError("- was given twice, and standard input holds one picture")
    found: list[Asked] = []
    pipe = [names.index("-")] if "-" in names else []
    parts = [names[: pipe[0]], names[pipe[0] + 1 :]] if pipe else [names]
    for number, part in enumerate(parts):
        if number:
            found.append(piped())
        found += [picture.source() or picture.path for picture in list_pictures(part, allow_missing=True)]
    if not any(not isinstance(one, str) or os.path.exists(one) for one in found):
        raise MeshcapError(f"{found[0]} is not a file: expected pictures, folders of them, or - for standard input")
    return found, len(names) == len(found) == 1 and str(found[0]) == names[0]


def piped() -> StandardInput:
    if sys.stdin.isatty():
        raise MeshcapError("- reads a picture from standard input: send one, as in `meshcap caption - < photo.jpg`")
    content = sys.stdin.buffer.read()
    if not content:
        raise MeshcapError("standard input is empty, expected the bytes of a picture")
    return StandardInput(content)


def told(
    captioner: Captioner, asked: Sequence[Any], batch: int, wanted: CaptionOptions
) -> Generator[Told, None, None]:
    """Every source with its caption, or with why there is none, as soon as it is known.

    Raises:
        MeshcapError: pictures and features at once, features that do not fit, or options that have no sense.
    """
    from meshcap.data.features import SUFFIXES

    features = [Path(one) for one in asked if isinstance(one, str) and one.endswith(tuple(SUFFIXES))]
    if features and len(features) < len(asked):
        raise MeshcapError(f"{features[0]} holds region features and others are pictures: expected one kind")
    if features:
        yield from of_features(captioner, features, batch, wanted)
        return
    if not captioner.reads_pictures:
        raise MeshcapError(
            f"this model reads region features and cannot look at {asked[0]}: expected {', '.join(SUFFIXES)}"
        )
    yield from captioner.stream(asked, wanted, batch_size=batch)


def of_features(
    captioner: Captioner, files: Sequence[Path], batch: int, wanted: CaptionOptions
) -> Generator[Told, None, None]:
    """The same for region features that somebody computed before."""
    from meshcap.data.features import read_features
    from meshcap.regions import Regions

    for start in range(0, len(files), batch):
        block = files[start : start + batch]
        read: list[Any] = []
        for path in block:
            try:
                read.append(read_features(path))
            except MeshcapError as error:
                read.append(error)
        good = [one for one in read if not isinstance(one, MeshcapError)]
        boxes = [b for _, b in good if b is not None]
        if boxes and len(boxes) < len(good):
            raise MeshcapError(f"{len(boxes)} of {len(good)} files have boxes: expected all or none")
        regions = Regions.collate([features for features, _ in good], boxes or None) if good else None
        captions = iter([] if regions is None else captioner.describe(regions, wanted))
        for path, one in zip(block, read, strict=True):
            yield path, one if isinstance(one, MeshcapError) else next(captions)
