"""The best rising curve through points: pool adjacent violators (Ayer and others, 1955)."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

Array = NDArray[numpy.float64]


def pooled(values: Array, weights: Array | None = None) -> Array:
    """The non-decreasing numbers that are nearest to `values` in weighted squares; values in the order of their x."""
    weights = numpy.ones(len(values)) if weights is None else weights
    blocks: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            before, its, many = blocks.pop()
            mean, total, count = (before * its + mean * total) / (its + total), its + total, count + many
        blocks.append((mean, total, count))
    return numpy.repeat([mean for mean, _, _ in blocks], [count for _, _, count in blocks])
