"""The reliability diagram: points where they belong, in both formats, and words that cannot break out."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageColor

from meshcap.errors import MeshcapError
from meshcap.evaluation.calibration_fit import Bin
from meshcap.evaluation.drawing import (
    BLUE,
    HEIGHT,
    LEFT,
    ORANGE,
    SIDE,
    TOP,
    WIDTH,
    ConfidenceSeries,
    Drawing,
    reliability_drawing,
)

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawing() -> Drawing:
    told = [
        ConfidenceSeries("before <b>", [Bin(5, 0.9, 0.25, (0.2, 0.3))], [0.9] * 5),
        ConfidenceSeries(
            "after", [Bin(3, 0.25, 0.25, (0.1, 0.4)), Bin(2, 0.75, 0.8, (0.7, 0.9))], [0.25, 0.25, 0.25, 0.75, 1.0]
        ),
    ]
    return reliability_drawing("A & B", "confidence", "share", told)


def test_points_bars_and_words(drawing: Drawing) -> None:
    root = ElementTree.fromstring(drawing.as_svg())
    dots = [dict(one.attrib) for one in root.iter(f"{SVG}circle")]
    places = [(one["fill"], float(one["cx"]), float(one["cy"])) for one in dots]
    for colour, x, y in ((ORANGE, 0.9, 0.25), (BLUE, 0.25, 0.25), (BLUE, 0.75, 0.8)):
        assert (
            colour,
            pytest.approx(LEFT + x * SIDE, abs=0.06),
            pytest.approx(TOP + (1 - y) * SIDE, abs=0.06),
        ) in places
    boxes = [one for one in root.iter(f"{SVG}rect") if one.get("fill") in (BLUE, ORANGE)]
    heights = {(one.get("fill"), round(float(one.get("x", 0)))): float(one.get("height", 0)) for one in boxes}
    assert len(heights) == 4  # the last confidence of all, 1.0, has its bar too
    blue = sorted(height for (colour, _), height in heights.items() if colour == BLUE)
    assert blue[2] == pytest.approx(3 * blue[0], abs=0.2)
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert {"A & B", "before <b>", "after", "confidence", "share", "captions"} <= set(words)
    assert "0.25 came to 0.25" in (root.findtext(f"{SVG}title") or "")
    inside = [
        list(map(float, pair))
        for path in root.iter(f"{SVG}path")
        for pair in re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))
    ]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in inside)


def test_both_formats_show_the_same_places(drawing: Drawing, tmp_path: Path) -> None:
    drawing.write(tmp_path / "r.svg")
    drawing.write(tmp_path / "r.png")
    assert (tmp_path / "r.svg").read_text("utf-8") == drawing.as_svg()
    with Image.open(tmp_path / "r.png") as picture:
        assert picture.size == (2 * WIDTH, 2 * HEIGHT)
        at = round(2 * (LEFT + 0.9 * SIDE)), round(2 * (TOP + 0.75 * SIDE))
        assert picture.getpixel(at) == ImageColor.getrgb(ORANGE)
        assert picture.getpixel((2, 2)) == (255, 255, 255)
    with pytest.raises(MeshcapError, match=r"\.svg or \.png"):
        drawing.write(tmp_path / "r.gif")
