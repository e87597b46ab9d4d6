"""pycocoevalcap's classes with meshcap's code: the same calls and the same numbers, without Java.

    from meshcap.metrics.coco import Bleu, Cider, COCOEvalCap, Meteor, PTBTokenizer, Rouge

    gts, res = PTBTokenizer().tokenize(references), PTBTokenizer().tokenize(results)   # id -> [{"caption": ...}]
    score, scores = Cider().compute_score(gts, res)                                    # id -> [caption]

What differs: a mistake in the input is a `MeshcapError` that says which, not an AssertionError; SPICE, which stays a
Java program, is left out with a line where it cannot run; "1 1/2", which the Java tokenizer joins by a no-break space
that BLEU and CIDEr split and ROUGE-L does not, is two tokens for all.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy

from meshcap.errors import MeshcapError
from meshcap.metrics import meteor as meteor_1_5
from meshcap.metrics.cider import MOST_WORDS, cider_d
from meshcap.metrics.ngrams import ORDERS, bleu_from_statistics, bleu_statistics, rouge_l
from meshcap.metrics.result import Missing
from meshcap.metrics.spice import check_spice
from meshcap.text.tokenizers import tokenize_each

__all__ = ["Bleu", "COCOEvalCap", "Cider", "Meteor", "PTBTokenizer", "Rouge"]

Captions = Mapping[Any, list[str]]
Array = numpy.ndarray


class PTBTokenizer:
    """Stanford's PTBTokenizer in lower case, punctuation dropped."""

    def tokenize(self, captions_for_image: Mapping[Any, Iterable[Mapping[str, Any]]]) -> dict[Any, list[str]]:
        """id -> [{"caption": text}] to id -> [tokens between spaces]; a picture without captions is left out."""
        given = [(id, str(one["caption"])) for id, those in captions_for_image.items() for one in those]
        found: dict[Any, list[str]] = {}
        for (id, _), words in zip(given, tokenize_each("ptb", (text for _, text in given)), strict=True):
            found.setdefault(id, []).append(" ".join(words))
        return found


class Bleu:
    """BLEU-1 to BLEU-n, n at most 4."""

    def __init__(self, n: int = ORDERS) -> None:
        _expect(n, ORDERS)
        self._n = n

    def compute_score(self, gts: Captions, res: Captions, verbose: int = 1) -> tuple[list[float], list[list[float]]]:
        """The corpus' scores, n of them, and for each n those of the pictures in the order of `gts`.

        Args:
            verbose: print lengths and counts, as pycocoevalcap does.
        """
        candidates, references = _paired(gts, res)
        counts = bleu_statistics(
            [one.split() for one in candidates], [[r.split() for r in those] for those in references]
        )
        sums = counts.sum(0)
        if verbose > 0:
            correct, guess, own, near = sums[:ORDERS], sums[ORDERS:-2], sums[-2], sums[-1]
            lengths = {"testlen": int(own), "reflen": int(near)}
            print(lengths | {"guess": [*map(int, guess[: self._n])], "correct": [*map(int, correct[: self._n])]})
            print("ratio:", (own + 1e-15) / (near + 1e-9))
        each = bleu_from_statistics(counts).T[: self._n].tolist()
        return bleu_from_statistics(sums)[: self._n].tolist(), each

    def method(self) -> str:
        return "Bleu"


class Rouge:
    """ROUGE-L."""

    def compute_score(self, gts: Captions, res: Captions) -> tuple[numpy.float64, Array]:
        """The mean, and the scores (pictures,) in the order of `gts`."""
        candidates, references = _paired(gts, res)
        found = rouge_l([one.split(" ") for one in candidates], [[r.split(" ") for r in those] for those in references])
        return numpy.float64(found.corpus), found.per_image

    def calc_score(self, candidate: Sequence[str], refs: Sequence[str]) -> float:
        """Of one caption, in a list of its own, and its references."""
        return float(self.compute_score({0: list(refs)}, {0: list(candidate)})[0])

    def method(self) -> str:
        return "Rouge"


class Cider:
    """CIDEr-D, which everybody calls CIDEr; document frequencies are those of `gts`. `test` and `refs` are not used."""

    def __init__(self, test: object = None, refs: object = None, n: int = MOST_WORDS, sigma: float = 6.0) -> None:
        _expect(n, MOST_WORDS)
        self._n, self._sigma = n, sigma

    def compute_score(self, gts: Captions, res: Captions) -> tuple[numpy.float64, Array]:
        """The mean, and the scores (pictures,) in the order of `gts`."""
        candidates, references = _paired(gts, res)
        words = [[one.split() for one in those] for those in references]
        found = cider_d([one.split() for one in candidates], words, sigma=self._sigma, n=self._n)
        return numpy.float64(found.corpus), found.per_image

    def method(self) -> str:
        return "CIDEr"


