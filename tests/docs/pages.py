"""The Markdown that people read, cut into blocks.

A block that cannot be run in a test says why in a comment on the line before it, which no reader sees:

    <!-- no-run: needs COCO -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(path for name in ("README.md", "MODEL_CARD.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
          if (path := ROOT / name).is_file()),
    ]
)  # fmt: skip
SHELLS = ("sh", "console")

FENCE = re.compile(
    r"^(?:<!-- no-run:(?P<reason>.*?)-->\n+)? *(?P<ticks>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *(?P=ticks) *$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """Some lines between ``` and ```."""

    page: str  # relative to the root
    line: int  # of its first line of text
    language: str
    text: str
    reason: str | None  # not to run it

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path) -> list[Block]:
    return cut(path.read_text(encoding="utf-8"), name_of(path))


def cut(text: str, page: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        reason = match["reason"]
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(page, line, match["language"], match["text"], None if reason is None else reason.strip()))
    return found


def prose_of(text: str) -> str:
    """The page without its blocks and comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)


BLOCKS = [block for path in PAGES for block in blocks_of(path)]
