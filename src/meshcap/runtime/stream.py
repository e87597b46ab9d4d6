"""Captions of one picture after the other by an exported captioner: broken ones are told, not fatal."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from meshcap.errors import MeshcapError
from meshcap.runtime.caption import Caption
from meshcap.runtime.captioner import Captioner


def stream(
    captioner: Captioner, sources: Sequence[Any], *, batch: int = 8, **options: Any
) -> Generator[tuple[Any, Caption | MeshcapError], None, None]:
    """As `meshcap.stream`: captions in the order of the sources; of a picture that cannot be read, why not."""
    for start in range(0, len(sources), batch):
        block = sources[start : start + batch]
        read = [_read(captioner, source) for source in block]
        pixels = [one for one in read if isinstance(one, np.ndarray)]
        captions = iter(captioner.describe(np.concatenate(pixels), **options) if pixels else ())
        for source, one in zip(block, read, strict=True):
            yield source, one if isinstance(one, MeshcapError) else next(captions)


def _read(captioner: Captioner, source: Any) -> np.ndarray | MeshcapError:
    try:
        return captioner.look([source])
    except MeshcapError as error:
        return error
