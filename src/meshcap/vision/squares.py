"""Pictures as the bytes of their pixels, by a function that worker processes run: it needs no torch."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

from meshcap.errors import MeshcapError
from meshcap.vision.pictures import read_picture
from meshcap.vision.shown import shown

if TYPE_CHECKING:
    from meshcap.data.dataset import Sample


def square(sample: Sample, *, size: int, geometry: str, through: int = 0) -> bytes:
    """size · size · 3 bytes, rows from the top: what `Preprocess.pixels` makes of the picture, with channels last.

    Raises:
        MeshcapError: there is no picture, or it cannot be read.
    """
    _one_thread()
    if sample.picture is None:
        raise MeshcapError(f"{sample.id} has captions but no picture: give the folder of the pictures (--pictures)")
    try:
        return shown(read_picture(sample.picture.read(), at_least=size), size, geometry, through).tobytes()
    except MeshcapError as error:
        raise MeshcapError(f"{sample.picture}: {error} (meshcap data check lists all such pictures)") from error


def squares_into(
    path: str, room: int, numbered: tuple[int, Sample], *, size: int, geometry: str, through: int
) -> None:
    """Write the bytes of `square` to a file that has room for so many pictures, a later one in an earlier one's place.

    Through a pipe every picture would be copied by the one process that waits for all of them.
    """
    number, sample = numbered
    content = square(sample, size=size, geometry=geometry, through=through)
    file = _opened(path)
    file.seek((number % room) * len(content))
    file.write(content)


@lru_cache(maxsize=1)
def _opened(path: str) -> BinaryIO:
    return open(path, "r+b", buffering=0)  # for as long as the process lives


def _one_thread() -> None:
    """Every process has a picture of its own to decode, and AVIF's decoder would start a thread for each core."""
    try:
        from PIL import AvifImagePlugin
    except ImportError:
        return
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
