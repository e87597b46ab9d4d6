"""Weights of 8 bits: near what they were, refused where they do not fit, rounded once and never twice."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import tiny
from meshcap import weights as storage
from meshcap.backends.packed import Int8Linear, can_pack
from meshcap.errors import MeshcapError
from meshcap.models import load_model
from meshcap.weights import dequantise, quantise, reduced, rounded, stored

PICTURES = tiny.pictures(3, 6)
IDS = torch.tensor([[2, 4, 5, 6]]).expand(2, -1)


@pytest.fixture
def tiny_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny captioners have no matrix that would be worth 8 bits."""
    monkeypatch.setattr(storage, "LEAST_ROW", 8)
    monkeypatch.setattr(storage, "LEAST", 128)


def refused(call) -> str:
    with pytest.raises(MeshcapError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(
    st.integers(0, 1000),
    st.sampled_from([(256, 32), (5, 2000), (100, 10, 3, 3), (300, 3, 5, 5)]),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e5, 1e30]),
)
def test_no_number_moves_by_more_than_half_a_scale(seed: int, shape: tuple[int, ...], loud: float) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * loud
    weight[1] *= 1e-5  # rows of very different loudness
    weight[2] = 0
    found = quantise({"w": weight})
    assert found["w"].dtype == torch.int8 and found["w"].shape == weight.shape
    assert found["w.scale"].shape == weight.shape[:1]
    again = dequantise(found)
    assert list(again) == ["w"] and again["w"].dtype == torch.float32
    half = found["w.scale"].view(-1, *[1] * (len(shape) - 1)) / 2
    assert ((again["w"] - weight).abs() <= half * (1 + 1e-4)).all()
    assert not again["w"][2].any()
    peak = weight.flatten(1).abs().amax(1)
    torch.testing.assert_close(found["w.scale"][[0, 1]], peak[[0, 1]] / 127, rtol=1e-6, atol=0)


@given(st.integers(0, 1000))
def test_rounding_again_changes_nothing(seed: int) -> None:
    weight = torch.randn(30, 40, generator=torch.Generator().manual_seed(seed)) ** 3
    first, scale = rounded(weight)
    again, scale_again = rounded(dequantise({"w": first, "w.scale": scale})["w"])
    assert torch.equal(first, again)
    torch.testing.assert_close(scale, scale_again, rtol=3e-7, atol=0)


