"""Words for the moment: what a captioner says although no weight of it knows the word, for one search.

Words e = 0 … E - 1 get the ids V + e after those of the vocabulary. Where one was said, its *stand-in* is read back, a
word of the vocabulary that is used alike. Their probability is taken from their *kin*, words of the vocabulary that
would be said in their place: of picture b word e takes the share s_be of whatever its kin k get at this place,

    p'(e) = p(e) + Σ_k s_be p(k)        p'(k) = (1 - Σ_e s_be) p(k)

so that probabilities still sum to 1, and searches, constraints, attention and confidence work as they do without. A
share may go to a word of the vocabulary as well (its id instead of a new one).

B pictures, W hypotheses of each, V vocabulary, E words for the moment, S receivers of shares, U kin of any of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap.decoding.records import Settings
from meshcap.decoding.search import Decodable, State
from meshcap.errors import MeshcapError
from meshcap.regions import Regions

TENSORS = ("stand_in", "receivers", "kin", "taken")
TOLERANCE = 1e-5  # by which rounded shares may add up to more than all


@dataclass(frozen=True)
class Shares:
    """Who takes how much of whose probability."""

    ids: tuple[int, ...]  # (S) the receivers: words for the moment, V + e, or words of the vocabulary
    kin: tuple[tuple[int, ...], ...]  # (S) of each, the ids that it takes from
    share: Tensor  # (B, S) from 0 to 1

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.kin) == self.share.shape[-1] or self.share.dim() != 2:
            raise MeshcapError(
                f"{len(self.ids)} words with {len(self.kin)} lists of kin and shares of shape "
                f"{tuple(self.share.shape)}: expected as many of each, shares as (pictures, words)"
            )
        if len(set(self.ids)) < len(self.ids):
            raise MeshcapError("a word is to take shares twice: give it one list of kin")
        for one, kin in zip(self.ids, self.kin, strict=True):
            if one in kin:
                raise MeshcapError(f"word id {one} is its own kin: leave it out of the list")

    def table(self) -> tuple[Tensor, Tensor]:
        """The kin (U,) of any receiver, and the share (B, S, U) that each receiver takes of each.

        Raises:
            MeshcapError: shares below 0, or such that all receivers of a kin take more than it has.
        """
        among = sorted({one for kin in self.kin for one in kin})
        member = torch.zeros(len(self.ids), len(among), device=self.share.device)
        for row, kin in enumerate(self.kin):
            member[row, [among.index(one) for one in kin]] = 1
        taken = self.share.float()[..., None] * member
        if not bool((self.share >= 0).all()) or bool((taken.sum(1) > 1 + TOLERANCE).any()):
            raise MeshcapError("shares are below 0 or add up to more than 1 for one word: scale them down")
        return torch.tensor(among, dtype=torch.long, device=self.share.device), taken


@dataclass(frozen=True)
class Extension:
    """Words for the moment, for one search over B pictures.

    `words` may hold spaces ("red panda"). A `proper` one is a name ("Rex"): it is written without an article.
    """

    words: tuple[str, ...]
    stand_in: tuple[int, ...]
    shares: Shares | None = None
    proper: tuple[bool, ...] = ()  # none is, unless told

    def __post_init__(self) -> None:
        if len(self.words) != len(self.stand_in) or len(self.proper) not in (0, len(self.words)):
            raise MeshcapError(
                f"{len(self.words)} words with {len(self.stand_in)} stand-ins and {len(self.proper)} marks of names: "
                "expected one each"
            )
        if len(set(self.words)) < len(self.words) or not all(word.split() for word in self.words):
            raise MeshcapError("a word for the moment is empty or given twice: expected different words")

    def moved(self, known: int, by: int) -> Extension:
        """The same for a model that says `by` more words after the first `known`: ids from there on go up."""

        def up(ids: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(id + by if id >= known else id for id in ids)

        shares = self.shares and Shares(up(self.shares.ids), tuple(map(up, self.shares.kin)), self.shares.share)
        return replace(self, stand_in=up(self.stand_in), shares=shares)

    def filled_up(self, pictures: int) -> Extension:
        """The same for a batch with more pictures behind its own, all like the last of these."""
        if self.shares is None or len(self.shares.share) == pictures:
            return self
        last = self.shares.share[-1:].expand(pictures - len(self.shares.share), -1)
        return replace(self, shares=replace(self.shares, share=torch.cat((self.shares.share, last))))

    def check(self, model: Settings, pictures: int) -> None:
        """
        Raises:
            MeshcapError: ids that are no words of the model, or shares of another number of pictures.
        """
        known = range(model.vocab_size)
        for one in (*self.stand_in, *(k for kin in (self.shares.kin if self.shares else ()) for k in kin)):
            if one not in known:
                raise MeshcapError(f"stand-ins and kin are words of the vocabulary of {len(known)}, and {one} is not")
        if self.shares is None:
            return
        for one in self.shares.ids:
            if one not in range(model.vocab_size + len(self.words)) or one in (model.eos, model.pad, model.bos):
                raise MeshcapError(f"shares are given to words, and id {one} is none of them")
        if len(self.shares.share) != pictures:
            raise MeshcapError(f"shares of {len(self.shares.share)} pictures were given for {pictures}")


@dataclass(frozen=True)
class _Settings:
    """Those of a model, with room for more words."""

    vocab_size: int
    max_length: int
    unk: int
    pad: int
    bos: int
    eos: int


class Extended:
    """A `Decodable` that says the words of an extension beside those of a model.

    The model may itself be extended: then ids of both go on one after the other.

    Args:
        roomy: the tensors of the extension get a size of few, so that a search that was captured serves other words.
            What is added is never said: words without probability, receivers and kin of nothing.
    """

    def __init__(self, model: Decodable, extension: Extension, *, roomy: bool = False):
        self.model, self.extension, self.roomy = model, extension, roomy
        self.known = model.config.vocab_size
        self.words = room(len(extension.words)) if roomy else len(extension.words)
        # Of its tensors in a state that it may share with another, which need not have words of its own.
        self.prefix: str = f"{model.prefix if isinstance(model, Extended) else ''}extension."
        self.config: Settings = _Settings(
            vocab_size=self.known + self.words,
            **{name: getattr(model.config, name) for name in ("max_length", "unk", "pad", "bos", "eos")},
        )

    @property
    def key(self) -> Hashable:
        """The same for all that do the same to a state."""
        return getattr(self.model, "key", id(self.model)), self.prefix, self.words, self.extension.shares is None

    def encode(self, regions: Regions) -> State:
        return self.model.encode(regions) | self.tensors(regions.features.device)

    def start(self, encoded: State, *, width: int, length: int) -> State:
        own = {name: tensor for name, tensor in encoded.items() if name.startswith(self.prefix)}
        rest = {name: tensor for name, tensor in encoded.items() if name not in own}
        state = self.model.start(rest, width=width, length=length)
        return state | (own or self.tensors(next(iter(state.values())).device))

    def tensors(self, device: torch.device) -> State:
        """What a search reads of the extension; `encode` has it beside the pictures."""
        return {f"{self.prefix}{name}": tensor for name, tensor in self._tensors(device).items()}

    def step(self, ids: Tensor, state: State) -> Tensor:
        own = {name: state.get(f"{self.prefix}{name}") for name in TENSORS}
        return self._extend(self.model.step(self._read_back(ids, own), state), own)

    def reorder(self, state: State, parents: Tensor) -> None:
        self.model.reorder(state, parents)

    def __call__(self, regions: Regions, ids: Tensor, *, attention: bool = False) -> Any:
        own: dict[str, Any] = self._tensors(ids.device)
        known = self._read_back(ids, own)
        log_probs, seen = self.model(regions, known, attention=True) if attention else (self.model(regions, known), {})
        flat = log_probs.view(len(log_probs), -1, log_probs.shape[-1])  # (B, T or S·T, V)
        log_probs = self._extend(flat, own).view(*ids.shape, -1)
        return (log_probs, seen) if attention else log_probs

    def _tensors(self, device: torch.device) -> State:
        stand_in = list(self.extension.stand_in)
        stand_in += [self.config.unk] * (self.words - len(stand_in))
        found = {"stand_in": torch.tensor(stand_in, dtype=torch.long)}
        if self.extension.shares is not None:
            receivers = torch.tensor(self.extension.shares.ids, dtype=torch.long)
            kin, taken = self.extension.shares.table()
            if self.roomy:  # what has no probability receives nothing, and nothing is taken of it
                missing = [room(len(one)) - len(one) for one in (receivers, kin)]
                receivers = F.pad(receivers, (0, missing[0]), value=self.config.bos)
                kin = F.pad(kin, (0, missing[1]), value=self.config.pad)
                taken = F.pad(taken, (0, missing[1], 0, missing[0]))
            found |= {"receivers": receivers, "kin": kin, "taken": taken}
        if device.type == "cuda":  # a copy from pageable memory would wait for all that the device has yet to do
            found = {name: tensor if tensor.is_cuda else tensor.pin_memory() for name, tensor in found.items()}
        return {name: tensor.to(device, non_blocking=True) for name, tensor in found.items()}

    def _read_back(self, ids: Tensor, own: dict[str, Any]) -> Tensor:
        return read_back(ids, own["stand_in"], self.known)

    def _extend(self, log_probs: Tensor, own: dict[str, Any]) -> Tensor:
        shares = None if own.get("taken") is None else (own["receivers"], own["kin"], own["taken"])
        return extend(log_probs, self.words, shares)


def room(count: int) -> int:
    """For how many a roomy extension has place: 16, 64, 256 …"""
    return next(size for size in (16 * 4**n for n in itertools.count()) if size >= count)


def read_back(ids: Tensor, stand_in: Tensor, known: int) -> Tensor:
    """Ids as the model reads them: stand-ins (E,) in place of ids from `known` on."""
    if not len(stand_in):
        return ids
    return torch.where(ids < known, ids, stand_in[(ids - known).clamp(0, len(stand_in) - 1)])


def extend(log_probs: Tensor, words: int, shares: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
    """Log-probabilities (B, W, V) as (B, W, V + E), with shares moved: receivers (S,), kin (U,), taken (B, S, U)."""
    log_probs = F.pad(log_probs, (0, words), value=float("-inf"))
    if shares is None:
        return log_probs
    ids, kin, taken = shares
    given = log_probs[..., kin]  # (B, W, U)
    left = (1 - taken.sum(1)).clamp_min(0).log()  # (B, U)
    # A sum of few terms, each at most 1: nothing is lost by taking it outside logarithms but what is below 1e-38.
    gained = (given.exp() @ taken.transpose(1, 2)).log()  # (B, W, S)
    log_probs[..., kin] = given + left[:, None]
    log_probs[..., ids] = torch.logaddexp(log_probs[..., ids], gained)
    return log_probs


def join(first: Extension | None, *others: Extension | None) -> Extension | None:
    """The words of extensions that were nested in each other, in the order of their ids; shares stay where they are."""
    given: Sequence[Extension] = [one for one in (first, *others) if one is not None]
    if len(given) < 2:
        return given[0] if given else None
    return Extension(
        words=tuple(word for one in given for word in one.words),
        stand_in=tuple(id for one in given for id in one.stand_in),
        proper=tuple(mark for one in given for mark in (one.proper or (False,) * len(one.words))),
    )
