"""Regions in, captions out, in torch: the loop that all strategies share.

`Decodable` is what a model must be able to do; `decode` searches with it. Shapes never change
while it runs and nothing is read back to the host, so that on a GPU a whole step is captured as one CUDA graph.

B pictures, W hypotheses of each, T words, V vocabulary, N regions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Literal, Protocol, overload, runtime_checkable

import torch
from torch import Tensor

from meshcap.decoding.choose import ConstrainedChooser, Logits, Search, chooser
from meshcap.decoding.records import Beam, Hypotheses, Rules, Settings, Strategy, expect_kept, mean_probability
from meshcap.kernels import can_forbid_words, forbid_words, log_totals
from meshcap.regions import Regions

# On a GPU, asking whether all captions have ended waits for it: ask every few steps only.
STEPS_BETWEEN_CHECKS = 5

State = dict[str, Tensor]


class Decodable(Protocol):
    """A captioning model, as a search sees it.

    Everything that changes while decoding is a `State`: a dict of named tensors of fixed shapes, updated in place. So a
    step can be captured once and replayed, and several models can share one dict.
    """

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
        """Let hypothesis w of picture b go on from the words of hypothesis parents[b, w]."""

    @overload
    def __call__(self, regions: Regions, ids: Tensor, *, attention: Literal[False] = ...) -> Tensor: ...
    @overload
    def __call__(self, regions: Regions, ids: Tensor, *, attention: Literal[True]) -> tuple[Tensor, State]:
        """Teacher-forced: ids (B, T) or (B, S, T) to the log-probabilities (…, V) of the word after each.

        With `attention`, also a dict whose `words` (…, N) says how much each next word looked at each region.
        """


@runtime_checkable
class SaysLogits(Protocol):
    """A `Decodable` that may leave the softmax of a step to the search."""

    def logits(self, ids: Tensor, state: State) -> Tensor | None:
        """As `step`, before the softmax; None, and nothing done, where that is no gain (`can_top_k_logits`)."""


Filter = Callable[[Tensor, Search], object]


def filters(rules: Rules, model: Settings, device: torch.device) -> list[Filter]:
    """Each sets the log-probabilities or logits (B, W, V) of what a rule forbids to -inf, in place, on the device."""
    lists = rules.banned, rules.banned_phrases, rules.bad_endings
    if not rules.once and can_forbid_words(max(rules.max_length, *map(len, lists)), device):
        return [] if rules == Rules(max_length=rules.max_length) else [_at_once(rules, model, device)]
    found: list[Filter] = []
    minus, eos, last_place = float("-inf"), model.eos, rules.max_length - 1
    if rules.banned:
        banned = torch.tensor(rules.banned, device=device)
        found.append(lambda log_probs, search: log_probs.index_fill_(-1, banned, minus))
    for phrase in rules.banned_phrases:
        found.append(_no_phrase(phrase, device))
    found += [_once(word) for word in rules.once]
    if rules.min_length > 1:
        found.append(
            lambda log_probs, search: log_probs[..., eos].masked_fill_(search.step + 1 < rules.min_length, minus)
        )
    if rules.bad_endings:
        bad = torch.zeros(model.vocab_size, dtype=torch.bool, device=device)
        bad[list(rules.bad_endings)] = True
        found.append(lambda log_probs, search: log_probs[..., eos].masked_fill_(bad[search.last], minus))
        if rules.end_in_time:  # the last word of all may be none of these
            found.append(lambda log_probs, search: log_probs.masked_fill_(bad & (search.step == last_place - 1), minus))
    if rules.no_repeat_ngram:
        found.append(_no_repeats(rules.no_repeat_ngram))
    if rules.end_in_time:
        others = torch.arange(model.vocab_size, device=device) != eos
        found.append(lambda log_probs, search: log_probs.masked_fill_(others & (search.step >= last_place), minus))
    return found


def _at_once(rules: Rules, model: Settings, device: torch.device) -> Filter:
    """All that `filters` forbid by one kernel."""
    longest = max(map(len, rules.banned_phrases), default=1)
    phrases = [[-1] * (longest - len(phrase)) + list(phrase) for phrase in rules.banned_phrases]
    lists = rules.banned, rules.bad_endings, phrases
    banned, endings, table = (torch.tensor(one, dtype=torch.long, device=device) for one in lists)
    table = table.view(-1, longest)

    def forbid(log_probs: Tensor, search: Search) -> None:
        forbid_words(
            log_probs, search.ids, search.last, search.step, banned, endings, table,
            min_length=rules.min_length, max_length=rules.max_length, no_repeat_ngram=rules.no_repeat_ngram,
            end_in_time=rules.end_in_time, eos=model.eos,
        )  # fmt: skip

    return forbid


def _no_phrase(phrase: tuple[int, ...], device: torch.device) -> Filter:
    *before, word = phrase
    beginning, count = torch.tensor(before, device=device), len(before)

    def forbid(log_probs: Tensor, search: Search) -> None:
        begun = (search.latest(count) == beginning).all(-1) & (search.step >= count)
        log_probs[..., word].masked_fill_(begun, float("-inf"))

    return forbid


def _once(word: int) -> Filter:
    def forbid(log_probs: Tensor, search: Search) -> None:
        log_probs[..., word].masked_fill_((search.ids == word).any(-1), float("-inf"))

    return forbid


def _no_repeats(n: int) -> Filter:
    """Forbid the word that would complete an n-gram for a second time.

    Every window of n words in the history whose first n - 1 are the latest n - 1 forbids its last word.
    """

    def forbid(log_probs: Tensor, search: Search) -> None:
        ids = search.ids  # (B, W, T), words from place `step` on are still padding
        if n > ids.shape[-1]:
            return
        windows = ids.unfold(-1, n, 1)  # (B, W, T - n + 1, n)
        starts = torch.arange(windows.shape[-2], device=ids.device)
        repeats = (starts + n <= search.step).expand(windows.shape[:-1])  # the whole window is there
        if n > 1:
            repeats = repeats & (windows[..., :-1] == search.latest(n - 1)[..., None, :]).all(-1)
        penalty = torch.zeros(repeats.shape, device=ids.device, dtype=log_probs.dtype)
        log_probs.scatter_add_(-1, windows[..., -1], penalty.masked_fill_(repeats, float("-inf")))

    return forbid


class DecodeRun:
    """One search over one batch: `begin` looks at the pictures, `advance` adds words to every hypothesis.

    `encoded`: the regions as `encode` leaves them, where somebody has done that already.
    """

    def __init__(
        self, model: Decodable, regions: Regions, strategy: Strategy, rules: Rules, encoded: State | None = None
    ):
        self.model, self.regions, self.strategy, self.rules = model, regions, strategy, rules
        self.encoded = encoded
        device = regions.features.device
        self.search = Search.new(
            model.config, pictures=len(regions), width=strategy.width, length=rules.max_length, device=device
        )
        self.chooser = chooser(strategy, self.search)
        self.filters = filters(rules, model.config, device)
        self.state: State = {}

    def seed(self, seed: int) -> None:
        generator = getattr(self.chooser, "generator", None)
        if generator is not None:
            generator.manual_seed(seed)

    def begin(self) -> None:
        encoded = self.model.encode(self.regions) if self.encoded is None else self.encoded
        self.state = self.model.start(encoded, width=self.strategy.width, length=self.rules.max_length)
        self.search.reset()
        self.chooser.open(self.search)

    def say(self) -> Tensor | Logits:
        """The next words' log-probabilities (B, W, V), by the rules."""
        logits = None
        if isinstance(self.model, SaysLogits) and getattr(self.chooser, "reads_logits", False):
            logits = self.model.logits(self.search.last, self.state)
        said = self.model.step(self.search.last, self.state) if logits is None else logits
        totals = log_totals(said) if logits is not None and self.filters else None
        for forbid in self.filters:
            forbid(said, self.search)
        return said if logits is None else Logits(said, totals)

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.step()

    def over(self) -> bool:
        """Whether every hypothesis has ended or is out of the running; waits for the device."""
        return bool(self.search.ended())

    def step(self) -> None:
        choice = self.chooser.choose(self.say(), self.search)
        if choice.parents is not None:
            self.model.reorder(self.state, choice.parents)
        self.search.take(choice)

    def best(self, n: int, regions: Regions, *, attention: bool) -> Hypotheses:
        """The n best hypotheses of each of these pictures, which are the first of the run's."""
        search, pictures = self.search, len(regions)
        order = self.chooser.rank(search)[:pictures].topk(n).indices  # (B, n)
        scores = self.chooser.score(search)[:pictures]

        def pick(tensor: Tensor) -> Tensor:
            index = order.view(*order.shape, *[1] * (tensor.dim() - 2)).expand(*order.shape, *tensor.shape[2:])
            return tensor[:pictures].gather(1, index)

        ids = pick(search.ids)
        satisfied = unconstrained = weights = None
        if isinstance(self.chooser, ConstrainedChooser):
            satisfied = pick(self.chooser.satisfied(search))
            free = scores.argmax(-1, keepdim=True)  # (B, 1)
            log_probs, lengths = search.log_probs[:pictures], search.lengths[:pictures]
            likeliest = log_probs.gather(1, free[..., None].expand(-1, -1, log_probs.shape[-1]))
            unconstrained = mean_probability(likeliest, lengths.gather(1, free))[:, 0]
        if attention:
            before = torch.cat((torch.full_like(ids[..., :1], search.settings.bos), ids[..., :-1]), -1)
            _, weights = self.model(regions, before, attention=True)
        return Hypotheses(
            ids=ids,
            log_probs=pick(search.log_probs),
            scores=pick(scores),
            lengths=pick(search.lengths),
            finished=pick(search.finished),
            satisfied=satisfied,
            unconstrained=unconstrained,
            attention=weights,
        )


