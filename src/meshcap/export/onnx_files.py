"""Traced graphs as ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from meshcap.backends.exported import NEXT, Part, first_line
from meshcap.errors import FailedError, MeshcapError
from meshcap.files import write_file

OPSET = 20  # the newest that onnxruntime 1.17 reads


def need_onnx() -> None:
    """
    Raises:
        MeshcapError: the packages that write ONNX are not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MeshcapError("writing ONNX needs other packages: pip install 'meshcap[export]'") from error


def onnx_graphs(see: ExportedProgram, say: ExportedProgram, parts: tuple[Part, ...]) -> tuple[Any, Any]:
    """Both graphs as `onnx.ModelProto`. Inputs and outputs are called as `runtime.json` calls them."""
    seen = [part.name for part in parts if part.seen]
    names = [part.name for part in parts]
    changed = [NEXT + part.name for part in parts if part.changes]
    return convert(see, ["pixels"], seen), convert(say, ["ids", *names], ["log_probs", *changed])


def convert(program: ExportedProgram, inputs: list[str], outputs: list[str]) -> Any:
    try:
        with quietly():
            made = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                custom_translation_table=TRANSLATIONS,
            )
    except Exception as error:
        raise FailedError(f"torch cannot write this captioner as ONNX: {first_line(root(error))}") from error
    assert made is not None
    proto = made.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # stack traces: half a megabyte of this machine's paths
        node.doc_string = ""
    del proto.graph.metadata_props[:]
    del proto.metadata_props[:]
    for value in (*proto.graph.value_info, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
    return proto


def stable_sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """torch's exporter knows no stable sort; TopK of all numbers is one: of equal numbers the first comes first."""
    from onnxscript import opset20 as op

    return op.TopK(x, op.Shape(x, start=dim, end=dim + 1 or None), axis=dim, largest=int(descending), sorted=1)


def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    """x with src in place of x[index] along an axis, in three pieces. torch's exporter writes ScatterElements, which
    goes number by number: more than a third of the time of a word, to note what the word was."""
    from onnxscript import opset20 as op

    if index < 0:
        raise ValueError(f"select_scatter with the index {index}, expected one from the front")
    before = op.Slice(x, op.Constant(value_ints=[0]), op.Constant(value_ints=[index]), op.Constant(value_ints=[dim]))
    after = op.Slice(
        x, op.Constant(value_ints=[index + 1]), op.Constant(value_ints=[2**31 - 1]), op.Constant(value_ints=[dim])
    )
    return op.Concat(before, op.Unsqueeze(src, op.Constant(value_ints=[dim])), after, axis=dim)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.sort.stable: stable_sort,
    torch.ops.aten.select_scatter.default: select_scatter,
}


def root(error: BaseException) -> Exception:
    """What an exception came from: the exporter wraps its own several times in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error if isinstance(error, Exception) else Exception(str(error))


def write_onnx(model: Any, path: Path) -> None:
    import onnx

    write_file(path, lambda part: onnx.save(model, str(part)))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """torch's exporters talk about themselves (what is not installed, what will change) to whoever listens."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
