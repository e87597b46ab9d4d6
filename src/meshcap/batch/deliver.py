"""A caption to where its picture is: a text beside it, or a description inside it or inside a copy.

Everything is written beside and renamed, and doing it twice is doing it once: a block that was killed half-way is
delivered again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from meshcap.batch import jpeg, png, xmp
from meshcap.batch.parts import Row
from meshcap.batch.pictures import Picture
from meshcap.batch.place import replace
from meshcap.errors import MeshcapError

THREADS = 4
KINDS = ("exif", "xmp", "iptc")


@dataclass(frozen=True)
class Delivery:
    """What is written for each picture, and where."""

    sidecar: bool = False  # PICTURE.txt
    kinds: tuple[str, ...] = ()  # of descriptions inside pictures: exif, xmp, iptc
    folder: Path | None = None  # for texts and copies; None: beside the picture, and inside itself
    overwrite: bool = False  # texts and descriptions that are there
    crowded: set[Path] = field(default_factory=set)  # places of texts that several pictures would share

    def check(self, pictures: Sequence[Picture]) -> None:
        """Refuse now what could not be written later, and see who would share a text: a.jpg and a.png."""
        if self.sidecar:
            places = Counter(self._place(picture).with_suffix(".txt") for picture in pictures)
            self.crowded.update(place for place, count in places.items() if count > 1)
        if not (self.sidecar or self.kinds) or self.folder is not None:
            return
        inside = next((picture for picture in pictures if picture.tar is not None), None)
        if inside is not None:
            raise MeshcapError(f"{inside.path} is inside a shard, which is not changed: give --out FOLDER")

    def __call__(self, pictures: Sequence[Picture], rows: Sequence[Row]) -> None:
        """Write what belongs to these pictures; what cannot be written becomes the `error` of its row."""
        if not (self.sidecar or self.kinds):
            return
        with ThreadPoolExecutor(THREADS) as pool:
            for row, error in zip(rows, pool.map(self._one, pictures, rows), strict=True):
                if error is not None:
                    row["error"] = error

    def _one(self, picture: Picture, row: Row) -> str | None:
        if not row.get("caption"):
            return None
        problems = []
        writers: list[Callable[[Picture, str], None]] = [self._sidecar] if self.sidecar else []
        writers += [self._described] if self.kinds else []
        for write in writers:
            try:
                write(picture, row["caption"])
            except MeshcapError as error:
                problems.append(str(error))
        return "; ".join(problems) or None

    def _place(self, picture: Picture, suffix: str = "") -> Path:
        return Path(picture.path + suffix) if self.folder is None else picture.below(self.folder, suffix)

    def _sidecar(self, picture: Picture, text: str) -> None:
        """a.txt for a.jpg, as trainers of other models expect; a.jpg.txt where a.png is beside it."""
        path = self._place(picture).with_suffix(".txt")
        if path in self.crowded:
            path = self._place(picture, ".txt")
        content = f"{text}\n".encode()
        try:
            there = path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
        if there is not None and there != content and not self.overwrite:  # a person may have written it
            raise MeshcapError(f"{path} is there and says something else: --overwrite replaces it")
        if there != content:
            replace(path, content)

    def _described(self, picture: Picture, text: str) -> None:
        source = picture.source()
        try:
            old = Path(picture.path).read_bytes() if source is None else source.read()
        except OSError as error:
            raise MeshcapError(f"{picture.path} cannot be read: {error.strerror or error}") from error
        new, problems = old, []
        for kind in self.kinds:
            try:
                if new.startswith(b"\xff\xd8"):
                    new = jpeg.described(new, text, kind, overwrite=self.overwrite)
                elif kind == "xmp" and new.startswith(png.SIGNATURE):
                    new = png.described(new, text, overwrite=self.overwrite)
                elif kind == "xmp":
                    self._packet(picture, text)
                else:
                    raise MeshcapError(f"only JPEG takes {kind.upper()} here: use --write-xmp")
            except MeshcapError as error:
                problems.append(f"{picture.path} was not described: {error}")
        if self.folder is not None:
            replace(self._place(picture), new)
        elif new != old:
            replace(Path(os.path.realpath(picture.path)), new)  # a link stays a link
        if problems:
            raise MeshcapError("; ".join(problems))

    def _packet(self, picture: Picture, text: str) -> None:
        """a.webp.xmp beside a.webp, for formats that are not edited."""
        path = self._place(picture, ".xmp")
        try:
            packet = xmp.described(path.read_bytes() if path.exists() else None, text, self.overwrite)
        except OSError as error:
            raise MeshcapError(f"{path} cannot be read: {error.strerror or error}") from error
        if packet is not None:
            replace(path, packet)
