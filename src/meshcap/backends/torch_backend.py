"""torch: the model itself, on a CPU or a GPU.

A loaded model stays as it is: it can be saved, copied and trained. What makes inference fast on a CPU, weights in
oneDNN's layout and convolutions with their normalisation folded in, is made of a copy at the first use (matrices that
are not rearranged are shared with the original), or in place by `optimize`. On a GPU decoding steps are captured as
CUDA graphs, one for each shape of a batch.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from meshcap.backends.base import Backend
from meshcap.backends.exported import expect_not_exported
from meshcap.backends.packed import can_pack, multiplies_bfloat16, pack
from meshcap.decoding.extension import Extended, Extension, Shares, join
from meshcap.decoding.records import Hypotheses, Rules, Strategy
from meshcap.decoding.search import Decodable, Graphs, State, decode, fill_up
from meshcap.errors import MeshcapError
from meshcap.folders import CENTRE, MEMORY, MEMORY_CONFIG, find_file, find_optional
from meshcap.models import M2, CaptionModel, ModelConfig, load_model
from meshcap.models.memory_level import MemoryLevel, Remembering, picture_vectors
from meshcap.models.recollection import Recollection, stand_ins
from meshcap.regions import Regions
from meshcap.vision import Preprocess, Vision, load_vision
from meshcap.weights import read_weights, save_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
Weights = tuple[tuple[int, int], ...]  # where weights lie and how often they were changed


class Prepared(NamedTuple):
    """What inference runs, and the weights that it was made of."""

    model: CaptionModel
    vision: Vision | None
    made_of: Weights


class TorchBackend(Backend):
    """A model, and the vision that makes its Regions where it has one."""

    name = "torch"

    def __init__(self, model: CaptionModel, vision: Vision | None = None, *, int8: bool = False, prepare: bool = False):
        """
        Args:
            int8: linear maps run with weights of 8 bits, on a CPU.
            prepare: run a copy that is prepared for inference; without, what was given runs as it is.
        """
        self.model = model.eval()
        self.vision = None if vision is None else vision.eval()
        self.settings: ModelConfig = model.config
        parts = (model, vision)
        self.weights = sum(one.numel() for part in parts if part is not None for one in part.parameters())
        self.preprocess: Preprocess | None = None if vision is None else vision.preprocess
        self.int8, self.prepare, self.optimized = int8, prepare, False
        self.graphs = Graphs()
        self.level: MemoryLevel | None = None  # once it was needed
        self.centre: torch.Tensor | None = None  # (D,) of the vectors that a memory compares
        self.source: tuple[str | Path, dict[str, Any]] | None = None  # where the model came from
        self._in_files: bool | None = None  # whether the model came with what reads a memory
        self._prepared: Prepared | None = None
        self._prepared_level: tuple[MemoryLevel, Weights] | None = None  # what reads a memory, and what it was made of
        self._fingerprint: str | None = None  # of what was optimized in place
        self._lock = threading.Lock()

    @classmethod
    def load(cls, name_or_folder: str | Path, *, device: Any = "auto", dtype: Any = "auto", **hub: Any) -> Self:
        """A model folder or a model on the hub, in the numbers that it is to run with: no other copy ever exists.

        Raises:
            MeshcapError: no such model or device, or files that do not fit.
        """
        where = device_of(device)
        kind = dtype_of(dtype, where)
        expect_not_exported(name_or_folder)
        int8 = kind == torch.int8
        if int8 and not (where.type == "cpu" and can_pack(torch.int8)):
            raise MeshcapError("int8 weights need an x86 CPU and a torch with int8 kernels: use bfloat16")
        kept = torch.float32 if int8 else kind
        model = load_model(name_or_folder, dtype=kept, **hub).to(where)
        # There are no convolutions of 8 bits. Those of 16 are faster and smaller, where a CPU can multiply such.
        vision = load_vision(name_or_folder, dtype=torch.bfloat16 if int8 and multiplies_bfloat16() else kept, **hub)
        found = cls(model, None if vision is None else vision.to(where), int8=int8, prepare=True)
        found.source = name_or_folder, hub
        centre = find_optional(name_or_folder, CENTRE, **hub)
        found.centre = None if centre is None else _read_centre(centre, model.config.d_input)
        return found

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return torch.int8 if self.int8 else self.model.dtype

    @property
    def batch_size(self) -> int:
        if self.device.type == "cuda":
            return 64
        return 4  # of a CPU: more take memory and save little

    @property
    def queues(self) -> bool:
        return self.device.type == "cuda"

    def mark(self) -> Callable[[], object]:
        if not self.queues:
            return super().mark()
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        return event.synchronize

    @torch.no_grad()
    def see(self, pixels: Sequence[np.ndarray] | np.ndarray) -> Regions:
        vision, device = self.prepared().vision, self.device
        assert vision is not None
        stacked = torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else vision.stack(pixels)
        if self.queues:  # a copy from pageable memory would wait for all that the device has yet to do
            pageable, stacked = stacked, torch.empty_like(stacked, pin_memory=True)
            np.copyto(stacked.numpy(), pageable.numpy())  # by one thread: torch's would wait for cores of the readers
        return vision(stacked.to(device, non_blocking=True).contiguous())

    def check(self, seen: Any) -> None:
        if not isinstance(seen, Regions):
            raise MeshcapError(f"regions were given as {type(seen).__name__}, expected Regions")
        self.model.expect_regions(seen)
        seen.expect_numbers()

    def search(
        self,
        seen: Regions,
        strategy: Strategy,
        rules: Rules,
        *,
        n_best: int = 1,
        attention: bool = False,
        extension: Extension | None = None,
        memory: Recollection | None = None,
        queued: bool = False,
    ) -> Hypotheses:
        model: Decodable = self.prepared().model
        graphs: Graphs | None = self.graphs
        regions, encoded, known = self._fitting(seen), None, model.config.vocab_size
        remembered, runs = None, model
        if memory is not None:
            model, encoded, remembered = self.remembering(regions, memory)
            extension = extension and extension.moved(known, len(remembered.words))
            runs, graphs = model, None  # memories are of other sizes in the next search: nothing would be replayed
        if extension is not None:
            extension.check(model.config, len(seen))
            runs = model = Extended(model, extension)
            if self.queues and memory is None and not attention:  # other words, and the same steps
                regions = fill_up(regions)
                runs = Extended(model.model, extension.filled_up(len(regions)), roomy=True)
                encoded = runs.encode(regions)
            else:
                graphs = None
        found = decode(
            runs, regions, strategy, rules, n_best=n_best, attention=attention, graphs=graphs, encoded=encoded,
            pictures=len(seen), stop_early=not queued,  # of a hundred pictures, one is nearly always not at its end
        )  # fmt: skip
        if remembered is None and extension is None:
            return found
        return replace(found, extension=join(remembered, extension), speaker=model, recollection=memory)

    @torch.no_grad()
    def remembering(self, regions: Regions, memory: Recollection) -> tuple[Decodable, State, Extension]:
        """The model with what is remembered of these pictures, the pictures as it encodes them, and its new words."""
        model, level = self.prepared().model, self.prepared_level()
        if not isinstance(model, M2):
            raise MeshcapError(f"a memory is read by m2, and this model is {model.name!r}: leave the memory out")
        encoded = model.project(model.encode(regions))
        stand_in, kin = stand_ins(model, encoded, memory, level.nouns)
        found = Remembering(model, level, memory.memories(stand_in, level.config).to(regions.features.device))
        words = Extension(memory.words, tuple(stand_in), proper=memory.proper)
        encoded = found.recall(encoded, found.memories.state()) if found.memories is not None else encoded
        named = sorted({word for names in memory.names for word in names})
        if not named:
            return found, encoded, words
        share = torch.zeros(len(memory.names), len(named))
        for row, names in enumerate(memory.names):
            for word in names:
                share[row, named.index(word)] = 1 / len(names)
        first = model.config.vocab_size
        shares = Shares(tuple(named), tuple(kin[word - first] for word in named), share.to(regions.features.device))
        return Extended(found, Extension((), (), shares)), encoded, words

    @torch.no_grad()
    def embed(self, regions: Regions) -> torch.Tensor:
        """(B, D) of length 1, by which a memory compares pictures."""
        return picture_vectors(regions, self.centre)

    def has_memory_level(self) -> bool:
        if self._in_files is None:  # asked once: of a model on the hub, it may be a request
            found = self.source and find_optional(self.source[0], MEMORY, **self.source[1])
            self._in_files = found is not None
        return self.level is not None or self._in_files

    def save_memory_level(self, folder: Path) -> None:
        """Write what a memory needs into a model folder; where there is none, that of another model is removed."""
        if self.centre is not None:
            save_weights(folder / CENTRE, {"centre": self.centre})
        else:
            (folder / CENTRE).unlink(missing_ok=True)
        if self.has_memory_level():
            self.memory_level().float().save(folder / MEMORY)
            return
        for name in (MEMORY, MEMORY_CONFIG):
            (folder / name).unlink(missing_ok=True)

    def memory_level(self) -> MemoryLevel:
        """What reads a memory, loaded when it is first needed.

        Raises:
            MeshcapError: the model has none.
        """
        with self._lock:
            if self.level is None:
                path = None if self.source is None else find_optional(self.source[0], MEMORY, **self.source[1])
                if path is None or self.source is None:
                    raise MeshcapError(f"this model has no {MEMORY}, which reads a memory: it can recall, no more")
                find_file(self.source[0], MEMORY_CONFIG, **self.source[1])  # beside it
                self.level = MemoryLevel.load(path)
            weight, own = next(self.model.parameters()), self.level.new
            if (own.device, own.dtype) != (weight.device, weight.dtype):
                self.level.to(weight.device, weight.dtype)
            return self.level

    @torch.no_grad()
    def score(self, seen: Regions, ids: Sequence[Sequence[int]]) -> list[list[float]]:
        config = self.settings
        longest = max(map(len, ids))
        words = torch.tensor([[*one, *[config.pad] * (longest - len(one))] for one in ids], device=self.device)
        before = torch.cat((torch.full_like(words[:, :1], config.bos), words[:, :-1]), -1)
        log_probs = self.prepared().model(self._fitting(seen), before[None])[0]  # (S, T, V)
        found = log_probs.float().gather(-1, words[..., None])[..., 0].tolist()
        return [row[: len(one)] for row, one in zip(found, ids, strict=True)]

    def _fitting(self, regions: Regions) -> Regions:
        """On the model's device, in its numbers."""
        weight, features = next(self.model.parameters()), regions.features
        if features.device == weight.device and features.dtype == weight.dtype:
            return regions
        return regions.to(weight.device, weight.dtype)

    def fingerprint(self) -> str:
        """The same for the same vision in any numbers, and another for another: what a memory's vectors belong to."""
        if self._fingerprint is not None:
            return self._fingerprint
        digest = hashlib.blake2b(digest_size=12)
        digest.update(f"mean of {self.settings.d_input}".encode())
        if self.centre is not None:
            digest.update(self.centre.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
        if self.vision is not None:
            digest.update(json.dumps([self.vision.name, self.vision.settings()], sort_keys=True).encode())
            for name, weights in sorted(self.vision.state_dict().items()):
                # A few numbers of each tensor: another training changed all of them. bfloat16 is what is loaded least.
                some = weights.detach().flatten()[:: max(1, weights.numel() // 64)].to("cpu", torch.bfloat16)
                digest.update(name.encode() + some.view(torch.int16).numpy().tobytes())
        return digest.hexdigest()

    def prepared(self) -> Prepared:
        """What inference runs: on a CPU a copy, made when it is first needed and again when weights have changed."""
        if self.optimized or not self.prepare or self.device.type != "cpu":
            return Prepared(self.model, self.vision, ())
        now = _weights_of(self.model, self.vision)
        with self._lock:
            if self._prepared is None or self._prepared.made_of != now:
                model: CaptionModel = _sharing_copy(self.model)
                pack(model, int8=self.int8)
                vision = None if self.vision is None else _sharing_copy(self.vision)
                if vision is not None:
                    vision.fold()
                    pack(vision)
                self._prepared = Prepared(model, vision, now)
            return self._prepared

    def prepared_level(self) -> MemoryLevel:
        """What reads a memory, as inference runs it: see `prepared`.

        Raises:
            MeshcapError: the model has none.
        """
        level = self.memory_level()
        if not (self.optimized or self.prepare) or self.device.type != "cpu":
            return level
        with self._lock:
            if self._prepared_level is None or self._prepared_level[1] != _weights_of(level):
                found = level if self.optimized else _sharing_copy(level)
                found.fold()
                pack(found, int8=self.int8)
                self._prepared_level = found, _weights_of(level)
            return self._prepared_level[0]

    def optimize(self) -> None:
        with self._lock:
            if self.optimized:
                return
            self._fingerprint = self.fingerprint()  # of the weights as they were
            self._prepared = None
            self.model.requires_grad_(False)
            if self.vision is not None:
                self.vision.requires_grad_(False)
            if self.device.type == "cpu":
                pack(self.model, int8=self.int8)
                if self.vision is not None:
                    self.vision.fold()
                    pack(self.vision)
            self.optimized = True
        _release_memory()

    def to(self, device: Any = None, dtype: Any = None) -> None:
        if self.optimized:
            raise MeshcapError("this captioner was optimized in place and cannot be moved: load it again")
        where = self.device if device is None else device_of(device)
        kind = self.dtype if dtype is None else dtype_of(dtype, where)
        if kind == torch.int8 and not (where.type == "cpu" and can_pack(torch.int8)):
            raise MeshcapError("int8 weights need an x86 CPU and a torch with int8 kernels: use bfloat16")
        self.int8 = kind == torch.int8
        self.prepare = self.prepare or self.int8
        for module in (self.model, self.vision):
            if module is not None:
                module.to(where, torch.float32 if self.int8 else kind)
        self._forget()

    def expect_plain(self, purpose: str) -> None:
        """
        Raises:
            MeshcapError: the weights were rearranged in place.
        """
        if self.optimized:
            raise MeshcapError(f"this captioner was optimized in place and cannot be {purpose}: load it again")

    def _forget(self) -> None:
        self._prepared, self._prepared_level, self.graphs, self._lock = None, None, Graphs(), threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the model and the vision, nothing that was made of them."""
        self.expect_plain("copied")
        made = ("_prepared", "_prepared_level", "graphs", "_lock")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _read_centre(path: Path, width: int) -> torch.Tensor:
    found = read_weights(path).get("centre")
    if found is None or found.shape != (width,):
        raise MeshcapError(f"{path} does not fit the model: expected a vector 'centre' of {width} numbers")
    return found.float()


def _release_memory() -> None:
    """Give what the allocator keeps of freed weights back to the system, where it can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _weights_of(*modules: nn.Module | None) -> Weights:
    return tuple((p.data_ptr(), p._version) for module in modules if module is not None for p in module.parameters())


def _sharing_copy(module: Any) -> Any:
    """A copy whose weights are those of the original, until it replaces them."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(one): one for one in tensors})


def device_of(name: Any) -> torch.device:
    """A device by name; "auto" is a GPU where there is one.

    Raises:
        MeshcapError: no such device.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise MeshcapError(f"device is {name!r}, expected auto, cpu, cuda or mps") from error
    if device.type == "cuda" and not cuda:
        raise MeshcapError("device is cuda, and torch sees no CUDA device: use cpu or auto")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise MeshcapError(f"device is {device}, and torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not mps:
        raise MeshcapError("device is mps, and torch sees no Apple GPU: use cpu or auto")
    if device.type not in ("cpu", "cuda", "mps"):
        raise MeshcapError(f"device is {name!r}, expected auto, cpu, cuda or mps")
    return device


def dtype_of(name: Any, device: torch.device) -> torch.dtype:
    """Numbers to compute with, by name; "auto" is bfloat16 on GPUs and CPUs with instructions for it, else float32.

    Raises:
        MeshcapError: an unknown name.
    """
    if name == "auto":
        if device.type == "cuda":
            fits = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            fits = device.type == "cpu" and multiplies_bfloat16()
        return torch.bfloat16 if fits else torch.float32
    found = DTYPES.get(name) if isinstance(name, str) else name if name in DTYPES.values() else None
    if found is None:
        raise MeshcapError(f"dtype is {str(name)!r}, expected auto, {', '.join(DTYPES)}")
    return found
