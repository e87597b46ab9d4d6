"""Pictures in a terminal, beside their captions. A character is two pixels: an upper half block on its background."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from PIL import Image
from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from meshcap.vision.pictures import Source, read_picture

HALF = "▀"
MOST_COLUMNS, MOST_ROWS = 36, 14


def can_draw(console: Console) -> bool:
    """Where colours are shown and somebody looks: not in a pipe or file, nor with NO_COLOR."""
    return console.is_terminal and not console.no_color and console.color_system in ("truecolor", "256", "windows")


def entry(
    source: Source, name: str, captions: Sequence[str | None], confidence: float, seconds: float, width: int
) -> RenderableType:
    """One picture of the gallery: itself, its captions (None: withheld), how sure the model is and how long it took."""
    image = read_picture(source, at_least=2 * MOST_COLUMNS)
    said = [
        Text("(withheld)", "dim", overflow="fold")
        if one is None
        else Text(one, "default" if rank else "bold", overflow="fold")
        for rank, one in enumerate(captions)
    ]
    title = Text(name, "cyan", overflow="fold")
    facts = Text(f"confidence {confidence:.0%} · {seconds:.2f} s", "dim", overflow="fold")
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(no_wrap=True)
    row.add_column(ratio=1, vertical="middle")
    row.add_row(half_blocks(image, max(2, min(MOST_COLUMNS, width // 2)), MOST_ROWS), Group(title, *said, facts))
    return Padding(row, (0, 0, 1, 0))


def half_blocks(image: Image.Image, columns: int, rows: int) -> Text:
    """A picture in at most so many columns and rows, its shape kept: a character is twice as high as it is wide."""
    scale = min(columns / image.width, 2 * rows / image.height)
    across = max(1, round(image.width * scale))
    down = max(1, round(image.height * scale / 2))
    small = image.convert("RGB").resize((across, 2 * down), Image.Resampling.LANCZOS)
    pixels = small.load()
    assert pixels is not None
    text = Text(no_wrap=True, end="")
    for row in range(down):
        for column in range(across):
            text.append(HALF, _style(pixels[column, 2 * row], pixels[column, 2 * row + 1]))
        if row < down - 1:
            text.append("\n")
    return text


@lru_cache(4096)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))