@pytest.mark.skipif(not can_pack(torch.int8), reason="torch without int8 kernels")
def test_the_kernels_run_the_integers_of_the_file() -> None:
    """A matrix that was stored in 8 bits and is run in 8 bits is not rounded a second time."""
    linear = torch.nn.Linear(64, 32)
    integers, scale = rounded(linear.weight)
    with torch.no_grad():
        linear.weight.copy_(dequantise({"w": integers, "w.scale": scale})["w"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight, _ = torch.ops.quantized.linear_unpack(Int8Linear(linear).packed)
        assert torch.equal(weight.int_repr(), integers)


def test_what_is_rounded_and_what_is_not() -> None:
    weights = {
        "matrix": torch.randn(128, 64), "kernel": torch.randn(30, 32, 3, 3),
        "short rows": torch.randn(500, 1, 5, 5), "small": torch.randn(90, 90), "huge": torch.full((8, 8), 1e9),
        "vector": torch.randn(9000), "count": torch.ones(128, 64, dtype=torch.long),
        "broken": torch.full((128, 64), float("nan")), "positions": torch.randn(128, 64),
    }  # fmt: skip
    found = quantise(weights, exact=("positions",))
    assert set(found) == {*weights, "matrix.scale", "kernel.scale"}
    assert {name for name, tensor in found.items() if tensor.dtype == torch.int8} == {"matrix", "kernel"}
    assert {name for name, tensor in found.items() if tensor.dtype == torch.float16} == {"short rows", "small"}
    for name in ("huge", "vector", "count", "broken", "positions"):
        assert found[name] is weights[name]


def test_sixteen_bits() -> None:
    weights = {"a": torch.randn(4, 4), "b": torch.full((2, 2), 1e6), "c": torch.ones(3), "d": torch.randn(4, 4)}
    found = reduced(weights, 16, exact=("d",))
    assert [tensor.dtype for tensor in found.values()] == [torch.float16, *[torch.float32] * 3]
    assert torch.isfinite(found["b"]).all()  # which float16 cannot hold
    assert refused(lambda: reduced({}, 5)) == "bits is 5, expected 4, 6, 8, 16 or 32"


@given(
    st.integers(0, 1000),
    st.sampled_from([(256, 64), (5, 2000), (100, 10, 3, 3), (300, 3, 5, 5)]),
    st.sampled_from([1e-3, 1.0, 100.0]),
    st.sampled_from([4, 6]),
)
def test_groups_move_by_no_more_than_half_a_step(seed: int, shape: tuple[int, ...], loud: float, bits: int) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * loud
    weight[2] = 0.5 * loud
    found = quantise({"w": weight}, bits=bits)
    columns = weight[0].numel()
    groups = -(-columns // 64)
    assert set(found) == {f"w.q{bits}", "w.step", "w.low"}
    assert found[f"w.q{bits}"].shape == (shape[0], groups * 64 * bits // 8)
    again = torch.empty_like(weight)
    storage.restore(again, found, "w")
    # Half a step, and what float16 makes of the step and the lowest number themselves.
    steps = found["w.step"].float().repeat_interleave(64, 1)[:, :columns]
    lows = found["w.low"].float().abs().repeat_interleave(64, 1)[:, :columns]
    error = (again - weight).flatten(1).abs()
    assert (error <= steps * (0.5 + 2**bits * 2**-10) + lows * 2**-10 + 1e-7).all()


@pytest.mark.parametrize("bits", [4, 6])
def test_integers_are_packed_by_hand(bits: int) -> None:
    integers = torch.randint(0, 2**bits, (3, 64), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    content = storage._packed(integers, bits)
    for row, packed in zip(integers.tolist(), content.tolist(), strict=True):
        number = int.from_bytes(bytes(packed), "little")
        assert row == [number >> (bits * place) & (2**bits - 1) for place in range(64)]


@pytest.mark.parametrize("bits", [4, 6])
def test_a_folder_of_few_bits_is_read_back(tiny_is_large: None, tmp_path: Path, bits: int) -> None:
    model = tiny.build("m2")
    model.save_pretrained(tmp_path, bits=bits)
    again = load_model(tmp_path)
    for (name, weight), other in zip(model.named_parameters(), again.parameters(), strict=True):
        span = weight.max() - weight.min()
        assert (weight - other).abs().max() <= span / (2**bits - 1) + 1e-6, name
    broken = load_file(tmp_path / "model.safetensors")
    name = next(one for one in broken if one.endswith(".step"))
    broken[name] = broken[name][:, :0]
    save_file(broken, tmp_path / "model.safetensors")
    assert "of shape" in refused(lambda: load_model(tmp_path))


def test_largest_error_by_hand() -> None:
    weight = torch.full((2, 5000), 1.27)
    weight[0, 0] = 0.004  # the scale is 0.01: it becomes 0
    weight[1] = 0.001
    assert largest_error({"w": weight}, quantise({"w": weight})) == pytest.approx(0.004 / 1.27, rel=1e-3)


@torch.no_grad()
@pytest.mark.usefixtures("tiny_is_large")
@pytest.mark.parametrize("bits", [8, 16])
def test_folders_of_fewer_bits(captioner, bits: int, tmp_path: Path) -> None:
    captioner.save_pretrained(tmp_path, bits=bits)
    again = load_model(tmp_path)
    assert again.config == captioner.config
    assert list(again.state_dict()) == list(captioner.state_dict())
    assert again.dtype == torch.float32 and not again.training
    written = load_file(tmp_path / "model.safetensors")
    assert any(tensor.dtype == (torch.int8 if bits == 8 else torch.float16) for tensor in written.values())
    for name, buffer in captioner.named_buffers():
        if name in written:
            assert torch.equal(written[name], buffer)
    expected = dequantise(stored(captioner, bits))
    assert all(torch.equal(tensor, expected[name].float()) for name, tensor in again.state_dict().items())
    if not tiny.looks_hard(captioner):
        moved = (again(PICTURES, IDS).exp() - captioner(PICTURES, IDS).exp()).abs()
        assert 0 < moved.mean() < (0.02 if bits == 8 else 0.001)
    again.save_pretrained(tmp_path / "again", bits=bits)  # a copy of a copy is as good
    third = load_model(tmp_path / "again")
    for one, other in zip(again.parameters(), third.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("tiny_is_large")
def test_files_that_do_not_fit(tmp_path: Path) -> None:
    tiny.build("m2").save_pretrained(tmp_path, bits=8)
    path = tmp_path / "model.safetensors"
    whole = {name: tensor.clone() for name, tensor in load_file(path).items()}
    name = "encoder.layers.0.attention.qkv.weight"
    scale, shape = f"{name}.scale", tuple(whole[name].shape)

    def without(*names: str) -> dict[str, torch.Tensor]:
        return {key: tensor for key, tensor in whole.items() if key not in names}

    def told(weights: dict[str, torch.Tensor]) -> str:
        save_file(weights, path)
        return refused(lambda: load_model(tmp_path))

    assert told(without(scale)) == f"{path} has {name} in 8 bits without {scale}"
    assert told(without(name)) == f"{path} lacks {name} {shape}, which the settings beside it call for"
    assert told(without(name, scale)) == f"{path} lacks {name} {shape}, which the settings beside it call for"
    expected = f"expected a float for each row of {name} {shape}"
    assert told({**whole, scale: torch.ones(3)}) == f"{path} has {scale} of shape (3,) and float32, {expected}"
    ints = torch.ones(shape[0], dtype=torch.int32)
    assert told({**whole, scale: ints}) == f"{path} has {scale} of shape ({shape[0]},) and int32, {expected}"
    floats = whole[name].float()
    assert told({**whole, name: floats}) == f"{path} has {scale} beside a {name} of float32, expected one of int8"
    assert told({**whole, name: whole[name][:, :-1].contiguous()}) == (
        f"{path} has {name} of shape {(shape[0], shape[1] - 1)}, expected {shape}"
    )
    assert told({**whole, "more.scale": torch.ones(3)}).startswith(f"{path} has more.scale, which the settings")
    save_file(whole, path)
    load_model(tmp_path)


def test_the_hub_is_given_whole_weights(tmp_path: Path) -> None:
    model = tiny.build("m2")
    message = refused(lambda: model.save_pretrained(tmp_path / "model", bits=8, push_to_hub=True))
    assert message == "the hub is given 32 bits: save 8 bits into a folder and upload that"
    assert not (tmp_path / "model").exists()


def largest_error(weights: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]) -> float:
    """How far any number is from what it was, as a share of the largest of its matrix or vector."""
    restored = dequantise(stored)
    worst = 0.0
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.numel():
            peak = tensor.abs().amax().float()
            moved = (restored[name].float() - tensor.float()).abs().amax()
            worst = max(worst, float(moved / peak.clamp_min(torch.finfo(torch.float32).tiny)))
    return worst


def test_loading_imports_no_compiler() -> None:
    """Some operations on meta tensors import torch's compiler: three seconds before the first caption."""
    code = (
        "import sys, torch, tiny; from meshcap.weights import SkipInit; from meshcap import Captioner\n"
        "with SkipInit(), torch.device('meta'):\n"
        "    for name in tiny.names(): tiny.build_plain(name)\n"
        "Captioner.from_pretrained()\n"
        "sys.exit(' '.join({'torch._dynamo', 'sympy'} & set(sys.modules)) or 0)"
    )
    folders = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": folders}
    )
    assert done.returncode == 0, done.stderr
