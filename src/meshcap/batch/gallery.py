"""`--gallery`: pictures with their captions and a search box, as a page that opens anywhere and asks nobody for more.

Thumbnails are inside. Of more pictures than one page holds, `FILE-2.html` and so on lie beside the first; the search of
each finds what stands on the others too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from meshcap.batch.inputs import Picture
from meshcap.batch.output import Row, read_table, write_output
from meshcap.errors import MeshcapError
from meshcap.vision.pictures import data_url
from meshcap.vision.score import picture_of

EACH = 1000  # pictures of a page: 5 MB or so
MOST = 20_000  # pictures of a gallery
SIDE = 200  # pixels of a thumbnail's longer side
THREADS = 4

STYLE = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 1600px; padding: 0 1rem 3rem; }
header { position: sticky; top: 0; background: Canvas; padding: .8rem 0; display: flex; gap: 1rem; flex-wrap: wrap;
  align-items: baseline; z-index: 1; }
h1 { font-size: 1.1rem; margin: 0; }
input { flex: 1 1 14rem; max-width: 30rem; font: inherit; padding: .4rem .6rem; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 1rem; }
figure { margin: 0; overflow-wrap: anywhere; }
figure[hidden] { display: none; }
.frame { display: block; aspect-ratio: 4 / 3; background: #8882;
  border-radius: 6px; overflow: hidden; margin-bottom: .3rem; }
figure > a { display: block; color: inherit; }
img { width: 100%; height: 100%; object-fit: contain; display: block; }
small { display: block; opacity: .7; }
#elsewhere:empty { display: none; }
"""

SCRIPT = """
const words = text => text.toLowerCase().split(/\\s+/).filter(Boolean);
const box = document.querySelector("input"), said = document.querySelector("output");
const cards = [...document.querySelectorAll("figure")], elsewhere = document.querySelector("#elsewhere");
const texts = cards.map(card => card.textContent.toLowerCase());
const others = JSON.parse(document.querySelector("#others").textContent);
const show = () => {
  const wanted = words(box.value);
  let count = 0;
  cards.forEach((card, place) => {
    card.hidden = !wanted.every(word => texts[place].includes(word));
    count += !card.hidden;
  });
  const found = wanted.length ? others.filter(one => wanted.every(word => one[2].toLowerCase().includes(word))) : [];
  said.textContent = wanted.length ? `${count + found.length} found` : "";
  elsewhere.replaceChildren(...found.slice(0, 200).map(([page, number, text]) => {
    const link = document.createElement("a"), item = document.createElement("li");
    link.href = `${page}#p${number}`;
    link.textContent = text;
    item.append(link);
    return item;
  }));
};
box.addEventListener("input", show);
show();
"""


class Card(NamedTuple):
    number: int
    picture: Picture
    row: Row


def of_table(table: Path, pictures: Sequence[Picture]) -> Iterator[tuple[Picture, Row]]:
    """The rows of a job's table, each with its picture."""
    rest = iter(pictures)
    for row in read_table(table):
        # Parquet's text is UTF-8, and a path need not be.
        written = (row["path"], row["path"].encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        for picture in rest:
            readable = picture.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if picture.path in written or readable in written:
                yield picture, row
                break


def write_gallery(path: Path, captioned: Iterable[tuple[Picture, Row]]) -> None:
    """Write the page, or the pages.

    Raises:
        MeshcapError: the system refuses to write.
    """
    cards, total = [], 0
    for picture, row in captioned:
        if row.get("caption"):
            total += 1
            if total <= MOST:
                cards.append(Card(total, picture, row))
    pages = [cards[start : start + EACH] for start in range(0, len(cards), EACH)] or [[]]
    names = [path.name, *(f"{path.stem}-{number}{path.suffix}" for number in range(2, len(pages) + 1))]
    title = f"{total:,} caption{'s' * (total != 1)}"
    if total > len(cards):
        title += f", the first {len(cards):,} of them shown"
    everywhere = [
        [name, one.number, one.row["caption"]] for name, page in zip(names, pages, strict=True) for one in page
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        for name, page in zip(names, pages, strict=True):
            figures = pool.map(lambda card: _figure(card, path.parent), page)
            others = [[_quoted(page), *rest] for page, *rest in everywhere if page != name] if len(pages) > 1 else []
            text = _page(title, names, name, figures, others)
            write_output(path.with_name(name), text.encode("utf-8", "replace"))


def _page(title: str, names: Sequence[str], own: str, figures: Iterable[str], others: list[list[object]]) -> str:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    links = "".join(
        f"<b>{number}</b> " if name == own else f'<a href="{_quoted(name)}">{number}</a> '
        for number, name in enumerate(names, start=1)
    )
    data = json.dumps(others, ensure_ascii=False).replace("<", "\\u003c")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f'<header><h1>{escape(title)}</h1><input type="search" placeholder="Search captions" aria-label="Search">',
            f"<output></output>{f'<nav>{links}</nav>' if len(names) > 1 else ''}</header>",
            "<main>",
            *figures,
            '</main>\n<ul id="elsewhere"></ul>',
            f'<script type="application/json" id="others">{data}</script>',
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def _figure(card: Card, folder: Path) -> str:
    picture, row = card.picture, card.row
    source = picture.source()
    try:
        url, width, height = data_url(
            picture_of(picture.path if source is None else source.read(), at_least=SIDE), SIDE
        )
        image = f'<img src="{url}" width="{width}" height="{height}" alt="" loading="lazy">'
    except MeshcapError:  # gone since
        image = "no picture"
    inside = f'<span class="frame">{image}</span>'
    if source is None:
        place = os.path.relpath(picture.path, folder or ".")
        inside = f'<a href="{_quoted(place)}">{inside}</a>'
    about = [picture.path, f"{row['confidence']:.0%}"]
    about += [", ".join(tag["name"] for tag in row["tags"])] if row.get("tags") else []
    about += ["or: " + " · ".join(one["caption"] for one in row["alternatives"])] if row.get("alternatives") else []
    lines = "".join(f"<small>{_shown(line)}</small>" for line in about)
    return f'<figure id="p{card.number}">{inside}<figcaption>{_shown(row["caption"])}{lines}</figcaption></figure>'


def _quoted(place: str) -> str:
    """A path, which need not be UTF-8, as a link; nothing of it is taken for a scheme, a query or a fragment."""
    return quote(place.encode("utf-8", "surrogateescape"), safe="/")


def _shown(text: str) -> str:
    return escape(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
