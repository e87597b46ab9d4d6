"""How much a Hopfield network remembers: the curve of its capacity, and damaged digits made whole.

    python recipes/hopfield_capacity.py --out docs/images/hopfield_capacity.svg
    python recipes/hopfield_capacity.py --digits docs/images/hopfield_digits.png

Random patterns are stored by Hebb's rule, and each is given to the network as a cue. Up to about 0.138 patterns a unit
(Amit, Gutfreund and Sompolinsky, 1985) the network stays by it, but for a few units; above, it drifts away.
The larger the network, the sharper the fall.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.evaluation.charts import Axis, nice_ticks
from meshcap.files import write_file, write_text
from meshcap.memory.hopfield import Hopfield, retrieve

CRITICAL = 0.138
LOADS = (0.02, 0.05, 0.08, 0.10, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.18, 0.20, 0.25)
SIZES = (250, 500, 1000, 2000)
COLOURS = ("#8250c4", "#0e8a6d", "#d4611c", "#2a6fdb")
PAPER, INK, SOFT, LINE = "#ffffff", "#1c2026", "#5c6470", "#e2e3e0"


def overlap(units: int, load: float, seed: int) -> float:
    """Store load · units random patterns, recall each from itself: the mean of s · x / N afterwards."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 2, (round(load * units), units), generator=generator).float() * 2 - 1
    found = Hopfield.store(patterns).recall(patterns, limit=20, seed=seed)
    return float((found * patterns).mean())


def measure(sizes: Sequence[int], loads: Sequence[float], seeds: int) -> dict[int, list[tuple[float, float]]]:
    """By number of units: (load, mean overlap) of several networks each.

    `seeds` is for 500 units. Larger networks get fewer, smaller ones more: a mean over all units of all patterns.
    """
    return {
        units: [
            (load, statistics.fmean(overlap(units, load, seed) for seed in range(networks(units, seeds))))
            for load in loads
        ]
        for units in sizes
    }


