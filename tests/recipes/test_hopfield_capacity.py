"""The capacity curve, small, and the digits where scikit-learn is there."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from recipes import hopfield_capacity as capacity


def test_overlap_falls_with_the_load() -> None:
    low, critical, high = (capacity.overlap(200, load, seed=0) for load in (0.05, 0.14, 0.4))
    assert low > 0.99 and critical > 0.9 and high < 0.6
    assert capacity.overlap(200, 0.14, seed=0) == critical


def test_command_draws_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capacity.main(["--units", "50", "100", "--seeds", "1", "--out", str(tmp_path / "curve.svg")])
    told = capsys.readouterr().out
    assert "N = 50" in told and "0.14" in told and "10 of 50, 5 of 100 units" in told
    drawn = ElementTree.parse(tmp_path / "curve.svg").getroot()
    lines = [path for path in drawn.iter("{http://www.w3.org/2000/svg}path") if path.get("fill") == "none"]
    assert [line.get("d", "").count("L") for line in lines] == [len(capacity.LOADS) - 1] * 2
    assert any("100 units" in (text.text or "") for text in drawn.iter("{http://www.w3.org/2000/svg}text"))


def test_digits_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    capacity.main(["--digits", str(tmp_path / "digits.png")])
    modern = [line.split(":")[1].split() for line in capsys.readouterr().out.splitlines() if "modern" in line]
    assert modern[1] == ["0"] * 10  # all of the noisy ones
    assert Image.open(tmp_path / "digits.png").width > 500
