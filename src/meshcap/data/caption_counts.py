"""What the captions of a dataset are like, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshcap.data.dataset import Sample
from meshcap.text.ptb import ptb_stream

FREQUENT = 5  # times a word must be seen to enter the usual vocabularies of this field


@dataclass(frozen=True)
class CaptionCounts:
    """Words are those of the PTB tokenizer, which the vocabulary is made of."""

    captions: int
    fewest: int  # captions of a picture
    mean: float
    most: int
    words_mean: float  # of a caption
    words_95: float  # 95 of 100 captions are not longer
    words_most: int
    longest: str  # id of the picture with the longest caption
    vocabulary_of: str  # the split whose words are counted: those to learn from
    distinct_words: int
    frequent_words: int
    frequent_share: float  # of all words in that split's captions, repetitions counted
    repeated: int  # captions that were there before, letter for letter, of any picture
    repeated_of_picture: int  # … of the same picture


def count_captions(samples: Sequence[Sample]) -> CaptionCounts:
    """Of at least one sample."""
    split = "train" if any(sample.split == "train" for sample in samples) else samples[0].split
    words: Counter[str] = Counter()
    lengths: list[int] = []
    longest = (-1, "")
    tokens = ptb_stream(caption for sample in samples for caption in sample.captions)
    for sample in samples:
        for _ in sample.captions:
            caption = next(tokens)
            lengths.append(len(caption))
            longest = max(longest, (len(caption), sample.id), key=lambda pair: pair[0])
            if sample.split == split:
                words.update(caption)
    each = [len(sample.captions) for sample in samples]
    frequent = [count for count in words.values() if count >= FREQUENT]
    distinct = len({caption for sample in samples for caption in sample.captions})
    return CaptionCounts(
        captions=len(lengths),
        fewest=min(each),
        mean=sum(each) / len(each),
        most=max(each),
        words_mean=sum(lengths) / len(lengths),
        words_95=float(np.percentile(lengths, 95, method="inverted_cdf")),
        words_most=longest[0],
        longest=longest[1],
        vocabulary_of=split,
        distinct_words=len(words),
        frequent_words=len(frequent),
        frequent_share=sum(frequent) / max(1, words.total()),
        repeated=len(lengths) - distinct,
        repeated_of_picture=sum(len(sample.captions) - len(set(sample.captions)) for sample in samples),
    )
