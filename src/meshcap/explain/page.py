"""explain.html: one caption word by word, in one file that opens anywhere and asks nobody for anything.

The page forbids itself every connection and every script but its own, which lets a reader go through the words over
the large picture. Without it the cards below say the same.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np
from torch import Tensor

import meshcap
from meshcap.explain.explanation import Explanation, WordExplanation
from meshcap.explain.heatmap import brightest_place, heat_field, overlay
from meshcap.files import write_text
from meshcap.names import Reading
from meshcap.vision.pictures import data_url

LARGE, LITTLE, SHADE = 880, 260, 96  # longer sides in pixels; shades are smooth, and a browser enlarges them well
LISTENED = 0.1  # of what a word was made of must come from memory to be shown beside a remembered caption
COLOURS = 4  # that the style knows: s0 … s3


def write_page(path: Path, explanation: Explanation, name: str = "") -> None:
    """Write the page; a reader sees the old one or the new one.

    Raises:
        MeshcapError: the file cannot be written.
    """
    text = page(explanation, name)
    write_text(path, text)


def page(explanation: Explanation, name: str = "") -> str:
    """The explanation as HTML; `name` is the picture's."""
    base = files("meshcap.evaluation").joinpath("report.css").read_text("utf-8")
    own, script = (files(__package__).joinpath(file).read_text("utf-8") for file in ("page.css", "page.js"))
    sections = {
        "Word by word": _cards(explanation),
        "Captions": _captions(explanation),
        "What it remembered": _remembered(explanation),
        "Memory": _memory(explanation),
    }
    # The hash lets this very script run and no other: not even one that came in with a caption.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in explanation.facts)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(explanation.text)}</title>",
            f"<style>\n{base}\n{own}\n{_pictures(explanation)}</style>\n</head>\n<body>",
            f"<header><h1>{escape(_title(explanation, name))}</h1></header>\n<main>",
            _stage(explanation, name),
            *(f"<section><h2>{title}</h2>\n{inside}</section>" for title, inside in sections.items() if inside),
            f'<section><h2>Model</h2><dl class="facts">{facts}</dl></section>' if facts else "",
            f"</main>\n<footer>meshcap {meshcap.__version__}</footer>",
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def percent(share: float) -> str:
    """As a person would say it; what is small is not zero."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "&lt; 1 %"


def _title(explanation: Explanation, name: str) -> str:
    return ("Why this caption" if explanation.own else "Your sentence, explained") + (f": {name}" if name else "")


def _drawn(explanation: Explanation) -> bool:
    return explanation.picture is not None and explanation.boxes is not None


def _maps(explanation: Explanation) -> Iterable[tuple[int, str, np.ndarray]]:
    """Number of the word, kind of map (a: attention, b: attribution), light."""
    if explanation.picture is None or explanation.boxes is None:
        return
    width, height = explanation.picture.size
    scale = SHADE / max(width, height)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    for number, one in enumerate(explanation.words):
        yield number, "a", heat_field(one.attention, explanation.boxes, size, explanation.window)
        if one.attribution is not None:
            field = heat_field(one.attribution, explanation.boxes, size, explanation.window, explanation.least)
            yield number, "b", field


def _pictures(explanation: Explanation) -> str:
    """Pictures that appear more than once, as classes of the style: the file then holds each of them once."""
    rules = []
    if explanation.picture is not None:
        rules.append(f".photo {{ background-image: url({data_url(explanation.picture, LITTLE)[0]}); }}")
    for number, kind, field in _maps(explanation):
        buffer = io.BytesIO()
        overlay(field).save(buffer, "PNG", optimize=True)
        url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
        rules.append(f".m{number}{kind} {{ background-image: url({url}); }}")
    return "\n".join(rules) + "\n"


def _stage(explanation: Explanation, name: str) -> str:
    words = "".join(
        f'<button type="button" class="word{" end" * one.is_end}" data-word="{number}" aria-controls="panel" '
        f'style="--p: {100 * one.probability:.1f}%">{escape(one.word)}</button> '
        for number, one in enumerate(explanation.words)
    )
    picture = ""
    if explanation.picture is not None:
        url, width, height = data_url(explanation.picture, LARGE)
        alt = f"the picture {name}".strip()
        picture = (
            f'<div class="canvas" style="aspect-ratio: {width} / {height}"><img src="{url}" width="{width}" '
            f'height="{height}" alt="{escape(alt)}"><div class="shade" aria-hidden="true"></div></div>'
        )
    kinds = {"a": "where it looked", "b": "what counted"} if explanation.baseline else {"a": "where it looked"}
    kinds |= {"": "the picture"}
    buttons = "".join(f'<button type="button" data-kind="{kind}">{label}</button>' for kind, label in kinds.items())
    toggle = f'<div class="toggle" role="group" aria-label="Light shows" hidden>{buttons}</div>'
    who = "the model's caption" if explanation.own else "a sentence given to the model"
    who += ", shortened" if explanation.shortened else ""
    strongest = max(range(len(explanation.words)), key=lambda at: explanation.words[at].gained or 0)
    return (
        f'<section class="stage" data-first="{strongest}"><div>{picture}{toggle if _drawn(explanation) else ""}</div>'
        f'<div><p class="said" role="group" aria-label="The caption: {escape(explanation.text)}">{words}</p>'
        f'<p class="note">{who}, confidence {percent(explanation.confidence)}; '
        "the bar below a word is its probability</p>"
        '<div id="panel" class="panel" aria-live="polite"><p class="note">Every word has a card below.</p></div>'
        "</div></section>"
    )


def _cards(explanation: Explanation) -> str:
    drawn: dict[int, list[str]] = {}
    for number, kind, field in _maps(explanation):
        word = explanation.words[number].word
        label = "where the model looked for" if kind == "a" else "what counted for"
        alt = (
            f"{label} “{word}”: most at the {brightest_place(field)}"
            if np.nanmax(np.abs(field)) > 0
            else f"{label} “{word}”"
        )
        title = "looked" if kind == "a" else "counted"
        drawn.setdefault(number, []).append(
            f'<div class="tile"><div class="photo" role="img" aria-label="{escape(alt)}" style="{_ratio(explanation)}">'
            f'<div class="shade m{number}{kind}"></div></div><small>{title}</small></div>'
        )
    cards = "".join(
        f'<li id="word-{number}"><h3>{escape(one.word)} <small>{percent(one.probability)}</small></h3>'
        f'<div class="tiles2">{"".join(drawn.get(number, []))}</div>'
        f'<div class="details">{_details(explanation, number, one)}</div></li>'
        for number, one in enumerate(explanation.words)
    )
    about = "Light shows where the model <b>looked</b> (attention)"
    if explanation.baseline:
        nothing = "all of whose features are zero" if explanation.baseline == "zero" else "that is the same everywhere"
        about += (
            " and what <b>counted</b> for the word (integrated gradients, against a picture "
            f"{nothing}); blue light counted against it"
        )
    return f'<p class="note">{about}.</p><ol class="wordcards">{cards}</ol>'


def _ratio(explanation: Explanation) -> str:
    assert explanation.picture is not None
    return "aspect-ratio: {} / {}".format(*explanation.picture.size)


def _details(explanation: Explanation, number: int, one: WordExplanation) -> str:
    rivals = list(one.runners_up)
    if all(word != one.word for word, _ in rivals):
        rivals.append((one.word, one.probability))
    rows = "".join(
        f"<li{' class=chosen' if rival == (one.word, one.probability) else ''}><span>{escape(rival[0])}</span>"
        f"{_bar(rival[1])}<span>{percent(rival[1])}</span></li>"
        for rival in rivals
    )
    parts = [f'<ol class="rivals" aria-label="Likeliest words here">{rows}</ol>']
    facts = []
    if one.name is not None:
        facts.append(("a name that was seen", _name(one.name)))
    if one.gained is not None:
        facts.append(("the picture", _gain(one.gained)))
    if one.agreement is not None:
        facts.append(("looked and counted agree", f"ρ = {one.agreement:.2f}".replace("-", "−")))
    if one.memory is not None:
        facts.append(("slots answered", percent(one.memory)))
    if one.listened is not None:
        facts.append(("listened to what is remembered", percent(one.listened)))
    if "gate" in explanation.other:
        facts.append(("of what it saw passed", percent(float(explanation.other["gate"][number]))))
    if explanation.padding is not None:
        facts.append(("looked at padding", percent(float(explanation.padding[number]))))
    if facts:
        lines = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
        parts.append(f'<dl class="lines">{lines}</dl>')
    if one.levels is not None:
        parts.append(_stack(one.levels))
    for name in ("groups", "memory_reads", "memory_writes"):
        if name in explanation.other:
            parts.append(_strips(name.replace("_", " "), explanation.other[name][number]))
    return "".join(parts)


def _name(read: Reading) -> str:
    seen = ", ".join(f"{escape(name)} {percent(chance)}" for name, chance in read.names)
    alone = [name for name, _ in read.names] == [read.word]
    return f"{escape(read.word)} {percent(read.probability)}" + (f" ({seen})" if seen and not alone else "")


def _gain(nats: float) -> str:
    times = math.exp(min(abs(nats), 50.0))
    if times < 1.05:
        return "made no difference"
    return f"made it {times:,.{0 if times >= 10 else 1}f} × {'likelier' if nats > 0 else 'less likely'}"


def _bar(share: float) -> str:
    return f'<span class="bar"><i style="width: {100 * share:.1f}%"></i></span>'


def _stack(shares: Tensor) -> str:
    parts = [(f"level {level + 1}", float(share)) for level, share in enumerate(shares)]
    label = ", ".join(f"{name} {percent(share)}" for name, share in parts)
    inside = "".join(
        f'<i class="s{at % COLOURS}" style="width: {100 * share:.2f}%"></i>' for at, (_, share) in enumerate(parts)
    )
    return f'<div class="stack" role="img" aria-label="encoder levels: {label}">{inside}</div><small>{label}</small>'


def _strips(name: str, weights: Tensor) -> str:
    """Weights (K,) or (heads, K) as rows of cells, the strongest the fullest."""
    rows = weights if weights.dim() == 2 else weights[None]
    cells = [[f'<i style="opacity: {float(v / row.max().clamp_min(1e-9)):.2f}"></i>' for v in row] for row in rows]
    inside = "".join(f'<div class="strip">{"".join(row)}</div>' for row in cells)
    label = "; ".join(f"most at {int(row.argmax()) + 1} of {len(row)}" for row in rows)
    return f'<div role="img" aria-label="{name}: {label}">{inside}</div><small>{name}</small>'


def _captions(explanation: Explanation) -> str:
    rows = "".join(
        f"<li><span>{escape(text)}</span>{_bar(confidence)}<span>{percent(confidence)}</span></li>"
        for text, confidence in explanation.best
    )
    about = "What the model itself says, as its search ranked it; bars are confidence."
    return f'<p class="note">{about}</p><ol class="rivals best">{rows}</ol>' if rows else ""


def _remembered(explanation: Explanation) -> str:
    """Captions of remembered pictures, each with the words that looked at it most."""
    rows = []
    for place, (text, similarity) in enumerate(explanation.remembered):
        listeners = [
            one.word
            for one in explanation.words
            if one.recalled is not None and (one.listened or 0) >= LISTENED and int(one.recalled.argmax()) == place
        ]
        heard = f" <small>heard by {escape(', '.join(listeners))}</small>" if listeners else ""
        rows.append(
            f"<li><span>{escape(text)}{heard}</span>{_bar(max(0.0, similarity))}<span>{percent(similarity)}</span></li>"
        )
    about = "Captions of the remembered pictures that are most like this one; bars are how alike."
    return f'<p class="note">{about}</p><ol class="rivals best">{"".join(rows)}</ol>' if rows else ""


def _memory(explanation: Explanation) -> str:
    if explanation.memory is None:
        return ""
    rows = "".join(
        f"<li><span>encoder layer {layer + 1}</span>{_bar(float(share))}<span>{percent(float(share))}</span></li>"
        for layer, share in enumerate(explanation.memory.mean(-1))
    )
    about = "How much of the regions' attention the learned slots took, instead of other regions."
    return f'<p class="note">{about}</p><ol class="rivals">{rows}</ol>'
