"""8 bits: graphs made by hand, before and after, with the rounding worked out in numpy."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from meshcap.export.int8 import narrowed, rounded  # noqa: E402

RNG = np.random.default_rng(0)


def graph(nodes, inputs, weights, rank):
    made = helper.make_graph(
        nodes,
        "by hand",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"axis{n}" for n in range(rank)])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def run(model, **inputs):
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], inputs)[0]


def restored(weight, rows):
    whole, scale = rounded(weight, rows)
    shape = [1] * weight.ndim
    shape[rows] = -1
    return (whole.astype(np.float32) - 128) * scale.reshape(shape)


def test_no_number_moves_by_more_than_half_a_step() -> None:
    weight = RNG.normal(size=(64, 200)).astype(np.float32) * RNG.uniform(0.01, 10, (64, 1)).astype(np.float32)
    weight[3] = 0
    whole, scale = rounded(weight, 0)
    assert whole.dtype == np.uint8
    assert scale.shape == (64,)
    assert np.all(np.abs(restored(weight, 0) - weight) <= scale[:, None] / 2 * 1.001)
    assert np.all(restored(weight, 0)[3] == 0)
    np.testing.assert_allclose(np.abs(restored(weight, 0)).max(1), np.abs(weight).max(1), rtol=1e-5)


def test_a_product_rounds_what_comes_in_and_the_weight() -> None:
    weight = RNG.normal(size=(128, 96)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = narrowed(graph([node], [("x", TensorProto.FLOAT, ["b", 5, 128])], {"w": weight}, 3))
    assert "w" not in {one.name for one in model.graph.initializer}
    x = RNG.normal(size=(3, 5, 128)).astype(np.float32)
    # As ONNX defines DynamicQuantizeLinear: 256 steps from the least number to the greatest, zero among them.
    step = np.float32((max(x.max(), 0) - min(x.min(), 0)) / 255)
    zero = np.clip(np.rint(-min(x.min(), 0) / step), 0, 255)
    seen = (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step
    found = run(model, x=x)
    np.testing.assert_allclose(found, seen @ restored(weight, -1), atol=2e-3)
    assert np.abs(found - x @ weight).max() > 0.01  # it is rounded
    np.testing.assert_allclose(found, x @ weight, atol=1.0)


def test_a_table_of_words_is_looked_up() -> None:
    table = RNG.normal(size=(300, 40)).astype(np.float32)
    node = helper.make_node("Gather", ["w", "x"], ["y"], axis=0)
    model = narrowed(graph([node], [("x", TensorProto.INT64, ["b", "w"])], {"w": table}, 3))
    ids = RNG.integers(0, 300, (2, 5))
    np.testing.assert_allclose(run(model, x=ids), restored(table, 0)[ids], atol=1e-6)
    assert model.ByteSize() < table.nbytes / 3


def test_a_convolution_keeps_its_floats_while_it_runs() -> None:
    kernel = RNG.normal(size=(16, 64, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    make = lambda w: graph([node], [("x", TensorProto.FLOAT, ["b", 64, 8, 8])], {"w": w}, 4)  # noqa: E731
    x = RNG.normal(size=(2, 64, 8, 8)).astype(np.float32)
    wanted = run(make(restored(kernel, 0)), x=x)
    np.testing.assert_allclose(run(narrowed(make(kernel)), x=x), wanted, atol=1e-3)


def test_small_weights_and_other_axes_stay() -> None:
    small, wide = RNG.normal(size=(32, 8)).astype(np.float32), RNG.normal(size=(100, 100)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "small"], ["m"]),
        helper.make_node("Gather", ["wide", "ids"], ["g"], axis=1),
        helper.make_node("ReduceSum", ["g"], ["s"], keepdims=0),
        helper.make_node("Add", ["m", "s"], ["y"]),
    ]
    inputs = [("x", TensorProto.FLOAT, [2, 32]), ("ids", TensorProto.INT64, [3])]
    weights = {"small": small, "wide": wide}
    assert narrowed(graph(nodes, inputs, weights, 2)) == graph(nodes, inputs, weights, 2)