def networks(units: int, seeds: int) -> int:
    return max(1, seeds * 500 // units)


def show(curves: dict[int, list[tuple[float, float]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Overlap after recall, by patterns a unit", title_justify="left")
    for name in ("load", *(f"N = {units}" for units in curves)):
        table.add_column(name, justify="right")
    for row in zip(*curves.values(), strict=True):
        table.add_row(f"{row[0][0]:.2f}", *(f"{value:.3f}" for _, value in row))
    Console(width=100).print(table)


def draw(curves: dict[int, list[tuple[float, float]]]) -> str:
    """The curves as an SVG that stands alone, on white: readable on a light and on a dark page."""
    width, height, left, right, top, bottom = 640, 360, 56, 96, 40, 48
    ticks = tuple(nice_ticks(0, max(load for load, _ in next(iter(curves.values()))), 5))
    x, y = Axis(0.0, ticks[-1], ticks), Axis(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))

    def place(load: float, value: float) -> tuple[float, float]:
        across = left + x.place(load) * (width - left - right)
        return round(across, 1), round(height - bottom - y.place(value) * (height - top - bottom), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{SOFT}" role="img" '
        f'aria-label="Overlap after recall falls from 1 near a load of {CRITICAL} patterns a unit">',
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
        f'<text x="{left}" y="22" font-size="14" font-weight="600" fill="{INK}">'
        "A classic Hopfield network recalls what it stored, up to a limit</text>",
    ]
    for tick, label in zip(y.ticks, y.labels(), strict=True):
        down = place(0, tick)[1]
        parts.append(f'<path d="M{left} {down}H{width - right}" stroke="{LINE}"/>')
        parts.append(f'<text x="{left - 8}" y="{down + 4}" text-anchor="end">{label}</text>')
    for tick, label in zip(x.ticks, x.labels(), strict=True):
        across = place(tick, 0)[0]
        parts.append(f'<text x="{across}" y="{height - bottom + 18}" text-anchor="middle">{label}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 10}" text-anchor="middle">patterns / units</text>')
    parts.append(
        f'<text transform="translate(16 {(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">'
        "overlap after recall</text>"
    )
    across = place(CRITICAL, 0)[0]
    parts.append(f'<path d="M{across} {top}V{height - bottom}" stroke="{SOFT}" stroke-dasharray="4 4"/>')
    limit = f"{CRITICAL}: the limit for N → ∞"
    parts.append(f'<text x="{across - 6}" y="{height - bottom - 8}" text-anchor="end">{limit}</text>')
    # The names stand at the ends of their lines, which lie close together: each at least a line below the last.
    ends = sorted((place(*points[-1])[1], units) for units, points in curves.items())
    free = 0.0
    for down, units in ends:
        colour = COLOURS[list(curves).index(units) % len(COLOURS)]
        points = [place(*point) for point in curves[units]]
        parts.append(f'<path d="M{"L".join(f"{a} {d}" for a, d in points)}" fill="none" stroke="{colour}" ')
        parts.append('stroke-width="2" stroke-linejoin="round"/>')
        parts += [f'<circle cx="{a}" cy="{d}" r="2.6" fill="{colour}"/>' for a, d in points]
        free = max(down + 4, free)
        parts.append(f'<text x="{points[-1][0] + 10}" y="{free:.1f}" fill="{colour}">{units:,} units</text>')
        free += 15
    return "".join(parts) + "</svg>\n"


def digits() -> Tensor:
    """One handwritten digit of each kind, 8 × 8 pixels of ±1: (10, 64)."""
    try:
        every = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise MeshcapError("the digits come with scikit-learn: pip install scikit-learn") from error
    first = [int((every.target == kind).argmax()) for kind in range(10)]
    return torch.from_numpy(every.data[first] > 7).float() * 2 - 1


def recalled(patterns: Tensor, seed: int = 0) -> list[tuple[str, Tensor]]:
    """Rows of pictures with their names: the patterns, and for two kinds of damage the cue and what becomes of it."""
    generator = torch.Generator().manual_seed(seed)
    half = patterns.clone()
    half[:, patterns.shape[1] // 2 :] = -1
    flipped = torch.where(torch.rand(patterns.shape, generator=generator) < 0.2, -patterns, patterns)
    hebb, projection = Hopfield.store(patterns), Hopfield.store(patterns, "pseudo-inverse")
    rows = [("stored", patterns)]
    for name, cue in (("lower half hidden", half), ("20 % of pixels flipped", flipped)):
        rows += [
            (name, cue),
            ("classic, Hebb", hebb.recall(cue)),
            ("classic, pseudo-inverse", projection.recall(cue)),
            ("modern, beta 1, one step", retrieve(cue, patterns, 1.0)),
        ]
    return rows


def sheet(rows: list[tuple[str, Tensor]]) -> Image.Image:
    """Rows of digits under each other; a row that begins another kind of damage stands a little apart."""
    pixel, gap, left, apart = 5, 10, 190, 14
    size = 8 * pixel
    tops, top = [], gap
    for index in range(len(rows)):
        top += apart if index % 4 == 1 else 0
        tops.append(top)
        top += size + gap
    paper = Image.new("RGB", (left + len(rows[0][1]) * (size + gap), top), PAPER)
    pen = ImageDraw.Draw(paper)
    for (name, patterns), down in zip(rows, tops, strict=True):
        pen.text((gap + 4, down + size // 2), name, INK, ImageFont.load_default(size=14), anchor="lm")
        for column, pattern in enumerate(patterns):
            grey = ((1 - pattern) / 2 * 225 + 20).round().clamp(0, 255).byte()
            digit = Image.frombytes("L", (8, 8), bytes(grey.tolist())).resize((size, size), Image.Resampling.NEAREST)
            paper.paste(digit, (left + column * (size + gap), down))
    return paper


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="draw the capacity curve into this .svg")
    parser.add_argument("--digits", type=Path, help="draw damaged digits into this .png (needs scikit-learn)")
    parser.add_argument("--units", type=int, nargs="+", default=SIZES, help="sizes of network")
    parser.add_argument("--seeds", type=int, default=4, help="networks of 500 units for each point")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.digits:
        rows = recalled(digits())
        for name, patterns in rows[1:]:
            wrong = ((patterns > 0) != (rows[0][1] > 0)).sum(1)
            print(f"{name:26} wrong pixels of 64, digits 0-9: {' '.join(f'{n:2}' for n in wrong.tolist())}")
        write_file(chosen.digits, lambda part: sheet(rows).save(part, "PNG", optimize=True))
    if chosen.out or not chosen.digits:
        began = time.process_time()
        curves = measure(chosen.units, LOADS, chosen.seeds)
        show(curves)
        counts = ", ".join(f"{networks(units, chosen.seeds)} of {units:,}" for units in chosen.units)
        print(f"networks for each point: {counts} units; {time.process_time() - began:.0f} s of CPU")
        if chosen.out:
            write_text(chosen.out, draw(curves))


if __name__ == "__main__":
    main()
