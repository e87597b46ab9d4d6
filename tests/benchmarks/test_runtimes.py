"""benchmarks/runtimes.py: every backend is measured, and those of 32 bits say the same."""

import json
from pathlib import Path

import pytest

import exported
from benchmarks import runtimes
from meshcap.errors import MeshcapError
from tiny_data import bench


@pytest.mark.slow
def test_a_row_for_each_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    exported.captioner().save_pretrained(tmp_path / "model")
    assert bench(runtimes.command, "--model", tmp_path / "model", "--repeat", 1, "--json") == 0
    rows = {row["backend"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["torch float32", "torch bfloat16", "torch int8", "torch.export", "onnx float32", "onnx int8"]
    for name in ("torch float32", "torch.export", "onnx float32"):
        assert rows[name]["same"] == rows[name]["pictures"] == 16
    # onnxruntime is measured without torch in the process.
    assert rows["onnx float32"]["memory"] < rows["torch float32"]["memory"] / 1.5


def test_a_missing_extra_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object, **options: object) -> None:
        raise MeshcapError('export needs onnx: pip install "meshcap[export]"')

    def measured(name: str, job: dict[str, object]) -> dict[str, object]:
        return {"captions": [["a"]] * 16, "cpu_seconds": 1.0, "seconds": 1.0, "start": 1.0, "memory": 1.0}

    monkeypatch.setattr(runtimes, "export_captioner", none)
    monkeypatch.setattr(runtimes, "in_a_process", measured)  # which the test above runs
    exported.captioner().save_pretrained(tmp_path / "model")
    rows = runtimes.bench_runtimes(str(tmp_path / "model"), [], beams=1, repeat=1, threads=1)
    assert [row.missing is None for row in rows] == [True, True, True, False, False, False]
    assert rows[5].cells()[:2] == ["onnx int8", 'export needs onnx: pip install "meshcap[export]"']
