"""`meshcap bench runtimes`: every runtime is measured, and those of 32 bits say the same."""

import json
from pathlib import Path

import pytest

import exported
from meshcap.cli import main

pytest.importorskip("onnxscript")


@pytest.mark.slow
def test_a_row_for_each_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported.captioner().save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit) as left:
        main(["bench", "runtimes", "--model", str(tmp_path / "model"), "--repeat", "1", "--json"])
    assert not left.value.code
    rows = {row["runtime"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["torch float32", "torch int8", "torch.export", "onnx float32", "onnx int8"]
    for name in ("torch float32", "torch.export", "onnx float32"):
        assert rows[name]["same"] == rows[name]["pictures"] == 16
    # onnxruntime is measured without torch in the process.
    assert rows["onnx float32"]["memory"] < rows["torch float32"]["memory"] / 1.5
