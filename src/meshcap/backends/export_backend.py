"""torch.export: exported captioners from torch's own archives. No class of meshcap's models is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshcap.backends.exported import Array, ExportedBackend, Facts, State, first_line, graph_files
from meshcap.errors import MeshcapError


class ExportBackend(ExportedBackend):
    """The archives `see.pt2` and `say.pt2` of a folder."""

    name = "torch-export"

    def __init__(self, folder: str | Path, *, threads: int | None = None):
        super().__init__(Facts.read(Path(folder)))
        see, say = graph_files(Path(folder), "pt2", "torch")
        try:
            import torch
        except ImportError as error:
            raise MeshcapError("the backend torch-export needs torch: pip install torch") from error
        if threads is not None:
            torch.set_num_threads(threads)
        self.torch = torch
        try:
            self.modules: list[Any] = [without_guards(torch.export.load(path)) for path in (see, say)]
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
