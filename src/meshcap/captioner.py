"""Captioner: the one object that most people touch. Eyes, a model and its vocabulary: pictures in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import torch
from torch import Tensor

from meshcap.decoding import Beam, ConstrainedBeam, Graphs, Hypotheses, Rules, Strategy, decode
from meshcap.errors import MeshcapError
from meshcap.models import CaptionModel, load
from meshcap.models.packed import pack
from meshcap.models.pretrained import find_file
from meshcap.models.quantised import Bits
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.text.endings import BAD_ENDINGS
from meshcap.vision import Vision, load_vision, save_vision
from meshcap.vision.pictures import Source, read_picture

VOCABULARY = "vocabulary.json"


@dataclass(frozen=True)
class Caption:
    """A sentence about a picture, and how the model came to it."""

    text: str  # as a person would write it
    words: list[str]
    log_probs: list[float]  # of each word, and of the end where it was reached
    confidence: float  # 0-1, the geometric mean of the words' probabilities
    score: float  # what the search ranked it by
    finished: bool  # False: cut off at the greatest length
    missing: int = 0  # how many of the required mentions could not be met
    attention: Tensor | None = None  # (words, regions): where the model looked for each word
    alternatives: tuple[Caption, ...] = ()  # the next best, where more than one was asked for


class Captioner:
    """Captions pictures; without a vision, pictures that have been turned into `Regions` elsewhere.

    On a CPU the weights are laid out for its matrix kernels; on a CUDA GPU decoding steps are captured once for each
    batch shape and replayed.
    """

    def __init__(self, model: CaptionModel, vocabulary: Vocabulary, vision: Vision | None = None):
        if len(vocabulary) != model.config.vocab_size:
            raise MeshcapError(
                f"the vocabulary has {len(vocabulary)} words and the model was made for {model.config.vocab_size}: "
                "they do not belong together"
            )
        for name in ("unk", "pad", "bos", "eos"):
            if getattr(vocabulary, name) != getattr(model.config, name):
                raise MeshcapError(
                    f"<{name}> is word {getattr(vocabulary, name)} of the vocabulary and {getattr(model.config, name)} "
                    "of the model: they do not belong together"
                )
        if vision is not None and vision.width != model.config.d_input:
            raise MeshcapError(
                f"the vision gives {vision.width} numbers a region and the model was made for {model.config.d_input}: "
                "they do not belong together"
            )
        self.model = model.eval()
        self.vocabulary = vocabulary
        self.vision = None if vision is None else vision.eval()
        self.graphs = Graphs()

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        **hub: Any,
    ) -> Self:
        """Read a folder that `save_pretrained` wrote, or a model on the Hugging Face hub, ready to caption.

        `dtype` is float32, bfloat16 or float16, or int8 for weights of 8 bits on a CPU.
        """
        vocabulary = Vocabulary.load(find_file(name_or_folder, VOCABULARY, **hub))
        captioner = cls(load(name_or_folder, **hub), vocabulary, load_vision(name_or_folder, **hub))
        int8 = dtype == torch.int8
        for part in (captioner.model, captioner.vision):
            if part is not None:
                part.to(device=device, dtype=torch.float32 if int8 else dtype).requires_grad_(False)
        if torch.device(device).type == "cpu" or int8:
            pack(captioner.model, int8=int8)
        return captioner

    def save_pretrained(self, folder: str | Path, *, bits: Bits = 32) -> None:
        """Write vision, vocabulary and model into a folder, each file whole or not at all.

        `bits`: 32 writes weights as they are; 16 and 8 round matrices, for files of half or a quarter of the size.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MeshcapError(f"{folder} cannot be made a model folder: {error.strerror}") from error
        if self.vision is not None:
            save_vision(self.vision, folder, bits=bits)
        self.vocabulary.save(folder / VOCABULARY)
        self.model.save_pretrained(folder, bits=bits)

    @torch.no_grad()
    def look(self, pictures: Sequence[Source]) -> Regions:
        """Regions of pictures: paths, PIL images, arrays or the bytes of files.

        Raises:
            MeshcapError: this captioner reads precomputed features only, or a picture cannot be read.
        """
        if self.vision is None:
            raise MeshcapError("this captioner has no vision of its own: give it Regions instead of pictures")
        preprocess = self.vision.preprocess
        pixels = [preprocess.pixels(read_picture(one, at_least=preprocess.size)) for one in pictures]
        if not pixels:
            raise MeshcapError("no pictures given: expected at least one")
        return self.vision(torch.stack(pixels).to(self.vision.device))

    @overload
    def caption(self, pictures: Regions | list[Source] | tuple[Source, ...], **options: Any) -> list[Caption]: ...
    @overload
    def caption(self, pictures: Source, **options: Any) -> Caption: ...
    def caption(self, pictures: Any, *, batch_size: int = 64, **options: Any) -> list[Caption] | Caption:
        """A caption for each picture; of one picture alone, its caption.

        Args:
            pictures: a path, a PIL image, an array, the bytes of a file, a list of such, or Regions.
            batch_size: pictures looked at together.
            options: those of `describe`.

        Raises:
            MeshcapError: pictures that cannot be read, unknown words, options that contradict each other.
        """
        if isinstance(pictures, Regions):
            if len(pictures) > batch_size:  # here, where a complaint can name the picture by its own number
                Regions.checked(pictures, width=self.model.config.d_input, boxes=self.model.config.boxes)
            parts = (pictures[start : start + batch_size] for start in range(0, len(pictures), batch_size))
            return [caption for part in parts for caption in self.describe(part, **options)]
        if not isinstance(pictures, list | tuple):
            return self.describe(self.look([pictures]), **options)[0]
        if not pictures:
            raise MeshcapError("no pictures given: expected at least one")
        blocks = (pictures[start : start + batch_size] for start in range(0, len(pictures), batch_size))
        return [caption for block in blocks for caption in self.describe(self.look(block), **options)]

    def describe(
        self,
        regions: Regions,
        *,
        strategy: Strategy | None = None,
        n_best: int = 1,
        max_length: int | None = None,
        min_length: int = 2,
        mention: Sequence[str | Sequence[str]] = (),
        avoid: Sequence[str] = (),
        no_repeat_ngram: int = 0,
        good_endings: bool = False,
        attention: bool = False,
    ) -> list[Caption]:
        """A caption for each picture of a batch.

        Args:
            max_length, min_length: in words, the end counted as one; 20 at most and one real word at least by default.
            strategy: how to search (see `meshcap.decoding`); beam search with 5 beams unless said otherwise.
            mention: words or phrases that must appear; several in a list are alternatives: `["dog", ["man", "woman"]]`.
            avoid: words that must not.
            good_endings: never end in "a", "of", "with" and the like.
            attention: also tell where the model looked for each word.

        Raises:
            MeshcapError: regions that do not fit the model, unknown words, options that contradict each other.
        """
        config = self.model.config
        Regions.checked(regions, width=config.d_input, boxes=config.boxes)
        rules = Rules(
            max_length=min(20, config.max_length) if max_length is None else max_length,
            min_length=min_length,
            no_repeat_ngram=no_repeat_ngram,
            # An unknown word tells a reader nothing, and an imported model might say the others too.
            banned=(config.unk, config.pad, config.bos, *self.vocabulary.ids_of(avoid, purpose="to avoid")),
            bad_endings=tuple(sorted(self.vocabulary.id(w) for w in BAD_ENDINGS if w in self.vocabulary))
            if good_endings
            else (),
        )
        if mention:
            if not isinstance(strategy, Beam | None):
                raise MeshcapError("required words need a beam search: leave the strategy out or give a Beam")
            beam = strategy or Beam()
            strategy = ConstrainedBeam(self._requirements(mention), beam.beams, beam.length_penalty)
        found = decode(
            self.model,
            regions.to(self.model.device, self.model.dtype),
            strategy,
            rules,
            n_best=n_best,
            attention=attention,
            graphs=self.graphs,
        )
        return list(self._captions(found, len(mention)))

    def _requirements(self, mention: Sequence[str | Sequence[str]]) -> list[list[list[list[int]]]]:
        phrases = [[one] if isinstance(one, str) else list(one) for one in mention]
        return [[[self.vocabulary.ids_of(p.split(), purpose="to mention") for p in one] for one in phrases]]

    def _captions(self, found: Hypotheses, required: int) -> Iterator[Caption]:
        ids, log_probs, lengths = found.ids.tolist(), found.log_probs.tolist(), found.lengths.tolist()
        scores, confidence, finished = found.scores.tolist(), found.confidence.tolist(), found.finished.tolist()
        satisfied = None if found.satisfied is None else found.satisfied.tolist()
        looks = None if found.attention is None else found.attention["words"].float().cpu()

        def one(picture: int, rank: int, alternatives: tuple[Caption, ...] = ()) -> Caption:
            length = lengths[picture][rank]
            words = self.vocabulary.decode(ids[picture][rank][:length])
            return Caption(
                text=self.vocabulary.sentence(words),
                words=words,
                log_probs=log_probs[picture][rank][:length],
                confidence=confidence[picture][rank],
                score=scores[picture][rank],
                finished=finished[picture][rank],
                missing=0 if satisfied is None else required - satisfied[picture][rank],
                attention=None if looks is None else looks[picture, rank, : len(words)],
                alternatives=alternatives,
            )

        for picture, ranked in enumerate(scores):
            rest = tuple(one(picture, rank) for rank in range(1, len(ranked)) if ranked[rank] > float("-inf"))
            yield one(picture, 0, rest)
