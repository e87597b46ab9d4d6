"""torch.export: exported captioners from torch's own archives. No class of meshcap's models is needed.

`torch.export.load` trusts an archive: it unpickles weights and sample inputs where the archive says so, evaluates
expressions of sizes as Python, and looks functions up by any dotted name below `torch`. Here torch never sees the file:
`safe_archive` checks every member against what `meshcap export` writes and makes a new archive of what passed.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshcap.backends.exported import Array, ExportedBackend, ExportedFacts, State, first_line, graph_files
from meshcap.errors import MeshcapError


class ExportBackend(ExportedBackend):
    """The archives `see.pt2` and `say.pt2` of a folder."""

    name = "torch-export"

    def __init__(self, folder: str | Path, *, threads: int | None = None):
        super().__init__(ExportedFacts.read(Path(folder)))
        see, say = graph_files(Path(folder), "pt2", "torch")
        try:
            import torch
        except ImportError as error:
            raise MeshcapError("the backend torch-export needs torch: pip install torch") from error
        if threads is not None:
            torch.set_num_threads(threads)
        self.torch = torch
        try:
            self.modules: list[Any] = [without_guards(torch.export.load(safe_archive(path))) for path in (see, say)]
        except MeshcapError:
            raise
        except Exception as error:
            raise MeshcapError(f"{see.parent} has archives that torch cannot read: {first_line(error)}") from error
        self.names = [part.name for part in self.facts.state]
        self.seen = [part.name for part in self.facts.state if part.seen]
        self.changed = [part.name for part in self.facts.state if part.changes]

    def run_see(self, pixels: Array) -> State:
        with self.torch.no_grad():
            found = self.modules[0](self.torch.from_numpy(pixels))
        return {name: tensor.numpy() for name, tensor in zip(self.seen, found, strict=True)}

    def run_say(self, ids: Array, state: State) -> tuple[Array, State]:
        given = tuple(self.torch.from_numpy(state[name]) for name in self.names)
        with self.torch.no_grad():
            log_probs, *changed = self.modules[1](self.torch.from_numpy(ids), given)
        return log_probs.numpy(), {name: one.numpy() for name, one in zip(self.changed, changed, strict=True)}


def without_guards(program: Any) -> Any:
    """What runs an archive. Newer versions of torch also check, at every call, what tracing took for granted, such as
    "more than one hypothesis" where it chose between two ways to write the same view: the numbers do not depend on it.
    """
    try:
        return program.module(check_guards=False)
    except TypeError:
        return program.module()


WEIGHT, CONSTANT, GRAPH = "data/weights/weight_", "data/constants/tensor_", "models/model.json"
CONFIGS = {
    "data/weights/model_weights_config.json": re.compile(r"weight_\d+"),
    "data/constants/model_constants_config.json": re.compile(r"tensor_\d+"),
}
SAMPLES = "data/sample_inputs/model.pt"  # a pickle that nobody needs: it is left out
PLAIN = {"archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id"}
# Functions that a graph may call. Of aten's, one reads and writes files.
FUNCTIONS = re.compile(
    r"torch\.ops\.aten\.(?!from_file\b)\w+\.\w+|torch\.ops\.higher_order\.wrap_with_(autocast|set_grad_enabled)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
    r"|torch\.sym_(int|float|max|min|not)|math\.(ceil|floor|trunc)"
)
# Sizes: whole numbers, symbols (s81), + - * / and these functions. sympy evaluates them as Python.
SIZE = re.compile(
    r"(Symbol\('[a-z]+\d+'|\b(Integer|Mul|Add|Min|Max|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|Eq|Ne|Ge|Gt|Le|Lt)\b"
    r"|\b(positive|integer|nonnegative|True|False)\b|\b[a-z]{1,4}\d+\b|\b\d+\b|(?<!\*)\*(?!\*)|[ (),=+/%<>-])*"
)


def safe_archive(path: Path) -> io.BytesIO:
    """An archive of torch.export with nothing in it that torch would run or unpickle.

    Raises:
        MeshcapError: something that `meshcap export` does not write: a pickle, an unknown function or member.
    """
    try:
        with zipfile.ZipFile(path) as given:
            members = given.infolist()
            root = members[0].filename.partition("/")[0] if members else ""
            names = [one.filename for one in members]
            if len({name.lower() for name in names}) < len(names) or not re.fullmatch(r"\w[\w.-]*", root):
                raise _refused(path, "two members of one name")
            made = io.BytesIO()
            with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as out:
                for one in members:
                    if one.compress_type != zipfile.ZIP_STORED:
                        raise _refused(path, f"{one.filename} is compressed")
                    content = _member(path, one.filename.removeprefix(root + "/"), given.read(one))
                    out.writestr(zipfile.ZipInfo(one.filename), content)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise MeshcapError(f"{path} is not a readable archive ({first_line(error)}): export the model again") from error
    made.seek(0)
    return made


def _member(path: Path, name: str, content: bytes) -> bytes:
    """What of a member is passed on to torch."""
    if name == SAMPLES:
        return b""
    if name in PLAIN or re.fullmatch(rf"({WEIGHT}|{CONSTANT})\d+", name):
        return content
    if name != GRAPH and name not in CONFIGS:
        raise _refused(path, f"a member {name[:80]!r}")
    try:
        data = json.loads(content)
        if name == GRAPH:
            for key, value in _strings(data):
                if key == "target" and not FUNCTIONS.fullmatch(value):
                    raise _refused(path, f"a call of {value[:80]!r}")
                if key == "expr_str" and not SIZE.fullmatch(value):
                    raise _refused(path, f"a size of {value[:80]!r}")
            for size in data["range_constraints"]:
                if not SIZE.fullmatch(size):
                    raise _refused(path, f"a size of {size[:80]!r}")
            data["guards_code"] = []  # Python, which is not needed: see `without_guards`
        else:
            for payload in data["config"].values():
                if payload["use_pickle"] is not False or not CONFIGS[name].fullmatch(payload["path_name"]):
                    raise _refused(path, "a pickle, which could run anything")
    except MeshcapError:
        raise
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise _refused(path, f"{name} that cannot be read") from error
    return json.dumps(data).encode()


def _strings(data: Any) -> Iterator[tuple[str, str]]:
    """All strings with the key that they stand under, however deep."""
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key, value in one.items():
                if isinstance(value, str):
                    yield key, value
                waiting.append(value)
        elif isinstance(one, list):
            waiting += one


def _refused(path: Path, what: str) -> MeshcapError:
    return MeshcapError(f"{path} holds {what}: expected an archive that `meshcap export` wrote")