class CapturedRun(DecodeRun):
    """A run whose parts are recorded as CUDA graphs: one launch for several steps instead of some fifty for each.

    It works on tensors of its own, at fixed addresses; pictures of the same shapes are copied in.
    """

    def __init__(
        self, model: Decodable, regions: Regions, strategy: Strategy, rules: Rules, encoded: State | None = None
    ):
        own = None if encoded is None else {name: tensor.clone() for name, tensor in encoded.items()}
        super().__init__(model, regions.each(torch.clone), strategy, rules, own)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up on first use, which cannot be recorded
            super().begin()
            super().advance()
        torch.cuda.current_stream().wait_stream(stream)
        self.beginning = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.beginning):
            super().begin()
        self.ended = torch.zeros((), dtype=torch.bool, device=regions.features.device)
        # By how many steps it advances.
        self.advancing = {steps: torch.cuda.CUDAGraph() for steps in (STEPS_BETWEEN_CHECKS, 1)}
        for steps, graph in self.advancing.items():
            if generator := getattr(self.chooser, "generator", None):
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=self.beginning.pool()):
                super().advance(steps)
                self.ended.copy_(self.search.ended())

    def show(self, regions: Regions, encoded: State | None = None) -> None:
        for own, given in zip(self.regions.parts(), regions.parts(), strict=True):
            if own is not None and given is not None:
                own.copy_(given)
        for name, tensor in (encoded or {}).items():
            assert self.encoded is not None
            self.encoded[name].copy_(tensor)

    def begin(self) -> None:
        self.beginning.replay()

    def advance(self, steps: int = 1) -> None:
        for many, graph in self.advancing.items():
            for _ in range(steps // many):
                graph.replay()
            steps %= many

    def over(self) -> bool:
        return bool(self.ended)


def bucket(pictures: int) -> int:
    """How many pictures a run is captured for: a power of two up to 64, then a multiple of 64.

    A server forms batches of any size, and a new shape costs as much time as a hundred searches.
    """
    return 1 << (pictures - 1).bit_length() if pictures <= 64 else -(-pictures // 64) * 64


def fill_up(regions: Regions) -> Regions:
    """As many pictures as a run is captured for: copies of the last one are added."""
    missing = bucket(len(regions)) - len(regions)
    return regions.each(lambda t: torch.cat((t, t[-1:].expand(missing, *t.shape[1:])))) if missing else regions


class Graphs:
    """Captured runs, kept for the next batch of about as many pictures; the least recently used goes first.

    A model that is made anew for every search says by its `key` which others run alike.
    """

    def __init__(self, most: int = 24):
        self.most = most
        self.runs: OrderedDict[Hashable, CapturedRun] = OrderedDict()

    def get(
        self, model: Decodable, regions: Regions, strategy: Strategy, rules: Rules, encoded: State | None = None
    ) -> CapturedRun:
        """A run for these pictures and, unless they are encoded, what fills up its batch."""
        if encoded is None:
            regions = fill_up(regions)
        given = (*regions.parts(), *(encoded or {}).values())
        shapes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in given)
        key = (getattr(model, "key", id(model)), shapes, strategy, rules, encoded is None)
        run = self.runs.pop(key, None)
        if run is None:
            while len(self.runs) >= self.most:
                self.runs.popitem(last=False)
            run = CapturedRun(model, regions, strategy, rules, encoded)
        run.show(regions, encoded)
        self.runs[key] = run
        return run


@torch.no_grad()
def decode(
    model: Decodable,
    regions: Regions,
    strategy: Strategy | None = None,
    rules: Rules | None = None,
    *,
    n_best: int = 1,
    attention: bool = False,
    graphs: Graphs | None = None,
    encoded: State | None = None,
    pictures: int | None = None,
    stop_early: bool = True,
) -> Hypotheses:
    """Caption pictures with any model and any strategy.

    Args:
        n_best: how many captions to return of each picture.
        attention: also return how the model looked at the picture for each word.
        graphs: where to keep captured steps between calls; on a GPU this is many times faster. The model's weights
            must not be replaced meanwhile (changing them in place is fine).
        encoded: the regions as the model's `encode` leaves them, so that they are not encoded again.
        pictures: how many are asked for, where others fill up the batch behind them.
        stop_early: now and then, check whether all captions have ended; without, a GPU is never waited for.

    Raises:
        MeshcapError: rules that do not fit the model, more captions than the search keeps.
    """
    strategy, rules = strategy or Beam(), rules or Rules()
    rules.check(model.config)
    expect_kept(n_best, strategy)
    if graphs is not None and regions.features.is_cuda:
        run: DecodeRun = graphs.get(model, regions, strategy, rules, encoded)
    else:
        run = DecodeRun(model, regions, strategy, rules, encoded)
    run.seed(getattr(strategy, "seed", 0))
    often = STEPS_BETWEEN_CHECKS if regions.features.is_cuda else 1
    # What a step makes is read by the next alone: torch need not count who changes it. (Graphs have made it before.)
    with nullcontext() if isinstance(run, CapturedRun) else torch.inference_mode():
        run.begin()
        for step in range(0, rules.max_length, often):
            if stop_early and step and run.over():
                break
            run.advance(min(often, rules.max_length - step))
    return run.best(n_best, regions if pictures is None else regions[:pictures], attention=attention)
