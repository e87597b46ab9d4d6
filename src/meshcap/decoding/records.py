"""What a search is told and what it returns, for all backends: plain records that need neither torch nor NumPy.

- `Rules`: what captions may look like, whatever the strategy.
- `Greedy`, `Beam`, `DiverseBeam`, `Sampling`, `ConstrainedBeam`: how the next words are chosen. All are frozen and
  hashable: equal strategies may share a captured CUDA graph.
- `Hypotheses`: the captions that were found, as torch tensors or NumPy arrays.

`meshcap.decoding.search` runs them with torch, `meshcap.decoding.array_search` with NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from operator import index
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from meshcap.errors import MeshcapError


class Settings(Protocol):
    """The part of a model's settings that a search reads."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def unk(self) -> int: ...
    @property
    def pad(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Lengths count words and `<eos>`; words are given as ids."""

    max_length: int = 20
    min_length: int = 1
    no_repeat_ngram: int = 0  # no sequence of this many words twice in a caption; 0: no such rule
    banned: tuple[int, ...] = ()
    banned_phrases: tuple[tuple[int, ...], ...] = ()  # two words or more each
    once: tuple[int, ...] = ()  # words that a caption may say once
    bad_endings: tuple[int, ...] = ()  # words after which a caption may not end ("a", "of", "with", …)
    end_in_time: bool = False  # captions are whole: the last place is for `<eos>`, after a word that may end a caption

    def __post_init__(self) -> None:
        if not 1 <= self.min_length <= self.max_length:
            raise MeshcapError(f"lengths from {self.min_length} to {self.max_length}: expected 1 ≤ min ≤ max")
        if self.no_repeat_ngram < 0:
            raise MeshcapError(f"no_repeat_ngram is {self.no_repeat_ngram}, expected 0 (off) or more")
        if not all(len(phrase) > 1 for phrase in self.banned_phrases):
            raise MeshcapError("a banned phrase has fewer than two words: ban the word itself")

    def check(self, model: Settings) -> None:
        """
        Raises:
            MeshcapError: captions longer than the model can make, ids outside its vocabulary, `<eos>` banned.
        """
        if self.max_length > model.max_length:
            raise MeshcapError(
                f"max_length is {self.max_length}, and this model can say at most {model.max_length} words"
            )
        phrases = (word for phrase in self.banned_phrases for word in phrase)
        for one in (*self.banned, *self.once, *self.bad_endings, *phrases):
            if not 0 <= one < model.vocab_size:
                raise MeshcapError(f"word id {one} is not in a vocabulary of {model.vocab_size}")
        if model.eos in self.banned:
            raise MeshcapError("<eos> is banned, and no caption could end: ban words instead")


@dataclass(frozen=True)
class Greedy:
    """The likeliest word, each time."""

    width: int = field(default=1, init=False)  # hypotheses that are kept


@dataclass(frozen=True)
class Beam:
    """The `beams` best sums of log-probabilities, each divided by length ** `length_penalty` for comparison.

    A finished caption stays in the beam as long as it is among the best. 0, the default, compares plain sums, as the
    public M² does; 1 compares means.
    """

    beams: int = 5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _positive(beams=self.beams)

    @property
    def width(self) -> int:
        return self.beams


@dataclass(frozen=True)
class DiverseBeam:
    """Beams in groups that see what earlier groups just chose and avoid it (Vijayakumar et al., 2018).

    Each time a word was chosen by an earlier group in this step, it costs `diversity` when a later one chooses;
    scores stay the model's own. Beyond the paper, a later group never takes a caption that an earlier one has: all
    captions of a picture are different.
    """

    beams: int = 6
    groups: int = 3
    diversity: float = 0.5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _positive(beams=self.beams, groups=self.groups)
        if self.beams % self.groups:
            raise MeshcapError(f"{self.beams} beams do not divide into {self.groups} equal groups")

    @property
    def width(self) -> int:
        return self.beams


@dataclass(frozen=True)
class Sampling:
    """Words drawn at random, independently for each of `samples` captions.

    `temperature` sharpens (below 1) or flattens the distribution; `top_k` keeps the k likeliest words (0: all);
    `top_p` the likeliest words that together reach probability p. The same seed draws the same captions.
    """

    samples: int = 5
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        _positive(samples=self.samples, temperature=self.temperature)
        if not 1e-4 <= self.temperature <= 1e4:  # beyond, odds overflow
            raise MeshcapError(f"temperature is {self.temperature}, expected 0.0001 to 10000")
        if self.top_k < 0:
            raise MeshcapError(f"top_k is {self.top_k}, expected 0 (all words) or more")
        if not 0 < self.top_p <= 1:
            raise MeshcapError(f"top_p is {self.top_p}, expected a share above 0 and up to 1")

    @property
    def width(self) -> int:
        return self.samples


Phrase = tuple[int, ...]
Alternatives = tuple[Phrase, ...]  # one of these must appear
Constraints = tuple[Alternatives, ...]  # each of these must be met


@dataclass(frozen=True)
class ConstrainedBeam:
    """Captions that must contain given words (Anderson et al., 2017): a beam of `beams` in every state of an automaton.

    The required phrases become an automaton whose states say which of them a caption contains and how far into another
    it is. Every state keeps a beam of its own, so a caption on its way to a rare required word never has to compete
    with those that ignore it.

    `constraints` holds one entry for each picture, or a single entry for all. `[[[[7], [9, 4]], [[12]]]]` requires of
    every picture word 7 or the words 9 4, and word 12. Captions are ranked by how many requirements they meet, then by
    score; what is returned meets them all whenever that is possible within the length and the other rules.
    """

    constraints: Sequence[Sequence[Sequence[Sequence[int]]]]
    beams: int = 5
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        _positive(beams=self.beams)
        try:  # lists are easier to write, tuples can be compared
            frozen = tuple(tuple(tuple(tuple(map(index, p)) for p in a) for a in one) for one in self.constraints)
        except TypeError:
            raise MeshcapError(
                f"constraints are {self.constraints!r}, expected for each picture a list of requirements, each a list "
                "of alternative phrases, each a list of word ids"
            ) from None
        object.__setattr__(self, "constraints", frozen)
        if not self.constraints:
            raise MeshcapError("no constraints given: expected one set for all pictures or one for each")
        for alternatives in (a for constraints in self.constraints for a in constraints):
            if not alternatives or not all(alternatives):
                raise MeshcapError("an empty requirement: expected at least one phrase of at least one word")

    @property
    def automata(self) -> list[Automaton]:
        return [automaton(constraints) for constraints in cast("tuple[Constraints, ...]", self.constraints)]

    @property
    def width(self) -> int:
        return self.beams * max(len(a.next) for a in self.automata)

    def check(self, pictures: int, vocab_size: int) -> None:
        """
        Raises:
            MeshcapError: another number of pictures, or ids outside the vocabulary.
        """
        automata = self.automata
        if len(automata) not in (1, pictures):
            raise MeshcapError(f"{len(automata)} sets of constraints for {pictures} pictures: expected 1 or one each")
        for word in (word for a in automata for word in a.words):
            if not 0 <= word < vocab_size:
                raise MeshcapError(f"required word id {word} is not in a vocabulary of {vocab_size}")


Strategy: TypeAlias = Greedy | Beam | DiverseBeam | Sampling | ConstrainedBeam


def expect_kept(n_best: int, strategy: Strategy) -> None:
    """
    Raises:
        MeshcapError: more captions are to be returned than the search keeps.
    """
    if not 1 <= n_best <= strategy.width:
        raise MeshcapError(f"{n_best} captions of each picture were asked for, and the search keeps {strategy.width}")


@dataclass(frozen=True)
class Hypotheses:
    """The n best captions of each of B pictures, best first: torch tensors or NumPy arrays.

    ids (B, n, T) end with `<eos>` where `finished` and are filled up with `<pad>`; log_probs (B, n, T) are the
    model's own for each word, 0 after the end; scores (B, n) are what the captions were ranked by (-inf: the search
    found fewer than n); lengths (B, n) count words with `<eos>`.
    """

    ids: Any
    log_probs: Any
    scores: Any
    lengths: Any
    finished: Any
    # Of constrained searches alone: (B, n) how many of the required phrases each caption contains, and (B,) the
    # confidence of the best caption that the same search found without regard to what was required.
    satisfied: Any = None
    unconstrained: Any = None
    # On request: `words` (B, n, T, N) and whatever else the model tells about how it looked.
    attention: dict[str, Any] | None = None
    extension: Any = None  # an `Extension`: the words that ids from the vocabulary's size on stand for
    speaker: Any = None  # of such a search, the `Decodable` that said them
    named: Any = None  # `meshcap.names.Named`: what a head for names says of the pictures, where it was asked
    recollection: Any = None  # of a search that read a memory: `meshcap.models.recollection`

    @property
    def confidence(self) -> Any:
        """(B, n) from 0 to 1: the geometric mean of the words' probabilities."""
        return mean_probability(self.log_probs, self.lengths)

    def to_host(self) -> Hypotheses:
        """The same in main memory. From a GPU nothing is waited for: read it once the device has got so far."""

        def copied(part: Any) -> Any:
            if isinstance(part, dict):
                return {name: copied(one) for name, one in part.items()}
            if hasattr(part, "to_host"):
                return part.to_host()
            return part.to("cpu", non_blocking=True) if getattr(part, "is_cuda", False) else part

        return replace(self, **{one.name: copied(getattr(self, one.name)) for one in fields(self)})

    def reordered(self, orders: Sequence[Sequence[int]]) -> Hypotheses:
        """With the captions of each picture in another order, given by their ranks (B, n). Torch tensors alone."""
        if all(list(order) == sorted(order) for order in orders):
            return self

        def moved(part: Any, axis: int = 0) -> Any:
            """`part` (…, B, n, …), with B at `axis`."""
            shape = [1] * axis + list(part.shape[axis : axis + 2]) + [1] * (part.dim() - axis - 2)
            rank = part.new_tensor(orders).long().view(shape)
            return part.take_along_dim(rank, axis + 1)

        names = ("ids", "log_probs", "scores", "lengths", "finished", "satisfied")
        changed = {name: moved(part) for name in names if (part := getattr(self, name)) is not None}
        if self.attention is not None:
            axes = {"words": 0, "listened": 0, "recalled": 0, "gates": 2}
            seen = {name: moved(one, axes[name]) if name in axes else one for name, one in self.attention.items()}
            changed["attention"] = seen
        return replace(self, **changed)

    @cached_property
    def lists(self) -> Listed:
        """The numbers of all pictures as Python has them: read one by one, each would wait for a device."""
        parts = (getattr(self, name) for name in Listed._fields)
        return Listed._make(None if part is None else part.tolist() for part in parts)


