"""benchmarks/train.py: the kinds of steps run, and their rows say how fast."""

import json

import pytest

import tiny_data
from benchmarks import train as bench
from benchmarks.common import Rates
from meshcap.errors import MeshcapError

SIZES = ("--batch", 2, "--pictures", 8, "--steps", 1, "--width", 64, "--layers", 1, "--vision", "small-cnn")
REAL = ("--work", "cells", "--work", "pictures", "--work", "scst")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand words and a measurement of the machine take longer than all the rest."""
    monkeypatch.setattr(bench, "WORDS", 40)
    monkeypatch.setattr(bench, "WIDTH", 32)
    monkeypatch.setattr(bench.Rates, "of", lambda device, dtype: Rates(1e9, 1e9))


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = tiny_data.bench(bench.command, *words, "--device", "cpu", "--threads", "1")
    out, err = capsys.readouterr()
    return code, out, err


def test_rows_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *SIZES, "--size", 32, *REAL, "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["work"].split(",")[0] for row in rows] == ["XE", "XE", "SCST"]
    assert "8 pictures × 5 captions" in rows[0]["work"]  # four times as many where nothing is looked at
    assert "2 pictures × 5 captions" in rows[1]["work"]
    assert "2 pictures × 5 samples" in rows[2]["work"]
    for row in rows:
        assert row["seconds"] > 0
        assert row["floor"] > 0
        assert row["memory"] > 0
        assert "captions/s" in row["rate"]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *SIZES, "--size", 32, "--work", "scst")
    assert code == 0
    assert "SCST" in out
    assert "XE" not in out


def test_unknown_work(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--work", "nothing")
    assert (code, out) == (2, "")
    assert "expected step, cells, pictures or scst" in err


def test_a_row_without_weights_does_not_lose_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str, **settings: object) -> None:
        raise MeshcapError(f"{name} needs weights: pip install something")

    monkeypatch.setattr(bench, "create_vision", none)
    code, out, _ = call(capsys, *SIZES, "--size", 32, *REAL, "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["missing"] for row in rows] == [None, "small-cnn needs weights: pip install something", None]
    assert rows[2]["seconds"] > 0
    code, out, err = call(capsys, *SIZES, "--size", 32, "--work", "pictures")
    assert code == 2 and "pip install something" in out
    assert err == "error: nothing could be measured: small-cnn needs weights: pip install something\n"


def test_the_plain_step(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "slots": 2}
    config = bench.M2Config
    monkeypatch.setattr(bench, "M2Config", lambda **given: config(**{**given, "vocab_size": 40, **sizes}))
    code, out, _ = call(capsys, "--work", "step", "--step-pictures", 2, "--captions", 2, "--length", 3, "--json")
    assert code == 0
    [row] = json.loads(out)["rows"]
    assert row["work"] == "XE step, 2 pictures × 2 captions × 3 words" and row["floor"] > 0
