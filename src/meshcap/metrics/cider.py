"""CIDEr-D, which coco-caption and the papers call CIDEr, and plain CIDEr (Vedantam, Zitnick and Parikh, 2015).

`DocumentFrequencies` says in how many pictures each n-gram of the references occurs: what makes "a man" cheap and "a
zebra" dear.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy

from meshcap.errors import MeshcapError
from meshcap.files import write_file
from meshcap.metrics.ngrams import Array, Captions, Corpus, Grams, Scores, Tokens, check_references, count_grams

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


MOST_WORDS = 4  # in an n-gram


def gram_frequencies(grams: Grams, picture: Array, counted: Array | None = None) -> Array:
    """(G,) pictures that each gram occurs in.

    Args:
        picture: (C,) of each caption.
        counted: (E,) bool, the entries that count; None counts all.
    """
    gram, home = grams.gram, picture[grams.caption]
    if counted is not None:
        gram, home = gram[counted], home[counted]
    new = numpy.ones(len(gram), bool)
    new[1:] = (gram[1:] != gram[:-1]) | (home[1:] != home[:-1])
    return numpy.bincount(gram[new], minlength=len(grams.keys))


def inverse(frequency: Array, images: int) -> Array:
    """log(images / frequency), a gram never seen counting as seen once; exactly 0 for a gram of every picture."""
    found = numpy.log(float(images)) - numpy.log(numpy.maximum(frequency, 1.0))
    return numpy.where(frequency >= images, 0.0, found)


@dataclass(frozen=True)
class DocumentFrequencies:
    """Frequencies from one set of references, to weigh the n-grams of others with.

    Only n-grams of at least two pictures are kept, since one picture and none weigh the same. Grams of k words are
    rows: keys[k - 1] ascend, each the row of the first k - 1 words times the number of words plus the last word.
    """

    images: int
    words: list[str]
    keys: tuple[Array, ...]
    counts: tuple[Array, ...]

    @classmethod
    def build(cls, references: Sequence[Sequence[Tokens]]) -> DocumentFrequencies:
        """Count each n-gram once for every picture that has it in some reference.

        Raises:
            MeshcapError: a picture without references.
        """
        check_references(references)
        captions = Captions.of(list(chain.from_iterable(references)))
        sizes = numpy.fromiter(map(len, references), numpy.int64, len(references))
        picture = numpy.repeat(numpy.arange(len(references)), sizes)
        vocabulary = len(captions.words)
        words: list[str] = []
        keys: list[Array] = []
        counts: list[Array] = []
        # Rows of the grams of one word and of one word less than now. A gram is kept only if its parts are: they
        # occur in at least as many pictures. Kept grams stay in order, so their keys ascend.
        first = before = numpy.zeros(1, numpy.int64)
        for grams in count_grams(captions.ids, captions.caption, captions.lengths, MOST_WORDS, vocabulary):
            frequency = gram_frequencies(grams, picture)
            kept = frequency >= 2
            row = numpy.where(kept, numpy.cumsum(kept) - 1, -1)
            if not keys:
                words = [captions.words[word] for word in grams.keys[kept]]
                first, before = row, numpy.zeros(1, numpy.int64)
            parent, last = numpy.divmod(grams.keys[kept], max(1, vocabulary))
            keys.append(before[parent] * len(words) + first[last])
            counts.append(frequency[kept])
            before = row
        return cls(len(references), words, tuple(keys), tuple(counts))

    def rows(self, words: Sequence[str]) -> Rows:
        """For looking up grams of these words, by their keys, for 1, 2, … words in turn."""
        known = {word: row for row, word in enumerate(self.words)}
        return Rows(self, numpy.array([known.get(word, -1) for word in words], numpy.int64))

    @property
    def nbytes(self) -> int:
        """Memory of the counts, the words' letters included."""
        return sum(array.nbytes for array in (*self.keys, *self.counts)) + len("".join(self.words).encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed npz file, without pickle."""
        letters = [numpy.frombuffer(word.encode("utf-8", "surrogatepass"), numpy.uint8) for word in self.words]
        arrays: dict[str, Any] = {
            "images": numpy.array(self.images),
            "letters": numpy.concatenate([numpy.zeros(0, numpy.uint8), *letters]),
            "lengths": numpy.array([len(word) for word in letters], numpy.int64),
        }
        for k, (keys, counts) in enumerate(zip(self.keys, self.counts, strict=True), 1):
            arrays |= {f"keys{k}": keys, f"counts{k}": counts}

        def write(part: Path) -> None:
            with open(part, "wb") as file:  # a file, because numpy would add .npz to a name
                numpy.savez_compressed(file, **arrays)

        write_file(Path(path), write)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DocumentFrequencies:
        """Read what `save` wrote.

        Raises:
            MeshcapError: the file cannot be read, or is not one of these.
        """
        try:
            with numpy.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            ends = numpy.cumsum(arrays["lengths"])
            letters = arrays["letters"].tobytes()
            begins = ends - arrays["lengths"]
            words = [letters[a:b].decode("utf-8", "surrogatepass") for a, b in zip(begins, ends, strict=True)]
            orders = range(1, MOST_WORDS + 1)
            found = cls(
                int(arrays["images"]),
                words,
                tuple(arrays[f"keys{k}"] for k in orders),
                tuple(arrays[f"counts{k}"] for k in orders),
            )
            found._check(len(letters), ends)
        except OSError as error:
            raise MeshcapError(f"{os.fspath(path)} cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise MeshcapError(f"{os.fspath(path)} holds no document frequencies of meshcap's: {error}") from None
        return found

    def _check(self, letters: int, ends: Array) -> None:
        if self.images < 1 or (ends[-1] if len(ends) else 0) != letters or len(set(self.words)) != len(self.words):
            raise ValueError("its words do not fit")
        for keys, counts in zip(self.keys, self.counts, strict=True):
            whole = keys.dtype == numpy.int64 and counts.dtype == numpy.int64 and keys.shape == counts.shape
            if not whole or keys.ndim != 1 or (keys[1:] <= keys[:-1]).any():
                raise ValueError("its keys do not ascend")
            if len(counts) and not 2 <= counts.min() <= counts.max() <= self.images:
                raise ValueError("its counts are not numbers of pictures")
        if len(self.keys[0]) != len(self.words):
            raise ValueError("it has not one count for each word")


class Rows:
    """Looks up grams in `DocumentFrequencies`, each found through its first words, so in the order of their length."""

    def __init__(self, df: DocumentFrequencies, words: Array) -> None:
        self._df, self._words, self._before = df, words, numpy.zeros(1, numpy.int64)

    def look_up(self, k: int, keys: Array) -> Array:
        """(G,) pictures of each gram of k words, 0 for those of fewer than two; keys (G,) as in `Grams`."""
        parent, last = numpy.divmod(keys, max(1, len(self._words)))
        row, word = self._before[parent], self._words[last]
        stored, counts = self._df.keys[k - 1], self._df.counts[k - 1]
        wanted = numpy.where((row >= 0) & (word >= 0), row * len(self._df.words) + word, -1)
        place = numpy.searchsorted(stored, wanted)
        found = numpy.append(stored, -1)[place] == wanted
        self._before = numpy.where(found & (wanted >= 0), place, -1)
        return numpy.where(self._before >= 0, numpy.append(counts, 0)[place], 0)
