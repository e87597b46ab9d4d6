"""METEOR's paraphrase table as an index on disk: which phrase may stand for which.

The table of English has 5.3 million pairs, 270 MB of text that the Java program reads at every start. Here it is read
once, into a file of 52 MB in the user's cache folder that is mapped into memory. Phrases are known by a 64-bit hash of
their text; no two phrases of the table share one, and one outside it is taken for one inside with a chance of 1e-13.

The tables come with pycocoevalcap (METEOR 1.5, LGPL 2.1) and stay where they are.
"""

from __future__ import annotations

import gzip
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from meshcap.errors import MeshcapError
from meshcap.files import write_file

Array = numpy.ndarray

VERSION = 1  # of the file's layout: another one is another file
LONGEST = 7  # words of the longest phrase
HEAD = struct.Struct("<8sQQ")
MAGIC = b"meshcapP"
CHUNK = 1 << 21  # bytes of text hashed at once: 16 MB for each array of them


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "meshcap"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "meshcap" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/meshcap"
    return Path.home() / ".cache/meshcap"


@dataclass(frozen=True)
class Phrases:
    """Where phrases of the table begin in sentences, ordered by sentence, start and length."""

    sentence: Array
    start: Array
    length: Array
    phrase: Array  # its number in the table


class Paraphrases:
    """The index: keys (N,), the phrases' hashes in ascending order; targets[offsets[p] : offsets[p + 1]], what phrase p
    may become, in the table's order.
    """

    def __init__(self, keys: Array, offsets: Array, targets: Array) -> None:
        self.keys, self.offsets, self.targets = keys, offsets, targets

    @classmethod
    def load(cls, table: Path, report: Callable[[str], object] = lambda line: None) -> Paraphrases:
        """The index of a table, from the cache; the first time it is built, which takes a quarter of a minute.

        Raises:
            OSError, EOFError, zlib.error: the table cannot be read.
        """
        path = cache_folder() / f"{table.name.removesuffix('.gz')}-{VERSION}-{_fingerprint(table)}.index"
        found = cls._mapped(path)
        if found is None:
            report("METEOR: the paraphrases are indexed, once")
            built = cls.build(table)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, built.write)
            except (OSError, MeshcapError):  # no home, or no room: next time again
                return built
            found = cls._mapped(path)
            return built if found is None else found
        return found

    @classmethod
    def _mapped(cls, path: Path) -> Paraphrases | None:
        try:
            content = numpy.memmap(path, numpy.uint8, "r")
        except (OSError, ValueError):
            return None
        if len(content) < HEAD.size:
            return None
        magic, phrases, pairs = HEAD.unpack(bytes(content[: HEAD.size]))
        ends = numpy.cumsum([HEAD.size, 8 * phrases, 4 * (phrases + 1), 4 * pairs]).tolist()
        if magic != MAGIC or ends[-1] != len(content):
            return None
        kinds = ("<u8", "<u4", "<u4")
        parts = (content[a:b].view(kind) for a, b, kind in zip(ends, ends[1:], kinds, strict=False))
        return cls(*parts)

    def write(self, path: Path) -> None:
        """Write the index to a file."""
        with open(path, "wb") as file:
            file.write(HEAD.pack(MAGIC, len(self.keys), len(self.targets)))
            for part, kind in ((self.keys, "<u8"), (self.offsets, "<u4"), (self.targets, "<u4")):
                part.astype(kind, copy=False).tofile(file)

    @classmethod
    def build(cls, table: Path) -> Paraphrases:
        """Index a gzipped table: for each pair a line with a probability, the phrase, and what it may become."""
        pairs = list(_hashed_pairs(table))
        sources, targets = (numpy.concatenate([pair[side] for pair in pairs] or [_NONE]) for side in (0, 1))
        del pairs
        keys = numpy.union1d(numpy.unique(sources), numpy.unique(targets))
        sources = keys.searchsorted(sources).astype(numpy.uint32)
        targets = keys.searchsorted(targets).astype(numpy.uint32)
        order = sources.argsort(kind="stable")  # the table's own order decides between paraphrases
        offsets = numpy.zeros(len(keys) + 1, numpy.uint32)
        offsets[1:] = numpy.bincount(sources, minlength=len(keys)).cumsum()
        return cls(keys, offsets, targets[order])

    def find(self, sentences: Sequence[Sequence[str]]) -> Phrases:
        """Every phrase of the table in some sentences."""
        texts = [" ".join(words).encode("utf-8", "surrogatepass") for words in sentences]
        text = numpy.frombuffer(b"\n".join([*texts, b""]), numpy.uint8)
        counts = numpy.array([len(words) for words in sentences], numpy.int64)
        ends = numpy.flatnonzero((text == 10) | (text == 32))
        starts = numpy.append(0, ends + 1)[:-1]
        real = numpy.repeat(counts > 0, numpy.maximum(counts, 1))  # an empty sentence has an end, too
        starts, ends = starts[real], ends[real]
        sentence = numpy.repeat(numpy.arange(len(counts)), counts)
        place = numpy.arange(len(ends)) - numpy.repeat(counts.cumsum() - counts, counts)
        left = numpy.repeat(counts, counts) - place  # words from here to the sentence's end
        hashes = _Hashes(text)
        found = []
        for length in range(1, LONGEST + 1):
            first = numpy.flatnonzero(left >= length)
            keys, back = numpy.unique(hashes(starts[first], ends[first + length - 1]), return_inverse=True)
            number = self.keys.searchsorted(keys)
            known = self.keys[numpy.minimum(number, len(self.keys) - 1)] == keys if len(self.keys) else keys != keys
            number = numpy.where(known, number, -1)[back]
            first, number = first[number >= 0], number[number >= 0]
            found.append(numpy.stack([sentence[first], place[first], numpy.full(len(first), length), number]))
        all_found = numpy.concatenate(found, 1)
        return Phrases(*all_found[:, numpy.lexsort(all_found[2::-1])])

    def among(self, phrases: Array) -> dict[int, dict[int, int]]:
        """phrase -> {what it may become: its rank}, for these phrases alone; those without are left out."""
        wanted = numpy.zeros(len(self.keys), bool)
        wanted[phrases] = True
        numbers = numpy.flatnonzero(wanted)
        first = self.offsets[numbers].astype(numpy.int64)
        counts = self.offsets[numbers + 1] - first
        rank = numpy.arange(counts.sum()) - numpy.repeat(counts.cumsum() - counts, counts)
        targets = self.targets[numpy.repeat(first, counts) + rank]
        sources = numpy.repeat(numbers, counts)
        kept = wanted[targets]
        found: dict[int, dict[int, int]] = {}
        for source, target, place in zip(
            sources[kept].tolist(), targets[kept].tolist(), rank[kept].tolist(), strict=True
        ):
            found.setdefault(source, {})[target] = place
        return found


