"""Captioner without torch: the exported graphs, a vocabulary, and a search on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from meshcap.calibration import CALIBRATION, Calibration
from meshcap.errors import MeshcapError
from meshcap.runtime.caption import Caption
from meshcap.runtime.facts import Facts
from meshcap.runtime.graphs import open_graphs
from meshcap.runtime.rules import Rules
from meshcap.runtime.search import Beam, Found, Graphs, search
from meshcap.text import Vocabulary
from meshcap.text.sentence import BAD_ENDINGS
from meshcap.vision.pictures import Source, read_picture
from meshcap.vision.preprocess import to_square

VOCABULARY = "vocabulary.json"


class Captioner:
    """Captions pictures as `meshcap.captioner.Captioner` does, by what `meshcap export` wrote."""

    def __init__(
        self, graphs: Graphs, facts: Facts, vocabulary: Vocabulary, calibration: Calibration | None = None
    ):
        if len(vocabulary) != facts.vocab_size:
            raise MeshcapError(
                f"the vocabulary has {len(vocabulary)} words and the model was made for {facts.vocab_size}: "
                "they do not belong together"
            )
        self.graphs, self.facts, self.vocabulary, self.calibration = graphs, facts, vocabulary, calibration

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, runtime: str = "onnx", threads: int | None = None) -> Captioner:
        """Read a folder that `meshcap export` wrote.

        Args:
            runtime: "onnx", or "torch-export" where torch is installed.
            threads: CPU threads; the runtime's own choice unless said.

        Raises:
            MeshcapError: no such folder, or a runtime that is not installed.
        """
        if runtime == "torch":
            raise MeshcapError("an exported model has no runtime 'torch': give 'onnx', or 'torch-export'")
        folder = Path(folder)
        facts = Facts.read(folder)
        vocabulary = Vocabulary.load(folder / VOCABULARY)
        path = folder / CALIBRATION
        calibration = Calibration.load(path) if path.is_file() else None
        return cls(open_graphs(folder, facts, runtime, threads), facts, vocabulary, calibration)

    def look(self, pictures: Sequence[Source]) -> np.ndarray:
        """What `see` reads of pictures: uint8 (B, 3, size, size)."""
        if not pictures:
            raise MeshcapError("no pictures given: expected at least one")
        size, geometry, pre_resize = self.facts.size, self.facts.geometry, self.facts.pre_resize
        squares = [to_square(read_picture(one, at_least=size), size, geometry, pre_resize) for one in pictures]
        return np.ascontiguousarray(np.stack([np.asarray(one) for one in squares]).transpose(0, 3, 1, 2))

    @overload
    def caption(self, pictures: list[Source] | tuple[Source, ...], **options: Any) -> list[Caption]: ...
    @overload
    def caption(self, pictures: Source, **options: Any) -> Caption: ...
    def caption(self, pictures: Any, *, batch_size: int = 64, **options: Any) -> list[Caption] | Caption:
        """A caption for each picture; of one picture alone, its caption.

        Args:
            pictures: a path, a PIL image, an array, the bytes of a file, or a list of such.
            batch_size: pictures looked at together.
            options: those of `describe`.

        Raises:
            MeshcapError: pictures that cannot be read, unknown words, options that contradict each other.
        """
        if not isinstance(pictures, list | tuple):
            return self.describe(self.look([pictures]), **options)[0]
        if not pictures:
            raise MeshcapError("no pictures given: expected at least one")
        blocks = (pictures[start : start + batch_size] for start in range(0, len(pictures), batch_size))
        return [caption for block in blocks for caption in self.describe(self.look(block), **options)]

    def describe(
        self,
        pixels: np.ndarray,
        *,
        strategy: Any = None,
        n_best: int = 1,
        max_length: int | None = None,
        min_length: int = 2,
        mention: Sequence[str | Sequence[str]] = (),
        avoid: Sequence[str] = (),
        no_repeat_ngram: int = 0,
        good_endings: bool = False,
        end_in_time: bool = False,
        attention: bool = False,
    ) -> list[Caption]:
        """A caption for each picture of a batch that `look` read. The options are those of the torch captioner.

        Args:
            strategy: a `Beam`, of `meshcap.runtime` or `meshcap.decoding`; five beams unless said otherwise.
            mention, attention: only the torch captioner can.

        Raises:
            MeshcapError: unknown words, options that contradict each other or that need torch.
        """
        facts = self.facts
        for asked, what in ((mention, "words that must appear"), (attention, "attention")):
            if asked:
                raise MeshcapError(f"{what} cannot be had of an exported captioner: use the runtime torch")
        if isinstance(avoid, str):  # whose letters would pass for words
            raise MeshcapError(f"avoid is {avoid!r}, expected a list of words")
        rules = Rules(
            max_length=min(20, facts.max_length) if max_length is None else max_length,
            min_length=min_length,
            no_repeat_ngram=no_repeat_ngram,
            # An unknown word tells a reader nothing, and an imported model might say the others too.
            banned=(facts.unk, facts.pad, facts.bos, *(self._avoided(one) for one in avoid)),
            bad_endings=tuple(sorted(self.vocabulary.id(w) for w in BAD_ENDINGS if w in self.vocabulary))
            if good_endings
            else (),
            end_in_time=end_in_time,
        )
        found = search(self.graphs, facts, pixels, beam_of(strategy), rules, n_best=n_best)
        return list(self._captions(found))

    def _avoided(self, word: str) -> int:
        """The id of what a person wrote: as it stands, or else as captions have it ("Dog" is "dog")."""
        words = [word] if word in self.vocabulary else self.vocabulary.tokens(word)
        if len(words) != 1:
            raise MeshcapError(f"{word!r} is to be avoided, expected a single word that captions may hold")
        return self.vocabulary.ids_of(words, purpose="to avoid")[0]

    def _captions(self, found: Found) -> Iterator[Caption]:
        ids, log_probs, lengths = found.ids.tolist(), found.log_probs.tolist(), found.lengths.tolist()
        scores, probability, finished = found.scores.tolist(), found.probability.tolist(), found.finished.tolist()

        def one(picture: int, rank: int, alternatives: tuple[Caption, ...] = ()) -> Caption:
            length = lengths[picture][rank]
            words, text = self.vocabulary.detokenize(ids[picture][rank][:length])
            said, likely = log_probs[picture][rank][:length], probability[picture][rank]
            return Caption(
                text=text,
                words=words,
                log_probs=said,
                confidence=likely if self.calibration is None else self.calibration.apply(said),
                probability=likely,
                score=scores[picture][rank],
                finished=finished[picture][rank],
                alternatives=alternatives,
            )

        for picture, ranked in enumerate(scores):
            rest = tuple(one(picture, rank) for rank in range(1, len(ranked)) if ranked[rank] > float("-inf"))
            yield one(picture, 0, rest)


def beam_of(strategy: Any) -> Beam:
    """A beam search from whichever room: the other strategies are torch's."""
    if strategy is None:
        return Beam()
    if type(strategy).__name__ == "Greedy":  # which is a beam of one
        return Beam(1)
    if set(getattr(strategy, "__dataclass_fields__", ())) != {"beams", "length_penalty"}:
        raise MeshcapError(f"{type(strategy).__name__} needs the runtime torch: an exported captioner searches by Beam")
    return Beam(strategy.beams, strategy.length_penalty)
