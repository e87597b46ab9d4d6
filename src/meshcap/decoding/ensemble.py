"""Several captioners speaking as one: the mean of their probabilities, word by word."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap.decoding.records import Settings
from meshcap.decoding.search import Decodable, State
from meshcap.errors import MeshcapError
from meshcap.regions import Regions


class Ensemble:
    """A `Decodable` made of others that share a vocabulary and read the same regions.

    Each member's state lives in one dict under its number, so an ensemble is captured and replayed like a model.
    """

    def __init__(self, members: Sequence[Decodable]):
        if not members:
            raise MeshcapError("an ensemble of no models: expected at least one")
        first = members[0].config
        for index, member in enumerate(members):
            for name in ("vocab_size", "pad", "bos", "eos"):
                if getattr(member.config, name) != getattr(first, name):
                    raise MeshcapError(
                        f"member {index} has {name} {getattr(member.config, name)} and the first has "
                        f"{getattr(first, name)}: members of an ensemble share a vocabulary"
                    )
        self.members = list(members)

    @property
    def config(self) -> Settings:
        return min((member.config for member in self.members), key=lambda config: config.max_length)

    def encode(self, regions: Regions) -> State:
        return join([member.encode(regions) for member in self.members])

    def start(self, encoded: State, *, width: int, length: int) -> State:
        return join([m.start(part(encoded, i), width=width, length=length) for i, m in enumerate(self.members)])

    def step(self, ids: Tensor, state: State) -> Tensor:
        return mean([member.step(ids, part(state, i)) for i, member in enumerate(self.members)])

    def reorder(self, state: State, parents: Tensor) -> None:
        for index, member in enumerate(self.members):
            member.reorder(part(state, index), parents)

    def __call__(self, regions: Regions, ids: Tensor, *, attention: bool = False):  # type: ignore[no-untyped-def]
        if not attention:
            return mean([member(regions, ids) for member in self.members])
        found = [member(regions, ids, attention=True) for member in self.members]
        looks = [seen["words"] for _, seen in found]
        most = max(look.shape[-1] for look in looks)  # a member may have filled the pictures up with regions of its own
        words = torch.stack([F.pad(look, (0, most - look.shape[-1])) for look in looks]).mean(0)
        return mean([log_probs for log_probs, _ in found]), {"words": words}


def join(states: list[State]) -> State:
    return {f"{index}.{name}": tensor for index, state in enumerate(states) for name, tensor in state.items()}


def part(state: State, index: int) -> State:
    prefix = f"{index}."
    return {name[len(prefix) :]: tensor for name, tensor in state.items() if name.startswith(prefix)}


def mean(log_probs: list[Tensor]) -> Tensor:
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