_NONE = numpy.zeros(0, numpy.uint64)
_MULTIPLIER = 0x9E3779B97F4A7C15 | 3  # odd, so that powers can be divided out again


class _Hashes:
    """Hashes of parts of a text: sums of a number for each byte times a power for its place, from running totals."""

    def __init__(self, text: Array) -> None:
        self.totals = numpy.zeros(len(text) + 1, numpy.uint64)
        numpy.cumsum(_BYTES[text] * _powers(_MULTIPLIER, len(text)), out=self.totals[1:])
        self.inverse = _powers(pow(_MULTIPLIER, -1, 1 << 64), len(text))

    def __call__(self, starts: Array, ends: Array) -> Array:
        return (self.totals[ends] - self.totals[starts]) * self.inverse[starts]


def _powers(base: int, count: int) -> Array:
    """base ** (0 … count - 1) modulo 2 ** 64."""
    powers = numpy.full(count, base, numpy.uint64)
    powers[:1] = 1
    return powers.cumprod(dtype=numpy.uint64)


def _random_bytes() -> Array:
    """A number for each of the 256 bytes, the same everywhere (SplitMix64)."""
    x = numpy.arange(1, 257, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return x ^ (x >> numpy.uint64(31))


_BYTES = _random_bytes()


def _hashed_pairs(table: Path) -> Iterator[tuple[Array, Array]]:
    """The hashes of phrases and of their paraphrases, in the table's order."""
    rest = b""
    with gzip.open(table, "rb") as file:
        while chunk := file.read(CHUNK):
            rest += chunk
            text = numpy.frombuffer(rest, numpy.uint8)
            lines = numpy.flatnonzero(text == 10)
            ends = lines[: len(lines) // 3 * 3].reshape(-1, 3)
            if len(ends):
                text = text[: ends[-1, -1] + 1]
                hashes = _Hashes(text)
                yield hashes(ends[:, 0] + 1, ends[:, 1]), hashes(ends[:, 1] + 1, ends[:, 2])
                rest = rest[len(text) :]


def _fingerprint(table: Path) -> str:
    """The checksum and the length of what a gzip file holds: its last eight bytes."""
    with open(table, "rb") as file:
        file.seek(-8, os.SEEK_END)
        return file.read(8).hex()
