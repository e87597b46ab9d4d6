"""What `meshcap caption` is asked to look at, and the captions of it, one after the other."""

from __future__ import annotations

import glob
import io
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from meshcap.captioner import Caption, Captioner
    from meshcap.runtime import Captioner as Exported


class StandardInput(io.BytesIO):
    """A picture that came through a pipe."""

    name = "standard input"  # in messages

    def __str__(self) -> str:
        return "-"


Asked = Path | StandardInput
Told = tuple[Any, "Caption | MeshcapError"]


def sources(paths: Sequence[Path], *, recursive: bool) -> tuple[list[Asked], bool]:
    """Pictures in order, those inside folders by name; and whether one picture alone was named.

    A file that is missing among others is told later, as a broken one is: the others are worth their captions.

    Raises:
        MeshcapError: a folder without pictures, a pattern that matches nothing, no file at all, standard input without
            a picture or asked for twice.
    """
    found: list[Asked] = []
    for path in paths:
        if str(path) == "-":
            if any(isinstance(one, StandardInput) for one in found):
                raise MeshcapError("- was given twice, and standard input holds one picture")
            found.append(piped())
        elif path.is_dir():
            found += in_folder(path, recursive)
        elif not os.path.lexists(path) and glob.has_magic(str(path)):
            found += matches(path, recursive)
        else:
            found.append(path)
    if not any(isinstance(one, StandardInput) or one.exists() for one in found):
        raise MeshcapError(f"{found[0]} is not a file: expected pictures, folders of them, or - for standard input")
    alone = len(paths) == len(found) == 1 and (isinstance(found[0], StandardInput) or found[0] == paths[0])
    return found, alone


def piped() -> StandardInput:
    if sys.stdin.isatty():
        raise MeshcapError("- reads a picture from standard input: send one, as in `meshcap caption - < photo.jpg`")
    content = sys.stdin.buffer.read()
    if not content:
        raise MeshcapError("standard input is empty, expected the bytes of a picture")
    return StandardInput(content)


def in_folder(folder: Path, recursive: bool) -> list[Path]:
    inside = list(pictures_in(folder, recursive))
    if not inside:
        deeper = "" if recursive else "; --recursive looks into the folders inside it, too"
        raise MeshcapError(f"{folder} is a folder without pictures: expected some{deeper}")
    return inside


def pictures_in(folder: Path, recursive: bool) -> Iterator[Path]:
    """By name; hidden files and folders are left alone."""
    from meshcap.vision.pictures import is_picture_path

    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if recursive and not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and is_picture_path(name):
                yield Path(place, name)


def matches(pattern: Path, recursive: bool) -> list[Path]:
    """What a pattern stands for that came here unexpanded: some shells leave that to the program."""
    found: list[Path] = []
    for path in map(Path, sorted(glob.glob(str(pattern)))):
        found += in_folder(path, recursive) if path.is_dir() else [path]
    if not found:
        raise MeshcapError(f"{pattern} matches no file: expected pictures, or folders of them")
    return found


def told(
    captioner: Captioner | Exported, asked: Sequence[Asked], batch: int, wishes: dict[str, Any]
) -> Generator[Told, None, None]:
    """Every source with its caption, or with why there is none, as soon as it is known.

    Raises:
        MeshcapError: pictures and features at once, features that do not fit, or wishes that have no sense.
    """
    from meshcap.data.features import SUFFIXES
    from meshcap.runtime import Captioner as OfExport
    from meshcap.runtime.stream import stream as exported_stream

    if isinstance(captioner, OfExport):  # which looks at pictures alone
        yield from exported_stream(captioner, asked, batch=batch, **wishes)
        return
    features = [one for one in asked if isinstance(one, Path) and one.suffix in SUFFIXES]
    if features and len(features) < len(asked):
        raise MeshcapError(f"{features[0]} holds region features and others are pictures: expected one kind")
    if features:
        yield from of_features(captioner, features, batch, wishes)
        return
    if captioner.vision is None:
        raise MeshcapError(
            f"this model reads region features and cannot look at {asked[0]}: expected {', '.join(SUFFIXES)}"
        )
    from meshcap.stream import stream

    yield from stream(captioner, asked, batch=batch, **wishes)


def of_features(
    captioner: Captioner, files: Sequence[Path], batch: int, wishes: dict[str, Any]
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
        captions = iter([] if regions is None else captioner.describe(regions, **wishes))
        for path, one in zip(block, read, strict=True):
            yield path, one if isinstance(one, MeshcapError) else next(captions)
