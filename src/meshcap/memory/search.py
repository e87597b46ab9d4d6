"""Nearest vectors among many: exact search in whole numbers, and an index of usearch's for larger stores.

Vectors are kept as directions in 8 bits: v₈ = round(127 v / max|v|), and cos(q, v) = q·v₈ / (|q| |v₈|). A query keeps
15 bits, in two parts of 8. Products are then sums of whole numbers below 2²⁴ (to a width of 1,040), which int8 kernels
and float32 both compute without any rounding: every way of searching gives the same similarities.

The first part alone tells a cosine to within the length of the second. Exact search multiplies it with all rows, and
both with those few that may then be among the nearest.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from meshcap.errors import MeshcapError

BLOCK = 1 << 17  # rows that are compared at once: 100 MB of a wide store
EXPANSION = 512  # candidates that an index keeps while it searches: recall against time, see docs/long-term-memory.md
FINE = 254  # steps of a query's second part within one of the first


def quantize(vectors: np.ndarray) -> np.ndarray:
    """Directions (n, D) in int8.

    Raises:
        MeshcapError: a vector of zeros or with numbers that are not finite, which has no direction.
    """
    vectors = np.asarray(vectors, np.float32)
    largest = np.abs(vectors).max(1, keepdims=True, initial=0)
    if not (np.isfinite(largest).all() and (largest > 0).all()):
        raise MeshcapError("a picture's vector is zero or not finite: it has no direction to compare")
    return np.rint(vectors * (127 / largest)).astype(np.int8)


def norms_of(rows: np.ndarray) -> np.ndarray:
    """Lengths of int8 rows; infinite for rows of zeros, which are like nothing."""
    norms = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), BLOCK // 8):
        part = rows[start : start + BLOCK // 8].astype(np.float32)
        norms[start : start + len(part)] = np.sqrt(np.einsum("nd,nd->n", part, part))
    norms[norms == 0] = np.inf
    return norms


class Query:
    """Directions to look for, (B, D), in two parts of 8 bits."""

    def __init__(self, vectors: np.ndarray):
        vectors = np.asarray(vectors, np.float32)
        if not np.isfinite(vectors).all():
            raise MeshcapError("a picture's vector is not finite: there is nothing to look for")
        largest = np.abs(vectors).max(1, keepdims=True, initial=0)
        steps = vectors * (127 / np.where(largest > 0, largest, 1))
        coarse = np.rint(steps)
        self.parts = np.concatenate((coarse, np.rint((steps - coarse) * FINE))).astype(np.int8)  # (2B, D)
        self.count = len(vectors)
        whole = self.join(self.parts.astype(np.float32))
        lengths = np.sqrt((whole**2).sum(1, keepdims=True))
        self.scale = (1 / np.where(lengths > 0, lengths, np.inf)).astype(np.float32)  # (B, 1)
        missing = np.linalg.norm(self.parts[self.count :].astype(np.float32), axis=1, keepdims=True) / FINE
        self.slack = missing * self.scale + np.float32(1e-5)  # (B, 1) by which `roughly` may be wrong

    def alone(self, one: int) -> Query:
        """The query of one vector."""
        query = copy.copy(self)
        query.count, query.parts = 1, self.parts[[one, self.count + one]]
        query.scale, query.slack = self.scale[one : one + 1], self.slack[one : one + 1]
        return query

    def join(self, products: np.ndarray) -> np.ndarray:
        """The two parts (2B, n) as one (B, n)."""
        coarse, fine = products[: self.count], products[self.count :]
        return np.add(coarse, fine * np.float32(1 / FINE), dtype=np.float32)

    def similarities(self, rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
        """Cosines (B, n) of the queries and of rows (n, D); -∞ for rows of infinite length, which are no vectors."""
        return self._cosines(self.join(_products(self.parts, rows)), norms)

    def roughly(self, rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
        """`similarities` to within `slack`, in a fraction of the time."""
        return self._cosines(_products(self.parts[: self.count], rows), norms)

    def _cosines(self, products: np.ndarray, norms: np.ndarray) -> np.ndarray:
        cosines = np.multiply(products, self.scale, dtype=np.float32)
        cosines /= norms
        if len(missing := np.flatnonzero(np.isinf(norms))):
            cosines[:, missing] = -np.inf
        return cosines


def _products(parts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(P, D) times (n, D) of int8, exactly."""
    multiply = _int8_kernel()
    if multiply is not None and len(rows) > 64:
        return multiply(parts, rows)
    return parts.astype(np.float32) @ rows.astype(np.float32).T


_kernel: list[Callable[[np.ndarray, np.ndarray], np.ndarray] | None] = []


def _int8_kernel() -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """torch's product of int8 matrices, an order of magnitude faster; None where torch is missing or has none."""
    if not _kernel:
        try:
            import torch

            def multiply(parts: np.ndarray, rows: np.ndarray) -> np.ndarray:
                product = torch._int_mm(torch.from_numpy(parts), torch.from_numpy(rows).T)
                found: np.ndarray = product.numpy()
                return found

            trial = np.arange(-64, 64, dtype=np.int8)[None].repeat(2, 0)
            length = int((trial[0].astype(np.int32) ** 2).sum())
            right = all(bool((multiply(some, trial) == length).all()) for some in (trial, trial[:1]))
            _kernel.append(multiply if right else None)
        except (ImportError, RuntimeError, AttributeError):
            _kernel.append(None)
    return _kernel[0]


