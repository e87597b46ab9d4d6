"""Of the captions that a search found, those that people would agree with who described pictures like it.

A search finds several captions that are nearly as likely. Where a memory knows similar pictures, what was said of these
decides between them (Devlin et al., 2015): agreement is CIDEr-D with all captions of the nearest entries, n-grams
weighed by how telling they are in the whole memory. So its way of saying things counts, and nothing is trained for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshcap.decoding.records import Hypotheses
from meshcap.memory import Neighbour, Store
from meshcap.metrics.cider import DocumentFrequencies, cider_d
from meshcap.metrics.ngrams import Tokens
from meshcap.text import Vocabulary

MOST = 500  # entries whose words are counted


class Consensus:
    """What is commonly said in a memory."""

    def __init__(self, store: Store, vocabulary: Vocabulary):
        self.store, self.vocabulary, self.entries = store, vocabulary, len(store)
        said = [self._said(entry.captions) for entry in store.some(MOST)]
        self.frequencies = DocumentFrequencies.build(said) if said else None

    def serves(self, store: Store) -> bool:
        """Whether it still holds: the same memory, which has not grown or shrunk by much."""
        return store is self.store and 2 * self.entries <= 3 * len(store) <= 6 * self.entries

    def agreement(self, captions: Sequence[Tokens], near: Sequence[Neighbour]) -> list[float]:
        """CIDEr-D, from 0 to 10, of each caption of a picture with those of the entries that are near it."""
        references = [words for one in near for words in self._said(one.captions)]
        if not references or self.frequencies is None:
            return [0.0] * len(captions)
        found: list[float] = cider_d(captions, [references] * len(captions), self.frequencies).per_image.tolist()
        return found

    def order(self, found: Hypotheses, near: Sequence[Sequence[Neighbour]], weight: float, most: int) -> Hypotheses:
        """Captions by their scores and how far they agree with what is near; required words come first.

        Args:
            near: of each picture, the entries that are near it.
            weight: of a point of CIDEr-D where `most` entries are near, and less where there are fewer.
        """
        listed, orders = found.lists, []
        known = self.vocabulary if found.extension is None else self.vocabulary.extended(found.extension.words)
        for picture, entries in enumerate(near):
            lengths, scores = listed.lengths[picture], listed.scores[picture]
            words = [known.decode(ids[:length]) for ids, length in zip(listed.ids[picture], lengths, strict=True)]
            agreement = self.agreement([" ".join(one).lower().split() for one in words], entries)
            met = [0] * len(words) if listed.satisfied is None else listed.satisfied[picture]
            share = weight * len(entries) / most
            worth = [(first, score + share * one) for first, score, one in zip(met, scores, agreement, strict=True)]
            orders.append(sorted(range(len(words)), key=worth.__getitem__, reverse=True))
        return found.reordered(orders)

    def _said(self, captions: Sequence[str]) -> list[Tokens]:
        return [self.vocabulary.tokens(text) for text in captions]
