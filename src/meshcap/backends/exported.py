"""Exported captioners: what `runtime.json` says of one, and how its two graphs are searched.

The graphs are `see` (pixels to what the decoder looks at) and `say` (one word further). What `say` reads and changes
is a state of named arrays, as `meshcap.decoding.search` has it; `StatePart` says how each of them begins and moves.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from meshcap.backends.base import Backend
from meshcap.decoding.array_search import Array, rows_of, score_arrays, search_arrays
from meshcap.decoding.records import Hypotheses, Rules, Strategy
from meshcap.errors import MeshcapError
from meshcap.vision.preprocess import Preprocess

FACTS = "runtime.json"
VERSION = 2
GRAPHS = ("see", "say")
NEXT = "next."  # before the name of what `say` returns changed
DTYPES = ("float32", "int64", "bool")
_AXIS = re.compile(r"(?:[1-9]\d*\*)?pictures|width|places")


def is_exported(folder: str | Path) -> bool:
    """Whether `meshcap export` wrote it, and nobody keeps a model in it besides."""
    return (Path(folder) / FACTS).is_file() and not (Path(folder) / "config.json").is_file()


def backend_of(folder: str | Path) -> str:
    """What runs a model folder, by the files in it."""
    if not is_exported(folder):
        return "torch"
    return "torch-export" if (Path(folder) / "see.pt2").is_file() else "onnx"


def expect_not_exported(folder: str | Path) -> None:
    """
    Raises:
        MeshcapError: a model was expected, and this folder holds an exported one.
    """
    if is_exported(folder):
        raise MeshcapError(
            f"{folder} holds an exported model: read it with backend={backend_of(folder)!r}, "
            "or name the model that it was made of"
        )


@dataclass(frozen=True, kw_only=True)
class StatePart:
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
class ExportedFacts:
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
    state: tuple[StatePart, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, folder: Path) -> ExportedFacts:
        """Those of an exported folder.

        Raises:
            MeshcapError: no such folder, or one that `meshcap export` did not write.
        """
        path = folder / FACTS
        if not path.is_file():
            what = "has no" if folder.is_dir() else "is no folder with a"
            raise MeshcapError(f"{folder} {what} {FACTS}: expected a folder that `meshcap export` wrote")
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise MeshcapError(f"{path} is not readable JSON ({first_line(error)}): export the model again") from error
        return cls.from_dict(given, str(path))

    @classmethod
    def from_dict(cls, given: Any, owner: str) -> ExportedFacts:
        names = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or given.get("version") != VERSION:
            version = given.get("version") if isinstance(given, dict) else None
            raise MeshcapError(f"{owner} has version {version!r}, this meshcap reads {VERSION}: export the model again")
        missing = sorted(names - given.keys())
        if missing:
            raise MeshcapError(f"{owner} does not say {', '.join(missing)}: export the model again")
        numbers = [name for name in names if name not in ("model", "geometry", "state")]
        for name in numbers:
            if type(given[name]) is not int:
                raise MeshcapError(f"{owner} has {name} {given[name]!r}, expected a whole number")
        try:
            state = tuple(StatePart(**part) for part in given["state"])
        except TypeError as error:
            raise MeshcapError(f"{owner} has a state that cannot be read ({error}): export the model again") from error
        return cls(**{**{name: given[name] for name in names & given.keys()}, "state": state})


State = dict[str, Array]


@dataclass(frozen=True)
class Seen:
    """What `see` gave of some pictures, for a width of 1: what `search` reads instead of Regions."""

    state: State
    pictures: int

    def __len__(self) -> int:
        return self.pictures


class ExportedBackend(Backend):
    """Runs the two graphs of an exported folder: a subclass says how."""

    def __init__(self, facts: ExportedFacts):
        self.facts = self.settings = facts
        geometry: Any = facts.geometry
        self.preprocess = Preprocess(size=facts.size, geometry=geometry, pre_resize=facts.pre_resize)

    @abstractmethod
    def run_see(self, pixels: Array) -> State:
        """uint8 (B, 3, size, size) -> the parts of the state that come from the picture."""

    @abstractmethod
    def run_say(self, ids: Array, state: State) -> tuple[Array, State]:
        """ids (B, W) -> log-probabilities (B, W, V), the caller's to change, and what has changed of the state."""

    def see(self, pixels: Sequence[Array] | Array) -> Seen:
        return Seen(self.run_see(np.ascontiguousarray(np.stack(list(pixels)))), len(pixels))

    def optimize(self) -> None:
        pass

    def check(self, seen: Any) -> None:
        if not isinstance(seen, Seen):
            raise MeshcapError(f"an exported model reads pictures, not {type(seen).__name__}: use backend='torch'")

    def search(
        self,
        seen: Any,
        strategy: Strategy,
        rules: Rules,
        *,
        n_best: int = 1,
        attention: bool = False,
        extension: Any = None,
        memory: Any = None,
        queued: bool = False,
    ) -> Hypotheses:
        if attention:
            raise MeshcapError("attention is not part of an exported model: use backend='torch'")
        if memory is not None:
            raise MeshcapError("an exported model reads no memory: use backend='torch'")
        if extension is not None:
            raise MeshcapError("an exported model says the words of its vocabulary alone: use backend='torch'")
        self.check(seen)
        steps = Steps(self, seen, width=strategy.width, length=rules.max_length)
        return search_arrays(
            self.facts, steps.step, steps.reorder, strategy, rules, pictures=seen.pictures, n_best=n_best
        )

    def score(self, seen: Any, ids: Sequence[Sequence[int]]) -> list[list[float]]:
        self.check(seen)
        longest = max(map(len, ids))
        padded = np.array([[[*one, *[self.facts.pad] * (longest - len(one))] for one in ids]], np.int64)
        steps = Steps(self, seen, width=len(ids), length=longest)
        found = score_arrays(self.facts, steps.step, padded)[0].tolist()
        return [row[: len(one)] for row, one in zip(found, ids, strict=True)]


class Steps:
    """The state of a search under way."""

    def __init__(self, backend: ExportedBackend, seen: Seen, *, width: int, length: int):
        self.backend, self.state = backend, dict[str, Array]()
        parts = backend.facts.state
        for part in parts:
            if not part.seen:
                shape = part.sizes(pictures=seen.pictures, width=width, places=width * length)
                self.state[part.name] = np.zeros(shape, part.dtype)
            elif "width" in part.shape:
                self.state[part.name] = np.repeat(seen.state[part.name], width, axis=part.shape.index("width"))
            else:
                self.state[part.name] = seen.state[part.name]
        self.following = [part.name for part in parts if part.follows]

    def step(self, ids: Array) -> Array:
        log_probs, changed = self.backend.run_say(np.ascontiguousarray(ids), self.state)
        self.state |= changed
        return log_probs

    def reorder(self, parents: Array) -> None:
        for name in self.following:
            self.state[name] = rows_of(self.state[name], parents)


def graph_files(folder: Path, suffix: str, form: str) -> tuple[Path, Path]:
    """The files of both graphs.

    Raises:
        MeshcapError: a folder without them.
    """
    see, say = (folder / f"{name}.{suffix}" for name in GRAPHS)
    for path in (see, say):
        if not path.is_file():
            raise MeshcapError(f"{folder} has no {path.name}: write it with `meshcap export MODEL --format {form}`")
    return see, say


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
