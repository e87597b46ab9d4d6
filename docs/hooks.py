"""What mkdocs does besides: pages from the root of the repository, the gallery, and formulas without scripts.

Links are written so that they work where the Markdown lies: a page of docs/ points at `../CHANGELOG.md`, and the
changelog at `docs/model.md`. Both are turned into links of the site here.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "model-card.md": "MODEL_CARD.md"}
GALLERY = "<!-- gallery -->"
# What `meshcap export default --format web --out try` writes: the site has it where it is there.
TRY, TRY_LINK = ROOT / "try", "<!-- try -->"
WRONG = ("astronaut.jpg", "cat.jpg", "raccoon.jpg", "rocket.jpg")  # captions that are not true: the model card has them


def on_config(config: Any) -> Any:
    """A page whose file is not there (yet) leaves the navigation."""
    missing = {page for page, source in PAGES.items() if not (ROOT / source).is_file()}
    config.nav = without(config.nav, missing)
    return config


def without(nav: list[Any], missing: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        if not isinstance(entry, dict):
            kept.append(entry)
            continue
        [(title, what)] = entry.items()
        if isinstance(what, list):
            kept.append({title: without(what, missing)})
        elif what not in missing:
            kept.append(entry)
    return kept


def on_files(files: Files, config: Any) -> Files:
    for page, source in PAGES.items():
        if (ROOT / source).is_file():
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=from_root(text)))
    for picture in sorted((ROOT / "examples").glob("*.jpg")):
        files.append(File.generated(config, f"examples/{picture.name}", abs_src_path=str(picture)))
    for path in sorted(TRY.glob("*")):
        files.append(File.generated(config, f"try/{path.name}", abs_src_path=str(path)))
    return files


def from_root(text: str) -> str:
    """Links of a page in the root, seen from docs/."""
    return site_links(re.sub(r"\]\(docs/", "](", text), to_root="", to_docs="")


def site_links(text: str, *, to_root: str, to_docs: str) -> str:
    """Links out of docs/ as links within the site."""
    pages = {**{source: page for page, source in PAGES.items()}, "README.md": "index.md", "examples/": "examples/"}
    for source, page in pages.items():
        text = text.replace(f"]({to_root}{source}", f"]({to_docs}{page}")
    # Scripts, results and code are in the repository, not on the site: their names stay, without a link.
    away = rf"(?<!!)\[([^][]*)\]\({re.escape(to_root)}(?:src|tests|recipes|results|examples)(?:/[^()]*)?\)"
    return re.sub(away, r"\1", text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in PAGES:
        return markdown
    depth = page.file.src_uri.count("/")
    markdown = site_links(markdown, to_root="../" * (depth + 1), to_docs="../" * depth)
    return markdown.replace(GALLERY, gallery()).replace(TRY_LINK, try_link())


def try_link(folder: Path = TRY) -> str:
    """A button to the captioner in the browser, where it was built; it weighs too much for the repository."""
    if not (folder / "index.html").is_file():
        return ""
    size = sum((folder / f"{one}.onnx.gz").stat().st_size for one in ("see", "say"))
    button = "[Try it in your browser](try/index.html){ .md-button .md-button--primary }"
    return f"{button} Loads {size / 1e6:.0f} MB once. Pictures stay on your machine."


def gallery(captions: Path = ROOT / "examples" / "captions.json") -> str:
    """The pictures of examples/ with what the model inside the package says of them, as the tests hold it to."""
    if not captions.is_file():
        return ""
    told = json.loads(captions.read_text(encoding="utf-8"))
    told = {name: caption for name, caption in told.items() if name not in WRONG}
    figures = [
        f'<figure><img src="examples/{name}" alt="" loading="lazy">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for name, caption in told.items()
    ]
    return '<div class="gallery">\n' + "\n".join(figures) + "\n</div>"


FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(lambda found: as_mathml(found[2], block=found[1] == "div"), content)


def as_mathml(given: str, *, block: bool) -> str:
    r"""\(…\) or \[…\] in HTML, as arithmatex leaves it, to MathML, which browsers know by themselves."""
    latex = html.unescape(given).strip()[2:-2]
    if "$" in latex:
        raise ValueError(f"two formulas in one, an empty line between them is missing: {latex}")
    found = convert(latex, display="block" if block else "inline")
    return f'<div class="formula">{found}</div>' if block else found
