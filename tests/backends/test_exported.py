"""runtime.json: what is written is read, and nothing else is."""

import json
from pathlib import Path

import numpy as np
import pytest

import exported
from meshcap import Captioner
from meshcap.backends.exported import FACTS, ExportedFacts, StatePart
from meshcap.errors import MeshcapError

KEYS = (2, "3*pictures", "places")
PART = StatePart(name="keys", dtype="float32", shape=KEYS, seen=False, changes=True, follows=False)
WHOLE = ExportedFacts(
    model="m2", bits=32, vocab_size=10, max_length=9, unk=0, pad=1, bos=2, eos=3, size=12, geometry="crop",
    pre_resize=8, state=(PART,),
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text(WHOLE.to_json(), encoding="utf-8")
    assert ExportedFacts.read(tmp_path) == WHOLE
    assert PART.sizes(pictures=4, width=5, places=6) == (2, 12, 6)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    good = json.loads(WHOLE.to_json())
    part = good["state"][0]
    for wrong, message in (
        ("{", "not readable JSON"),
        ("[]", "version None"),
        (json.dumps({**good, "version": 3}), "version 3"),
        (json.dumps({name: value for name, value in good.items() if name != "eos"}), "does not say eos"),
        (json.dumps({**good, "bos": "two"}), "bos 'two'"),
        (json.dumps({**good, "state": [{**part, "shape": [2, "elephants"]}]}), "elephants"),
        (json.dumps({**good, "state": [{**part, "dtype": "float8"}]}), "float8"),
        (json.dumps({**good, "state": [{"name": "keys"}]}), "cannot be read"),
    ):
        (tmp_path / FACTS).write_text(wrong, encoding="utf-8")
        with pytest.raises(MeshcapError, match=message) as caught:
            ExportedFacts.read(tmp_path)
        assert "\n" not in str(caught.value)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=r"has no runtime\.json"):
        Captioner.from_pretrained(tmp_path, backend="onnx")
    with pytest.raises(MeshcapError, match="is no folder"):
        Captioner.from_pretrained(tmp_path / "nowhere", backend="onnx")
    with pytest.raises(MeshcapError, match="backend is 'tpu', expected auto, torch, onnx, torch-export"):
        Captioner.from_pretrained(tmp_path, backend="tpu")
    (tmp_path / FACTS).write_text(WHOLE.to_json(), encoding="utf-8")
    with pytest.raises(MeshcapError, match=r"holds an exported model: read it with backend='onnx'"):
        Captioner.from_pretrained(tmp_path, backend="torch")
    with pytest.raises(MeshcapError, match=r"has no see\.onnx: write it with `meshcap export MODEL --format onnx`"):
        Captioner.from_pretrained(tmp_path)


def test_a_graph_that_computes_no_numbers_gives_no_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    captioner = Captioner.from_pretrained(exported.folder("onnx"))
    run_say = captioner.backend.run_say

    def damaged(ids: np.ndarray, state: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        log_probs, changed = run_say(ids, state)
        return np.full_like(log_probs, np.nan), changed

    monkeypatch.setattr(captioner.backend, "run_say", damaged)
    with pytest.raises(MeshcapError, match="computes no numbers"):
        captioner.caption(exported.pictures()[0])
