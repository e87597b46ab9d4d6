"""From files to what models read.

Names are fetched from their modules when they are asked for: scoring reads caption files, and needs neither torch nor
Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshcap.data.dataset import Dataset, Sample, Source
    from meshcap.data.read import read_dataset

__all__ = ["Dataset", "Sample", "Source", "read_dataset"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("meshcap.data.read" if name == "read_dataset" else "meshcap.data.dataset"), name)
