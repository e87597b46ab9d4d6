"""Which pictures are the same, and which the same but for their size and compression.

- The same: the decoded pixels are equal.
- Nearly the same: two 64-bit hashes differ in at most `BITS` bits, and then two thumbnails in colour agree. The hash
  (signs of the lowest frequencies of a cosine transform, about their median) survives re-encoding and resizing,
  squashing to a square included; it finds candidates fast, and among many pictures some of them by chance. The
  thumbnails sort these out. Crops, mirror images and changed colours are not found, nor are pictures taken a second
  apart: those are different pictures.

Hashes are searched by parts: of 64 bits in four parts, at most seven of which differ, one part has at most one
different bit. So a table of each part, wanted 17 times a picture, gives every pair, and 120,000 pictures take seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

BITS = 7  # of 64 that may differ; the search below finds all pairs up to seven, and no more
SIDE = 32  # of the grey picture that is transformed
LOW = 8  # frequencies along each axis
THUMB = 12  # pixels along each side
# Measured on the 8,000 photographs of Flickr8k (256 px): of 32 million pairs one is found, a true copy, and the hash
# alone finds no other. Of 400 saved again (WebP 45, JPEG 30, 96 px JPEG 50, 500 × 333 JPEG 75) all are found; as JPEG
# 10, 397.
MOST_DIFFERENCE = 40.0  # of 255, between any two numbers of thumbnails: a thing that is there and is not makes more
SHARE = 0.25  # of the picture's own contrast, by which differences may vary: pale pictures are all alike in numbers
FLAT = 4.0  # standard deviation of a thumbnail: below, a picture shows nothing, and all such look alike
BATCH = 1 << 22  # candidate pairs compared at once


class Fingerprint(NamedTuple):
    """What of a picture is kept to compare it with others."""

    width: int
    height: int
    pixels: bytes  # a digest of all of them
    hash: int
    thumb: bytes  # (THUMB, THUMB, 3) of uint8
    flat: bool


def _cosines() -> np.ndarray:
    steps = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    return np.cos(np.arange(LOW)[:, None] * steps[None])


_COSINES = _cosines()  # (LOW, SIDE)


def fingerprint(image: Image.Image) -> Fingerprint:
    """Of an RGB picture."""
    digest = hashlib.blake2b(repr(image.size).encode(), digest_size=16)
    digest.update(image.tobytes())
    # Both from one reduced picture: reducing the whole one is what costs.
    middle = image.resize((4 * SIDE, 4 * SIDE), Image.Resampling.BOX, reducing_gap=2.0)
    grey = np.asarray(middle.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), np.float64)
    low = (_COSINES @ grey @ _COSINES.T).ravel()[1:]  # without the mean brightness
    signs = np.concatenate(([False], low > np.median(low)))
    thumb = middle.resize((THUMB, THUMB), Image.Resampling.BOX)
    flat = bool(np.asarray(thumb, np.float64).std(axis=(0, 1)).max() < FLAT)
    return Fingerprint(
        *image.size, digest.digest(), int.from_bytes(np.packbits(signs).tobytes(), "big"), thumb.tobytes(), flat
    )


def close_hashes(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs i < j of uint64 hashes with at most `BITS` different bits, each once, in batches."""
    parts = hashes[:, None] >> np.arange(0, 64, 16, dtype=np.uint64) & np.uint64(0xFFFF)  # (n, 4)
    flips = np.concatenate(([0], 1 << np.arange(16))).astype(np.uint64)
    for place, part in enumerate(parts.T):
        order = np.argsort(part, kind="stable")
        table = part[order]
        for flip in flips:
            wanted = part ^ flip
            first = np.searchsorted(table, wanted, "left")
            counts = np.searchsorted(table, wanted, "right") - first
            for begin, end in _batches(counts):
                some = counts[begin:end]
                i = np.repeat(np.arange(begin, end), some)
                within = np.arange(len(i)) - np.repeat(np.cumsum(some) - some, some)
                j = order[np.repeat(first[begin:end], some) + within]
                close = (i < j) & (differing_bits(hashes[i], hashes[j]) <= BITS)
                i, j = i[close], j[close]
                for earlier in parts.T[:place]:  # which found this pair already
                    new = differing_bits(earlier[i], earlier[j]) > 1
                    i, j = i[new], j[new]
                if len(i):
                    yield i, j


def _batches(counts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of pictures with about `BATCH` candidates together."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        done = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + BATCH, "right")))
        yield begin, end
        begin = end


def differing_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    different = a ^ b
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.bitwise_count(different)
    return _ONES[different[:, None].view(np.uint8)].sum(-1)


_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def near_duplicates(prints: Sequence[Fingerprint], splits: Sequence[str] | None = None) -> list[tuple[int, int]]:
    """Pairs i < j of pictures that are nearly the same, those with equal pixels left out.

    A hundred copies do not make thousands of pairs: of pictures with equal pixels only the first is compared, and of
    all that j resembles, i is the first in each split.
    """
    first: dict[bytes, int] = {}
    for number, one in enumerate(prints):
        if not one.flat:
            first.setdefault(one.pixels, number)
    numbers = np.fromiter(first.values(), np.int64, len(first))
    if len(numbers) < 2:
        return []
    hashes = np.array([prints[number].hash for number in numbers], np.uint64)
    thumbs = np.stack([np.frombuffer(prints[number].thumb, np.uint8) for number in numbers])
    found: dict[tuple[int, str], int] = {}  # j and a split -> i
    for i, j in close_hashes(hashes):
        for begin in range(0, len(i), 1 << 14):
            a, b = i[begin : begin + (1 << 14)], j[begin : begin + (1 << 14)]
            alike = _alike(thumbs[a].astype(np.float32), thumbs[b].astype(np.float32))
            for one, other in zip(numbers[a[alike]].tolist(), numbers[b[alike]].tolist(), strict=True):
                place = other, splits[one] if splits else ""
                found[place] = min(one, found.get(place, one))
    return sorted((i, j) for (j, _), i in found.items())


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether thumbnails (pairs, THUMB · THUMB · 3) are of the same picture."""
    different = np.abs(a - b)
    own = np.maximum(*(one.reshape(len(one), -1, 3).std(axis=1).mean(axis=-1) for one in (a, b)))
    return (different.max(axis=-1) <= MOST_DIFFERENCE) & ((a - b).std(axis=-1) <= SHARE * own)
