"""METEOR 1.5 without Java: the scores of `meteor-1.5.jar -l en -norm` as coco-caption calls it.

    scorer = Meteor()                                     # needs pycocoevalcap's data: pip install "meshcap[meteor]"
    counts = scorer.statistics(captions, references)      # (pictures, 23), the best reference chosen
    scorer.scores(counts), scorer.scores(counts.sum(0))   # of each picture, and of all together

Denkowski and Lavie, "Meteor Universal", 2014. The word lists, synonym sets and paraphrases are read at run time from
the installed pycocoevalcap (METEOR: LGPL 2.1, WordNet: its own licence); the code here is meshcap's own. How far the
two agree is in docs/scoring.md.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy

from meshcap.errors import MeshcapError
from meshcap.metrics.meteor_align import EXACT, PARAPHRASE, STEM, SYNONYM, Sentences, Word, resolve
from meshcap.metrics.meteor_paraphrases import Paraphrases
from meshcap.metrics.meteor_words import NAMES, Lexicon, english_stem, java_hash
from meshcap.metrics.result import Measure, Missing

Array = numpy.ndarray
Words = Sequence[str]
Normal = tuple[str, ...]
Report = Callable[[str], object]

JAR = "meteor-1.5.jar"
MODULES = (EXACT, STEM, SYNONYM, PARAPHRASE)
COUNTS = 23
PICTURES = 1000  # whose sentences are looked up together
CELLS = 1 << 20  # and pairs of their words
LIMIT = 500  # words of a sentence that are aligned; all of them count in its length
INSTALL = 'pip install "meshcap[meteor]"'


@dataclass(frozen=True)
class Parameters:
    """The modules of a language with their weights, and the paper's α, β, γ, δ."""

    modules: tuple[int, ...]
    weights: tuple[float, ...]
    alpha: float
    beta: float
    gamma: float
    delta: float


PARAMETERS = {
    "en": Parameters(MODULES, (1.0, 0.6, 0.8, 0.6), 0.85, 0.2, 0.6, 0.75),
    "cz": Parameters((EXACT, PARAPHRASE), (1.0, 0.4), 0.95, 0.2, 0.6, 0.8),
    "de": Parameters((EXACT, STEM, PARAPHRASE), (1.0, 0.8, 0.2), 0.95, 1.0, 0.55, 0.55),
    "es": Parameters((EXACT, STEM, PARAPHRASE), (1.0, 0.8, 0.6), 0.65, 1.3, 0.5, 0.8),
    "fr": Parameters((EXACT, STEM, PARAPHRASE), (1.0, 0.2, 0.4), 0.9, 1.4, 0.6, 0.65),
    "ru": Parameters((EXACT, STEM, PARAPHRASE), (1.0, 0.5, 0.5), 0.75, 1.4, 0.7, 0.5),
}
STEMMERS = {"en": english_stem}


def find_data() -> Path | None:
    """The folder of METEOR's jar and tables in the installed pycocoevalcap, which is not imported."""
    spec = find_spec("pycocoevalcap")
    places = list(spec.submodule_search_locations or []) if spec else []
    folder = Path(places[0]) / "meteor" if places else None
    return folder if folder and (folder / JAR).is_file() else None


def check_language(language: str) -> None:
    """Refuse a language that cannot be scored.

    Raises:
        MeshcapError: METEOR does not know it, or its stemmer is not here.
    """
    if language not in PARAMETERS:
        raise MeshcapError(f"METEOR has no language {language!r}, expected one of {', '.join(PARAMETERS)}")
    if STEM in PARAMETERS[language].modules and language not in STEMMERS:
        raise MeshcapError(f"METEOR in {NAMES[language].title()} needs a stemmer that meshcap has not: use en or cz")


def meteor(
    systems: Sequence[Sequence[Words]],
    references: Sequence[Sequence[Words]],
    report: Report = lambda line: None,
    language: str = "en",
) -> list[Measure]:
    """METEOR of each system's candidates for the same pictures, corpus and per picture as pycocoevalcap's.

    Raises:
        Missing: METEOR's data is not installed or not whole.
        MeshcapError: a language that cannot be scored.
    """
    check_language(language)
    try:
        scorer = Meteor(language, report=report)
    except MeshcapError as error:
        raise Missing(f"METEOR left out: {error}") from None
    tables = [scorer.statistics(candidates, references) for candidates in systems]
    return [Measure("METEOR", scorer.scores(each), each, lambda sums, _: scorer.scores(sums)) for each in tables]


