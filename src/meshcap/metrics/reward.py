"""Rewards for self-critical training: candidates in ids against the references of their training pictures.

A reward is built once from the training captions and then called with candidates (B, S, T), S for each of B
pictures, and the pictures' indices (B,); it returns (B, S). Arrays give a float64 array, tensors a float32 tensor on
the same device. Candidates end before the first pad, and with the first eos, which counts like a word: a reward that
cannot see the end teaches captions that stop in the middle of a phrase.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from meshcap.errors import MeshcapError
from meshcap.metrics.ngrams import ORDERS, Array, bleu_from_statistics, rouge_l_of
from meshcap.metrics.reward_kernels import (
    LARGEST_ID,
    SPREAD,
    Batch,
    Rarity,
    References,
    cider_arrays,
    cider_compiled,
    compiled,
    nbytes,
    prepare,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Index = TypeVar("Index", References, Rarity)
Ids = TypeVar("Ids")  # arrays in, array out; tensors in, tensor out


class Reward(ABC):
    """What all rewards share: references, shapes, and arrays or tensors."""

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[int]]],
        *,
        eos: int | None,
        pad: int,
        count_eos: bool = True,
    ) -> None:
        """From the references of every training picture, as lists of ids.

        Args:
            eos: ends candidates; None: only pad does.
            pad: fills candidates up.
            count_eos: eos is the last word of references and of candidates that have one.

        Raises:
            MeshcapError: a picture without references, or an id that is negative or beyond 65,534.
        """
        self.references = References.build(references, eos=eos, pad=pad, count_eos=count_eos)

    @property
    @abstractmethod
    def signature(self) -> str:
        """How the figures were computed, in one line: equal for rewards that may be compared."""

    @abstractmethod
    def _score(self, ids: Array, pictures: Array) -> Array:
        """(N,) float64 from ids (N, T) and pictures (N,)."""

    def __call__(self, candidates: Ids, pictures: Any) -> Ids:
        """(B, S) for candidates (B, S, T) of pictures (B,).

        Raises:
            MeshcapError: shapes that do not fit, a picture or an id that does not exist.
        """
        given: Any = candidates
        if torch := _torch_of(given):
            found = self(given.detach().cpu().numpy(), torch.as_tensor(pictures).cpu().numpy())
            return torch.from_numpy(found).to(given.device, torch.float32)
        return self._checked(numpy.asarray(given), numpy.asarray(pictures))  # type: ignore[return-value]

    def _checked(self, ids: Array, pictures: Array) -> Array:
        _check_shapes(ids, pictures)
        for given in (ids, pictures):
            if given.dtype.kind not in "iu":
                raise MeshcapError(f"candidates and pictures are of {given.dtype}, expected whole numbers")
        if ids.size and not 0 <= ids.min() <= ids.max() <= LARGEST_ID:
            raise MeshcapError(f"candidates have ids {ids.min()} to {ids.max()}, expected 0 to {LARGEST_ID}")
        if len(pictures) and not 0 <= pictures.min() <= pictures.max() < len(self.references):
            raise MeshcapError(
                f"pictures are {pictures.min()} to {pictures.max()}, expected 0 to {len(self.references) - 1}"
            )
        batch, samples, length = ids.shape
        rows = ids.reshape(batch * samples, length).astype(numpy.int64, copy=False)
        flat = self._score(rows, numpy.repeat(pictures, samples))
        return flat.reshape(batch, samples)

    def _batch(self, ids: Array, pictures: Array) -> Batch:
        """Beside each other, with no more room than these pictures' references need."""
        known = self.references
        first, end = known.firsts[pictures], known.firsts[pictures + 1]
        most = int((end - first).max(initial=1))
        captions = first[:, None] + numpy.arange(most)
        captions = numpy.minimum(captions, end[:, None] - 1)
        longest = int((known.starts[captions + 1] - known.starts[captions]).max(initial=1))
        places = numpy.arange(max(most, longest, ids.shape[1]))
        return prepare(numpy, known, ids, pictures, places, most, longest)

    def _described(self, name: str, *settings: str) -> str:
        eos = "counted" if self.references.count_eos else "left out"
        return ", ".join((name, *settings, f"{len(self.references)} pictures", f"eos {eos}"))


