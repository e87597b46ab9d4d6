"""CIDEr-D and the counts behind BLEU for a batch of candidates, in array operations of numpy or torch alike.

Each word of a candidate is compared with each word of a reference; where n words in a row agree, an n-gram does. No
dictionary, no sort, and no shape that depends on the words, so on a GPU nothing waits for the host.

`xp` is the module numpy or torch; arrays and the index are then of that module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshcap.metrics.reward_index import SPREAD, WORD_BITS, Rarity, References


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
