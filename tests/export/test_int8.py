"""8 bits: graphs made by hand, before and after; what the weights become is worked out by `meshcap.weights`."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import torch  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from meshcap.export.onnx_files import narrowed  # noqa: E402
from meshcap.weights import dequantise, quantise, rounded_in_groups, ungrouped  # noqa: E402

RNG = np.random.default_rng(0)


def graph(nodes, inputs, weights, rank):
    made = helper.make_graph(
        nodes,
        "by hand",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"axis{n}" for n in range(rank)])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model, **inputs):
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], inputs)[0]


def in_rows(weight):
    """As a file of 8 bits gives it back: a scale for each row."""
    return dequantise(quantise({"w": torch.from_numpy(weight)}))["w"].numpy()


def in_groups(weight, bits):
    """As a file of 6 or 4 bits gives it back."""
    given = torch.from_numpy(weight)
    return ungrouped(*rounded_in_groups(given, bits), bits, tuple(given.shape)).numpy()


def random(*shape):
    """Rows of different sizes, around different means, as trained weights have some."""
    scale, shift = (RNG.uniform(*ends, (shape[0], *[1] * (len(shape) - 1))) for ends in ((0.01, 10), (-3, 3)))
    return ((RNG.normal(size=shape) + shift) * scale).astype(np.float32)


def size_of(model):
    return sum(numpy_helper.to_array(one).nbytes for one in model.graph.initializer if "group." not in one.name)


@pytest.mark.parametrize(
    ("stored", "most"),
    [(in_rows, 1.1), (lambda w: in_groups(w, 6), 1.2), (lambda w: in_groups(w, 4), 1.2)],
    ids=["8 bits", "6 bits", "4 bits"],
)
@pytest.mark.parametrize("shape", [("b", 5, 128), ("b", 128)])
def test_a_product_with_weights_that_were_rounded_before_is_the_same(stored, most, shape) -> None:
    weight = stored(random(96, 128))
    weight[5, :64] = weight[5, 0]  # a group of equal numbers
    weight = stored(weight)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    make = lambda: graph([node], [("x", TensorProto.FLOAT, shape)], {"w": weight.T.copy()}, len(shape))  # noqa: E731
    x = RNG.normal(size=[3 if one == "b" else one for one in shape]).astype(np.float32)
    model = narrowed(make())
    assert size_of(model) < most * weight.size
    np.testing.assert_allclose(run(model, x=x), run(make(), x=x), rtol=1e-5, atol=2e-5 * np.abs(weight).max())


def test_a_product_with_new_weights_rounds_them_and_not_what_comes_in() -> None:
    weight = random(96, 128)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = narrowed(graph([node], [("x", TensorProto.FLOAT, ["b", 5, 128])], {"w": weight.T.copy()}, 3))
    x = RNG.normal(size=(3, 5, 128)).astype(np.float32)
    found = run(model, x=x)
    np.testing.assert_allclose(found, x @ in_rows(weight).T, rtol=1e-5, atol=1e-3)
    assert np.abs(found - x @ weight.T).max() > 0.1  # it is rounded


@pytest.mark.parametrize("stored", [in_rows, lambda w: in_groups(w, 6)], ids=["8 bits", "6 bits"])
def test_a_table_of_words_that_is_also_multiplied(stored) -> None:
    """Tied words: looked up by row, and transposed to a factor."""
    table = stored(random(300, 64))
    nodes = [
        helper.make_node("Gather", ["w", "x"], ["found"], axis=0),
        helper.make_node("Transpose", ["w"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["found", "columns"], ["y"]),
    ]
    model = narrowed(graph(nodes, [("x", TensorProto.INT64, ["b", "w"])], {"w": table}, 3))
    ids = RNG.integers(0, 300, (2, 5))
    np.testing.assert_allclose(run(model, x=ids), table[ids] @ table.T, rtol=1e-5, atol=1e-2)
    assert size_of(model) < table.nbytes / 3


@pytest.mark.parametrize("stored", [in_rows, lambda w: in_groups(w, 6)], ids=["8 bits", "6 bits"])
def test_a_convolution(stored) -> None:
    kernel = stored(random(16, 64, 3, 3))
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    make = lambda: graph([node], [("x", TensorProto.FLOAT, ["b", 64, 8, 8])], {"w": kernel}, 4)  # noqa: E731
    x = RNG.normal(size=(2, 64, 8, 8)).astype(np.float32)
    model = narrowed(make())
    assert size_of(model) < kernel.nbytes / 3
    np.testing.assert_allclose(run(model, x=x), run(make(), x=x), rtol=1e-4, atol=1e-2)


def test_what_stays_as_it_is() -> None:
    small, wide = RNG.normal(size=(32, 8)).astype(np.float32), RNG.normal(size=(100, 100)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "small"], ["m"]),
        helper.make_node("ReduceSum", ["wide"], ["s"], keepdims=0),
        helper.make_node("Add", ["m", "s"], ["y"]),
    ]
    make = lambda: graph(nodes, [("x", TensorProto.FLOAT, [2, 32])], {"small": small, "wide": wide}, 2)  # noqa: E731
    assert narrowed(make(), exact={"wide"}) == make()
    assert narrowed(make()) != make()