class CiderReward(Reward):
    """CIDEr-D on the scale of `cider_d` for each picture: ten times a mean of cosines, 1.0 being a paper's 100.

    Document frequencies are of the training references and count pictures, not captions. Equal to `cider_d` of the
    same tokens with these frequencies. numba, if it is there, scores on a CPU; a CUDA tensor is scored on its GPU.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[int]]],
        *,
        eos: int | None,
        pad: int,
        count_eos: bool = True,
        sigma: float = 6.0,
        n: int = 4,
    ) -> None:
        """As every reward; sigma and n as in `cider_d`."""
        super().__init__(references, eos=eos, pad=pad, count_eos=count_eos)
        self.sigma = sigma
        self.rarity = Rarity.build(self.references, n)
        self._devices: dict[torch.device, DeviceCider] = {}

    @property
    def signature(self) -> str:
        return self._described(
            "CIDEr-D", f"n {self.rarity.n}", f"sigma {self.sigma:g}", "df of the training references"
        )

    @property
    def nbytes(self) -> int:
        """Memory of the index."""
        return nbytes(self.references, self.rarity)

    def __call__(self, candidates: Ids, pictures: Any) -> Ids:
        """As every reward; on a GPU the values of candidates and pictures are not checked, which would wait for it."""
        given: Any = candidates
        torch = _torch_of(given)
        if torch is None or not given.is_cuda:
            return super().__call__(candidates, pictures)
        pictures = torch.as_tensor(pictures, device=given.device)
        _check_shapes(given, pictures)
        return self.on(given.device)(given, pictures)  # type: ignore[return-value]

    def on(self, device: torch.device) -> DeviceCider:
        """The scorer of a device. The first call copies the index there; what follows can be captured in a graph."""
        if device not in self._devices:
            self._devices[device] = DeviceCider(self.references, self.rarity, self.sigma, device)
        return self._devices[device]

    def _score(self, ids: Array, pictures: Array) -> Array:
        if compiled() is not None:
            return cider_compiled(self.references, self.rarity, ids, pictures, self.sigma)
        return cider_arrays(numpy, self._batch(ids, pictures), self.rarity, self.sigma)


class DeviceCider:
    """The index of a `CiderReward` on one device, and the scoring there: nothing leaves the device or waits for it.

    On CUDA one Triton kernel does it all; elsewhere, and where Triton is missing, the same comes from torch's
    operations. Shapes depend on nothing but shapes, so both can be captured in a CUDA graph once they ran.
    """

    def __init__(self, references: References, rarity: Rarity, sigma: float, device: torch.device) -> None:
        import torch

        self.references, self.rarity, self.sigma = _move(references, device), _move(rarity, device), sigma
        from meshcap.kernels import LONGEST_CANDIDATE

        room = max(LONGEST_CANDIDATE, references.most, references.longest)
        self._places = torch.arange(room, device=device)
        # As a tensor, because Triton takes plain numbers in single precision.
        self._narrow = torch.tensor([1 / (2 * sigma**2)], dtype=torch.float64, device=device)

    def __call__(self, candidates: Tensor, pictures: Tensor) -> Tensor:
        """CIDEr-D (B, S) in float32 of candidates (B, S, T) for pictures (B,); neither's values are checked."""
        batch, samples, length = candidates.shape
        ids = candidates.reshape(batch * samples, length).contiguous()
        from meshcap.kernels import can_cider

        if can_cider(ids):
            found = self._launch(ids, pictures.contiguous(), samples)
        else:
            found = self._arrays(ids, pictures.repeat_interleave(samples, output_size=batch * samples))
        return found.view(batch, samples)

    def _arrays(self, ids: Tensor, pictures: Tensor) -> Tensor:
        import torch

        known = self.references
        if ids.shape[1] > len(self._places):
            self._places = torch.arange(ids.shape[1], device=ids.device)
        batch = prepare(torch, known, ids.long(), pictures.long(), self._places, known.most, known.longest)
        return cider_arrays(torch, batch, self.rarity, self.sigma).float()

    def _launch(self, ids: Tensor, pictures: Tensor, samples: int) -> Tensor:
        from meshcap.kernels import cider_d

        known, rarity = self.references, self.rarity
        return cider_d(
            ids, pictures, known.tokens, known.starts, known.firsts, rarity.norms,
            rarity.entries, rarity.buckets, rarity.idf, self._narrow,
            samples=samples, eos=known.eos, pad=known.pad, spread=SPREAD, bits=rarity.bits, fullest=rarity.fullest,
            count_eos=known.count_eos, n=rarity.n,
        )  # fmt: skip


