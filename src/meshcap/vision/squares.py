"""Pictures as the bytes of their pixels, by a function that worker processes run: it needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshcap.errors import MeshcapError
from meshcap.vision.pictures import read_picture
from meshcap.vision.shown import shown

if TYPE_CHECKING:
    from meshcap.data.dataset import Sample


def square(sample: Sample, *, size: int, geometry: str) -> bytes:
    """size · size · 3 bytes, rows from the top: what `Preprocess.pixels` makes of the picture, with channels last.

    Raises:
        MeshcapError: there is no picture, or it cannot be read.
    """
    _one_thread()
    if sample.picture is None:
        raise MeshcapError(f"{sample.id} has captions but no picture: give the folder of the pictures (--pictures)")
    try:
        return shown(read_picture(sample.picture.read(), at_least=size), size, geometry).tobytes()
    except MeshcapError as error:
        raise MeshcapError(f"{sample.picture}: {error} (meshcap data check lists all such pictures)") from error


def _one_thread() -> None:
    """Every process has a picture of its own to decode, and AVIF's decoder would start a thread for each core."""
    try:
        from PIL import AvifImagePlugin
    except ImportError:
        return
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
