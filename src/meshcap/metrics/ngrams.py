"""N-grams of all captions at once.

BLEU and CIDEr count how often each n-gram stands in each caption. Here that is one sort for each n over all captions
together, instead of a dictionary for each caption: words become numbers once, an n-gram becomes the number of its
first n - 1 words and its last word, and equal n-grams come to lie side by side, caption by caption.

Captions come as lists of tokens. A caption may be empty; a picture without any reference may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy

from meshcap.errors import MeshcapError

Tokens = Sequence[str]
Array = numpy.ndarray


@dataclass(frozen=True)
class Scores:
    """One metric: the figure that papers print, and one for each picture (images,)."""

    corpus: float
    per_image: Array


@dataclass(frozen=True)
class Captions:
    """Captions end to end. ids (W,) number the `words`; caption (W,) says where each word stands; lengths (C,)."""

    ids: Array
    caption: Array
    lengths: Array
    words: list[str]

    @classmethod
    def of(cls, captions: Sequence[Tokens]) -> Captions:
        """Number the words of these captions in order of appearance."""
        table = dict.fromkeys(chain.from_iterable(captions))
        if any(word.split() != [word] for word in table):
            # coco-caption joins the tokens and splits them again, on any white space: its tokenizer writes the
            # fraction "1 1/2" with a no-break space, one token for ROUGE-L but two words for BLEU and CIDEr.
            captions = [list(chain.from_iterable(word.split() for word in caption)) for caption in captions]
            table = dict.fromkeys(chain.from_iterable(captions))
        words = list(table)
        number = dict(zip(words, range(len(words)), strict=True))
        lengths = numpy.fromiter(map(len, captions), numpy.int64, len(captions))
        flat = map(number.__getitem__, chain.from_iterable(captions))
        ids = numpy.fromiter(flat, numpy.int64, int(lengths.sum()))
        return cls(ids, numpy.repeat(numpy.arange(len(captions)), lengths), lengths, words)


@dataclass(frozen=True)
class Grams:
    """The n-grams of one n. Entries (E,) are (gram, caption) pairs with how often the gram stands in the caption.

    They ascend by gram, then by caption. keys (G,) ascend too: the number of the gram's first n - 1 words among the
    grams of n - 1, times the number of words, plus its last word. places (G,) are where each gram stands first.
    """

    gram: Array
    caption: Array
    count: Array
    keys: Array
    places: Array


def count_grams(ids: Array, caption: Array, lengths: Array, n: int, vocabulary: int) -> Iterator[Grams]:
    """Grams of 1, 2, … n words of captions that lie end to end, as in `Captions`."""
    # Words from each one to its caption's end, itself counted: as many as the longest gram that begins there.
    left = numpy.repeat(numpy.cumsum(lengths), lengths) - numpy.arange(len(ids))  # (W,)
    number = numpy.zeros(len(ids), numpy.int64)  # of the gram that begins at each place; at first the empty one
    for k in range(1, n + 1):
        places = numpy.flatnonzero(left >= k)
        keys = number[places] * vocabulary + ids[places + k - 1]
        order = _stable_order(keys)  # captions stay in order within a gram
        keys, places = keys[order], places[order]
        where = caption[places]
        new_gram = _changes(keys)
        first = numpy.flatnonzero(new_gram | _changes(where))
        gram = numpy.cumsum(new_gram) - 1
        number[places] = gram
        yield Grams(
            gram=gram[first],
            caption=where[first],
            count=numpy.diff(first, append=len(keys)),
            keys=keys[new_gram],
            places=places[new_gram],
        )


def _stable_order(keys: Array) -> Array:
    """What a stable argsort of numbers from 0 on returns, in a quarter of the time.

    numpy sorts 16-bit numbers by counting; longer ones are sorted by their lowest 16 bits first, then the next.
    """
    order = numpy.argsort(keys.astype(numpy.uint16), kind="stable")
    for shift in range(16, int(keys.max(initial=0)).bit_length(), 16):
        digits = (keys >> shift).astype(numpy.uint16)
        order = order[numpy.argsort(digits[order], kind="stable")]
    return order


def _changes(values: Array) -> Array:
    """(E,) whether each value differs from the one before it; the first does."""
    changed = numpy.ones(len(values), bool)
    numpy.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


@dataclass(frozen=True)
class Matches:
    """`Grams` of candidates and references together, with what candidate and references of a picture share.

    Captions are numbered picture by picture, the candidate before its references. A segment is a gram in a picture:
    segment (E,) of each entry, starts (S,) its first entry, said (S,) how often the candidate says the gram.
    """

    grams: Grams
    segment: Array
    starts: Array
    said: Array
    reference: Array  # (E,) bool: the entry is a reference's


@dataclass(frozen=True)
class Corpus:
    """Candidates and references of all pictures: `Captions` of both, and the picture (C,) of each caption."""

    captions: Captions
    picture: Array
    is_candidate: Array  # (C,)
    images: int

    @classmethod
    def of(cls, candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Corpus:
        check(candidates, references)
        together = [caption for one, those in zip(candidates, references, strict=True) for caption in (one, *those)]
        sizes = numpy.fromiter(map(len, references), numpy.int64, len(references)) + 1
        is_candidate = numpy.zeros(len(together), bool)
        is_candidate[numpy.cumsum(sizes) - sizes] = True
        picture = numpy.repeat(numpy.arange(len(references)), sizes)
        return cls(Captions.of(together), picture, is_candidate, len(references))

    def matches(self, n: int) -> Iterator[Matches]:
        """For grams of 1, 2, … n words."""
        words = self.captions
        for grams in count_grams(words.ids, words.caption, words.lengths, n, len(words.words)):
            new = _changes(grams.gram) | _changes(self.picture[grams.caption])
            segment = numpy.cumsum(new) - 1
            starts = numpy.flatnonzero(new)
            own = self.is_candidate[grams.caption[starts]]  # the candidate comes first where it has the gram
            said = numpy.where(own, grams.count[starts], 0)
            yield Matches(grams, segment, starts, said, ~self.is_candidate[grams.caption])


def check(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> None:
    """Raise a MeshcapError unless there is a token list and at least one reference for every picture."""
    if len(candidates) != len(references):
        raise MeshcapError(f"{len(candidates)} candidates for the references of {len(references)} pictures")
    for index, caption in enumerate(candidates):
        if isinstance(caption, str):
            raise MeshcapError(f"candidate {index} is a string, expected a list of tokens: tokenize it first")
    check_references(references)


def check_references(references: Sequence[Sequence[Tokens]]) -> None:
    if len(references) == 0:
        raise MeshcapError("no pictures were given, expected at least one")
    for index, those in enumerate(references):
        if isinstance(those, str) or any(isinstance(caption, str) for caption in those):
            raise MeshcapError(f"the references of picture {index} are strings, expected lists of tokens")
        if len(those) == 0:
            raise MeshcapError(f"picture {index} has no references, expected at least one")
