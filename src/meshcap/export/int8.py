"""ONNX graphs with weights of 8 bits: a quarter of the file, and matrix products in whole numbers.

    scale_r = max_k |W_rk| / 127      one for each row r, which makes one output: as `meshcap.weights` has it

- Matrices that are multiplied by what comes in (`MatMul`) stay in 8 bits while they run. What comes in is rounded as it
  comes, with one scale for all of it, and onnxruntime does both in one kernel.
- Kernels of convolutions are in 8 bits in the file alone: onnxruntime widens them once when it reads it.
- A table of words is looked up in 8 bits, and what was found is widened.
- Small matrices and vectors stay as they are: they are few, and everything passes through them.

Whole numbers are kept without a sign, 128 higher: x86 processors before VNNI add products of signed and unsigned bytes
in 16 bits, which may saturate, and captions would depend on the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshcap.weights import LEAST, LEAST_ROW

MIDDLE = 128  # what stands for zero


def narrowed(model: Any) -> Any:
    """An `onnx.ModelProto` with its large matrices in 8 bits; the one given is changed."""
    return Narrowing(model).done()


class Narrowing:
    """One graph under way: its nodes are gone through once, in order, and written anew."""

    def __init__(self, model: Any):
        from onnx import numpy_helper

        self.model, self.graph = model, model.graph
        self.weights = {one.name: numpy_helper.to_array(one) for one in self.graph.initializer}
        self.nodes: list[Any] = []
        self.added: dict[str, np.ndarray] = {}
        self.rounded: dict[str, str] = {}  # what comes in -> its name once rounded

    def done(self) -> Any:
        from onnx import numpy_helper

        for node in self.graph.node:
            names = list(node.input)
            if node.op_type == "MatMul" and self.worth_it(names[1], rows=-1):
                self.product(node)
            elif node.op_type == "Gather" and axis_of(node) == 0 and self.worth_it(names[0], rows=0):
                self.look_up(node)
            elif node.op_type == "Conv" and self.worth_it(names[1], rows=0):
                self.convolution(node)
            else:
                self.nodes.append(node)
        used = {name for node in self.nodes for name in node.input} | {one.name for one in self.graph.output}
        kept = [one for one in self.graph.initializer if one.name in used]
        kept += [numpy_helper.from_array(array, name) for name, array in self.added.items() if name in used]
        for field, content in ((self.graph.node, self.nodes), (self.graph.initializer, kept)):
            del field[:]
            field.extend(content)
        return self.model

    def worth_it(self, name: str, *, rows: int) -> bool:
        weight = self.weights.get(name)
        return (
            weight is not None
            and weight.dtype == np.float32
            and weight.ndim >= 2
            and weight.size >= LEAST
            and weight.size // weight.shape[rows] >= LEAST_ROW
            and bool(np.isfinite(weight).all())
        )

    def product(self, node: Any) -> None:
        """x @ W as (round(x) @ round(W)) · scale of x · scales of W."""
        x, weight = node.input
        out = node.output[0]
        whole, scale, zero = self.narrow(weight, rows=-1)
        if x not in self.rounded:
            self.rounded[x] = f"{x}.whole"
            self.add("DynamicQuantizeLinear", [x], [f"{x}.whole", f"{x}.scale", f"{x}.zero"])
        self.add("MatMulInteger", [f"{x}.whole", whole, f"{x}.zero", zero], [f"{out}.whole"])
        self.add("Cast", [f"{out}.whole"], [f"{out}.sum"], to=1)  # to float32
        self.add("Mul", [f"{x}.scale", scale], [f"{out}.scale"])
        self.add("Mul", [f"{out}.sum", f"{out}.scale"], [out])

    def look_up(self, node: Any) -> None:
        table, ids = node.input
        out = node.output[0]
        whole, scale, zero = self.narrow(table, rows=0)
        column = f"{scale}.column"
        self.added[column] = self.added[scale][:, None]
        self.add("Gather", [whole, ids], [f"{out}.whole"], axis=0)
        self.add("Gather", [column, ids], [f"{out}.scale"], axis=0)
        # A scale of 1: here it only takes the middle away.
        self.added["one"] = np.array(1, np.float32)
        self.add("DequantizeLinear", [f"{out}.whole", "one", zero], [f"{out}.sum"])
        self.add("Mul", [f"{out}.sum", f"{out}.scale"], [out])

    def convolution(self, node: Any) -> None:
        weight = node.input[1]
        whole, scale, _ = self.narrow(weight, rows=0)
        zeros = f"{whole}.zeros"
        self.added[zeros] = np.full(self.added[scale].shape, MIDDLE, np.uint8)
        self.add("DequantizeLinear", [whole, scale, zeros], [f"{weight}.wide"], axis=0)
        node.input[1] = f"{weight}.wide"
        self.nodes.append(node)

    def narrow(self, name: str, *, rows: int) -> tuple[str, str, str]:
        """Names of a weight's whole numbers, of its scales (rows,), and of what stands for zero."""
        whole, scale = f"{name}.int8.{rows}", f"{name}.scale.{rows}"
        if whole not in self.added:
            self.added[whole], self.added[scale] = rounded(self.weights[name], rows)
            self.added["middle"] = np.array(MIDDLE, np.uint8)
        return whole, scale, "middle"

    def add(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))


def rounded(weight: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 of a weight's shape, and a scale for each index of its axis `rows`."""
    others = tuple(axis for axis in range(weight.ndim) if axis != rows % weight.ndim)
    scale = np.abs(weight).max(others) / np.float32(127)
    scale = np.where(scale >= np.finfo(np.float32).tiny, scale, np.float32(1)).astype(np.float32)  # rows of zeros
    shape = [1] * weight.ndim
    shape[rows] = -1
    whole = np.clip(np.rint(weight / scale.reshape(shape)), -127, 127) + MIDDLE
    return whole.astype(np.uint8), scale


def axis_of(node: Any) -> int:
    return next((int(one.i) for one in node.attribute if one.name == "axis"), 0)
