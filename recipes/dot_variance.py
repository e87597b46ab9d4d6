"""Why dot products are scaled: the variance of scores against their width, as a table and a picture.

python recipes/dot_variance.py --out docs/images/dot_variance.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from meshcap.attention import make_score, soft
from meshcap.evaluation.charts import Axis

WIDTHS = [2**power for power in range(11)]  # 1 … 1024
KEYS = 50  # as many as a detector gives regions
COLOURS = {"dot": "#c2410c", "scaled": "#1d4ed8"}
WIDE, HIGH = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 124, 52, 52


def measure(width: int, *, pictures: int = 2000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Of queries and keys with numbers of variance 1, by score: its variance, and the mean highest of 50 weights."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(pictures, 1, width, generator=generator)
    keys = torch.randn(pictures, KEYS, width, generator=generator)
    found = {}
    for name in COLOURS:
        score = make_score(name, width, width)
        scores = score(query, score.prepare(keys))
        found[name] = (scores.var().item(), soft(scores).weights.amax(-1).mean().item())
    return found


def table(rows: dict[int, dict[str, tuple[float, float]]]) -> str:
    """The measurements in Markdown."""
    lines = [
        "| D | variance, dot | variance, scaled | highest weight, dot | highest weight, scaled |",
        "|---|---|---|---|---|",
    ]
    for width, row in rows.items():
        (dot, dot_weight), (scaled, scaled_weight) = row["dot"], row["scaled"]
        lines.append(f"| {width} | {dot:.1f} | {scaled:.2f} | {dot_weight:.2f} | {scaled_weight:.2f} |")
    return "\n".join(lines)


def picture(rows: dict[int, dict[str, tuple[float, float]]]) -> str:
    """Variance against width, both in powers, as an SVG of its own."""
    x = Axis(min(rows), max(rows), tuple(w for w in rows if w.bit_length() % 2), log=True)
    y = Axis(0.1, 10_000, (0.1, 1, 10, 100, 1000, 10_000), log=True)

    def at(width: float, variance: float) -> tuple[float, float]:
        across = LEFT + x.place(width) * (WIDE - LEFT - RIGHT)
        return round(across, 1), round(HIGH - BOTTOM - y.place(variance) * (HIGH - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13" fill="#374151">',
        "<title>Variance of dot and scaled dot scores against the width of queries and keys</title>",
        f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="15" fill="#111827">The variance of a dot product grows with D; divided '
        "by √D, it stays</text>",
    ]
    for tick in y.ticks:
        across, down = at(x.low, tick)
        parts.append(f'<path d="M{across} {down}H{WIDE - RIGHT}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{across - 8}" y="{down + 4}" text-anchor="end">{tick:g}</text>')
    for tick in x.ticks:
        parts.append(f'<text x="{at(tick, 1)[0]}" y="{HIGH - BOTTOM + 20}" text-anchor="middle">{tick:g}</text>')
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HIGH - 10}" text-anchor="middle">D, numbers of a query and of a key</text>')
    parts.append(f'<text transform="translate(20 {(TOP + HIGH - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
                 "variance of scores</text>")  # fmt: skip
    for name, colour in COLOURS.items():
        points = [at(width, row[name][0]) for width, row in rows.items()]
        path = "L".join(f"{across} {down}" for across, down in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"/>' for across, down in points]
        across, down = points[-1]
        label = {"dot": "dot, xᵀq", "scaled": "scaled, xᵀq/√D"}[name]
        parts.append(f'<text x="{across + 8}" y="{down + 4}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to draw the picture (SVG); only the table is printed without")
    out = parser.parse_args(arguments).out
    rows = {width: measure(width) for width in WIDTHS}
    print(table(rows))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
