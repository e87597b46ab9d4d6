"""ROUGE-L, as coco-caption computes it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy

from meshcap.metrics.ngrams import Scores, Tokens, check

BETA = 1.2  # weight of recall against precision


def rouge_l(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Scores:
    """ROUGE-L of tokenized captions, one candidate for each picture; the corpus figure is the mean.

    Raises:
        MeshcapError: a picture without references, or not as many candidates as pictures.
    """
    check(candidates, references)
    each = numpy.array([rouge_l_of(one, those) for one, those in zip(candidates, references, strict=True)])
    return Scores(float(each.mean()), each)


def rouge_l_of(candidate: Sequence[Hashable], references: Iterable[Sequence[Hashable]]) -> float:
    """ROUGE-L of one caption. Precision and recall are each the best over the references, before they are joined."""
    # coco-caption sees one empty word in an empty caption, so that two empty captions are equal.
    said = candidate or ("",)
    masks: dict[Hashable, int] = {}
    for place, word in enumerate(said):
        masks[word] = masks.get(word, 0) | 1 << place
    longest, recall = 0, 0.0
    for reference in references:
        common = _common(masks, len(said), reference or ("",))
        longest, recall = max(longest, common), max(recall, common / (len(reference) or 1))
    if not longest:
        return 0.0
    precision = longest / len(said)
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _common(masks: dict[Hashable, int], length: int, other: Iterable[Hashable]) -> int:
    """Length of the longest common subsequence of a caption of `length` words, given as places of words, and another.

    A row of the usual table is one integer (Crochemore and others, 2001; Hyyrö, 2004): a bit is 0 where the row
    steps up, so that one addition does what would be `length` comparisons.
    """
    full = (1 << length) - 1
    row = full
    for word in other:
        if mask := masks.get(word):
            matched = row & mask
            row = (row + matched) | (row - matched)
    return length - (row & full).bit_count()  # carries beyond the caption's end change nothing below it
