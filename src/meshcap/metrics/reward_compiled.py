"""CIDEr-D for a batch of candidates, compiled by numba: one thread does 250 candidates within a millisecond.

The numbers are those of `reward_arrays`, which runs where numba is missing, some thirty times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy

from meshcap.metrics.ngrams import Array
from meshcap.metrics.reward_index import SPREAD, WORD_BITS, Rarity, References


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
