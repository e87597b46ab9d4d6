"""Shared options: what they accept, and what they set."""

import gc
import random
from pathlib import Path

import numpy
import pytest
import torch
import typer
from typer.testing import CliRunner

from meshcap.cli import options
from meshcap.errors import MeshcapError


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine with the given accelerators, as far as torch can tell."""

    def pretend(*, cuda: bool = False, mps: bool = False, bf16: bool = False, cpu_bf16: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
        monkeypatch.setattr("meshcap.backends.torch_backend.multiplies_bfloat16", lambda: cpu_bf16)

    return pretend


def command(
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    print(repr((device, dtype, threads, json)))


def call(*words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout.strip()


def test_defaults() -> None:
    assert call() == (0, repr(("auto", "auto", None, False)))


def test_every_option_is_read() -> None:
    words = ["--device", "cpu", "--dtype", "float16", "--threads", "3", "--json"]
    assert call(*words) == (0, repr(("cpu", "float16", 3, True)))


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "tpu"),
        ("--dtype", "float64"),
        ("--threads", "0"),
        ("--threads", "two"),
        ("--json", "yes"),
    ],
    ids=" ".join,
)
def test_other_values_are_misuse(words: tuple[str, str]) -> None:
    assert call(*words)[0] == 2


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, "cpu"),
        ({"mps": True}, "mps"),
        ({"cuda": True}, "cuda"),
        ({"cuda": True, "mps": True}, "cuda"),
    ],
)
def test_auto_device(machine, there: dict[str, bool], expected: str) -> None:
    machine(**there)
    assert options.apply("auto", "float32", None, None)[0] == torch.device(expected)


def test_cpu_is_cpu_beside_a_gpu(machine) -> None:
    machine(cuda=True, mps=True, bf16=True)
    assert options.apply("cpu", "auto", None, None) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cuda", "device is cuda, and torch sees no CUDA device: use cpu or auto"),
        ("mps", "device is mps, and torch sees no Apple GPU: use cpu or auto"),
    ],
)
def test_missing_device_says_what_to_do(machine, name: options.DeviceName, line: str) -> None:
    machine()
    with pytest.raises(MeshcapError) as raised:
        options.apply(name, "auto", None, None)
    assert str(raised.value) == line


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, torch.float32),
        ({"mps": True}, torch.float32),
        ({"cuda": True}, torch.float32),
        ({"cuda": True, "bf16": True}, torch.bfloat16),
        ({"cpu_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_dtype(machine, there: dict[str, bool], expected: torch.dtype) -> None:
    machine(**there)
    assert options.apply("auto", "auto", None, None)[1] is expected


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int8"])
def test_named_dtype(name: options.DtypeName) -> None:
    assert options.apply("cpu", name, None, None)[1] is getattr(torch, name)


def test_threads_are_set() -> None:
    asked = torch.get_num_threads() + 1
    options.apply("cpu", "auto", asked, None)
    assert torch.get_num_threads() == asked
    options.apply("cpu", "auto", None, None)
    assert torch.get_num_threads() == asked  # none asked for: left alone


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.random()), float(torch.rand(()))


def test_seed_repeats_and_differs() -> None:
    def seeded(seed: int) -> tuple[float, float, float]:
        options.apply("cpu", "auto", None, seed)
        return draw()

    first = seeded(5)
    assert seeded(5) == first
    assert all(a != b for a, b in zip(seeded(6), first, strict=True))
    assert seeded(2**32 - 1) == seeded(2**32 - 1)  # the largest that the option lets through


def test_no_seed_leaves_the_generators_alone() -> None:
    options.apply("cpu", "auto", None, 5)
    first = draw()
    options.apply("cpu", "auto", None, None)
    assert draw() != first


def test_garbage_is_collected_after_loading(tmp_path: Path) -> None:
    """It is not while a captioner is read, whether or not there is one."""
    with pytest.raises(MeshcapError):
        options.load_captioner(str(tmp_path), "cpu", "float32")
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0  # Triton, where it is installed, would tell of leaks at the end
