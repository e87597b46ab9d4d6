"""The examples of docs/attention.md run, and its figures are those that its command prints."""

import re
from pathlib import Path

import pytest

from recipes import dot_variance as variance

PAGE = (Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")


def test_examples_run() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(block, names)


def test_table_is_what_the_command_prints() -> None:
    rows = [[float(cell) for cell in line.strip("|").split("|")] for line in re.findall(r"^\|[ \d.|]+\|$", PAGE, re.M)]
    assert [row[0] for row in rows] == [4, 64, 1024]
    for width, *figures in rows[:2]:
        found = variance.measure(int(width))
        (dot, dot_weight), (scaled, scaled_weight) = found["dot"], found["scaled"]
        # What torch's generator gives may differ in the last digits from one version to the next.
        assert figures == pytest.approx([dot, scaled, dot_weight, scaled_weight], rel=0.05)


def test_picture_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(variance, "WIDTHS", [1, 4, 16])
    variance.main(["--out", str(tmp_path / "images" / "plot.svg")])
    drawn = (tmp_path / "images" / "plot.svg").read_text(encoding="utf-8")
    assert drawn.count("<circle") == 6 and "xᵀq/√D" in drawn
    assert "| 16 | 1" in capsys.readouterr().out
