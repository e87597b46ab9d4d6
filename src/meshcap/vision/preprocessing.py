"""A vision's own preprocessing, changed where its settings say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from meshcap.errors import MeshcapError
from meshcap.vision.base import Preprocess


def preprocess_of(given: Mapping[str, Any] | None, **usual: Any) -> Preprocess:
    """The usual settings of a vision with those put over them that are given, as `vision.json` keeps them.

    Raises:
        MeshcapError: a setting that is not known or has no sense.
    """
    if given is not None and not isinstance(given, Mapping):
        raise MeshcapError(f"preprocess is {given!r}, expected an object with size, geometry, mean or std")
    known = [field.name for field in fields(Preprocess)]
    for name in given or {}:
        if name not in known:
            raise MeshcapError(f"preprocess has an unknown setting {name!r}, expected {', '.join(known)}")
    try:
        return Preprocess(**{**usual, **(given or {})})
    except MeshcapError:
        raise
    except (TypeError, ValueError) as error:
        raise MeshcapError(f"preprocess is {dict(given or {})}, which cannot be read: {error}") from error
