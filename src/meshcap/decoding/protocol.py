"""What a captioner must be able to do to be decoded by any strategy.

Everything that changes while decoding is a `State`: a dict of named tensors of fixed shapes, updated in place. So a
step can be captured once and replayed, several models can share one dict, and nobody copies what nobody moved.
"""

from __future__ import annotations

from typing import Literal, Protocol, overload

from torch import Tensor

from meshcap.regions import Regions

State = dict[str, Tensor]


class Settings(Protocol):
    """The part of a model's settings that decoding reads."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def pad(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...


class Decodable(Protocol):
    """B pictures, W hypotheses of each, T words, V vocabulary, N regions."""

    @property
    def config(self) -> Settings: ...

    def encode(self, regions: Regions) -> State:
        """Look at the pictures, once."""

    def start(self, encoded: State, *, width: int, length: int) -> State:
        """Begin `width` empty hypotheses of up to `length` words for each picture.

        Calls with equal shapes give states of equal shapes and names.
        """

    def step(self, ids: Tensor, state: State) -> Tensor:
        """Read one more word of each hypothesis, ids (B, W); return the next one's log-probabilities (B, W, V).

        The result is the caller's to change. No synchronisation with a GPU, no data-dependent shapes.
        """

    def reorder(self, state: State, parents: Tensor) -> None:
        """Let hypothesis w of picture b go on from what hypothesis parents[b, w] had said."""

    @overload
    def __call__(self, regions: Regions, ids: Tensor, *, attention: Literal[False] = ...) -> Tensor: ...
    @overload
    def __call__(self, regions: Regions, ids: Tensor, *, attention: Literal[True]) -> tuple[Tensor, State]:
        """Teacher-forced: ids (B, T) or (B, S, T) to the log-probabilities (…, V) of the word after each.

        With `attention`, also a dict whose `words` (…, N) says how much each next word looked at each region.
        """
