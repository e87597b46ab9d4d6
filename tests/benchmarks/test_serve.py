"""benchmarks/serve.py on a tiny model: a real server, real requests, and what it says when they fail."""

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import serve
from benchmarks.serve import bench_soak, drive, failed, memory, percentile, running
from meshcap.errors import FailedError, MeshcapError
from serving import small
from tiny_data import bench


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    small.captioner().save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(folder), "--device", "cpu", "--threads", "1", "--json"]
    assert bench(serve.command, *words, "--clients", "2", "--requests", "9", "--soak", "0") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["work"], row["setting"]) for row in rows] == [("2 clients", "batched"), ("2 clients", "one at a time")]
    for row in rows:
        assert row["notes"]["failed"] == "0" and row["seconds"] > 0 and row["memory"] > 2**20


@pytest.mark.slow
def test_memory_is_read_all_along(folder: Path) -> None:
    [row] = bench_soak(str(folder), ["--device", "cpu", "--threads", "1"], requests=2000)
    readings = [float(one) for one in row.notes["MiB over time"].split()]
    assert len(readings) == 11 and row.notes["failed"] == "0"
    assert readings[-1] - readings[2] < 20  # MiB: flat once every shape was seen


def test_requests_that_fail_are_told() -> None:
    with small.listening(small.captioner()) as port:
        good, bad = small.picture(), b"no picture"
        run = drive(port, [good, bad], clients=2, requests=6)
        assert len(run.seconds) == 3 and len(run.failures) == 3 and run.failures[0].startswith("status 422")
        row = serve._row("6 requests", "batched", run, 2.0, memory(port))
    assert row.rate == "1.5 pictures/s" and row.memory > 2**20
    with pytest.raises(FailedError, match=r"^3 requests of 6 requests, batched failed: status 422"):
        failed([row])
    gone = drive(port, [good], clients=1, requests=2)
    assert gone.seconds == [] and len(gone.failures) == 2 and "Refused" in gone.failures[0]


@pytest.mark.slow
def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="expected a model folder"), running(str(tmp_path), ()):
        raise AssertionError("it runs")


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_percentiles(numbers: list[float], part: float) -> None:
    """By the definition, counted."""
    found = percentile(numbers, part)
    assert found in numbers
    assert sum(one <= found for one in numbers) >= part * len(numbers) - 1e-9
    assert all(sum(one <= other for one in numbers) < part * len(numbers) for other in numbers if other < found)
    assert percentile([*range(1, 101)], 0.95) == 95
    assert statistics.median_low(numbers) == percentile(numbers, 0.5)
