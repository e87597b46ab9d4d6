"""Curves and their drawings: axes that cover the data, lines where the values are."""

import json
import math
import re
from html import unescape
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap.evaluation.charts import (
    HEIGHT,
    WIDTH,
    Axis,
    Curve,
    chart,
    curves_of,
    nice_ticks,
    number,
    smoothed,
    thinned,
    tick_labels,
)

sane = st.floats(-1e6, 1e6).map(lambda x: round(x, 6))


def drawn(html: str) -> list[dict]:
    """What the drawing says it shows: points as [x, y, step, value]."""
    return json.loads(unescape(re.search(r'data-points="([^"]*)"', html)[1]))


@given(sane, sane)
def test_ticks_cover_the_range_at_equal_distances(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    apart = [after - before for before, after in pairwise(ticks)]
    assert min(apart) > 0 and max(apart) == pytest.approx(min(apart), rel=1e-3)
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 100, ["0", "20", "40", "60", "80", "100"]),
        (0.13, 0.48, ["0.1", "0.2", "0.3", "0.4", "0.5"]),
        (0, 30_000, ["0", "10k", "20k", "30k"]),
        (-0.3, 0.1, ["−0.3", "−0.2", "−0.1", "0.0", "0.1"]),
        (5, 5, ["4.4", "4.6", "4.8", "5.0", "5.2", "5.4", "5.6"]),
    ],
)
def test_ticks_read_well(low: float, high: float, labels: list[str]) -> None:
    assert tick_labels(nice_ticks(low, high)) == labels


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "0"),
        (1.704, "1.7"),
        (0.2067, "0.207"),
        (-0.0233, "−0.0233"),
        (6.71e-5, "6.71 × 10⁻⁵"),
        (100, "100"),
        (122.54, "122.5"),
        (1000, "1,000"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_read_well(value: float, told: str) -> None:
    assert number(value) == told


@given(st.lists(st.tuples(sane, sane), min_size=1, max_size=50), st.booleans())
def test_higher_values_are_drawn_higher_and_later_steps_further_right(points: list, smooth: bool) -> None:
    [line] = drawn(chart(Curve("c", {"a": points}, smooth=smooth), {}))
    places = [(x, y) for x, y, *_ in line["points"]]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert all(before[0] <= after[0] for before, after in pairwise(places))
    by_value = sorted(zip(sorted(points), places, strict=True), key=lambda both: both[0][1])
    assert all(lower[1][1] >= higher[1][1] for lower, higher in pairwise(by_value))
    if min(points)[0] < max(points)[0]:
        assert places[0][0] < places[-1][0]


def test_a_log_axis_gives_each_power_the_same_room() -> None:
    axis = Axis(1e-6, 1e-3, (1e-6, 1e-5, 1e-4, 1e-3), log=True)
    assert [axis.place(tick) for tick in axis.ticks] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert axis.labels() == ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³"]


def test_values_that_cannot_be_drawn_are_counted() -> None:
    points = [(1, 2.0), (2, math.nan), (3, math.inf), (4, 3.0)]
    html = chart(Curve("loss", {"XE": points}), {"XE": 0})
    assert "2 cannot be drawn (not finite)" in html
    assert "nan" not in html.lower() and "inf" not in html.replace("not finite", "").lower()
    assert [point[2:] for point in drawn(html)[0]["points"]] == [[1, "2"], [4, "3"]]
    html = chart(Curve("lr", {"XE": [(0, 0.0), (1, 1e-4), (2, 2e-4)]}, log=True), {})
    assert "1 cannot be drawn (not above zero)" in html


@pytest.mark.parametrize("series", [{}, {"XE": []}, {"XE": [(1, math.nan)]}])
def test_nothing_to_draw_is_no_chart(series: dict) -> None:
    assert chart(Curve("loss", series), {}) == ""


def test_one_point_is_a_chart() -> None:
    html = chart(Curve("CIDEr", {"XE": [(500, 61.2)]}, best="highest"), {})
    assert "best 61.2" in html


def test_the_best_point_of_all_series_is_marked() -> None:
    series = {"XE": [(1, 5.0), (2, 9.0), (3, 8.0)], "SCST": [(4, 9.5), (5, 9.1)]}
    highest, lowest = (chart(Curve("c", series, best=best), {}) for best in ("highest", "lowest"))
    labels = re.compile(r'class="value"[^>]*>([^<]*)<')
    assert set(labels.findall(highest)) == {"8", "best 9.5"}
    assert set(labels.findall(lowest)) == {"best 5", "9.1"}


@pytest.mark.parametrize("ends", [(10, 9.8), (5, 4.9), (5, 5.1, 4.9), (0, 0.1)])
def test_labels_that_would_meet_stand_apart(ends: tuple[float, ...]) -> None:
    html = chart(Curve("c", {str(end): [(0, 0.0), (5, 10.0), (9, end)] for end in ends}), {})
    heights = sorted(float(y) for y in re.findall(r'class="value" x="[^"]*" y="([^"]*)"', html))
    assert len(heights) == len(ends)
    assert all(after - before >= 12 for before, after in pairwise(heights))
    assert heights[0] > 10 and heights[-1] < HEIGHT


def test_the_first_steps_do_not_press_the_rest_flat() -> None:
    points = [(step, 900.0 if step < 5 else 2 + step % 2) for step in range(1000)]
    html = chart(Curve("loss", {"XE": points}, smooth=True), {})
    assert "5 of 1,000 values lie outside the frame" in html
    heights = [point[1] for point in drawn(html)[0]["points"][100:]]
    assert max(heights) < HEIGHT - 28 and min(heights) > 0
    assert ">900<" not in html


@given(st.lists(sane, min_size=1, max_size=3000), st.integers(10, 400))
def test_thinned_keeps_ends_and_extremes(values: list[float], most: int) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    kept = thinned(points, most)
    assert len(kept) <= most and kept[0] == points[0] and kept[-1] == points[-1]
    assert kept == sorted(kept) and set(kept) <= set(points)
    assert max(v for _, v in kept) == max(values) and min(v for _, v in kept) == min(values)


def test_smoothed_keeps_a_line_and_removes_noise() -> None:
    assert smoothed([(x, 3.0) for x in range(500)]) == [(x, pytest.approx(3.0)) for x in range(500)]
    noisy = smoothed([(x, (-1.0) ** x) for x in range(600)])
    assert max(abs(value) for _, value in noisy) <= 1 / 11
    line = smoothed([(x, float(x)) for x in range(600)])  # nothing is shifted to the right
    assert line[300] == (300, pytest.approx(300))


def test_many_points_make_a_small_drawing() -> None:
    points = [(step, math.sin(step / 1e4)) for step in range(100_000)]
    html = chart(Curve("loss", {"XE": points}, smooth=True), {})
    assert len(drawn(html)[0]["points"]) <= 400
    assert len(html) < 60_000


RECORDS = [
    {"kind": "train", "stage": "xe", "step": 10, "loss": 4.0, "lr": 1e-4, "rate": 800.0},
    {"kind": "train", "stage": "xe", "step": 20, "loss": None, "lr": 2e-4, "rate": 810.0},
    {"kind": "val", "stage": "xe", "step": 20, "CIDEr": 0.5, "bad_endings": 0.02},
    {"kind": "samples", "step": 20, "captions": ["a"]},
    {"kind": "train", "stage": "scst", "step": 30, "loss": -0.1, "lr": 5e-6, "reward": 0.9},
    {"kind": "val", "stage": "scst", "step": 30, "CIDEr": 0.61},
]


def test_curves_of_a_log() -> None:
    curves = {curve.title: curve for curve in curves_of(RECORDS)}
    assert list(curves) == [
        "Validation CIDEr",
        "Loss, XE",
        "Loss, SCST",
        "Reward",
        "Learning rate",
        "Pictures per second",
        "Captions with a bad ending",
    ]
    assert curves["Validation CIDEr"].series == {"XE": [(20, 50)], "SCST": [(30, 61)]}
    assert curves["Loss, XE"].series["XE"][0] == (10, 4) and math.isnan(curves["Loss, XE"].series["XE"][1][1])
    assert curves["Loss, SCST"].series == {"SCST": [(30, -0.1)]}
    assert curves["Learning rate"].series == {"XE": [(10, 1e-4), (20, 2e-4)], "SCST": [(30, 5e-6)]}
    assert curves["Pictures per second"].series == {"XE": [(10, 800), (20, 810)]}
    assert curves["Captions with a bad ending"].series == {"XE": [(20, 2)]}


def test_a_log_without_numbers_has_no_curves() -> None:
    assert curves_of([]) == []
    assert curves_of([{"kind": "train", "step": 1}, {"kind": "val", "step": 2, "CIDEr": None}]) == []
    assert [curve.title for curve in curves_of([{"kind": "train", "step": 1, "loss": 2.0}])] == ["Loss"]
