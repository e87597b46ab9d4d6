"""CIDEr-D, which coco-caption and the papers call CIDEr, and plain CIDEr (Vedantam, Zitnick and Parikh, 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from meshcap.metrics.frequencies import MOST_WORDS, DocumentFrequencies, gram_frequencies, inverse
from meshcap.metrics.ngrams import Array, Corpus, Scores, Tokens

SCALE = 10.0  # both metrics are ten times a mean of cosines, a factor that papers write as 100 and print as such


def cider_d(
    candidates: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    df: DocumentFrequencies | None = None,
    sigma: float = 6.0,
    n: int = 4,
) -> Scores:
    """CIDEr-D of tokenized captions, one candidate for each picture; the corpus figure is the mean.

    Args:
        df: in how many pictures each n-gram occurs; None counts them in the references given, as coco-caption does.
        sigma: how fast a candidate loses that is longer or shorter than a reference.
        n: the longest n-grams.

    Raises:
        MeshcapError: a picture without references, or not as many candidates as pictures.
    """
    return _cider(candidates, references, df, n, sigma)


def cider(
    candidates: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    df: DocumentFrequencies | None = None,
    n: int = 4,
) -> Scores:
    """Plain CIDEr: a word repeated counts again and again, and length does not matter. Otherwise as `cider_d`."""
    return _cider(candidates, references, df, n, None)


def _cider(
    candidates: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    df: DocumentFrequencies | None,
    n: int,
    sigma: float | None,
) -> Scores:
    if not 1 <= n <= MOST_WORDS:
        raise ValueError(f"n is {n}, expected 1 to {MOST_WORDS}")
    corpus = Corpus.of(candidates, references)
    lengths, home = corpus.captions.lengths, corpus.picture
    captions, images = len(lengths), corpus.images if df is None else df.images
    rows = None if df is None else df.rows(corpus.captions.words)
    total = numpy.zeros(captions)  # of cosines over n; only those of references will be asked for
    for k, matches in enumerate(corpus.matches(n), 1):
        grams = matches.grams
        frequency = rows.look_up(k, grams.keys) if rows else gram_frequencies(grams, home, matches.reference)  # (G,)
        weight = inverse(frequency, images)[grams.gram]  # (E,)
        squares = numpy.bincount(grams.caption, (grams.count * weight) ** 2, captions)
        said = matches.said[matches.segment]
        if sigma is not None:
            said = numpy.minimum(said, grams.count)
        shared = numpy.flatnonzero(matches.reference & (said > 0))
        products = (said * grams.count * weight**2)[shared]
        total += _cosines(numpy.bincount(grams.caption[shared], products, captions), squares, corpus)
    if sigma is not None:
        # coco-caption counts bigrams; the difference is the same, but for empty captions, which are like nothing.
        apart = lengths - lengths[corpus.is_candidate][home]
        total *= numpy.exp(-(apart**2) / (2 * sigma**2))
    of_references = ~corpus.is_candidate
    sums = numpy.bincount(home[of_references], total[of_references], corpus.images)
    each = SCALE * sums / n / (numpy.bincount(home) - 1)
    return Scores(float(each.mean()), each)


def _cosines(products: Array, squares: Array, corpus: Corpus) -> Array:
    """(C,) of each caption with the candidate of its picture. A caption without weight is like nothing."""
    norms = numpy.sqrt(squares)
    scale = norms * norms[corpus.is_candidate][corpus.picture]
    return numpy.divide(products, scale, out=numpy.zeros(len(scale)), where=scale != 0)
