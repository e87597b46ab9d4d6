"""What runs the two graphs of an exported folder: onnxruntime, or torch's own archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from meshcap.errors import FailedError, MeshcapError
from meshcap.runtime.facts import GRAPHS, NEXT, Facts
from meshcap.runtime.search import Graphs, State

RUNTIMES = {"onnx": "onnx", "torch-export": "pt2"}  # name -> what its files end in


def open_graphs(folder: Path, facts: Facts, runtime: str, threads: int | None = None) -> Graphs:
    """The graphs of a folder, ready to run.

    Raises:
        MeshcapError: an unknown runtime, one that is not installed, a folder without its files.
    """
    if runtime not in RUNTIMES:
        raise MeshcapError(f"runtime is {runtime!r}, expected one of torch, {', '.join(RUNTIMES)}")
    suffix = RUNTIMES[runtime]
    see, say = (folder / f"{name}.{suffix}" for name in GRAPHS)
    for path in (see, say):
        if not path.is_file():
            form = "onnx" if runtime == "onnx" else "torch"
            raise MeshcapError(f"{folder} has no {path.name}: write it with `meshcap export MODEL --format {form}`")
    return OnnxGraphs(see, say, facts, threads) if runtime == "onnx" else TorchGraphs(see, say, facts, threads)


class OnnxGraphs:
    """By onnxruntime, on the CPU. Needs no torch."""

    def __init__(self, see: Path, say: Path, facts: Facts, threads: int | None = None):
        try:
            import onnxruntime
        except ImportError as error:
            raise MeshcapError("the runtime onnx is not installed: pip install onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        # Weights of 8 bits that no kernel multiplies as such (of convolutions) are widened once, here, not every time.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            self.sessions = [
                onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                for path in (see, say)
            ]
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise MeshcapError(f"{see.parent} has graphs that onnxruntime cannot read: {first_line(error)}") from error
        self.seen = [part.name for part in facts.state if part.seen]
        self.changed = [part.name for part in facts.state if part.changes]
        asked = {one.name for one in self.sessions[1].get_inputs()}
        self.wanted = [part.name for part in facts.state if part.name in asked]

    def see(self, pixels: np.ndarray) -> State:
        return dict(zip(self.seen, self._run(0, self.seen, {"pixels": pixels}), strict=True))

    def say(self, ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        outputs = ["log_probs", *(NEXT + name for name in self.changed)]
        given = {name: state[name] for name in self.wanted}
        log_probs, *changed = self._run(1, outputs, {"ids": ids, **given})
        return log_probs, dict(zip(self.changed, changed, strict=True))

    def _run(self, which: int, outputs: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return self.sessions[which].run(outputs, inputs)
        except Exception as error:
            raise FailedError(f"onnxruntime failed: {first_line(error)}") from error


class TorchGraphs:
    """By torch, from the archives of `torch.export`: no class of meshcap's models is needed, and no pickle is read."""

    def __init__(self, see: Path, say: Path, facts: Facts, threads: int | None = None):
        try:
            import torch
        except ImportError as error:
            raise MeshcapError("the runtime torch-export needs torch: pip install torch") from error
        if threads is not None:
            torch.set_num_threads(threads)
        self.torch = torch
        try:
            self.modules: list[Any] = [without_guards(torch.export.load(path)) for path in (see, say)]
        except Exception as error:
            raise MeshcapError(f"{see.parent} has archives that torch cannot read: {first_line(error)}") from error
        self.names = [part.name for part in facts.state]
        self.seen = [part.name for part in facts.state if part.seen]
        self.changed = [part.name for part in facts.state if part.changes]

    def see(self, pixels: np.ndarray) -> State:
        with self.torch.no_grad():
            found = self.modules[0](self.torch.from_numpy(pixels))
        return {name: tensor.numpy() for name, tensor in zip(self.seen, found, strict=True)}

    def say(self, ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
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


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