class Meteor:
    """A scorer for one language.

    Args:
        language: en, or another one whose stemmer is here and whose paraphrases lie beside the English ones (cz).
        data: the folder of METEOR's jar, with its paraphrases under `data`; pycocoevalcap's unless given.
        report: is called with a line where something takes long.

    Raises:
        MeshcapError: METEOR's data is not installed or cannot be read, or the language cannot be scored.
    """

    def __init__(self, language: str = "en", data: Path | None = None, report: Report = lambda line: None) -> None:
        check_language(language)
        self.parameters = PARAMETERS[language]
        folder = data or find_data()
        if folder is None:
            raise MeshcapError(f"METEOR's data is not installed: {INSTALL}")
        table = folder / "data" / f"paraphrase-{language}.gz"
        try:
            self.lexicon = Lexicon(folder / JAR, language)
            self.paraphrases = Paraphrases.load(table, report)
        except FileNotFoundError as error:
            raise MeshcapError(f"{error.filename}, a file of METEOR 1.5, is missing") from error
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise MeshcapError(f"METEOR's data in {folder} cannot be read ({error}): install it again") from error
        self.stem = STEMMERS.get(language)
        self.report = report
        self.describe = lru_cache(1 << 18)(self._describe)

    def statistics(self, candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> Array:
        """(pictures, 23): METEOR's counts for each picture and the reference that scores best, the first of equals.

        The counts: words and function words of candidate and reference; for each module its content and function words
        in candidate and reference; chunks; matched words in candidate and reference. A sentence that is matched whole
        and in one chunk counts no chunk: it is not broken at all.
        """
        if any(not those for those in references):
            raise MeshcapError("METEOR: a picture has no reference, expected one or more for each")
        parts = [numpy.zeros((0, COUNTS))]
        batch: list[list[Normal]] = []  # of a picture the candidate, then its references
        cells = 0
        for place, (candidate, those) in enumerate(zip(candidates, references, strict=True)):
            lines = [self._normal(words) for words in (candidate, *those)]
            size = sum(len(lines[0][:LIMIT]) * len(line[:LIMIT]) for line in lines[1:])
            if batch and (len(batch) == PICTURES or cells + size > CELLS):
                self.report(f"METEOR: {place - len(batch):,} of {len(candidates):,} captions")
                parts.append(self._best(batch))
                batch, cells = [], 0
            batch.append(lines)
            cells += size
        return numpy.concatenate([*parts, self._best(batch)] if batch else parts)

    def _normal(self, words: Words) -> Normal:
        """The words as METEOR sees them. What a line to the Java program cannot hold, is not there."""
        line = " ".join(words).encode("utf-8", "replace").decode("utf-8").replace("|||", "")
        return tuple(self.lexicon.normalize(line))

    def _best(self, batch: Sequence[Sequence[Normal]]) -> Array:
        """The counts of each picture with its best reference, the first of equals."""
        numbers: dict[Normal, int] = {}
        rows = [[numbers.setdefault(line, len(numbers)) for line in lines] for lines in batch]
        pairs = numpy.array([(row[0], other) for row in rows for other in row[1:]])
        counts = self._counts(list(numbers), pairs)
        picture = numpy.repeat(numpy.arange(len(rows)), [len(row) - 1 for row in rows])
        order = numpy.lexsort((-self.scores(counts), picture))
        return counts[order[numpy.diff(picture[order], prepend=-1) != 0]]

    def _counts(self, sentences: list[Normal], pairs: Array) -> Array:
        """METEOR's counts of pairs (P, 2) of sentences."""
        known = Sentences([words[:LIMIT] for words in sentences], self.describe, self.paraphrases)
        matches = known.matches(pairs)
        found = resolve(matches, known.lengths[pairs])
        taken = matches.take(found.taken.nonzero()[0])

        functions = [[word in self.lexicon.function_words for word in words] for words in sentences]
        flags = numpy.array([flag for those in functions for flag in those[:LIMIT]], numpy.int64)
        totals = numpy.append(
            0, flags.cumsum()
        )  # function words before each word, of all sentences one after the other
        stages = numpy.array([*map(self.parameters.modules.index, taken.module.tolist())], numpy.int64)
        cells = numpy.zeros((len(pairs), len(MODULES), 2, 2))  # pair, module, content or function, side
        sides = ((taken.other_start, taken.other_length), (taken.start, taken.length))
        for side, (start, length) in enumerate(sides):
            first = known.firsts[pairs[taken.pair, side]] + start
            function = totals[first + length] - totals[first]
            for kind, words in enumerate((length - function, function)):
                sums = numpy.bincount(taken.pair * len(MODULES) + stages, words, len(pairs) * len(MODULES))
                cells[:, :, kind, side] = sums.reshape(len(pairs), len(MODULES))

        lengths = numpy.array([len(words) for words in sentences])[pairs]
        function_words = numpy.array([sum(those) for those in functions])[pairs]
        matched = cells.sum((1, 2))
        unbroken = (matched == lengths).all(1) & (found.chunks == 1)
        chunks = numpy.where(unbroken, 0, found.chunks)[:, None]
        return numpy.concatenate([lengths, function_words, cells.reshape(len(pairs), -1), chunks, matched], 1)

    def _describe(self, word: str) -> Word:
        """What the modules compare of a word."""
        synonyms = SYNONYM in self.parameters.modules
        return Word(
            code=java_hash(word),
            stem=self.stem(word) if self.stem else word,
            synsets=frozenset(self.lexicon.synsets(word)) if synonyms else frozenset(),
        )

    def scores(self, counts: Array) -> Array:
        """Scores (…) from counts (…, 23), of one picture or summed over many."""
        numbers = self.parameters
        delta = numbers.delta
        lengths, functions = counts[..., 0:2], counts[..., 2:4]
        size = delta * (lengths - functions) + (1.0 - delta) * functions
        matches = counts[..., 4:20].reshape(*counts.shape[:-1], 4, 2, 2)  # module, content or function, side
        found = numpy.zeros(lengths.shape)
        for kind, share in enumerate((delta, 1.0 - delta)):
            for module, weight in enumerate(numbers.weights):
                found = found + matches[..., module, kind, :] * weight * share
        with numpy.errstate(divide="ignore", invalid="ignore"):
            precision, recall = numpy.moveaxis(found / size, -1, 0)
            mean = 1.0 / ((1.0 - numbers.alpha) / precision + numbers.alpha / recall)
            broken = counts[..., 20] / ((counts[..., 21] + counts[..., 22]) / 2)
            score = mean * (1.0 - numbers.gamma * broken**numbers.beta)
        return numpy.maximum(numpy.where(numpy.isnan(score), 0.0, score), 0.0)
