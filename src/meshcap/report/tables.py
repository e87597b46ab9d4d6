"""The tables of a report: scores, what is said, settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

Column = tuple[Mapping[str, float], Mapping[str, tuple[float, float]]]  # scores and intervals

COUNTED = ("vocabulary", "length")  # of what is said: these are numbers, the next are scores, all others shares
SCORES = ("Div-1", "Div-2", "mBLEU-4", "self-CIDEr")


def score(value: float | None) -> str:
    """A fraction as papers print it, times 100."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.2f}".replace("-", "−")


def interval(ends: tuple[float, float] | None) -> str:
    if ends is None or not all(map(math.isfinite, ends)):
        return ""
    return f"{score(ends[0])} – {score(ends[1])}"


def scores_table(title: str, columns: Mapping[str, Column]) -> str:
    """A row for each metric, and for each column its score with the interval below."""
    names = dict.fromkeys(name for scores, _ in columns.values() for name in scores)
    rows = [
        [name, *(_score_cell(scores.get(name), ends.get(name)) for scores, ends in columns.values())] for name in names
    ]
    return _table(title, ["metric", *columns], rows)


def shares_table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """What captions are like whatever the pictures show (`Result.diversity`); "" where nothing is known."""
    names = dict.fromkeys(name for told in columns.values() for name in told)
    rows = [[name, *(_habit(name, told.get(name)) for told in columns.values())] for name in names]
    return _table("What is said", ["of the captions", *columns], rows) if rows else ""


def plain_table(heads: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    return _table("", heads, [[name, escape(value)] for name, value in rows], numbers=False)


def flattened(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Settings inside settings as "outer.inner"."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    return "not set" if value is None else str(value)


def _score_cell(value: float | None, ends: tuple[float, float] | None) -> str:
    span = interval(ends)
    return f"<b>{score(value)}</b>" + (f"<small>{span}</small>" if span else "")


def _habit(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if name.startswith(COUNTED):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
    return f"{value:.3f}" if name in SCORES else f"{100 * value:.1f} %"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """Cells are HTML, heads and the first of each row are text. A wide table scrolls, also with the keyboard."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    kind = "numbers" if numbers else "words"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title or "Settings")}">'
        f'<table class="{kind}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
