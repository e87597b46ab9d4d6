"""What rewards remember of the training captions: plain arrays, which numpy, numba and a GPU read alike.

COCO's 113,287 training pictures take some 60 MB. References are kept as words, not as n-grams: n-grams of a candidate
are found in a reference by comparing words (`reward_arrays`), and only how rare they are has to be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import Any

import numpy

from meshcap.errors import MeshcapError
from meshcap.metrics.cider import MOST_WORDS, gram_frequencies, inverse
from meshcap.metrics.ngrams import Array, count_grams

WORD_BITS = 16  # of a word in the key of an n-gram
LARGEST_ID = 2**WORD_BITS - 2  # ids are stored plus one, so that "a" and "<nothing> a" have different keys
# An odd number near 2⁶⁴ / golden ratio, as a signed one: multiplying by it spreads keys evenly and loses nothing.
SPREAD = 0x9E3779B97F4A7C15 - 2**64


@dataclass(frozen=True)
class References:
    """References of P pictures end to end. Fields are arrays; on a GPU (`to`), tensors of the same numbers.

    tokens (W,); starts (C + 1,) where each caption begins; firsts (P + 1,) the first caption of each picture. With
    `count_eos` every reference ends with eos, and candidates keep theirs.
    """

    tokens: Any
    starts: Any
    firsts: Any
    eos: int  # -1 without one
    pad: int
    count_eos: bool
    most: int  # references of a picture
    longest: int  # reference, in words

    @classmethod
    def build(
        cls, references: Sequence[Sequence[Sequence[int]]], *, eos: int | None, pad: int, count_eos: bool = True
    ) -> References:
        """From lists of ids, with or without eos and padding at their ends.

        Raises:
            MeshcapError: a picture without references, or an id that is negative or beyond 65,534.
        """
        counts = numpy.fromiter(map(len, references), numpy.int64, len(references))
        if len(counts) == 0:
            raise MeshcapError("no pictures were given, expected at least one")
        if not counts.all():
            raise MeshcapError(f"picture {int(counts.argmin())} has no references, expected at least one")
        captions = list(chain.from_iterable(references))
        lengths = numpy.fromiter(map(len, captions), numpy.int64, len(captions))
        ids = numpy.fromiter(chain.from_iterable(captions), numpy.int64, int(lengths.sum()))
        if len(ids) and not 0 <= ids.min() <= ids.max() <= LARGEST_ID:
            raise MeshcapError(f"references have ids {ids.min()} to {ids.max()}, expected 0 to {LARGEST_ID}")
        ends = count_eos and eos is not None
        eos = -1 if eos is None else eos
        kept = (ids != pad) & (ids != eos)
        caption = numpy.repeat(numpy.arange(len(captions)), lengths)[kept]
        starts = numpy.zeros(len(captions) + 1, numpy.int64)
        numpy.cumsum(numpy.bincount(caption, minlength=len(captions)) + ends, out=starts[1:])
        tokens = numpy.full(max(1, starts[-1]), eos, numpy.int32)  # never none to point at
        # Words move on by one for each eos that comes before them.
        tokens[numpy.arange(len(caption)) + ends * caption] = ids[kept]
        firsts = numpy.append(0, numpy.cumsum(counts))
        return cls(
            tokens,
            starts.astype(numpy.int32),
            firsts.astype(numpy.int32),
            eos,
            pad,
            ends,
            most=int(counts.max()),
            longest=int(numpy.diff(starts).max()),
        )

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def captions(self, picture: int) -> list[list[int]]:
        """The references of one picture, as lists."""
        starts = self.starts[self.firsts[picture] : self.firsts[picture + 1] + 1].tolist()
        return [self.tokens[a:b].tolist() for a, b in pairwise(starts)]


@dataclass(frozen=True)
class Rarity:
    """How rare n-grams are, and how long the references are as tf-idf vectors: all that CIDEr-D needs beyond words.

    The key of an n-gram is its words' ids, 16 bits each, times SPREAD. Keys are spread so evenly that each value of
    their first bits is that of about one n-gram. Those bits choose a bucket, and since they then are known, the
    number of pictures that have the n-gram takes their room: an entry is the rest of the key, then the number. To
    look up a key is to read its bucket's begin and end, and the entry or two between; a cache miss each.

    N-grams of fewer than two pictures are left out, since one and none weigh the same.
    """

    entries: Any  # (G + 1,) int64; the last belongs to nobody
    buckets: Any  # (2^bits + 1,) int32, where the entries of each bucket begin
    idf: Any  # (largest number of pictures + 1,) float64, log(all pictures / number)
    norms: Any  # (C, n) float64, of each reference
    bits: int
    fullest: int  # entries of a bucket
    n: int

    @classmethod
    def build(cls, references: References, n: int) -> Rarity:
        if not 1 <= n <= MOST_WORDS:
            raise ValueError(f"n is {n}, expected 1 to {MOST_WORDS}")
        ids = references.tokens[: references.starts[-1]].astype(numpy.int64)
        lengths = numpy.diff(references.starts)
        caption = numpy.repeat(numpy.arange(len(lengths)), lengths)
        picture = numpy.repeat(numpy.arange(len(references)), numpy.diff(references.firsts))
        norms = numpy.zeros((len(lengths), n))
        keys, counts = [], []
        for k, grams in enumerate(count_grams(ids, caption, lengths, n, LARGEST_ID + 1)):
            frequency = gram_frequencies(grams, picture)
            weight = inverse(frequency, len(references))[grams.gram]
            norms[:, k] = numpy.sqrt(numpy.bincount(grams.caption, (grams.count * weight) ** 2, len(lengths)))
            kept = frequency >= 2
            packed = numpy.zeros(int(kept.sum()), numpy.int64)
            for j in range(k + 1):
                packed = packed << WORD_BITS | (ids[grams.places[kept] + j] + 1)
            keys.append(packed)
            counts.append(frequency[kept])
        spread, count = numpy.concatenate(keys) * SPREAD, numpy.concatenate(counts)  # wraps around, on purpose
        most = int(count.max(initial=1))
        bits = max(len(spread), most).bit_length()
        bucket = (spread >> (64 - bits)) + (1 << (bits - 1))  # numbers are signed, buckets are not
        order = numpy.argsort(bucket, kind="stable")
        sizes = numpy.bincount(bucket, minlength=1 << bits)
        return cls(
            entries=numpy.append((spread << bits | count)[order], 0),
            buckets=numpy.append(0, numpy.cumsum(sizes)).astype(numpy.int32),
            idf=inverse(numpy.arange(most + 1), len(references)),
            norms=norms,
            bits=bits,
            fullest=int(sizes.max()),
            n=n,
        )


def nbytes(*indexes: References | Rarity) -> int:
    """Memory of all their arrays."""
    held = (getattr(index, field.name) for index in indexes for field in fields(index))
    return sum(value.nbytes for value in held if isinstance(value, Array))