class Listed(NamedTuple):
    """Of `Hypotheses`, for each picture and each of its captions."""

    ids: list[list[list[int]]]
    log_probs: list[list[list[float]]]
    scores: list[list[float]]
    lengths: list[list[int]]
    finished: list[list[bool]]
    satisfied: list[list[int]] | None
    unconstrained: list[float] | None


def mean_probability(log_probs: Any, lengths: Any) -> Any:
    """The geometric mean of the probabilities of (…, T) words, `lengths` (…) of them: 0 to 1."""
    return math.e ** (log_probs.sum(-1) / lengths.clip(1))


@dataclass(frozen=True)
class Automaton:
    """next[s][c]: the state after word class c, where class 0 is any word that no phrase contains."""

    words: tuple[int, ...]  # class c ≥ 1 is the word words[c - 1]
    next: tuple[tuple[int, ...], ...]
    satisfied: tuple[int, ...]  # how many constraints are met in each state


MOST_STATES = 256


@lru_cache(maxsize=1024)
def automaton(constraints: Constraints) -> Automaton:
    """States are (constraints met, longest beginning of a phrase that the latest words are), numbered as reached."""
    words = tuple(sorted({word for alternatives in constraints for phrase in alternatives for word in phrase}))
    numbers: dict[tuple[frozenset[int], Phrase], int] = {(frozenset(), ()): 0}
    table: list[tuple[int, ...]] = []
    for met, tail in _iterate_growing(numbers):
        row = []
        for word in (None, *words):
            latest = () if word is None else (*tail, word)
            now = met | {i for i, phrases in enumerate(constraints) if any(latest[-len(p) :] == p for p in phrases)}
            open_phrases = [phrase for i, phrases in enumerate(constraints) if i not in now for phrase in phrases]
            key = (frozenset(now), _longest_beginning(latest, open_phrases))
            row.append(numbers.setdefault(key, len(numbers)))
        table.append(tuple(row))
        if len(numbers) > MOST_STATES:
            raise MeshcapError(
                f"{len(constraints)} required phrases need over {MOST_STATES} search states: require fewer"
            )
    return Automaton(words, tuple(table), tuple(len(met) for met, _ in numbers))


def _iterate_growing(numbers: dict[tuple[frozenset[int], Phrase], int]) -> Iterable[tuple[frozenset[int], Phrase]]:
    """The keys of a dict that grows while it is gone through."""
    done = 0
    while done < len(numbers):
        yield list(numbers)[done]
        done += 1


def _longest_beginning(latest: Phrase, phrases: list[Phrase]) -> Phrase:
    for start in range(len(latest)):
        tail = latest[start:]
        if any(len(tail) < len(phrase) and phrase[: len(tail)] == tail for phrase in phrases):
            return tail
    return ()


def _positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise MeshcapError(f"{name} is {value}, expected more than 0")