class Index(Protocol):
    """A way of finding likely rows; similarities are computed afterwards, the same for all."""

    def candidates(self, query: Query, k: int) -> np.ndarray:
        """(B, c) row numbers among the first `covered` rows, -1 where there are fewer."""

    @property
    def covered(self) -> int:
        """How many rows, from the first, the index knows. Later ones are compared one by one."""


def nearest_rows(
    query: Query, rows: np.ndarray, norms: np.ndarray, k: int, index: Index | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (B, k') and similarities (B, k') of the k nearest rows, nearest first; of equal ones, the first row.

    Args:
        rows, norms: (n, D) int8 and their lengths; infinite ones are never near.
    """
    first = 0 if index is None else index.covered
    alone = [query.alone(one) for one in range(query.count)]
    nothing = np.empty(0, np.int64), np.empty(0, np.float32)
    found = [nothing] * query.count
    if first and index is not None:
        for one, places in enumerate(index.candidates(query, k)):
            known = places[(places >= 0) & (places < len(rows))]
            found[one] = _nearer(nothing, alone[one], rows, norms, known, k)
    for start in range(first, len(rows), BLOCK):
        likely = query.roughly(rows[start : start + BLOCK], norms[start : start + BLOCK])
        for one, cosines in enumerate(likely):
            places = start + _maybe_largest(cosines, k, 2 * float(query.slack[one, 0]))
            found[one] = _nearer(found[one], alone[one], rows, norms, places, k)
    most = max((len(places) for places, _ in found), default=0)
    places, best = np.full((query.count, most), -1, np.int64), np.full((query.count, most), -np.inf, np.float32)
    for one, (known, similar) in enumerate(found):
        places[one, : len(known)], best[one, : len(known)] = known, similar
    return places, best


def _maybe_largest(values: np.ndarray, k: int, slack: float) -> np.ndarray:
    """Places of all values (n,) that are within `slack` of the k largest."""
    least = np.partition(values, -k)[-k] if k < len(values) else -np.inf
    return np.flatnonzero(values >= least - slack)


def _nearer(
    known: tuple[np.ndarray, np.ndarray], query: Query, rows: np.ndarray, norms: np.ndarray, places: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest, as places and similarities, among those that are known and rows at other places."""
    similar = query.similarities(rows[places], norms[places])[0] if len(places) else np.empty(0, np.float32)
    all_places, all_similar = np.concatenate((known[0], places)), np.concatenate((known[1], similar))
    order = np.lexsort((all_places, -all_similar))[:k]
    return all_places[order], all_similar[order]


class UsearchIndex:
    """A graph of neighbours (HNSW) in one file, made of the rows by `build`. Rows added later are not in it.

    A row is linked to those before it, a millisecond of one core each: a large index grows, and is not made again.
    """

    def __init__(self, path: Path, width: int):
        usearch = need_usearch()
        self.index = usearch.Index(ndim=width, metric="cos", dtype="i8")
        try:
            self.index.view(os.fspath(path))
            self.index.expansion_search = EXPANSION
        except Exception as error:  # whatever the library raises for a damaged file
            raise MeshcapError(f"{path} cannot be read by usearch ({str(error).splitlines()[0]})") from error

    @property
    def covered(self) -> int:
        return len(self.index)

    def candidates(self, query: Query, k: int) -> np.ndarray:
        found = np.full((query.count, 2 * k), -1, np.int64)
        wanted = min(2 * k, self.covered)
        for one in range(query.count):
            matches = self.index.search(query.parts[one], wanted)
            found[one, : len(matches)] = matches.keys.astype(np.int64)
        return found

    @staticmethod
    def build(
        rows: np.ndarray, known: Path | None = None, *, threads: int = 0, progress: Callable[[int], Any] | None = None
    ) -> Callable[[Path], None]:
        """What writes an index of all rows into a file. Those that the file `known` has are not added again."""
        usearch = need_usearch()
        make = partial(usearch.Index, ndim=rows.shape[1], metric="cos", dtype="i8")
        index = make()
        if known is not None:
            try:
                index.load(os.fspath(known))
            except Exception:  # whatever the library raises for a damaged file
                index = make()
        if len(index) > len(rows):
            index = make()
        for start in range(len(index), len(rows), BLOCK // 8):
            part = np.ascontiguousarray(rows[start : start + BLOCK // 8])
            index.add(np.arange(start, start + len(part), dtype=np.uint64), part, threads=threads)
            if progress is not None:
                progress(len(part))
        return lambda path: index.save(os.fspath(path))


def need_usearch() -> Any:
    try:
        from usearch import index
    except ImportError:
        raise MeshcapError("the engine usearch needs another package: pip install 'meshcap[memory]'") from None
    return index
