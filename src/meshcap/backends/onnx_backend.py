"""ONNX: exported captioners by onnxruntime, on the CPU. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from meshcap.backends.exported import NEXT, Array, ExportedBackend, ExportedFacts, State, first_line, graph_files
from meshcap.errors import FailedError, MeshcapError


class OnnxBackend(ExportedBackend):
    """The graphs `see.onnx` and `say.onnx` of a folder."""

    name = "onnx"

    def __init__(self, folder: str | Path, *, threads: int | None = None):
        super().__init__(ExportedFacts.read(Path(folder)))
        see, say = graph_files(Path(folder), "onnx", "onnx")
        try:
            import onnxruntime
        except ImportError as error:
            raise MeshcapError("the backend onnx is not installed: pip install onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        # Weights of 8 bits are made float32 once, here; else products would round what comes in to 8 bits, too.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            self.sessions = [
                onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                for path in (see, say)
            ]
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise MeshcapError(f"{see.parent} has graphs that onnxruntime cannot read: {first_line(error)}") from error
        self.seen = [part.name for part in self.facts.state if part.seen]
        self.changed = [part.name for part in self.facts.state if part.changes]
        asked = {one.name for one in self.sessions[1].get_inputs()}
        self.wanted = [part.name for part in self.facts.state if part.name in asked]

    def run_see(self, pixels: Array) -> State:
        return dict(zip(self.seen, self._run(0, self.seen, {"pixels": pixels}), strict=True))

    def run_say(self, ids: Array, state: State) -> tuple[Array, State]:
        outputs = ["log_probs", *(NEXT + name for name in self.changed)]
        given = {name: state[name] for name in self.wanted}
        log_probs, *changed = self._run(1, outputs, {"ids": ids, **given})
        return log_probs, dict(zip(self.changed, changed, strict=True))

    def _run(self, which: int, outputs: list[str], inputs: dict[str, Array]) -> list[Array]:
        try:
            return self.sessions[which].run(outputs, inputs)
        except Exception as error:
            raise FailedError(f"onnxruntime failed: {first_line(error)}") from error
