"""Pictures to Regions.

Each name is fetched from its module at its first use: reading a picture needs no torch, and exported
captioners (`meshcap.backends`) run where there is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same table again, in the form that type checkers read
    from meshcap.vision.backbone import Vision
    from meshcap.vision.pictures import read_picture
    from meshcap.vision.preprocess import Preprocess
    from meshcap.vision.registry import VISIONS, create_vision, load_vision, save_vision

__all__ = ["VISIONS", "Preprocess", "Vision", "create_vision", "load_vision", "read_picture", "save_vision"]

_HOMES = {
    "VISIONS": "meshcap.vision.registry",
    "Preprocess": "meshcap.vision.preprocess",
    "Vision": "meshcap.vision.backbone",
    "create_vision": "meshcap.vision.registry",
    "load_vision": "meshcap.vision.registry",
    "read_picture": "meshcap.vision.pictures",
    "save_vision": "meshcap.vision.registry",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look finds it without coming here
    return value
