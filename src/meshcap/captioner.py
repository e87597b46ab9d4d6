"""Captioner: the one object that most people touch. Eyes, a model and its vocabulary: pictures in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import torch

from meshcap.decoding import Beam, ConstrainedBeam, Graphs, Hypotheses, Rules, Strategy, decode
from meshcap.errors import MeshcapError
from meshcap.folders import DEFAULT, Bits, find_file, find_optional, folder_of
from meshcap.models import CaptionModel, load_model
from meshcap.models.packed import multiplies_bfloat16, pack
from meshcap.regions import Regions
from meshcap.runtime.caption import Caption
from meshcap.runtime.facts import expect_not_exported
from meshcap.text import Vocabulary
from meshcap.text.sentence import BAD_ENDINGS
from meshcap.vision import Vision, load_vision, save_vision
from meshcap.vision.pictures import Source, read_picture

if TYPE_CHECKING:
    from meshcap.calibration import Calibration

VOCABULARY, CALIBRATION = "vocabulary.json", "calibration.json"


class Captioner:
    """Captions pictures; without a vision, pictures that have been turned into `Regions` elsewhere.

    On a CPU the weights are laid out for its matrix kernels; on a CUDA GPU decoding steps are captured once for each
    batch shape and replayed.
    """

    def __init__(
        self,
        model: CaptionModel,
        vocabulary: Vocabulary,
        vision: Vision | None = None,
        calibration: Calibration | None = None,
    ):
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
        self.calibration = calibration
        self.graphs = Graphs()

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path = DEFAULT,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        runtime: str = "torch",
        **hub: Any,
    ) -> Self:
        """The model that comes with the package, a folder that `save_pretrained` wrote, or a model on the hub.

        `dtype` is float32, bfloat16 or float16, or int8 for weights of 8 bits on a CPU. With `runtime` "onnx" or
        "torch-export", a folder that `meshcap export` wrote, and what comes back is a `meshcap.runtime.Captioner`.
        """
        if runtime != "torch":
            from meshcap.runtime import Captioner as Exported

            if torch.device(device).type != "cpu" or dtype != torch.float32:
                raise MeshcapError("an exported model runs on the CPU with the numbers it was exported with")
            exported: Any = Exported.from_pretrained(name_or_folder, runtime=runtime)
            return exported
        expect_not_exported(name_or_folder)
        if name_or_folder == DEFAULT:
            name_or_folder = folder_of(DEFAULT)
        vocabulary = Vocabulary.load(find_file(name_or_folder, VOCABULARY, **hub))
        int8 = dtype == torch.int8
        kept = torch.float32 if int8 else dtype
        on_cpu = torch.device(device).type == "cpu"
        # The model is made smaller before the eyes are read: at no time is all of it there in float32.
        model = load_model(name_or_folder, **hub).to(device=device, dtype=kept).requires_grad_(False)
        if on_cpu or int8:
            pack(model, int8=int8)
        vision = load_vision(name_or_folder, **hub)
        if vision is not None:
            # There are no convolutions of 8 bits. Those of 16 are faster and smaller, where a CPU can multiply such.
            eyes = torch.bfloat16 if int8 and on_cpu and multiplies_bfloat16() else kept
            vision.to(device=device, dtype=eyes).requires_grad_(False)
            if on_cpu or int8:
                vision.fold()
        return cls(model, vocabulary, vision, load_calibration(name_or_folder, **hub))

    def save_pretrained(self, folder: str | Path, *, bits: Bits = 32) -> None:
        """Write vision, vocabulary, calibration and model into a folder, each file whole or not at all.

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
        if self.calibration is not None:
            self.calibration.save(folder)
        else:
            (folder / CALIBRATION).unlink(missing_ok=True)  # that of another model
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
        end_in_time: bool = False,
        attention: bool = False,
    ) -> list[Caption]:
        """A caption for each picture of a batch.

        Args:
            max_length, min_length: in words, the end counted as one; 20 at most and one real word at least by default.
            strategy: how to search (see `meshcap.decoding`); beam search with 5 beams unless said otherwise.
            mention: words or phrases that must appear; several in a list are alternatives: `["dog", ["man", "woman"]]`.
            avoid: words that must not.
            good_endings: never end in "a", "of", "with" and the like.
            end_in_time: end within `max_length` rather than be cut off there.
            attention: also tell where the model looked for each word.

        Raises:
            MeshcapError: regions that do not fit the model, unknown words, options that contradict each other.
        """
        config = self.model.config
        Regions.checked(regions, width=config.d_input, boxes=config.boxes)
        for name, words in (("mention", mention), ("avoid", avoid)):
            if isinstance(words, str):  # whose letters would pass for words
                raise MeshcapError(f"{name} is {words!r}, expected a list of words")
        avoided = [self._asked(one, "to avoid")[0] for one in avoid]
        rules = Rules(
            max_length=min(20, config.max_length) if max_length is None else max_length,
            min_length=min_length,
            no_repeat_ngram=no_repeat_ngram,
            # An unknown word tells a reader nothing, and an imported model might say the others too.
            banned=(config.unk, config.pad, config.bos, *avoided),
            bad_endings=tuple(sorted(self.vocabulary.id(w) for w in BAD_ENDINGS if w in self.vocabulary))
            if good_endings
            else (),
            end_in_time=end_in_time,
        )
        if mention:
            if not isinstance(strategy, Beam | None):
                raise MeshcapError("required words need a beam search: leave the strategy out or give a Beam")
            beam = strategy or Beam()
            required = self._requirements(mention, avoided, rules.max_length - end_in_time)
            strategy = ConstrainedBeam([required], beam.beams, beam.length_penalty)
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

    def _requirements(
        self, mention: Sequence[str | Sequence[str]], avoided: Sequence[int], most: int
    ) -> list[list[list[int]]]:
        """The phrases of each requirement in ids, those that cannot be said left out."""
        required = []
        for alternatives in mention:
            phrases = [alternatives] if isinstance(alternatives, str) else list(alternatives)
            ids = [self._asked(phrase, "to mention") for phrase in phrases]
            allowed = [one for one in ids if not set(one) & set(avoided)]
            possible = [one for one in allowed if len(one) <= most]
            if not possible:
                named = " or ".join(map(repr, phrases)) or "nothing"
                why = "to be avoided, too" if phrases else "no phrase"
                if allowed:
                    why = f"longer than {most} {'word' if most == 1 else 'words'}"
                raise MeshcapError(f"{named} is to be mentioned, and is {why}")
            required.append(possible)
        return required

    def _asked(self, phrase: str, purpose: str) -> list[int]:
        """The ids of what a person wrote: as it stands, or else as captions are split ("Dog's" is "dog" and "'s")."""
        words = phrase.split()
        if not all(word in self.vocabulary for word in words):
            words = self.vocabulary.tokens(phrase)
        if purpose == "to avoid" and len(words) != 1:
            raise MeshcapError(f"{phrase!r} is to be avoided, expected a single word that captions may hold")
        return self.vocabulary.ids_of(words, purpose=purpose)

    def _captions(self, found: Hypotheses, required: int) -> Iterator[Caption]:
        ids, log_probs, lengths = found.ids.tolist(), found.log_probs.tolist(), found.lengths.tolist()
        scores, probability, finished = found.scores.tolist(), found.confidence.tolist(), found.finished.tolist()
        satisfied = None if found.satisfied is None else found.satisfied.tolist()
        looks = None if found.attention is None else found.attention["words"].float().cpu()

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
                missing=0 if satisfied is None else required - satisfied[picture][rank],
                attention=None if looks is None else looks[picture, rank, : len(words)],
                alternatives=alternatives,
            )

        for picture, ranked in enumerate(scores):
            rest = tuple(one(picture, rank) for rank in range(1, len(ranked)) if ranked[rank] > float("-inf"))
            yield one(picture, 0, rest)


def load_calibration(name_or_folder: str | Path, **hub: Any) -> Calibration | None:
    """How a model's confidence was measured; None where it was not."""
    path = find_optional(name_or_folder, CALIBRATION, **hub)
    if path is None:
        return None
    from meshcap.calibration import Calibration  # here: most models have none

    return Calibration.load(path)
