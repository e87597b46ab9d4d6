"""Links and pictures of the documentation lead somewhere, headings included."""

import re
from pathlib import Path

import pytest

from docs.pages import PAGES, ROOT, name_of, prose_of

LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|(?:src|href)=\"([^\"]+)\"")
MADE = {"changelog.md", "contributing.md", "model-card.md", "commands.md"}  # by docs/hooks.py, docs/commands.py
ELSEWHERE = re.compile(r"^(?:[a-z]+:|//)")


def targets(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose_of(path.read_text(encoding="utf-8")))
    return [first or second for first, second in LINK.findall(text)]


def anchors(path: Path) -> set[str]:
    """Headings as GitHub and mkdocs both call them."""
    text = prose_of(path.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links(path: Path) -> None:
    broken = []
    for target in targets(path):
        if ELSEWHERE.match(target):
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists() or ROOT not in [to, *to.parents]:
            broken.append(f"{target}: no such file")
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            broken.append(f"{target}: no such heading")
    assert not broken, f"{name_of(path)}: {broken}"


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs says so too; this needs no mkdocs."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"(\S+\.md)$", nav, re.MULTILINE))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert there <= listed
    assert listed - there <= MADE


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_nothing_is_left_to_fill_in(path: Path) -> None:
    """A figure that was to come later: @TABLE@, TEST_CIDER, or a word in capitals on a line of its own."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\w+\.md", "", prose_of(path.read_text(encoding="utf-8")))
    assert not re.findall(r"^[A-Z]{4,}$|@[A-Z]+@|\b[A-Z]{2,}_[A-Z0-9_]+\b", text, re.MULTILINE)


def test_something_is_checked() -> None:
    assert sum(len(targets(path)) for path in PAGES) > 50
