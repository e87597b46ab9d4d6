"""BLEU-1 to 4, as coco-caption computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from meshcap.metrics.ngrams import Array, Corpus, Scores, Tokens

ORDERS = 4
# coco-caption adds these to counts and totals, so that 0 / 0 is (almost) 0 and a mean of logarithms never needs one.
TINY, SMALL = 1e-15, 1e-9


def bleu(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> list[Scores]:
    """BLEU-1, 2, 3 and 4 of tokenized captions, one candidate for each picture.

    Raises:
        MeshcapError: a picture without references, or not as many candidates as pictures.
    """
    statistics = bleu_statistics(candidates, references)
    corpus, per_image = bleu_from_statistics(statistics.sum(0)), bleu_from_statistics(statistics)
    return [Scores(float(corpus[k]), per_image[:, k]) for k in range(ORDERS)]


def bleu_statistics(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Array:
    """(images, 10): clipped matches for n = 1..4, n-grams for n = 1..4, candidate length, closest reference length.

    BLEU of any set of pictures follows from the sum of their rows: see `bleu_from_statistics`.
    """
    corpus = Corpus.of(candidates, references)
    lengths = corpus.captions.lengths
    own = lengths[corpus.is_candidate]  # (images,)
    table = numpy.zeros((corpus.images, 2 * ORDERS + 2))
    for k, matches in enumerate(corpus.matches(ORDERS)):
        grams = matches.grams
        if len(matches.starts):
            # A gram counts as often as the candidate says it, but no more often than any one reference does.
            most = numpy.maximum.reduceat(numpy.where(matches.reference, grams.count, 0), matches.starts)  # (S,)
            picture = corpus.picture[grams.caption[matches.starts]]
            table[:, k] = numpy.bincount(picture, numpy.minimum(matches.said, most), corpus.images)
        table[:, ORDERS + k] = numpy.maximum(own - k, 0)
    table[:, -2] = own
    table[:, -1] = _closest(lengths, corpus)
    return table


def bleu_from_statistics(sums: Array) -> Array:
    """BLEU-1..4 (…, 4) from sums of statistics (…, 10), for one picture or many."""
    sums = numpy.asarray(sums, numpy.float64)
    precision = (sums[..., :ORDERS] + TINY) / (sums[..., ORDERS : 2 * ORDERS] + SMALL)
    mean = numpy.cumprod(precision, -1) ** (1.0 / numpy.arange(1, ORDERS + 1))
    ratio = (sums[..., -2] + TINY) / (sums[..., -1] + SMALL)
    brevity = numpy.exp(numpy.minimum(0.0, 1.0 - 1.0 / ratio))
    return mean * brevity[..., None]


def _closest(lengths: Array, corpus: Corpus) -> Array:
    """(images,) the reference length nearest to the candidate's; of two equally near, the shorter."""
    apart = numpy.abs(lengths - lengths[corpus.is_candidate][corpus.picture])
    apart[corpus.is_candidate] = lengths.max() + 1  # never the candidate itself
    width = int(lengths.max()) + 1
    nearest = numpy.minimum.reduceat(apart * width + lengths, numpy.flatnonzero(corpus.is_candidate))
    return nearest % width
