"""What a captioner says, whatever the pictures show: its words, its lengths, its habits, and how its n-best differ.

The first caption of each picture is the one that is scored; the n-best ones enter Div-n, mBLEU-4 and self-CIDEr.

- vocabulary: distinct words. unseen: share of captions that are no training caption, word for word.
- length: words of a caption. bad endings: share of captions that end as in "… on a" (English); empty ones count.
- repeated-n: share of captions in which some n words in a row occur twice.
- Div-n (Shetty and others, 2017): distinct n-grams of a picture's captions divided by their words; mean over pictures.
- mBLEU-4 (same): corpus BLEU-4 of each caption against the others of its picture, the mean over the places in the
  n-best list. Low is diverse.
- self-CIDEr (Wang and Chan, 2019): with K the similarities of a picture's n captions (plain CIDEr / 10, document
  frequencies of the references) and λ its eigenvalues, -log(√λ_max / Σ√λ) / log n; mean over pictures. 0: all the same,
  1: nothing in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations_with_replacement

import numpy

from meshcap.metrics.cider import SCALE, DocumentFrequencies, cider
from meshcap.metrics.ngrams import bleu_from_statistics, bleu_statistics
from meshcap.text.sentence import BAD_ENDINGS

Tokens = Sequence[str]
REPEATED = (2, 3, 4)
PAIRS = 50_000  # compared at once by self_cider


def habits(
    captions: Sequence[Tokens], training: Collection[tuple[str, ...]] | None = None, *, endings: bool = True
) -> dict[str, float]:
    """Of the captions that are scored: vocabulary, lengths, endings, repetitions, and how many are new.

    Args:
        training: the training captions as tuples of tokens.
        endings: look at them, which only makes sense of English words.
    """
    lengths = numpy.array([len(words) for words in captions])
    low, middle, high = numpy.quantile(lengths, [0.25, 0.5, 0.75])
    shares = {
        "vocabulary": float(len({word for words in captions for word in words})),
        "length mean": float(lengths.mean()),
        "length sd": float(lengths.std()),
        "length min": float(lengths.min()),
        "length 25 %": float(low),
        "length median": float(middle),
        "length 75 %": float(high),
        "length max": float(lengths.max()),
    }
    if endings:
        shares["bad endings"] = _share(not words or words[-1] in BAD_ENDINGS for words in captions)
    for n in REPEATED:
        shares[f"repeated-{n}"] = _share(_repeats(words, n) for words in captions)
    if training is not None:
        shares["unseen"] = _share(tuple(words) not in training for words in captions)
    return shares


def n_best(sets: Sequence[Sequence[Tokens]], references: Sequence[Sequence[Tokens]]) -> dict[str, float]:
    """Of n-best lists: Div-1, Div-2, mBLEU-4 and self-CIDEr, over the pictures that have two captions or more."""
    several = [captions for captions in sets if len(captions) > 1]
    if not several:
        return {}
    frequencies = DocumentFrequencies.build(references)
    return {
        "Div-1": div_n(several, 1),
        "Div-2": div_n(several, 2),
        "mBLEU-4": mutual_bleu(several),
        "self-CIDEr": float(numpy.mean(self_cider(several, frequencies))),
    }


def div_n(sets: Sequence[Sequence[Tokens]], n: int) -> float:
    """Distinct n-grams of a picture's captions over their words, the mean over pictures."""
    ratios = []
    for captions in sets:
        words = sum(map(len, captions))
        distinct = {gram for caption in captions for gram in _grams(caption, n)}
        ratios.append(len(distinct) / words if words else 0.0)
    return float(numpy.mean(ratios))


def mutual_bleu(sets: Sequence[Sequence[Tokens]]) -> float:
    """mBLEU-4 of pictures with two captions or more each."""
    scores = []
    for place in range(max(map(len, sets))):
        there = [captions for captions in sets if len(captions) > place]
        candidates = [captions[place] for captions in there]
        others = [[*captions[:place], *captions[place + 1 :]] for captions in there]
        scores.append(bleu_from_statistics(bleu_statistics(candidates, others).sum(0))[3])
    return float(numpy.mean(scores))


def self_cider(sets: Sequence[Sequence[Tokens]], frequencies: DocumentFrequencies) -> list[float]:
    """Of each picture with two captions or more."""
    pairs = [(captions, i, j) for captions in sets for i, j in combinations_with_replacement(range(len(captions)), 2)]
    alike = numpy.concatenate(
        [
            cider([c[i] for c, i, _ in some], [[c[j]] for c, _, j in some], frequencies).per_image / SCALE
            for some in (pairs[start : start + PAIRS] for start in range(0, len(pairs), PAIRS))
        ]
    )
    found, done = [], 0
    for captions in sets:
        n = len(captions)
        kernel = numpy.zeros((n, n))
        upper = numpy.triu_indices(n)  # in the order of combinations_with_replacement
        kernel[upper] = alike[done : done + len(upper[0])]
        found.append(_spread(kernel))
        done += len(upper[0])
    return found


def _spread(kernel: numpy.ndarray) -> float:
    roots = numpy.sqrt(numpy.clip(numpy.linalg.eigvalsh(kernel, UPLO="U"), 0, None))  # ascending
    if not roots[-1]:  # captions without any word that tells pictures apart: all alike
        return 0.0
    # Rounding leaves √λ around 1e-8 where λ should be 0: captions that are all the same have exactly one direction.
    roots[roots < 1e-7 * roots[-1]] = 0
    return float(-numpy.log(roots[-1] / roots.sum()) / numpy.log(len(kernel)))


def _repeats(words: Tokens, n: int) -> bool:
    grams = list(_grams(words, n))
    return len(set(grams)) < len(grams)


def _grams(words: Tokens, n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _share(marks: Iterable[bool]) -> float:
    return float(numpy.mean([bool(mark) for mark in marks]))
