"""report.html: what a run or an evaluation came to, in one file that opens anywhere and asks nobody for anything.

The page forbids itself every connection, and every script but its own small one for tooltips; it reads the same
without. Where something is not given, its section is not there.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

import meshcap
from meshcap.evaluation.charts import STAGES, Curve, chart
from meshcap.evaluation.drawing import Drawing
from meshcap.files import write_text
from meshcap.metrics import Result
from meshcap.vision.pictures import data_url


@dataclass(frozen=True)
class SampleCard:
    """A picture, what the model said of it, and how good that was."""

    image: Image.Image | None
    caption: str
    confidence: float | None = None  # 0-1
    score: float | None = None  # its own CIDEr, as a fraction
    references: Sequence[str] = ()
    id: str = ""


@dataclass(frozen=True)
class ReportContent:
    """What a report shows. Everything but the title may be missing."""

    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)  # such as ("parameters", "38.4 million")
    results: dict[str, Result] = field(default_factory=dict)  # by split
    curves: list[Curve] = field(default_factory=list)
    samples: dict[str, list[SampleCard]] = field(default_factory=dict)  # by what they have in common
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what happened on the way, in that order
    confidence: Drawing | None = None  # how far confidences hold
    reward: str = ""  # the signature of what self-critical training was rewarded for


def write_report(path: Path, report: ReportContent) -> None:
    """Write the page; a reader sees the old one or the new one.

    Raises:
        MeshcapError: the file cannot be written.
    """
    text = page(report)
    write_text(path, text)


def picks(result: Result, *, random: int = 50, each: int = 16, seed: int = 0) -> dict[str, list[str]]:
    """Which pictures to show, by section: some taken at random, then the best and the worst by CIDEr, `each` so many.

    Those at random come first, for they are what a reader may expect; no picture is shown twice.
    """
    scored = {id: own["CIDEr"] for id, own in result.per_image.items() if own.get("CIDEr") is not None}
    ranked = sorted(scored, key=lambda id: (scored[id] or 0.0, id))
    taken = Random(seed).sample(sorted(result.per_image), min(random, len(result.per_image)))
    left = [id for id in ranked if id not in set(taken)]
    each = min(each, len(left) // 2)
    found = {"Taken at random": taken, "Best by CIDEr": left[::-1][:each], "Worst by CIDEr": left[:each]}
    return {name: ids for name, ids in found.items() if ids}


def page(report: ReportContent) -> str:
    """The report as HTML."""
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    sections = {
        "Scores": _scores(report),
        "Curves": _curves(report.curves),
        "Confidence": _confidence(report.confidence),
        "Captions": "".join(_cards(name, cards) for name, cards in report.samples.items() if cards),
        "Events": _events(report.notes),
        "Settings": _settings(report),
    }
    sections = {name: inside for name, inside in sections.items() if inside}
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections)
    # The hash lets this very script run and no other: not even one that came in with a caption.
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{own}'"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<header><h1>{escape(report.title)}</h1>{_facts(report.facts)}",
            f'<nav aria-label="Sections">{links}</nav></header>\n<main>' if len(sections) > 1 else "</header>\n<main>",
            *(f'<section id="{name.lower()}"><h2>{name}</h2>\n{inside}</section>' for name, inside in sections.items()),
            f"</main>\n<footer>meshcap {meshcap.__version__}</footer>",
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{items}</dl>' if items else ""


def _scores(report: ReportContent) -> str:
    results = report.results
    parts = []
    if tiles := "".join(_tiles(results)):
        parts.append(f'<div class="tiles">{tiles}</div>')
    if any(result.scores for result in results.values()):
        parts.append(scores_table("Scores × 100, with 95 % intervals", _columns(results)))
    for name, result in results.items():
        if result.domains:
            domains = {
                f"{kind} ({part['pictures']:,})": (part["scores"], part["intervals"])
                for kind, part in result.domains.items()
            }
            parts.append(scores_table(f"{name} by domain", domains))
    parts.append(shares_table({name: result.diversity for name, result in results.items()}))
    warnings = dict.fromkeys(line for result in results.values() for line in result.warnings)
    parts += [f'<p class="warning" role="note">{escape(line)}</p>' for line in warnings]
    signatures = [(name, result.signature) for name, result in results.items() if result.signature]
    signatures += [("reward", report.reward)] if report.reward else []
    if signatures:
        lines = "".join(f"<dt>{escape(name)}</dt><dd><code>{_breakable(sign)}</code></dd>" for name, sign in signatures)
        parts.append(f"<details><summary>How these numbers were made</summary><dl>{lines}</dl></details>")
    return "\n".join(filter(None, parts))


def _columns(results: Mapping[str, Result]) -> dict[str, tuple[Mapping[str, float], Mapping[str, tuple[float, float]]]]:
    return {name: (result.scores, result.intervals) for name, result in results.items()}


def _tiles(results: Mapping[str, Result]) -> Iterator[str]:
    """The number that people look for first, large."""
    for name, result in results.items():
        if "CIDEr" in result.scores:
            ends = interval(result.intervals.get("CIDEr"))
            about = f"95 % interval {ends}" if ends else "no interval"
            value = score(result.scores["CIDEr"])
            yield f"<div><span>CIDEr, {escape(name)}</span><b>{value}</b><small>{about}</small></div>"


def _curves(curves: Sequence[Curve]) -> str:
    names = [*STAGES.values(), "", *(name for curve in curves for name in curve.series)]
    # XE and a nameless line share no drawing, so they may share the first colour.
    order = {name: max(0, place - (place > 1)) for place, name in enumerate(dict.fromkeys(names))} | {"": 0}
    drawn = "".join(chart(curve, order) for curve in curves)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _confidence(drawing: Drawing | None) -> str:
    if drawing is None:
        return ""
    url = "data:image/svg+xml;base64," + base64.b64encode(drawing.as_svg().encode()).decode()
    return (
        "<p>A confidence is the share of a caption's content words that people are expected to have used for the same "
        "picture. Points on the diagonal keep that promise.</p>"
        f'<img src="{url}" width="{drawing.width:g}" height="{drawing.height:g}" '
        f'style="max-width:100%;height:auto" alt="{escape(drawing.about)}">'
    )


def _cards(title: str, cards: Sequence[SampleCard]) -> str:
    return f'<h3>{escape(title)}</h3>\n<div class="cards">\n' + "\n".join(map(_card, cards)) + "\n</div>\n"


def _card(card: SampleCard) -> str:
    figures = []
    if card.score is not None and math.isfinite(card.score):
        figures.append(f"CIDEr <b>{100 * card.score:.1f}</b>")
    if card.confidence is not None and math.isfinite(card.confidence):
        figures.append(f"confidence <b>{100 * card.confidence:.0f} %</b>")
    said = "".join(f"<li>{escape(line)}</li>" for line in card.references)
    many = f"{len(card.references)} reference{'s' * (len(card.references) > 1)}"
    return "".join(
        [
            f'<figure class="card">{_picture(card)}<figcaption>',
            f"<p>{escape(card.caption)}</p>" if card.caption else '<p class="nothing">nothing was said</p>',
            f'<p class="figures">{"".join(f"<span>{part}</span>" for part in figures)}</p>' if figures else "",
            f"<details><summary>{many}</summary><ul>{said}</ul></details>" if said else "",
            f'<p class="id">{escape(card.id)}</p>' if card.id else "",
            "</figcaption></figure>",
        ]
    )


def _picture(card: SampleCard) -> str:
    # Whoever cannot see the picture is best helped by a person's words, not by the model's, which stand below.
    alt = card.references[0] if card.references else f"picture {card.id}".strip()
    try:
        if card.image is not None:
            url, width, height = data_url(card.image)
            return f'<img src="{url}" width="{width}" height="{height}" alt="{escape(alt)}">'
    except OSError:  # half a file: the report of a long run is worth more than one picture
        pass
    return '<div class="blank">no picture</div>'


def _events(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ol class="events">{items}</ol>' if items else ""


def _settings(report: ReportContent) -> str:
    rows = list(flattened(report.settings))
    if not rows:
        return ""
    return f"<details><summary>{len(rows)} settings</summary>{plain_table(('setting', 'value'), rows)}</details>"


def _breakable(signature: str) -> str:
    """A signature is one long word; a phone may break it behind its bars."""
    return escape(signature).replace("|", "|<wbr>")


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
    names = dict.fromkeys(name for values in columns.values() for name in values)
    rows = [[name, *(_habit(name, values.get(name)) for values in columns.values())] for name in names]
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
