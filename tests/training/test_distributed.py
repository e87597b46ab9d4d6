"""Two processes that train together are one that trains alone."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_data
from meshcap.training.distributed import World

SAME = {"dropout": 0.0, "augment": 0.0, "region_dropout": 0.0, "label_smoothing": 0.1, "ema": 0.9, "validate_every": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"), train=16, val=3)


def together(words: list[str], port: int) -> subprocess.Popen[str]:
    """The command in two processes, as torchrun starts them, on this machine alone."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    return subprocess.Popen(
        [*start, "--master-port", str(port), "-m", "meshcap", *words],
        env={**tiny_data.quiet_environment(), "GLOO_SOCKET_IFNAME": "lo"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_alone_is_a_world_too() -> None:
    world = World.join(torch.device("cpu"))
    assert (world.rank, world.size, world.first) == (0, 1, True)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    world.sum_gradients([weight])
    assert weight.grad.tolist() == [1, 1]
    assert world.agree(True) and not world.agree(False)
    assert world.gather([1, 2]) == [1, 2]
    world.wait()
    world.leave()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [4, 5])
def test_cross_entropy_is_that_of_one_process(batch: int, data: Path, tmp_path: Path) -> None:
    """Also where the batch does not divide: the words of all ranks are counted together."""
    words = tiny_data.train_words(data, tmp_path / "one", "--batch-size", batch, xe=6, **SAME)
    assert tiny_data.call(words) == 0
    words = tiny_data.train_words(data, tmp_path / "two", "--batch-size", batch, xe=6, **SAME)
    code, _, err = finished(together(words, free_port()))
    assert code == 0, err
    one, two = (tiny_data.losses(tmp_path / name) for name in ("one", "two"))
    assert [line[:2] for line in one] == [line[:2] for line in two]
    for alone, beside in zip(one, two, strict=True):
        assert beside[2:] == pytest.approx(alone[2:], rel=1e-5)
    for name in ("model.safetensors", "checkpoints/000000006/state.safetensors"):
        first, second = load_file(tmp_path / "one" / name), load_file(tmp_path / "two" / name)
        for key, tensor in first.items():
            if "optimizer" not in key:
                torch.testing.assert_close(second[key], tensor, atol=1e-4, rtol=1e-3, msg=key)
    captions = [(tmp_path / name / "captions-val.json").read_text() for name in ("one", "two")]
    said = [[one["caption"] for one in json.loads(text)] for text in captions]
    assert said[0] == said[1]


@pytest.mark.slow
def test_self_critical_runs_and_stops_together(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = tiny_data.train_words(data, run, xe=2, scst=400, **SAME)
    process = together(words, free_port())
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and tiny_data.steps_of(run / "log.jsonl")[-1:] < [6]:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, _, err = finished(process)
    assert code != 0
    assert "as asked" in err
    records = [one for one in tiny_data.read_lines(run / "log.jsonl") if one.get("stage") == "scst"]
    assert 0 < len(records) < 400
    assert all(one.get("disagreement", 0) < 1e-5 for one in records)
    saved = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert int(saved[-1]) == tiny_data.steps_of(run / "log.jsonl")[-1]


@pytest.mark.slow
def test_more_ranks_than_pictures_to_validate(tmp_path: Path) -> None:
    data = tiny_data.scenes(tmp_path / "scenes", train=6, val=1)
    words = tiny_data.train_words(data, tmp_path / "run", xe=2, scst=1, **SAME)
    code, _, err = finished(together(words, free_port()))
    assert code == 0, err


@pytest.mark.slow
def test_a_mistake_ends_all_ranks(data: Path, tmp_path: Path) -> None:
    words = tiny_data.train_words(data, tmp_path / "run", "--max-words", 3, xe=2)
    code, _, err = finished(together(words, free_port()))
    assert code != 0
    assert "raise --max-words" in err
    assert not (tmp_path / "run").exists()
