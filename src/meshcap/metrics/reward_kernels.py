"""CIDEr-D of a batch of candidates against the training references, fast enough for self-critical training.

- `References` and `Rarity`: what rewards remember of the training captions, as plain arrays that numpy, numba and a
  GPU read alike. COCO's 113,287 training pictures take some 60 MB. References are kept as words, not as n-grams:
  n-grams of a candidate are found in a reference by comparing words, and only how rare they are is looked up.
- `cider_arrays`: in array operations of numpy or torch alike. Each word of a candidate is compared with each word of a
  reference; where n words in a row agree, an n-gram does. No dictionary, no sort, and no shape that depends on the
  words, so on a GPU nothing waits for the host. `xp` is the module numpy or torch; arrays and the index are of it.
- `cider_compiled`: the same numbers in loops that numba compiles, some thirty times faster on a CPU: one thread does
  250 candidates within a millisecond.

The Triton kernel of a GPU is `meshcap.kernels.cider_d`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
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


@dataclass(frozen=True)
class Batch:
    """N candidates beside the references of their pictures. Places beyond the ends hold -1 and -2: never equal."""

    words: Any  # (N, T)
    lengths: Any  # (N,)
    caption: Any  # (N, R) row of each reference in the index
    there: Any  # (N, R) bool: the picture has so many references
    said: Any  # (N, R, L) words of the references
    reference_lengths: Any  # (N, R)

    def counts(self, xp: Any, n: int) -> Iterator[tuple[Any, Any]]:
        """For k = 1..n: how often the k-gram at each place stands in the candidate itself (N, T - k + 1), and in
        each reference (N, R, T - k + 1). Grams that reach beyond the end count 0.
        """
        own = own_words = self.words[:, :, None] == xp.where(self.words < 0, -2, self.words)[:, None, :]  # (N, T, T)
        same = same_words = self.words[:, None, :, None] == self.said[:, :, None, :]  # (N, R, T, L)
        for k in range(n):
            if k:
                own = own[..., :-1, :-1] & own_words[..., k:, k:]
                same = same[..., :-1, :-1] & same_words[..., k:, k:]
            yield own.sum(-1), same.sum(-1)


def prepare(xp: Any, references: References, ids: Any, pictures: Any, places: Any, most: int, longest: int) -> Batch:
    """A `Batch` from ids (N, T) and their pictures (N,).

    Args:
        places: numbers from 0 on, at least as many as T, `most` and `longest`.
        most, longest: references of a picture, and words of a reference, to make room for.
    """
    length = ids.shape[1]
    ended = ids == references.eos
    stops = ended | (ids == references.pad)
    # A caption is what comes before the first stop, and that stop too if it is an eos that counts.
    so_far = stops.cumsum(-1)
    inside = so_far == 0
    if references.count_eos:
        inside = inside | (ended & (so_far == 1))
    lengths = inside.sum(-1)
    words = xp.where(places[:length] < lengths[:, None], ids, -1)
    first, end = references.firsts[pictures], references.firsts[pictures + 1]
    caption = first[:, None] + places[:most]
    there = caption < end[:, None]
    caption = xp.where(there, caption, first[:, None])
    begin = references.starts[caption]
    reference_lengths = references.starts[caption + 1] - begin
    filled = (places[:longest] < reference_lengths[..., None]) & there[..., None]
    said = xp.where(filled, references.tokens[xp.where(filled, begin[..., None] + places[:longest], 0)], -2)
    return Batch(words, lengths, caption, there, said, reference_lengths)


def cider_arrays(xp: Any, batch: Batch, rarity: Rarity, sigma: float) -> Any:
    """CIDEr-D (N,) in float64, on the scale of `cider_d`."""
    total = 0.0
    key = None
    for k, (own, counts) in enumerate(batch.counts(xp, rarity.n)):
        last = batch.words[:, k:] + 1
        key = last if key is None else key[:, :-1] << WORD_BITS | last
        squares = xp.where(own > 0, rarity.idf[_frequencies(xp, rarity, key)] ** 2, 0.0)  # (N, T - k)
        # A gram said twice stands at two places: norms take its count once at each, products half of it.
        norm = xp.sqrt((own * squares).sum(-1))  # (N,)
        products = xp.minimum(counts, own[:, None]) * counts * (squares / own.clip(1))[:, None]  # (N, R, T - k)
        scale = norm[:, None] * rarity.norms[batch.caption, k]  # (N, R)
        total = total + xp.where(scale > 0, products.sum(-1) / xp.where(scale > 0, scale, 1.0), 0.0)
    apart = (batch.lengths[:, None] - batch.reference_lengths) * 1.0
    total = total * xp.exp(-(apart**2) / (2 * sigma**2))
    each = xp.where(batch.there, total, 0.0).sum(-1) / batch.there.sum(-1)
    return each * (10.0 / rarity.n)


def _frequencies(xp: Any, rarity: Rarity, keys: Any) -> Any:
    """Pictures that have each n-gram, 0 for those in fewer than two."""
    spread = keys * SPREAD  # wraps around, on purpose
    bucket = (spread >> (64 - rarity.bits)) + (1 << (rarity.bits - 1))
    begin, end = rarity.buckets[bucket], rarity.buckets[bucket + 1]
    found = keys * 0
    for step in range(rarity.fullest):
        place = xp.where(begin + step < end, begin + step, len(rarity.entries) - 1)  # the last is nobody's
        number = rarity.entries[place] ^ (spread << rarity.bits)  # what is left when the rest of the key is equal
        found = xp.where((number >= 0) & (number < 1 << rarity.bits), number, found)
    return found


@cache
def compiled() -> Callable[..., Any] | None:
    """The loops for numba to compile, or None without it. Compiling takes some seconds, at the first call."""
    try:
        import numba
    except ImportError:
        return None
    jit = numba.njit(nogil=True)
    ends, weights, scores = jit(_ends), jit(_weights), jit(_scores)

    def work(references: References, rarity: Rarity, ids: Array, pictures: Array, sigma: float) -> Array:
        end = ends(ids, references.eos, references.pad, references.count_eos)
        squares = weights(ids, end, rarity.entries, rarity.buckets, rarity.idf, rarity.bits, rarity.n)
        found: Array = scores(
            ids, end, squares, pictures, references.tokens, references.starts, references.firsts, rarity.norms, sigma
        )
        return found

    return work


def cider_compiled(references: References, rarity: Rarity, ids: Array, pictures: Array, sigma: float) -> Array:
    """CIDEr-D (N,) of ids (N, T) against the references of pictures (N,); numba has to be there."""
    work = compiled()
    assert work is not None
    # One type each, or numba would compile anew.
    ids, pictures = numpy.ascontiguousarray(ids, numpy.int32), numpy.ascontiguousarray(pictures, numpy.int64)
    found: Array = work(references, rarity, ids, pictures, float(sigma))
    return found


def _ends(ids, eos, pad, count_eos):  # type: ignore[no-untyped-def]
    """(N,) words of each candidate."""
    ends = numpy.empty(len(ids), numpy.int64)
    for row in range(len(ids)):
        end = 0
        while end < ids.shape[1] and ids[row, end] != pad and ids[row, end] != eos:
            end += 1
        ends[row] = end + (count_eos and end < ids.shape[1] and ids[row, end] == eos)
    return ends


def _weights(ids, ends, entries, buckets, idf, bits, n):  # type: ignore[no-untyped-def]
    """(N, T, n): the squared idf of the gram of k + 1 words that begins at each word.

    The index is larger than a processor's cache. The first loops only ask for memory and decide nothing that would
    have to wait for it, so that the waits for all grams fall together.
    """
    shape = (*ids.shape, n)
    rest, nearest = numpy.empty(shape, numpy.int64), numpy.empty(shape, numpy.int64)  # of keys; see Rarity
    begins, untils = numpy.empty(shape, numpy.int32), numpy.empty(shape, numpy.int32)
    for row in range(len(ids)):
        for i in range(ends[row]):
            key = 0
            for k in range(min(n, ends[row] - i)):
                key = key << WORD_BITS | (ids[row, i + k] + 1)
                spread = key * SPREAD  # wraps around
                bucket = (spread >> (64 - bits)) + (1 << (bits - 1))
                rest[row, i, k] = spread << bits
                begins[row, i, k], untils[row, i, k] = buckets[bucket], buckets[bucket + 1]
    for row in range(len(ids)):
        for i in range(ends[row]):
            for k in range(min(n, ends[row] - i)):
                nearest[row, i, k] = entries[begins[row, i, k]] ^ rest[row, i, k]
    squares = numpy.empty(shape)
    for row in range(len(ids)):
        for i in range(ends[row]):
            for k in range(min(n, ends[row] - i)):
                begin, until, number = begins[row, i, k], untils[row, i, k], nearest[row, i, k]
                pictures = number if begin < until and 0 <= number < 1 << bits else 0
                for place in range(begin + 1, until):
                    number = entries[place] ^ rest[row, i, k]
                    if 0 <= number < 1 << bits:
                        pictures = number
                squares[row, i, k] = idf[pictures] * idf[pictures]
    return squares


def _scores(ids, ends, squares, pictures, tokens, starts, firsts, norms, sigma):  # type: ignore[no-untyped-def]
    """(N,) CIDEr-D."""
    length, n = squares.shape[1:]
    head, after = numpy.empty(256, numpy.int64), numpy.empty(length, numpy.int64)
    own = numpy.empty((length, n), numpy.int32)  # how often the candidate has the gram of k + 1 words from i on
    same = numpy.empty((length, n), numpy.int32)  # and the reference
    norm, products = numpy.empty(n), numpy.empty(n)
    found = numpy.empty(len(ids))
    for row in range(len(ids)):
        words, end, square = ids[row], ends[row], squares[row]
        # Where to find a word: in the chain of those that share its last eight bits, from first to last.
        head[:] = -1
        for i in range(end - 1, -1, -1):
            after[i] = head[words[i] & 255]
            head[words[i] & 255] = i
        own[:end] = 1
        for i in range(end):
            j = after[i]
            while j >= 0:
                k = 0
                while k < n and j + k < end and words[i + k] == words[j + k]:
                    own[i, k] += 1
                    own[j, k] += 1
                    k += 1
                j = after[j]
        for k in range(n):
            total = 0.0
            for i in range(end - k):
                total += own[i, k] * square[i, k]
                square[i, k] /= own[i, k]  # a gram said twice stands at two places: half of it at each
            norm[k] = numpy.sqrt(total)
        first, last = firsts[pictures[row]], firsts[pictures[row] + 1]
        total = 0.0
        for caption in range(first, last):
            begin, until = starts[caption], starts[caption + 1]
            same[:end] = 0
            for j in range(begin, until):
                i = head[tokens[j] & 255]
                while i >= 0:
                    k = 0
                    while k < n and i + k < end and j + k < until and words[i + k] == tokens[j + k]:
                        same[i, k] += 1
                        k += 1
                    i = after[i]
            products[:] = 0.0
            for i in range(end):
                k = 0
                while k < n and same[i, k] > 0:
                    products[k] += min(own[i, k], same[i, k]) * same[i, k] * square[i, k]
                    k += 1
            cosines = 0.0
            for k in range(n):
                if products[k] > 0.0:
                    cosines += products[k] / (norm[k] * norms[caption, k])
            apart = end - (until - begin)
            total += cosines * numpy.exp(-(apart * apart) / (2.0 * sigma * sigma))
        found[row] = 10.0 * total / n / (last - first)
    return found
