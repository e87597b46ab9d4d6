"""Traced graphs as ONNX, in 32 bits or in 8.

In 8 bits (`narrowed`), a large matrix is kept as integers, and the first nodes of the graph make its numbers of them:
onnxruntime runs these once, when it reads the file. From there on all is float32.

- Weights that came from a file of 8, 6 or 4 bits are kept with the same integers and scales (see `meshcap.weights`):
  captions are those of float32. Others are rounded to 8 bits, with one scale for each row.
- What comes in is not rounded: with activations in 8 bits, a Vision Transformer changes its captions.
- Only operators of the ONNX standard are used.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from meshcap.backends.exported import NEXT, StatePart, first_line
from meshcap.errors import FailedError, MeshcapError
from meshcap.files import write_file
from meshcap.weights import GROUP, LEAST, LEAST_ROW, rounded, rounded_in_groups, ungrouped, unpacked

OPSET = 21  # the first with scales of groups (DequantizeLinear); onnxruntime 1.18 reads it


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


def onnx_graphs(
    see: ExportedProgram, say: ExportedProgram, parts: tuple[StatePart, ...], *, bits: int = 32
) -> Iterator[Any]:
    """Both graphs as `onnx.ModelProto`, one after the other. Inputs and outputs are called as in `runtime.json`."""
    seen = [part.name for part in parts if part.seen]
    names = [part.name for part in parts]
    changed = [NEXT + part.name for part in parts if part.changes]
    for program, inputs, outputs in ((see, ["pixels"], seen), (say, ["ids", *names], ["log_probs", *changed])):
        made = convert(program, inputs, outputs)
        buffers = set(program.graph_signature.inputs_to_buffers.values())
        yield narrowed(made, exact=buffers) if bits == 8 else made


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


def narrowed(model: Any, exact: Collection[str] = ()) -> Any:
    """An `onnx.ModelProto` with its large matrices in 8 bits or fewer; the one given is changed.

    Args:
        exact: names of what is not rounded.
    """
    return Narrowing(model, exact).done()


FLOAT = 1  # float32, as ONNX numbers its types


class Narrowing:
    """One graph under way: weights become integers, and nodes that restore them come first."""

    def __init__(self, model: Any, exact: Collection[str]):
        self.model, self.graph, self.exact = model, model.graph, exact
        self.nodes: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.rests: dict[str, tuple[str, str]] = {}  # of a factor in groups: see `groups`
        uses = Counter(name for node in self.graph.node for name in node.input)
        multiplied = Counter(node.input[1] for node in self.graph.node if node.op_type == "MatMul")
        # Second factors of products and nothing else: their columns make the outputs.
        self.factors = {name for name, times in multiplied.items() if times == uses[name]}

    def done(self) -> Any:
        from onnx import numpy_helper

        kept = []
        for one in self.graph.initializer:
            if one.name in self.exact or not self.narrow(one.name, numpy_helper.to_array(one)):
                kept.append(one)
        kept += [numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        for node in self.graph.node:
            if node.op_type == "MatMul" and node.input[1] in self.rests:
                self.product(node)
            else:
                self.nodes.append(node)
        for field, content in ((self.graph.initializer, kept), (self.graph.node, self.nodes)):
            del field[:]
            field.extend(content)
        return self.model

    def narrow(self, name: str, weight: np.ndarray) -> bool:
        """Whether a weight was worth it."""
        if weight.dtype != np.float32 or weight.ndim < 2 or weight.size < LEAST or not np.isfinite(weight).all():
            return False
        given, last = torch.from_numpy(weight.copy()), name in self.factors and weight.ndim == 2
        rows = given.T if last else given.flatten(1)
        if rows.shape[1] < LEAST_ROW:
            return False
        if not any(self.groups(name, given, rows, bits, last=last) for bits in (4, 6)):
            self.rows(name, given, rows, last=last)
        return True

    def rows(self, name: str, weight: Tensor, rows: Tensor, *, last: bool) -> None:
        """W = scale · Q, of each row."""
        whole, scale = rounded(rows)
        inputs = [
            self.array(name, "q", (whole.T if last else whole).reshape(weight.shape)),
            self.array(name, "scale", scale),
        ]
        self.node("DequantizeLinear", inputs, name, axis=int(last))

    def groups(self, name: str, weight: Tensor, rows: Tensor, bits: int, *, last: bool) -> bool:
        """W = low + step · Q, of each group of a row, as step · (Q - zero) + rest with the nearest whole zero.

        The first part is one node, which leaves no second copy of a weight in memory. The rest is the same for all of a
        group: to what is only multiplied by W, `product` adds the sums of groups multiplied by it.

        Returns:
            Whether this is what the weight is, to the last bit.
        """
        if rows.shape[1] % GROUP:
            return False
        content, step, low = rounded_in_groups(rows, bits)
        if not torch.equal(ungrouped(content, step, low, bits, tuple(rows.shape)), rows):
            return False
        steps = step.float()
        zero = (-low.float() / steps.where(steps > 0, 1.0)).round().clamp(0, 255).to(torch.uint8)
        whole, step, low, zero = (one.T if last else one for one in (unpacked(content, bits), step, low, zero))
        axis, zeros = int(not last), self.array(name, "zero", zero)
        scale = self.node("Cast", [self.array(name, "step", step)], to=FLOAT)
        rest = self.node("Mul", [scale, self.node("Cast", [zeros], to=FLOAT)])
        rest = self.node("Add", [rest, self.node("Cast", [self.array(name, "low", low)], to=FLOAT)])
        # (K, groups) or (groups, K): ones where a number belongs to a group
        member = torch.eye(low.shape[axis]).repeat_interleave(GROUP, axis)
        sums = self.array("group", f"{len(member)}.{member.shape[1]}", member)
        inputs = [self.array(name, "q", whole), scale, zeros]
        if last:
            self.node("DequantizeLinear", inputs, name, axis=axis, block_size=GROUP)
            self.rests[name] = sums, rest
        else:
            wide = self.node("DequantizeLinear", inputs, axis=axis, block_size=GROUP)
            wide = self.node("Add", [wide, self.node("MatMul", [rest, sums])])
            self.node("Reshape", [wide, self.array(name, "shape", torch.tensor(weight.shape))], name)
        return True

    def product(self, node: Any) -> None:
        """x @ W as x @ (step · (Q - zero)) + (sums of groups of x) @ rest."""
        x, factor = node.input
        sums, rest = self.rests[factor]
        main = self.node("MatMul", [x, factor])
        self.node("Add", [main, self.node("MatMul", [self.node("MatMul", [x, sums]), rest])], node.output[0])

    def array(self, name: str, what: str, content: Tensor) -> str:
        self.arrays[f"{name}.{what}"] = content.contiguous().numpy()
        return f"{name}.{what}"

    def node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        from onnx import helper

        output = output or f"narrowed.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output


def stable_sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """torch's exporter knows no stable sort; TopK of all numbers is one: of equal numbers the first comes first."""
    from onnxscript import opset21 as op

    return op.TopK(x, op.Shape(x, start=dim, end=dim + 1 or None), axis=dim, largest=int(descending), sorted=1)


def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    """x with src in place of x[index] along an axis, in three pieces. torch's exporter writes ScatterElements, which
    goes number by number: more than a third of the time of a word, to note what the word was."""
    from onnxscript import opset21 as op

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
