"""The captions of a split as one table of ids, and how a batch of them is cut into rectangles.

A picture's captions are read together, and captions differ in length: five of them padded to the longest of a batch
would be almost half padding. So the captions of each picture are sorted by length, and the shorter ones go into one
narrow rectangle, the longer ones into a wide one. Both have the same shape in every step, which a compiled step needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from meshcap.data.dataset import Sample
from meshcap.errors import MeshcapError
from meshcap.text import Vocabulary
from meshcap.text.tokenizers import tokenize_each

Array = numpy.ndarray
Tokens = Sequence[Sequence[Sequence[str]]]  # pictures, captions, words


def tokenized(samples: Sequence[Sample], tokenizer: str) -> list[list[list[str]]]:
    """Tokens of every caption of every picture."""
    flat = tokenize_each(tokenizer, (caption for sample in samples for caption in sample.captions))
    return [[next(flat) for _ in sample.captions] for sample in samples]


@dataclass(frozen=True)
class CaptionTable:
    """ids (C, T + 1) from `<bos>` to `<eos>`, padded; those of picture p are rows first[p] to first[p + 1]."""

    ids: Array  # int32
    lengths: Array  # (C,) words with <eos>
    counts: Array  # (C,) of them, those a loss counts: <unk> is none
    first: Array  # (N + 1,)
    pad: int

    @classmethod
    def build(cls, tokens: Tokens, vocabulary: Vocabulary, max_length: int) -> CaptionTable:
        """Captions longer than `max_length` (with `<eos>`) lose their end, and their `<eos>` with it."""
        first = numpy.cumsum([0, *(len(captions) for captions in tokens)])
        rows = [
            [vocabulary.bos, *vocabulary.encode(caption), vocabulary.eos][: max_length + 1]
            for captions in tokens
            for caption in captions
        ]
        lengths = numpy.array([len(row) - 1 for row in rows])
        ids = numpy.full((len(rows), int(lengths.max(initial=0)) + 1), vocabulary.pad, dtype=numpy.int32)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        counts = lengths - (ids[:, 1:] == vocabulary.unk).sum(1)
        return cls(ids, lengths, counts, first, vocabulary.pad)

    def __len__(self) -> int:
        return len(self.first) - 1

    def choose(self, pictures: Array, count: int, rng: numpy.random.Generator) -> Array:
        """Rows (B, count) of captions, shortest first; a picture with fewer captions has -1 in the first places."""
        first, there = self.first[pictures], (self.first[1:] - self.first[:-1])[pictures]
        most = int(there.max())
        places = numpy.arange(most)
        # A random order of each picture's own captions; places beyond them come last.
        order = numpy.where(places < there[:, None], rng.random((len(pictures), most)), 2.0).argsort(1)[:, :count]
        chosen = numpy.where(order < there[:, None], first[:, None] + order, -1)
        if chosen.shape[1] < count:
            chosen = numpy.pad(chosen, ((0, 0), (0, count - chosen.shape[1])), constant_values=-1)
        lengths = numpy.where(chosen >= 0, self.lengths[chosen], 0)
        return numpy.take_along_axis(chosen, lengths.argsort(1, kind="stable"), 1)

    def cut(self, chosen: Array, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Rectangles (B, S_i, T_i + 1) of ids for `shapes` (S_i, T_i); a caption too long for its own is left out."""
        rectangles, start = [], 0
        for count, length in shapes:
            rows = chosen[:, start : start + count]
            start += count
            ids = self.ids[rows, : length + 1].astype(numpy.int64)
            ids[~self._fits(rows, length)] = self.pad
            rectangles.append(torch.from_numpy(ids))
        return rectangles

    def words(self, chosen: Array, shapes: Sequence[tuple[int, int]]) -> int:
        """How many words of such rectangles a loss counts."""
        total, start = 0, 0
        for count, length in shapes:
            rows = chosen[:, start : start + count]
            start += count
            total += int(self.counts[rows][self._fits(rows, length)].sum())
        return total

    def _fits(self, rows: Array, length: int) -> Array:
        return (rows >= 0) & (self.lengths[rows] <= length)


def rectangles(table: CaptionTable, count: int, *, lost: float = 0.002) -> list[tuple[int, int]]:
    """Shapes (S_i, T_i) of at most two rectangles for `count` captions of each picture, with the least padding.

    A width may be too narrow for a share `lost` of the captions that come into its rectangle.
    """
    if len(table) == 0:
        raise MeshcapError("no pictures with captions to train on")
    rng = numpy.random.default_rng(0)
    some = rng.permutation(len(table))[:20_000]
    chosen = table.choose(some, count, rng)
    lengths = numpy.where(chosen >= 0, table.lengths[chosen], 0)  # (N, count), ascending
    longest = int(table.lengths.max())

    def width(until: int) -> int:
        return max(1, int(numpy.quantile(lengths[:, until - 1], 1 - lost, method="higher")))

    split = min(range(1, count + 1), key=lambda k: k * (width(k) if k < count else longest) + (count - k) * longest)
    if split == count or width(split) == longest:
        return [(count, longest)]
    return [(split, width(split)), (count - split, longest)]


def check_captions(tokens: Tokens) -> None:
    """Refuse captions that nothing can be learned from."""
    kinds = Counter(tuple(caption) for captions in tokens for caption in captions)
    if len(tokens) > 1 and len(kinds) == 1:
        raise MeshcapError(
            f"all {kinds.total():,} captions are {' '.join(next(iter(kinds)))!r}: expected captions that tell pictures "
            "apart"
        )


def check_coverage(vocabulary: Vocabulary, tokens: Tokens) -> float:
    """The share of words that the vocabulary lacks; refuses one that lacks a fifth of them."""
    found = vocabulary.report(caption for captions in tokens for caption in captions)
    if found.share > 0.2:
        worst = ", ".join(word for word, _ in found.most_common_unknown[:3])
        raise MeshcapError(
            f"a vocabulary of {len(vocabulary):,} words lacks {found.share:.0%} of the words in the captions (most "
            f"often {worst}): raise data.vocabulary or lower data.min_count"
        )
    return found.share
