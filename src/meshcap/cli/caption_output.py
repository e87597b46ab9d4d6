"""What `meshcap caption` prints: lines for people, objects for programs, pictures in a terminal with colours."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import typer

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console, RenderableType
    from rich.style import Style
    from rich.text import Text

    from meshcap.caption import Caption

HALF_BLOCK = "▀"  # two pixels: its colour and its background
MAX_COLUMNS, MAX_ROWS = 36, 14
MAX_WARNINGS = 10  # that are printed one by one


@dataclass
class CaptionPrinter:
    """Prints captions as they come; `finish` prints what else happened to stderr."""

    json: bool = False
    alone: bool = False  # one picture: its name is not repeated
    confidence: bool = False
    min_confidence: float | None = None
    calibrated: bool = True
    errors: list[MeshcapError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    withheld: int = 0  # pictures without a caption
    shortened: int = 0  # pictures with a shorter one

    def add(self, source: object, result: Caption | MeshcapError) -> None:
        if not self.count(source, result):
            return
        assert not isinstance(result, MeshcapError)
        name = printable(str(source))
        if self.json:
            typer.echo(json_format.dumps({"file": name, **result.to_dict()}, ensure_ascii=False))
            return
        for one in (result, *result.alternatives):
            columns = [] if self.alone else [name]
            columns += [f"{one.confidence:.2f}"] if self.confidence else []
            columns += [one.text]
            columns += [tag_list(one)] if one.tags and not self.alone else []
            if any(columns):  # of one picture and a withheld caption, not even an empty line
                typer.echo("\t".join(columns))
        if self.alone and result.tags:
            typer.echo(tag_list(result))

    def count(self, source: object, result: Caption | MeshcapError) -> bool:
        """Note errors, warnings and withheld captions; whether there is a caption to print."""
        if isinstance(result, MeshcapError):
            self.errors.append(result)
            return False
        self.withheld += result.withheld
        self.shortened += result.shortened and not result.withheld
        if result.warning:
            self.warnings.append(result.warning if self.alone else f"{printable(str(source))}: {result.warning}")
        return True

    def finish(self) -> bool:
        """Print withheld captions, warnings and errors to stderr. True: there were errors."""
        if self.withheld:
            how = "" if self.calibrated else " (this model is not calibrated: its confidence is the words' probability)"
            count = "1 caption was" if self.withheld == 1 else f"{self.withheld:,} captions were"
            typer.echo(f"{count} withheld: confidence below {self.min_confidence:g}{how}", err=True)
        if self.shortened:
            count = "1 caption was" if self.shortened == 1 else f"{self.shortened:,} captions were"
            typer.echo(f"{count} shortened: what was not sure is left out (--no-shorten says it)", err=True)
        for warning in self.warnings[:MAX_WARNINGS]:
            typer.echo(f"warning: {warning}", err=True)
        if len(self.warnings) > MAX_WARNINGS:
            typer.echo(f"warning: {len(self.warnings) - MAX_WARNINGS:,} more captions have one: see --json", err=True)
        for error in self.errors:
            typer.echo(f"error: {printable(str(error))}", err=True)
        return bool(self.errors)


def tag_list(caption: Caption) -> str:
    """Tags as one piece of a line: "dog 0.97, grass 0.61, green 0.40"."""
    return ", ".join(f"{tag.name} {tag.probability:.2f}" for tag in caption.tags)


def printable(text: str) -> str:
    """A name as one clean piece of a line: file names may hold tabs, line ends, terminal escapes or invalid UTF-8."""
    clean = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in " ".join(text.splitlines()))
    return clean.encode("utf-8", "replace").decode("utf-8")


def print_gallery(captions: Iterable[tuple[Any, Any]], printer: CaptionPrinter) -> bool:
    """Print pictures beside their captions. False, and nothing is printed, where stdout shows no colours."""
    from rich.console import Console

    console = Console(highlight=False)
    if not can_draw(console):
        return False
    start = time.perf_counter()
    for source, result in captions:
        seconds = time.perf_counter() - start
        if printer.count(source, result):
            texts = [None if one.withheld else one.text for one in (result, *result.alternatives)]
            name = printable(str(source))
            more = " · shortened" if result.shortened else ""
            more += f"\n{tag_list(result)}" if result.tags else ""
            console.print(gallery_entry(source, name, texts, result.confidence, seconds, console.width, more))
        start = time.perf_counter()
    return True


def can_draw(console: Console) -> bool:
    """Whether stdout is a terminal with enough colours, and NO_COLOR is not set."""
    return console.is_terminal and not console.no_color and console.color_system in ("truecolor", "256", "windows")


def gallery_entry(
    source: Any,
    name: str,
    captions: Sequence[str | None],
    confidence: float,
    seconds: float,
    width: int,
    more: str = "",
) -> RenderableType:
    """A picture beside its captions (None: withheld), its confidence, how long it took, and further facts."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from meshcap.vision.score import picture_of

    image = picture_of(source, at_least=2 * MAX_COLUMNS)
    lines = [
        Text("(withheld)", "dim", overflow="fold")
        if one is None
        else Text(one, "default" if rank else "bold", overflow="fold")
        for rank, one in enumerate(captions)
    ]
    title = Text(name, "cyan", overflow="fold")
    facts = Text(f"confidence {confidence:.0%} · {seconds:.2f} s{more}", "dim", overflow="fold")
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(no_wrap=True)
    row.add_column(ratio=1, vertical="middle")
    row.add_row(half_blocks(image, max(2, min(MAX_COLUMNS, width // 2)), MAX_ROWS), Group(title, *lines, facts))
    return Padding(row, (0, 0, 1, 0))


def half_blocks(image: Image.Image, columns: int, rows: int) -> Text:
    """A picture in at most so many columns and rows, its shape kept: a character is twice as high as it is wide."""
    from PIL import Image
    from rich.text import Text

    scale = min(columns / image.width, 2 * rows / image.height)
    across = max(1, round(image.width * scale))
    down = max(1, round(image.height * scale / 2))
    small = image.convert("RGB").resize((across, 2 * down), Image.Resampling.LANCZOS)
    pixels = small.load()
    assert pixels is not None
    text = Text(no_wrap=True, end="")
    for row in range(down):
        for column in range(across):
            text.append(HALF_BLOCK, _style(pixels[column, 2 * row], pixels[column, 2 * row + 1]))
        if row < down - 1:
            text.append("\n")
    return text


@lru_cache(4096)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> Style:
    from rich.color import Color
    from rich.style import Style

    return Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))
