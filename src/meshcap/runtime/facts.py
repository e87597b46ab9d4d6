"""What an exported folder says about itself, in `runtime.json`: all that a search must know beside the two graphs.

The graphs are `see` (pixels to what the decoder looks at) and `say` (one word further). What `say` reads and changes
is a state of named arrays, as `meshcap.decoding.search` has it; here stands how each of them begins and moves.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from meshcap.errors import MeshcapError

FACTS = "runtime.json"
VERSION = 1
GRAPHS = ("see", "say")
NEXT = "next."  # before the name of what `say` returns changed
DTYPES = ("float32", "int64", "bool")
_AXIS = re.compile(r"(?:[1-9]\d*\*)?pictures|width|places")


def is_exported(folder: str | Path) -> bool:
    """Whether `meshcap export` wrote it, and nobody keeps a model in it besides."""
    return (Path(folder) / FACTS).is_file() and not (Path(folder) / "config.json").is_file()


def runtime_of(folder: str | Path) -> str:
    """What runs an exported folder, by the files in it."""
    return "torch-export" if (Path(folder) / "see.pt2").is_file() else "onnx"


def expect_not_exported(folder: str | Path) -> None:
    """
    Raises:
        MeshcapError: a model was expected, and this folder holds an exported one.
    """
    if is_exported(folder):
        raise MeshcapError(
            f"{folder} holds an exported model: read it with runtime='onnx' (or 'torch-export'), "
            "or name the model that it was made of"
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """One array of the state."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]  # "pictures", "3*pictures", "width" (hypotheses), "places" (width × longest caption)
    seen: bool  # `see` gives it, for a width of 1; else it begins with zeros
    changes: bool  # `say` returns it changed
    follows: bool  # a hypothesis takes its parent's row, along axis 1, with it

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype not in DTYPES:
            raise MeshcapError(f"state {self.name} is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        for axis in self.shape:
            if not (type(axis) is int and axis > 0) and not (isinstance(axis, str) and _AXIS.fullmatch(axis)):
                raise MeshcapError(f"state {self.name} has the axis {axis!r}, expected a size or a name of one")

    def sizes(self, *, pictures: int, width: int, places: int) -> tuple[int, ...]:
        known = {"width": width, "places": places, "pictures": pictures}
        found = []
        for axis in self.shape:
            if isinstance(axis, int):
                found.append(axis)
            else:
                times, _, name = axis.rpartition("*")
                found.append(int(times or 1) * known[name])
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All of `runtime.json`."""

    version: int = VERSION
    model: str
    bits: int  # of the ONNX graphs' large matrices
    vocab_size: int
    max_length: int
    unk: int
    pad: int
    bos: int
    eos: int
    size: int  # pixels of the square that `see` reads
    geometry: str
    pre_resize: int  # see `Preprocess`
    state: tuple[Part, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Those of an exported folder.

        Raises:
            MeshcapError: no such folder, or one that `meshcap export` did not write.
        """
        path = folder / FACTS
        if not path.is_file():
            what = "has no" if folder.is_dir() else "is no folder with a"
            raise MeshcapError(f"{folder} {what} {FACTS}: expected a folder that `meshcap export` wrote")
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MeshcapError(f"{path} is not readable JSON ({error}): export the model again") from error
        return cls.from_dict(told, str(path))

    @classmethod
    def from_dict(cls, told: Any, owner: str) -> Facts:
        names = {field.name for field in fields(cls)}
        if not isinstance(told, dict) or told.get("version") != VERSION:
            version = told.get("version") if isinstance(told, dict) else None
            raise MeshcapError(f"{owner} has version {version!r}, this meshcap reads {VERSION}: export the model again")
        missing = sorted(names - told.keys())
        if missing:
            raise MeshcapError(f"{owner} does not say {', '.join(missing)}: export the model again")
        numbers = [name for name in names if name not in ("model", "geometry", "state")]
        for name in numbers:
            if type(told[name]) is not int:
                raise MeshcapError(f"{owner} has {name} {told[name]!r}, expected a whole number")
        try:
            state = tuple(Part(**part) for part in told["state"])
        except TypeError as error:
            raise MeshcapError(f"{owner} has a state that cannot be read ({error}): export the model again") from error
        return cls(**{**{name: told[name] for name in names & told.keys()}, "state": state})
