"""N-grams of all captions at once, and what is made of matches: BLEU and ROUGE-L, as coco-caption computes them.

BLEU and CIDEr count how often each n-gram stands in each caption. Here that is one sort for each n over all captions
together, instead of a dictionary for each caption: words become numbers once, an n-gram becomes the number of its
first n - 1 words and its last word, and equal n-grams come to lie side by side, caption by caption.

Captions come as lists of tokens. A caption may be empty; a picture without any reference may not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
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
class NgramMatches:
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

    def matches(self, n: int) -> Iterator[NgramMatches]:
        """For grams of 1, 2, … n words."""
        words = self.captions
        for grams in count_grams(words.ids, words.caption, words.lengths, n, len(words.words)):
            new = _changes(grams.gram) | _changes(self.picture[grams.caption])
            segment = numpy.cumsum(new) - 1
            starts = numpy.flatnonzero(new)
            own = self.is_candidate[grams.caption[starts]]  # the candidate comes first where it has the gram
            said = numpy.where(own, grams.count[starts], 0)
            yield NgramMatches(grams, segment, starts, said, ~self.is_candidate[grams.caption])


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


BETA = 1.2  # weight of recall against precision
SHORT = 256  # words of a caption, up to which places are marked one by one


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
    said, others = candidate or ("",), [reference or ("",) for reference in references]
    masks = _masks(said, others)
    longest, recall = 0, 0.0
    for reference in others:
        common = _common(masks, len(said), reference)
        longest, recall = max(longest, common), max(recall, common / len(reference))
    if not longest:
        return 0.0
    precision = longest / len(said)
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _masks(caption: Sequence[Hashable], references: Iterable[Sequence[Hashable]]) -> dict[Hashable, int]:
    """Where words stand in a caption, a bit for each place; of a long caption, the words of the references alone."""
    masks: dict[Hashable, int] = {}
    if len(caption) <= SHORT:
        for place, word in enumerate(caption):
            masks[word] = masks.get(word, 0) | 1 << place
        return masks
    wanted = set(chain.from_iterable(references))
    places: dict[Hashable, list[int]] = {}
    for place, word in enumerate(caption):
        if word in wanted:
            places.setdefault(word, []).append(place)
    for word, those in places.items():  # bits set one by one would copy the whole number for each
        bits = numpy.zeros(len(caption), bool)
        bits[those] = True
        masks[word] = int.from_bytes(numpy.packbits(bits, bitorder="little").tobytes(), "little")
    return masks


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
