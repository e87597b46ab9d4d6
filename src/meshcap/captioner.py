"""Captioner: pictures in, sentences out. The one way through, in four steps that can be called alone.

    pixels = captioner.read("photo.jpg")         # the bytes of a file to a square of pixels
    regions = captioner.see([pixels])            # pixels to Regions
    found = captioner.search(regions, options)   # Regions to hypotheses
    captions = captioner.say(found, options)     # hypotheses to Captions

`caption` and `stream` run all four. What runs `see` and `search` is a backend (torch, ONNX or torch.export); without
torch installed, ONNX captioners run all the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, Unpack, overload

import numpy as np
from PIL import Image

from meshcap.backends.base import Backend
from meshcap.backends.exported import backend_of
from meshcap.caption import Caption
from meshcap.decoding.records import Hypotheses
from meshcap.errors import MeshcapError
from meshcap.folders import (
    CALIBRATION,
    DEFAULT,
    MUSIC,
    NAMES,
    NAMES_TABLE,
    VOCABULARY,
    Bits,
    find_file,
    find_optional,
    folder_of,
)
from meshcap.options import CaptionFields, CaptionOptions, Plan, ids_of_phrase, naming, plan
from meshcap.say import Speaker
from meshcap.tags import colours, joined
from meshcap.text import Vocabulary
from meshcap.vision.pictures import Source, Stored
from meshcap.vision.preprocess import Preprocess
from meshcap.vision.readers import Batch, Readers, can_read

if TYPE_CHECKING:
    import torch

    from meshcap.calibration import Calibration
    from meshcap.consensus import Consensus
    from meshcap.decoding.extension import Extension
    from meshcap.models import CaptionModel
    from meshcap.models.recollection import Recollection
    from meshcap.names import Named, Names
    from meshcap.regions import Regions
    from meshcap.vision import Vision

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16", "int8"]
BackendName = Literal["auto", "torch", "onnx", "torch-export"]
BACKENDS = ("torch", "onnx", "torch-export")

AHEAD = 2  # batches that are being read while one is captioned, and that a GPU computes while one is put into words
FEW = 512  # pictures of a stream that threads read before processes do, with a GPU
MOST_PLANS = 64  # options whose plans are kept
UNREAD = "captions are made without the memory: this model has no memory.safetensors, which reads it; recall works"


class Captioner:
    """Captions pictures; without a vision, pictures that have been turned into `Regions` elsewhere.

        captioner = Captioner.from_pretrained()
        print(captioner("photo.jpg"))

    A loaded captioner can be saved, copied, pickled and trained (`captioner.model`). What makes inference fast is made
    of a copy at the first use; `optimize()` does it in place, for programs that do nothing else.
    """

    def __init__(
        self,
        model: CaptionModel | Backend,
        vocabulary: Vocabulary,
        vision: Vision | None = None,
        calibration: Calibration | None = None,
        names: Names | None = None,
    ):
        if isinstance(model, Backend):
            self.backend: Backend = model
        else:
            from meshcap.backends.torch_backend import TorchBackend

            _expect_width(model, vision)
            self.backend = TorchBackend(model, vision)
        self.vocabulary, self.calibration, self.names = vocabulary, calibration, names
        self._memory: Any = None
        self._consensus: Consensus | None = None  # of the memory, once captions were compared with it
        self._plans: dict[CaptionOptions, Plan] = {}
        self._of_scores: Captioner | Callable[[], Captioner] | None = None  # who captions scores, loaded at first use
        self._expect_vocabulary()

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path = DEFAULT,
        *,
        device: DeviceName | str | torch.device = "auto",
        dtype: DtypeName | torch.dtype = "auto",
        backend: BackendName = "auto",
        threads: int | None = None,
        **hub: Any,
    ) -> Self:
        """The model that comes with the package, a folder that `save_pretrained` wrote, or a model on the hub.

        Args:
            name_or_folder: "default", a folder (also one that `meshcap export` wrote), or `owner/name` on the hub.
            device: where to compute; "auto" takes a GPU where there is one.
            dtype: numbers that weights are kept in and computed with; "auto" is bfloat16 on GPUs and CPUs made for it,
                else float32; "int8" rounds weights to 8 bits, on a CPU. Give "float32" to save or train without loss.
            backend: what computes; "auto" goes by the files in the folder.
            threads: CPU threads of an exported model; the backend's own choice unless told.
            hub: keywords of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

        Raises:
            MeshcapError: no such model, device or backend, or files that do not fit.
        """
        folder = folder_of(name_or_folder)
        name = backend_of(folder) if backend == "auto" else backend
        if name not in BACKENDS:
            raise MeshcapError(f"backend is {backend!r}, expected auto, {', '.join(BACKENDS)}")
        vocabulary_file = None if name == "torch" else folder / VOCABULARY
        opened = _open_backend(name, name_or_folder, device, dtype, threads, hub)
        vocabulary = Vocabulary.load(vocabulary_file or find_file(name_or_folder, VOCABULARY, **hub))
        names = load_names(name_or_folder, **hub) if name == "torch" else None
        captioner = cls(opened, vocabulary, None, load_calibration(name_or_folder, **hub), names)
        if name_or_folder == DEFAULT and backend == "auto":
            captioner._of_scores = partial(cls.from_pretrained, MUSIC, device=device)
        return captioner

    # What it is made of.

    @property
    def model(self) -> CaptionModel:
        """The model of a torch captioner: its weights as they were loaded."""
        return self._torch().model

    @property
    def vision(self) -> Vision | None:
        """What turns pixels into Regions; None where Regions are made elsewhere."""
        return self._torch().vision

    @property
    def device(self) -> torch.device | str:
        found: torch.device | str = self.backend.device
        return found

    @property
    def dtype(self) -> torch.dtype | str:
        found: torch.dtype | str = self.backend.dtype
        return found

    @property
    def memory(self) -> Any:
        """An opened store (`meshcap.memory`) that captions are helped by, or None. Set it, or name its folder."""
        return self._memory

    @memory.setter
    def memory(self, store: Any) -> None:
        if isinstance(store, str | Path):
            from meshcap.memory import open_store

            store = open_store(store)
        expect = getattr(store, "expect_vision", None)
        if expect is not None:
            expect(self._torch("reads no memory").fingerprint())
        self._memory = store

    @property
    def batch_size(self) -> int:
        """How many pictures are best captioned together, where nobody says otherwise."""
        return self.backend.batch_size

    @property
    def reads_pictures(self) -> bool:
        """Whether it has a vision of its own; others caption Regions only."""
        return self.backend.preprocess is not None

    def to(self, device: Any = None, dtype: DtypeName | torch.dtype | None = None) -> Self:
        """Move to another device, to other numbers, or both: `captioner.to("cuda")`, `captioner.to(dtype="int8")`."""
        self.backend.to(device, dtype)
        return self

    def optimize(self) -> Self:
        """Prepare for inference alone, in place: no second copy of the weights, and no way back."""
        self.backend.optimize()
        return self

    def __repr__(self) -> str:
        parts = [self.backend.name, f"{len(self.vocabulary):,} words"]
        if self.backend.name == "torch":
            parts[0] = f"{self.model.name}, {self.backend.weights / 1e6:.1f} M weights"
            parts.append("no vision" if self.vision is None else self.vision.name)
        parts += [str(self.device), str(self.dtype).removeprefix("torch.")]
        return f"Captioner({', '.join(parts)})"

    # The four steps.

    def read(self, source: Source) -> np.ndarray:
        """Pixels (3, size, size), uint8, of a picture: a path, a PIL image, an array, the bytes of a file or a file.
        Of a score, where this captioner is one of scores, the numbers of its bars.

        Raises:
            MeshcapError: this captioner reads Regions only, or the picture cannot be read.
        """
        given = self.backend.preprocess
        if given is None:
            raise MeshcapError("this captioner has no vision of its own: give it Regions instead of pictures")
        return given.read(source)

    def see(self, pixels: Sequence[np.ndarray] | np.ndarray) -> Regions:
        """Regions of pictures that `read` read. (Of an exported captioner, what its graph keeps of them.)"""
        if not len(pixels):
            raise MeshcapError("no pictures given: expected at least one")
        seen: Regions = self.backend.see(pixels)
        return seen

    def search(
        self,
        regions: Regions,
        options: CaptionOptions | None = None,
        *,
        extension: Extension | None = None,
        **fields: Unpack[CaptionFields],
    ) -> Hypotheses:
        """Hypotheses of each picture, best first.

        Args:
            extension: words beside those of the vocabulary, for this search; `must` and `must_not` may name them.
                Unless given, the names that the captioner is sure of, where it has a head for names.

        Raises:
            MeshcapError: regions that do not fit the model, unknown words, options that contradict each other.
        """
        options = options_of(options, fields)
        self.backend.check(regions)
        return self._search(regions, options, extension)

    def _search(
        self,
        regions: Any,
        options: CaptionOptions,
        extension: Extension | None = None,
        named: Named | None = None,
        queued: bool = False,
    ) -> Hypotheses:
        memory = self._recollect(regions)
        if named is None:
            named = self._named(regions, options)
        names = self.names if extension is None and options.names else None
        if names is not None and named is not None:
            extension = names.extension(
                named, self.vocabulary, but=memory.words if memory else (),
                where=[not one for one in memory.names] if memory else None,  # Rex, and no dachshund
                must=options.must, must_not=options.must_not,
            )  # fmt: skip
        new = (*(memory.words if memory else ()), *(extension.words if extension else ()))
        if not (options.must or options.must_not) or (not new and names is None):
            strategy, rules = self.plan(options)
        else:
            known, unsaid = self.vocabulary.extended(new), tuple(names.forms) if names is not None else ()
            strategy, rules = plan(options, known, self.backend.settings, self._words, unsaid)
        if memory is not None and any(memory.proper):
            first = len(self.vocabulary)
            whose = [first + place for place, name in enumerate(memory.proper) if name]
            rules = naming(rules, whose, self.vocabulary)
        # Captions that turn out alike are left out when they are said: then others must be there to take their place.
        few = options.n == 1 and not options.tags and memory is None
        kept = 1 if few else strategy.width
        # Where all that is near says words that the captioner has, to read it changes nothing but the time it takes.
        listened = memory if memory is not None and memory.words else None
        found = self.backend.search(
            regions, strategy, rules, n_best=kept, attention=options.attention, extension=extension, memory=listened,
            queued=queued,
        )  # fmt: skip
        if memory is not None:
            found = replace(found, recollection=memory)
            if kept > 1:
                found = self._agreeing(found, memory)
        return found if named is None else replace(found, named=named)

    def _agreeing(self, found: Hypotheses, memory: Recollection) -> Hypotheses:
        from meshcap.consensus import Consensus

        config = self._torch("reads no memory").memory_level().config
        assert self.memory is not None
        if not config.agreement:
            return found
        if self._consensus is None or not self._consensus.serves(self.memory):
            self._consensus = Consensus(self.memory, self.vocabulary)
        return self._consensus.order(found, memory.entries, config.agreement, config.entries)

    @property
    def _words(self) -> int | None:
        """Of a caption at most, unless told otherwise; None: the usual number."""
        return None if self.backend.preprocess is None else self.backend.preprocess.words

    def _recollect(self, regions: Any) -> Recollection | None:
        """What the memory holds of pictures like these; None: nothing near, or no memory."""
        if self.memory is None or not len(self.memory):
            return None
        from meshcap.models.recollection import recollect

        own = self._torch("reads no memory")
        if not own.has_memory_level():
            warnings.warn(UNREAD, stacklevel=6)
            return None
        config = own.memory_level().config
        vectors = own.embed(regions).float().cpu()
        found, named = self.memory.nearest(vectors, config.entries), self.memory.named(vectors, config.entries)
        return recollect(found, self.vocabulary, config, named)

    def embed(self, regions: Regions) -> torch.Tensor:
        """Each picture's vector (B, D), of length 1, by which a memory compares pictures.

        Raises:
            MeshcapError: an exported model, or regions that do not fit it.
        """
        backend = self._torch("does not compare pictures")
        backend.check(regions)
        vectors: torch.Tensor = backend.embed(regions)
        return vectors

    def say(
        self, found: Hypotheses, options: CaptionOptions | None = None, **fields: Unpack[CaptionFields]
    ) -> list[Caption]:
        """A caption of each picture with its alternatives: n in all, or as many different ones as were found."""
        options = options_of(options, fields)
        return self.speaker.captions(found, options)

    # All of them at once.

    @overload
    def caption(
        self,
        pictures: Regions | list[Source] | tuple[Source, ...],
        options: CaptionOptions | None = ...,
        *,
        batch_size: int | None = ...,
        progress: bool = ...,
        **fields: Unpack[CaptionFields],
    ) -> list[Caption]: ...
    @overload
    def caption(
        self,
        pictures: Source,
        options: CaptionOptions | None = ...,
        *,
        batch_size: int | None = ...,
        progress: bool = ...,
        **fields: Unpack[CaptionFields],
    ) -> Caption: ...
    def caption(
        self,
        pictures: Any,
        options: CaptionOptions | None = None,
        *,
        batch_size: int | None = None,
        progress: bool = False,
        **fields: Unpack[CaptionFields],
    ) -> list[Caption] | Caption:
        """A caption for each picture; of one picture alone, its caption.

        Args:
            pictures: a path, a PIL image, an array, the bytes of a file, a list of such, or Regions.
            options: see `CaptionOptions`; its fields may be given as keywords: `caption(path, n=3, max_words=8)`.
            batch_size: pictures captioned together.
            progress: show a bar on stderr.

        Raises:
            MeshcapError: pictures that cannot be read, unknown words, options that contradict each other.
        """
        options = options_of(options, fields)
        size = self.batch_size if batch_size is None else batch_size
        if size < 1:
            raise MeshcapError(f"batch_size is {size}, expected 1 or more")
        if is_regions(pictures):
            if len(pictures) > size:  # here, where a complaint can name the picture by its own number
                self.backend.check(pictures)
            parts = (pictures[start : start + size] for start in range(0, len(pictures), size))
            return [one for part in _shown(parts, len(pictures), progress) for one in self.describe(part, options)]
        if not isinstance(pictures, list | tuple):
            return self._one(pictures, options)
        if not pictures:
            raise MeshcapError("no pictures given: expected at least one")
        blocks = (pictures[start : start + size] for start in range(0, len(pictures), size))
        return [
            caption
            for block in _shown(blocks, len(pictures), progress)
            for caption in self._describe_all([self.read_source(one) for one in block], options)
        ]

    __call__ = caption

    def pipeline(
        self, images: Any, *, batch_size: int | None = None, **fields: Unpack[CaptionFields]
    ) -> list[dict[str, str]] | list[list[dict[str, str]]]:
        """Captions as an image-to-text pipeline of transformers gives them: `[{"generated_text": …}]` of a picture.

        Of a list of pictures, a list of such lists; with `n=3`, a dict for each caption.
        """
        options = options_of(None, fields)
        found = self.caption(images, options, batch_size=batch_size)

        def texts(caption: Caption) -> list[dict[str, str]]:
            return [{"generated_text": one.text} for one in (caption, *caption.alternatives)]

        return texts(found) if isinstance(found, Caption) else [texts(one) for one in found]

    def describe(
        self,
        regions: Regions,
        options: CaptionOptions | None = None,
        *,
        pixels: Sequence[np.ndarray] | None = None,
        **fields: Unpack[CaptionFields],
    ) -> list[Caption]:
        """`search` and `say`: a caption of each picture that was seen, with its tags where they are asked for.

        Args:
            pixels: of the same pictures, as `read` reads them: without, tags have no colours.
        """
        options = options_of(options, fields)
        self.backend.check(regions)
        return self._describe(regions, options, pixels)

    def _describe(self, regions: Any, options: CaptionOptions, read: Sequence[np.ndarray] | None) -> list[Caption]:
        """`describe` of Regions that fit."""
        return self._said(self._searched(regions, options, read), options)

    def _named(self, regions: Any, options: CaptionOptions) -> Named | None:
        """What the head for names says, where it is asked."""
        wanted = self.names is not None and (options.tags or options.names)
        return self.names.look(regions) if self.names is not None and wanted else None

    def _searched(
        self,
        regions: Any,
        options: CaptionOptions,
        read: Sequence[np.ndarray] | None,
        named: Named | None = None,
        queued: bool = False,
    ) -> Searched:
        found = self._search(regions, options, named=named, queued=queued)
        return Searched(found.to_host(), read, self.backend.mark()) if queued else Searched(found, read)

    def _said(self, searched: Searched, options: CaptionOptions) -> list[Caption]:
        found, read, wait = searched
        if wait is not None:
            wait()
        captions = self.say(found, options)
        for at, source in enumerate(read or ()):
            if hasattr(source, "report"):  # a score: rules know something of it, too
                captions[at] = replace(captions[at], facts=source.report(captions[at].text))
        if not options.tags or (read and hasattr(read[0], "report")):
            return captions
        painted = [colours(one) if one.ndim == 3 else [] for one in read or ()] or [[]] * len(captions)
        return [
            replace(caption, tags=joined(self.speaker.tags(found, at, caption), paint))
            for at, (caption, paint) in enumerate(zip(captions, painted, strict=True))
        ]

    def stream(
        self,
        sources: Iterable[Source],
        options: CaptionOptions | None = None,
        *,
        batch_size: int | None = None,
        workers: int | None = None,
        processes: bool | Readers | None = None,
        **fields: Unpack[CaptionFields],
    ) -> Generator[tuple[Source, Caption | MeshcapError], None, None]:
        """Captions in the order of the sources; of a picture that cannot be read, the error that says why.

        for source, caption in captioner.stream(Path("holiday").glob("*.jpg")):
            print(source, caption)

        Threads read pictures a little ahead of the model; with a GPU, from the 513th on, processes do. Sources are
        taken as they are needed, up to three batches (with a GPU, six) before their captions come: a million of them
        take no more memory than a few. Closing the generator ends its threads and processes.

        Args:
            sources: paths, Pillow images, arrays, the bytes of files or open files, in any mixture.
            batch_size: pictures captioned together.
            workers: threads or processes that read pictures; as many as there are CPUs unless told.
            processes: whether processes read paths and bytes, from the first picture on; or what `readers` gave, which
                is left open. A batch with other sources is read by threads.

        Raises:
            MeshcapError: this captioner has no vision, or options have no sense.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size < 1 or (workers is not None and workers < 1):
            raise MeshcapError(f"batch_size is {size} and workers is {workers}, expected at least 1")
        if not self.reads_pictures:
            raise MeshcapError("this captioner has no vision of its own: give it Regions instead of pictures")
        options = options_of(options, fields)
        self.plan(options)  # mistakes are raised here
        workers = min(workers or os.cpu_count() or 1, AHEAD * size)
        if isinstance(processes, Readers):
            if processes.preprocess != self.backend.preprocess or processes.batch_size < size:
                raise MeshcapError("these readers were made for another captioner, or for smaller batches")
            return self._stream(sources, options, size, workers, processes, True)
        return self._stream(sources, options, size, workers, self.readers(size, workers, processes), False)

    def readers(self, batch_size: int, workers: int | None = None, processes: bool | None = None) -> Readers | None:
        """Processes for `stream`, if they are asked for and can read what this captioner sees. They start when needed.

        Args:
            processes: None: with a GPU, and not before the 513th picture.
        """
        given = self.backend.preprocess
        if not (self.backend.queues if processes is None else processes) or type(given) is not Preprocess:
            return None
        after = FEW if processes is None else 0
        return Readers(given, batch_size, workers or os.cpu_count() or 1, after=after) if can_read() else None

    @overload
    def score(self, picture: Source | Regions, text: str) -> Caption: ...
    @overload
    def score(self, picture: Source | Regions, text: list[str] | tuple[str, ...]) -> list[Caption]: ...
    def score(self, picture: Any, text: str | Sequence[str]) -> Caption | list[Caption]:
        """How likely a sentence is for a picture: `log_probs` has the log-probability of each word and of the end.

        Args:
            picture: what `caption` takes, one.
            text: a sentence, or several of the same picture.

        Raises:
            MeshcapError: a picture that cannot be read, words that the model does not know, too many of them.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise MeshcapError("no sentence given: expected at least one")
        regions = picture
        if not is_regions(picture):
            captioner, read = self.read_source(picture)
            regions = captioner.see([read])
            if captioner is not self:
                return captioner.score(regions, text)  # type: ignore[arg-type]
        settings = self.backend.settings
        ids = [[*ids_of_phrase(one, self.vocabulary, "in the caption"), settings.eos] for one in texts]
        longest = max(map(len, ids))
        if longest > settings.max_length:
            raise MeshcapError(f"the caption has {longest - 1} words, expected at most {settings.max_length - 1}")
        if len(regions) != 1:
            raise MeshcapError(f"regions of {len(regions)} pictures were given, expected those of one")
        self.backend.check(regions)
        captions = [
            self.speaker.caption_of(words, log_probs)
            for words, log_probs in zip(ids, self.backend.score(regions, ids), strict=True)
        ]
        return captions[0] if isinstance(text, str) else captions

    # What it remembers.

    def remember(
        self,
        picture: Source,
        captions: str | Sequence[str],
        *,
        names: str | Sequence[str] = (),
        source: str | None = None,
    ) -> int:
        """Remember a picture and what is said of it; returns the entry's id. From then on captions know it.

        captioner.remember("rex.jpg", "Rex on the sofa", names=["Rex"])

        Args:
            names: of who or what is in the picture.
            source: what to know the picture by; its path unless told.

        Raises:
            MeshcapError: a picture that cannot be read, an empty caption, no room.
        """
        from meshcap.memory import Entry

        if source is None and isinstance(picture, str | Path):
            source = os.path.abspath(picture)
        entry = Entry((captions,) if isinstance(captions, str) else tuple(captions), tuple(_listed(names)), source)
        entry = entry.checked()  # before the picture is looked at
        vectors = self.embed(self.see([self.read(picture)]))
        (id,) = self.open_memory().add(vectors, [entry])
        found: int = id
        return found

    def recall(self, picture: Source | None = None, *, text: str | None = None, k: int = 5) -> list[Any]:
        """Remembered pictures: the k nearest to a picture (`Neighbour`), or those of which a text was said (`Entry`).

        Raises:
            MeshcapError: neither or both are given, or the picture cannot be read.
        """
        if (picture is None) == (text is None):
            raise MeshcapError("recall takes a picture or a text: give one of them")
        memory = self._memory_or_default()
        if memory is None:
            return []
        if text is not None:
            return list(memory.find(text, k))
        assert picture is not None
        found: list[Any] = memory.nearest(self.embed(self.see([self.read(picture)])), k)[0]
        return found

    def forget(self, ids: int | Iterable[int]) -> int:
        """Remove entries from the memory, and every byte of them; returns how many there were."""
        memory = self._memory_or_default()
        return 0 if memory is None else int(memory.forget({ids} if isinstance(ids, int) else set(ids)))

    def expect_reader(self) -> None:
        """
        Raises:
            MeshcapError: this model has no weights that read a memory.
        """
        self._torch("reads no memory").memory_level()

    def _memory_or_default(self) -> Any:
        """The memory, or the user's own where there is one."""
        if self._memory is None:
            from meshcap.memory import default_place, is_store

            if is_store(default_place()):
                self.memory = default_place()
        return self._memory

    def open_memory(self, place: str | Path | None = None, *, engine: str | None = None) -> Any:
        """The memory; where there is none, a store is opened or made: in `place`, or in the user's data folder."""
        if place is None and self._memory is not None:
            return self._memory
        from meshcap.memory import create_store, default_place

        own = self._torch("reads no memory")
        self.memory = create_store(
            place or default_place(), vision=own.fingerprint(), width=own.settings.d_input, engine=engine
        )
        return self._memory

    # Keeping it.

    def save_pretrained(self, folder: str | Path, *, bits: Bits = 32, vision_bits: Bits | None = None) -> None:
        """Write vision, vocabulary, calibration and model into a folder, each file whole or not at all.

        Args:
            bits: 32 writes weights as they are; 16, 8, 6 and 4 round matrices, for smaller files.
            vision_bits: of the vision, where it should differ.
        """
        from meshcap.vision import save_vision

        backend = self._torch()
        backend.expect_plain("saved")
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MeshcapError(f"{folder} cannot be made a model folder: {error.strerror}") from error
        if backend.vision is not None:
            save_vision(backend.vision, folder, bits=bits if vision_bits is None else vision_bits)
        self.vocabulary.save(folder / VOCABULARY)
        if self.calibration is not None:
            self.calibration.save(folder)
        else:
            (folder / CALIBRATION).unlink(missing_ok=True)  # that of another model
        if self.names is not None:
            self.names.save(folder)
        else:
            for name in (NAMES, NAMES_TABLE):
                (folder / name).unlink(missing_ok=True)
        backend.save_memory_level(folder)
        backend.model.save_pretrained(folder, bits=bits)

    def push_to_hub(
        self, repo_id: str, *, private: bool | None = None, token: str | None = None, bits: Bits = 32, **commit: Any
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub; returns the address of the commit.

        Args:
            repo_id: `owner/name`; it is made where it does not exist.
            commit: other keywords of `huggingface_hub.HfApi.upload_folder`, such as `commit_message`.
        """
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, bits=bits)
            api.create_repo(repo_id, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder, **commit))

    # Parts of the above.

    def plan(self, options: CaptionOptions) -> Plan:
        """What a search with these options is told: a strategy and rules, in the ids of the vocabulary.

        Raises:
            MeshcapError: unknown words, more words than the model can say.
        """
        found = self._plans.get(options)
        if found is None or (options.strategy == "sample" and options.seed is None):  # a new seed each time
            names = self.names if options.names else None
            asked = sorted(names.among(options.must, self.vocabulary)) if names is not None else ()
            known, unsaid = self.vocabulary.extended(asked), tuple(names.forms) if names is not None else ()
            found = plan(options, known, self.backend.settings, self._words, unsaid)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[options] = found
        return found

    def read_source(self, source: Source) -> tuple[Captioner, np.ndarray]:
        """What `read` gives, and who captions it: the packaged captioner leaves scores to that of music."""
        if isinstance(source, Stored):
            source = source.read()
        try:
            return self, self.read(source)
        except MeshcapError:
            from meshcap.music.score import is_score  # here: a picture need not be asked

            if self._of_scores is None or not is_score(source):
                raise
        captioner = self.of_scores()
        return captioner, captioner.read(source)

    def of_scores(self) -> Captioner:
        """Who captions scores: of the packaged captioner that of music, of others themselves."""
        if self._of_scores is None:
            return self
        if not isinstance(self._of_scores, Captioner):
            self._of_scores = self._of_scores()
        return self._of_scores

    def caption_batches(
        self, batches: Iterable[ReadBatch], options: CaptionOptions
    ) -> Iterator[list[Caption | MeshcapError]]:
        """Captions of batches that were read, each a list in its order, with what could not be read as it came.

        While a GPU computes the next batches, captions of the last one are put into words, and nothing else makes it
        wait: batches are taken up to `AHEAD` before their captions come.
        """
        queued = self.backend.queues
        seen: deque[SeenBatch] = deque()
        begun: deque[BegunBatch] = deque()
        for batch in batches:
            seen.append(self._see(batch, options, queued))
            if len(seen) > queued:  # what names a batch has is asked while a GPU sees the next
                begun.append(self._begin(seen.popleft(), options, queued))
            if len(begun) > (AHEAD if queued else 0):
                yield self._end(begun.popleft(), options)
        while seen:
            begun.append(self._begin(seen.popleft(), options, queued))
        while begun:
            yield self._end(begun.popleft(), options)

    def _see(self, batch: ReadBatch, options: CaptionOptions, queued: bool = False) -> SeenBatch:
        """See each source by the captioner that read it."""
        parts: list[SeenPart] = []
        read = {place: one for place, one in enumerate(batch.read) if isinstance(one, tuple)}
        for captioner in dict.fromkeys(own for own, _ in read.values()):
            places = [place for place, (own, _) in read.items() if own is captioner]
            arrays = [read[place][1] for place in places]
            regions = captioner.see(arrays if captioner is not self or batch.pixels is None else batch.pixels)
            named = captioner._named(regions, options)
            wait = None
            if named is not None and queued:
                named, wait = named.to_host(), captioner.backend.mark()
            parts.append(SeenPart(captioner, places, arrays, regions, named, wait))
        return SeenBatch(batch, parts)

    def _begin(self, seen: SeenBatch, options: CaptionOptions, queued: bool = False) -> BegunBatch:
        """Search what was seen."""
        parts: list[tuple[Captioner, list[int], Searched]] = []
        for captioner, places, read, regions, named, wait in seen.parts:
            if wait is not None:
                wait()
            parts.append((captioner, places, captioner._searched(regions, options, read, named, queued)))
        return BegunBatch(seen.batch, parts)

    def _end(self, begun: BegunBatch, options: CaptionOptions) -> list[Caption | MeshcapError]:
        found: list[Any] = list(begun.batch.read)
        for captioner, places, searched in begun.parts:
            for place, caption in zip(places, captioner._said(searched, options), strict=True):
                found[place] = caption
        return found

    def _describe_all(self, read: Sequence[tuple[Captioner, np.ndarray]], options: CaptionOptions) -> list[Caption]:
        """A caption of each source that was read, by the captioner that read it."""
        found: list[Any] = self._end(self._begin(self._see(ReadBatch(read), options), options), options)
        return found

    def _one(self, picture: Source, options: CaptionOptions) -> Caption:
        captioner, read = self.read_source(picture)
        regions = captioner.see([read])
        (caption,) = captioner._describe(regions, options, [read])
        boxes = getattr(regions, "boxes", None)
        shown = read if read.ndim == 3 else None
        return replace(caption, picture=shown, boxes=None if boxes is None else boxes[0].float().cpu())

    def _stream(
        self,
        sources: Iterable[Source],
        options: CaptionOptions,
        size: int,
        workers: int,
        readers: Readers | None,
        kept: bool,
    ) -> Generator[tuple[Source, Caption | MeshcapError], None, None]:
        given: deque[Source] = deque()

        def remembered() -> Iterator[Source]:
            for source in sources:
                given.append(source)
                yield source

        batches = self._read_ahead(remembered(), size, workers, readers)
        try:
            for captions in self.caption_batches(batches, options):
                for caption in captions:
                    yield given.popleft(), caption
        finally:  # also where the generator is closed, or thrown away, in the middle
            batches.close()
            if readers is not None and not kept:
                readers.close()

    def _read_ahead(
        self, sources: Iterable[Source], size: int, workers: int, readers: Readers | None
    ) -> Generator[ReadBatch, None, None]:
        """Batches that processes or threads read, `AHEAD` of the one that is asked for."""
        rest, one_at_a_time = iter(sources), Lock()
        reading: deque[Callable[[], ReadBatch]] = deque()

        def read(source: Source) -> Read:
            # The same image or file may have been given twice, and both have a place where reading has got to.
            shared = isinstance(source, Image.Image) or (hasattr(source, "read") and not isinstance(source, Stored))
            try:
                with one_at_a_time if shared else nullcontext():
                    return self.read_source(source)
            except MeshcapError as error:
                return error

        def begin(block: list[Source]) -> Callable[[], ReadBatch]:
            if readers is not None and (batch := readers.begin(block)) is not None:
                return lambda: self._read_by(readers, batch, lambda number: pool.submit(read, block[number]))
            jobs = [pool.submit(read, source) for source in block]
            return lambda: ReadBatch([job.result() for job in jobs])

        pool = ThreadPoolExecutor(workers, thread_name_prefix="meshcap-stream")
        try:
            while True:
                while len(reading) <= AHEAD and (block := list(islice(rest, size))):
                    reading.append(begin(block))
                if not reading:
                    return
                yield reading.popleft()()
        finally:
            pool.shutdown(cancel_futures=True)
            if readers is not None:
                readers.settle()

    def _read_by(self, readers: Readers, batch: Batch, read: Callable[[int], Future[Read]]) -> ReadBatch:
        """What processes read of a batch. Pixels lie together: those after a picture without move up.

        Args:
            read: begins to read one here, by its number: a score, say.
        """
        rows, problems = readers.finish(batch)
        pixels = rows.transpose(0, 3, 1, 2)  # (B, 3, S, S), channels last in memory
        if not problems:
            return ReadBatch([(self, one) for one in pixels], pixels)
        here = {number: read(number) for number, problem in problems.items() if problem is None}
        found: list[Read] = []
        count = 0
        for number in range(len(rows)):
            if number in problems:
                result: Any = here[number].result() if number in here else problems[number]
                if isinstance(result, MeshcapError) or result[0] is not self:
                    found.append(result)
                    continue
                pixels[count] = result[1]
            elif count < number:
                rows[count] = rows[number]
            found.append((self, pixels[count]))
            count += 1
        return ReadBatch(found, pixels[:count])

    @property
    def speaker(self) -> Speaker:
        """Who puts hypotheses into words."""
        return Speaker(self.vocabulary, self.calibration, self.names)

    def _torch(self, lacks: str = "has no model in torch") -> Any:
        if self.backend.name != "torch":
            raise MeshcapError(f"a captioner by {self.backend.name} {lacks}: use backend='torch'")
        return self.backend

    def _expect_vocabulary(self) -> None:
        settings, vocabulary = self.backend.settings, self.vocabulary
        if len(vocabulary) != settings.vocab_size:
            raise MeshcapError(
                f"the vocabulary has {len(vocabulary)} words and the model was made for {settings.vocab_size}: "
                "they do not belong together"
            )
        for name in ("unk", "pad", "bos", "eos"):
            if getattr(vocabulary, name) != getattr(settings, name):
                raise MeshcapError(
                    f"<{name}> is word {getattr(vocabulary, name)} of the vocabulary and {getattr(settings, name)} "
                    "of the model: they do not belong together"
                )


Read = tuple[Captioner, np.ndarray] | MeshcapError  # of a source: who read it and what was read, or why it was not


@dataclass(frozen=True)
class ReadBatch:
    """Sources that are captioned together: of each who read it and what was read, or why it could not be.

    `pixels` are those that the captioner itself read, where they lie together already: (B, 3, S, S) uint8.
    """

    read: Sequence[Read]
    pixels: np.ndarray | None = None


class Searched(NamedTuple):
    """Hypotheses of pictures, and what was read of them."""

    found: Hypotheses
    read: Sequence[np.ndarray] | None
    wait: Callable[[], object] | None = None  # before the hypotheses are read


class SeenPart(NamedTuple):
    """What one captioner saw of a batch."""

    captioner: Captioner
    places: list[int]
    read: Sequence[np.ndarray]
    regions: Any
    named: Named | None
    wait: Callable[[], object] | None = None  # before the names are read


class SeenBatch(NamedTuple):
    """A batch that was seen; a GPU may still be at it."""

    batch: ReadBatch
    parts: Sequence[SeenPart]


@dataclass(frozen=True)
class BegunBatch:
    """A batch that was seen and searched, in parts by who read them; a GPU may still be at it."""

    batch: ReadBatch
    parts: Sequence[tuple[Captioner, Sequence[int], Searched]]


def options_of(options: CaptionOptions | None, fields: CaptionFields | dict[str, Any]) -> CaptionOptions:
    """Options with some of them given as keywords."""
    if options is None:
        return CaptionOptions(**fields) if fields else DEFAULT_OPTIONS
    return replace(options, **fields) if fields else options


DEFAULT_OPTIONS = CaptionOptions()


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def load_calibration(name_or_folder: str | Path, **hub: Any) -> Calibration | None:
    """How a model's confidence was measured; None where it was not."""
    path = find_optional(name_or_folder, CALIBRATION, **hub)
    if path is None:
        return None
    from meshcap.calibration import Calibration  # here: most models have none

    return Calibration.load(path)


def load_names(name_or_folder: str | Path, **hub: Any) -> Names | None:
    """A model's head for names; None where it has none."""
    if find_optional(name_or_folder, NAMES, **hub) is None:
        return None
    from meshcap.names import Names  # here: most models have none

    return Names.load(name_or_folder, **hub)


def is_regions(given: object) -> bool:
    """Where `meshcap.regions` was never imported nothing is Regions, and it need not be imported to find that out."""
    module = sys.modules.get("meshcap.regions")
    return module is not None and isinstance(given, module.Regions)


def _open_backend(
    name: str, name_or_folder: str | Path, device: Any, dtype: Any, threads: int | None, hub: dict[str, Any]
) -> Backend:
    if name == "torch":
        from meshcap.backends.torch_backend import TorchBackend

        return TorchBackend.load(name_or_folder, device=device, dtype=dtype, **hub)
    if str(device) not in ("auto", "cpu") or str(dtype).removeprefix("torch.") not in ("auto", "float32"):
        raise MeshcapError("an exported model runs on the CPU with the numbers it was exported with")
    if name == "onnx":
        from meshcap.backends.onnx_backend import OnnxBackend

        return OnnxBackend(folder_of(name_or_folder), threads=threads)
    from meshcap.backends.export_backend import ExportBackend

    return ExportBackend(folder_of(name_or_folder), threads=threads)


def _expect_width(model: CaptionModel, vision: Vision | None) -> None:
    if vision is not None and vision.width != model.config.d_input:
        raise MeshcapError(
            f"the vision gives {vision.width} numbers a region and the model was made for {model.config.d_input}: "
            "they do not belong together"
        )


def _shown(blocks: Iterable[Any], total: int, progress: bool) -> Iterator[Any]:
    """Blocks of pictures, with a bar on stderr where it was asked for."""
    if not progress:
        yield from blocks
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("captions", total=total)
        for block in blocks:
            yield block
            bar.advance(task, len(block))
