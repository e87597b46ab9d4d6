"""`meshcap bench train`: the three kinds of steps run, and their rows say how fast."""

import json

import pytest

from meshcap import cli
from meshcap.bench import train as bench
from meshcap.bench.measure import Rates

SIZES = ("--batch", 2, "--pictures", 8, "--steps", 1, "--width", 64, "--layers", 1, "--vision", "small-cnn")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand words and a measurement of the machine take longer than all the rest."""
    monkeypatch.setattr(bench, "WORDS", 40)
    monkeypatch.setattr(bench, "WIDTH", 32)
    monkeypatch.setattr(bench.Rates, "of", lambda device, dtype: Rates(1e9, 1e9))


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["bench", "train", *(str(word) for word in words), "--device", "cpu", "--threads", "1"])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_rows_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *SIZES, "--size", 32, "--json")
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
    assert "expected cells, pictures or scst" in err
