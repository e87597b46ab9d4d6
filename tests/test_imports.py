"""Who may know whom: the import graph of the package, read from its source.

All imports count: those at the top, those inside functions, and those that only a type checker follows, because a name
is known wherever it is written. Not counted: `meshcap.__version__`, and the table of names in `meshcap/__init__.py`,
which is there to export everything. A module in the package's own folder is a room by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "meshcap"

BASE = {"errors", "files", "folders"}
PARTS = {"attention", "memory", "text", "kernels", "regions", "weights"}
# What any room may use. A room that is missing here may use nothing.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "kernels": set(),
    "files": {"errors"},
    "folders": {"errors", "files"},
    "weights": BASE,
    "regions": {"errors"},
    "machine": {"errors"},
    # ways of looking, of remembering, of splitting captions: these know nobody
    "attention": {"errors", "kernels"},
    "memory": {"errors", "files"},
    "text": {"errors", "files"},
    "models": BASE | PARTS,
    "caption": {"errors"},
    "decoding": {"errors", "kernels", "regions"},
    "options": {"errors", "decoding", "text"},
    "music": {"errors", "files"},
    "vision": BASE | {"regions", "weights", "music", "kernels"},
    "data": BASE | {"regions", "text", "vision", "music"},
    "metrics": {"errors", "files", "kernels", "text", "music"},
    "calibration": BASE,
    "tags": {"caption"},
    "names": BASE | {"caption", "decoding", "regions", "tags", "text", "weights"},
    "consensus": {"decoding", "memory", "metrics", "text"},
    "say": {"errors", "caption", "options", "decoding", "text", "calibration", "tags", "names"},
}
RECORDS = {"options", "caption", "calibration", "machine", "tags", "names", "consensus", "say"}
BELOW = BASE | PARTS | RECORDS | {"models", "decoding", "vision", "music"}
ALLOWED["backends"] = BELOW
ALLOWED["captioner"] = BELOW | {"backends"}
CAPTIONER = BELOW | {"backends", "captioner", "data", "metrics"}
ALLOWED |= dict.fromkeys(("explain", "export", "evaluation"), CAPTIONER)
ALLOWED["training"] = CAPTIONER | {"evaluation"}
LIBRARY = CAPTIONER | {"explain", "export", "evaluation", "training"}
ALLOWED |= {"serving": CAPTIONER | {"evaluation", "explain"}, "batch": CAPTIONER, "cli": LIBRARY | {"serving", "batch"}}
ALLOWED["__main__"] = {"cli"}

class Import(NamedTuple):
    """`importer` names `imported`, both modules, at a place that a person finds."""

    importer: str
    imported: str
    place: str


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports() -> Iterator[Import]:
    for importer, path in MODULES.items():
        if importer == PACKAGE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}:{node.lineno} is a relative import: write the whole name"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.split(".")[0] == PACKAGE and (imported := module_of(name)) != PACKAGE:
                    yield Import(importer, imported, f"{path.relative_to(SOURCE)}:{node.lineno}")


def module_of(name: str) -> str:
    """The module that a dotted name is, or is in."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def room_of(module: str) -> str:
    return module.split(".")[1]


IMPORTS = list(imports())


def test_no_room_knows_one_that_it_should_not() -> None:
    wrong = {}
    for one in IMPORTS:
        edge = room_of(one.importer), room_of(one.imported)
        if edge[0] != edge[1] and edge[1] not in ALLOWED.get(edge[0], set()):
            wrong.setdefault(edge, f"{edge[0]} -> {edge[1]}: {one.importer} imports {one.imported} at {one.place}")
    assert not wrong, "\n".join(["edges that the design does not have:", *wrong.values()])


@pytest.mark.parametrize("by_room", [True, False], ids=["rooms", "modules"])
def test_no_circles(by_room: bool) -> None:
    graph: dict[str, set[str]] = {}
    for one in IMPORTS:
        edge = (one.importer, one.imported)
        importer, imported = map(room_of, edge) if by_room else edge
        if importer != imported:
            graph.setdefault(importer, set()).add(imported)
    found = circle(graph)
    assert found is None, f"a circle: {' -> '.join(found or [])}"


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """The first circle of a graph, from a node back to itself."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            for other in sorted(graph.get(node, ())):
                if found := walk(other, [*path, node]):
                    return found
            done.add(node)
        return None

    return next((found for node in sorted(graph) if (found := walk(node, []))), None)


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}) is None