class Meteor:
    """METEOR 1.5, English, normalised; its data comes with the extra `meteor`.

    Raises:
        MeshcapError: METEOR's data is not installed.
    """

    def __init__(self) -> None:
        self._scorer = meteor_1_5.Meteor()

    def compute_score(self, gts: Captions, res: Captions) -> tuple[float, list[float]]:
        """The corpus' score, and those of the pictures in the order of `gts`."""
        candidates, references = _paired(gts, res)
        counts = self._scorer.statistics([[one] for one in candidates], [[[r] for r in those] for those in references])
        return float(self._scorer.scores(counts.sum(0))), self._scorer.scores(counts).tolist()

    def method(self) -> str:
        return "METEOR"


class COCOEvalCap:
    """All metrics of results for a COCO annotation file.

    Args:
        coco, cocoRes: pycocotools' `COCO(annotations)` and what its `loadRes(results)` gives; or anything with
            `getImgIds()` and `imgToAnns`, id -> [{"caption": text}].

    After `evaluate()`: `eval` has the scores by name, `imgToEval` those of each picture, `evalImgs` the same in a list.
    `params["image_id"]` are the pictures to evaluate.
    """

    def __init__(self, coco: Any, cocoRes: Any) -> None:
        self.evalImgs: list[dict[str, Any]] = []
        self.eval: dict[str, Any] = {}
        self.imgToEval: dict[Any, dict[str, Any]] = {}
        self.coco, self.cocoRes = coco, cocoRes
        self.params = {"image_id": coco.getImgIds()}

    def evaluate(self) -> None:
        """Score, and print each figure. METEOR or SPICE that cannot run here is left out with a line."""
        ids = self.params["image_id"]
        print("tokenization...")
        gts = PTBTokenizer().tokenize({id: self.coco.imgToAnns[id] for id in ids})
        res = PTBTokenizer().tokenize({id: self.cocoRes.imgToAnns[id] for id in ids})
        print("setting up scorers...")
        scorers: tuple[tuple[Callable[[], Any], tuple[str, ...]], ...] = (
            (Bleu, ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4")),
            (Meteor, ("METEOR",)),
            (Rouge, ("ROUGE_L",)),
            (Cider, ("CIDEr",)),
            (_spice, ("SPICE",)),
        )
        for make, names in scorers:
            try:
                scorer = make()
            except (MeshcapError, Missing) as error:
                print(f"{names[0]}: {error}")
                continue
            print(f"computing {scorer.method()} score...")
            score, scores = scorer.compute_score(gts, res)
            found = zip(names, score, scores, strict=True) if len(names) > 1 else [(names[0], score, scores)]
            for name, whole, each in found:
                self.setEval(whole, name)
                self.setImgToEvalImgs(each, gts.keys(), name)
                print(f"{name}: {whole:0.3f}")
        self.setEvalImgs()

    def setEval(self, score: Any, method: str) -> None:  # noqa: N802
        self.eval[method] = score

    def setImgToEvalImgs(self, scores: Iterable[Any], imgIds: Iterable[Any], method: str) -> None:  # noqa: N802
        for id, score in zip(imgIds, scores, strict=True):
            self.imgToEval.setdefault(id, {"image_id": id})[method] = score

    def setEvalImgs(self) -> None:  # noqa: N802
        self.evalImgs = list(self.imgToEval.values())


def _spice() -> Any:
    """pycocoevalcap's own, where its Java program can run; it would download what it lacks, so that is looked up."""
    check_spice()
    from pycocoevalcap.spice.spice import Spice

    return Spice()


def _expect(n: int, most: int) -> None:
    if not 1 <= n <= most:
        raise MeshcapError(f"n is {n}, expected 1 to {most}")


def _paired(gts: Captions, res: Captions) -> tuple[list[str], list[list[str]]]:
    """Candidates and references in the order of `gts`."""
    if not gts:
        raise MeshcapError("no pictures were given, expected at least one")
    if gts.keys() != res.keys():
        first = next(iter(gts.keys() ^ res.keys()))
        raise MeshcapError(f"gts and res have different pictures (first: {first!r}), expected the same")
    for id, those in gts.items():
        said = res[id]
        if not isinstance(said, list) or len(said) != 1 or not isinstance(said[0], str):
            raise MeshcapError(f"picture {id!r} has {reprlib.repr(said)} in res, expected a list of one caption")
        if not isinstance(those, list) or not those or not all(isinstance(one, str) for one in those):
            raise MeshcapError(f"picture {id!r} has {reprlib.repr(those)} in gts, expected a list of captions")
    return [res[id][0] for id in gts], list(gts.values())