class BleuReward(Reward):
    """BLEU-4 of each candidate by itself, from 0 to 1, as coco-caption's for each picture."""

    @property
    def signature(self) -> str:
        return self._described("BLEU-4", "closest length")

    def _score(self, ids: Array, pictures: Array) -> Array:
        batch = self._batch(ids, pictures)
        table = numpy.zeros((len(ids), 2 * ORDERS + 2))  # as of bleu_statistics
        for k, (own, counts) in enumerate(batch.counts(numpy, ORDERS)):
            # A gram said twice stands at two places: half at each.
            table[:, k] = (numpy.minimum(own, counts.max(1)) / own.clip(1)).sum(-1)
            table[:, ORDERS + k] = (batch.lengths - k).clip(0)
        table[:, -2] = batch.lengths
        apart = numpy.abs(batch.reference_lengths - batch.lengths[:, None])
        width = int(batch.reference_lengths.max(initial=0)) + 1
        rank = numpy.where(batch.there, apart * width + batch.reference_lengths, numpy.iinfo(numpy.int64).max)
        table[:, -1] = rank.min(-1) % width  # of two equally near, the shorter
        return bleu_from_statistics(table)[:, -1]


class RougeReward(Reward):
    """ROUGE-L of each candidate, from 0 to 1."""

    @property
    def signature(self) -> str:
        return self._described("ROUGE-L")

    def _score(self, ids: Array, pictures: Array) -> Array:
        places = numpy.arange(ids.shape[1])
        lengths = prepare(numpy, self.references, ids, pictures, places, 0, 0).lengths.tolist()
        captions = {picture: self.references.captions(picture) for picture in set(pictures.tolist())}
        rows = zip(ids.tolist(), lengths, pictures.tolist(), strict=True)
        return numpy.array([rouge_l_of(words[:end], captions[picture]) for words, end, picture in rows])


class MixedReward:
    """A weighted sum of rewards: MixedReward([(1.0, CiderReward(…)), (0.5, BleuReward(…))])."""

    def __init__(self, parts: Sequence[tuple[float, Reward]]) -> None:
        if not parts:
            raise MeshcapError("no rewards were given to mix, expected at least one")
        self.parts = list(parts)

    @property
    def signature(self) -> str:
        return " + ".join(f"{weight:g} × ({reward.signature})" for weight, reward in self.parts)

    def __call__(self, candidates: Ids, pictures: Any) -> Ids:
        """(B, S), as every reward."""
        total: Any = 0.0
        for weight, reward in self.parts:
            found: Any = reward(candidates, pictures)
            total = total + weight * found
        return total


def _torch_of(candidates: object) -> Any:
    """The module torch if these are a tensor of it: nobody who has one has not imported it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(candidates, torch.Tensor) else None


def _check_shapes(candidates: Any, pictures: Any) -> None:
    given, indices = tuple(candidates.shape), tuple(pictures.shape)
    if len(given) != 3 or indices != given[:1]:
        raise MeshcapError(f"candidates are {given} and pictures {indices}, expected (B, S, T) and (B,)")


def _move(index: Index, device: torch.device) -> Index:
    import torch

    arrays = {field.name: getattr(index, field.name) for field in fields(index)}
    tensors = {
        name: torch.from_numpy(array).to(device) for name, array in arrays.items() if isinstance(array, numpy.ndarray)
    }
    return replace(index, **tensors)  # type: ignore[arg-type]
