"""Regions in, captions out: the loop that all strategies share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import torch
from torch import Tensor

from meshcap.decoding.constrained import ConstrainedBeam
from meshcap.decoding.hypotheses import Hypotheses
from meshcap.decoding.protocol import Decodable, State
from meshcap.decoding.rules import Rules
from meshcap.decoding.search import Search
from meshcap.decoding.strategies import Beam, Strategy
from meshcap.errors import MeshcapError
from meshcap.regions import Regions

# On a GPU, asking whether all captions have ended waits for it: ask every few steps only.
STEPS_BETWEEN_LOOKS = 5


class Run:
    """One search over one batch: `begin` looks at the pictures, `advance` adds a word to every hypothesis."""

    def __init__(self, model: Decodable, regions: Regions, strategy: Strategy, rules: Rules):
        self.model, self.regions, self.strategy, self.rules = model, regions, strategy, rules
        device = regions.features.device
        self.search = Search.new(
            model.config, pictures=len(regions), width=strategy.width, length=rules.max_length, device=device
        )
        self.picker = strategy.picker(self.search)
        self.judges = rules.judges(model.config, device)
        self.state: State = {}

    def begin(self) -> None:
        encoded = self.model.encode(self.regions)
        self.state = self.model.start(encoded, width=self.strategy.width, length=self.rules.max_length)
        self.search.reset()
        self.strategy.open(self.search)

    def advance(self) -> None:
        log_probs = self.model.step(self.search.last, self.state)  # (B, W, V)
        for judge in self.judges:
            judge(log_probs, self.search)
        choice = self.picker.choose(log_probs, self.search)
        if choice.parents is not None:
            self.model.reorder(self.state, choice.parents)
        self.search.take(choice)

    def seed(self, strategy: Strategy) -> None:
        """Set the seed of this search, where its strategy draws words."""
        generator = getattr(self.picker, "generator", None)
        if generator is not None:
            generator.manual_seed(getattr(strategy, "seed", 0))


class CapturedRun(Run):
    """A run whose two parts are recorded as CUDA graphs: one launch a step instead of some hundred.

    It works on tensors of its own, at fixed addresses; pictures of the same shapes are copied in.
    """

    def __init__(self, model: Decodable, regions: Regions, strategy: Strategy, rules: Rules):
        super().__init__(model, regions.each(torch.clone), strategy, rules)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up on first use, which cannot be recorded
            super().begin()
            super().advance()
        torch.cuda.current_stream().wait_stream(stream)
        self.beginning, self.advancing = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        generator = getattr(self.picker, "generator", None)
        if generator is not None:
            self.advancing.register_generator_state(generator)
        with torch.cuda.graph(self.beginning):
            super().begin()
        with torch.cuda.graph(self.advancing, pool=self.beginning.pool()):
            super().advance()

    def show(self, regions: Regions) -> None:
        for own, given in zip(self.regions.parts(), regions.parts(), strict=True):
            if own is not None and given is not None:
                own.copy_(given)

    def begin(self) -> None:
        self.beginning.replay()

    def advance(self) -> None:
        self.advancing.replay()


class Graphs:
    """Captured runs, kept for the next batch of the same shapes; the least recently used goes first."""

    def __init__(self, most: int = 4):
        self.most = most
        self.runs: OrderedDict[Hashable, CapturedRun] = OrderedDict()

    def get(self, model: Decodable, regions: Regions, strategy: Strategy, rules: Rules) -> CapturedRun:
        shapes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in regions.parts())
        key = (id(model), shapes, strategy, rules)
        run = self.runs.pop(key, None)
        if run is None:
            while len(self.runs) >= self.most:
                self.runs.popitem(last=False)
            run = CapturedRun(model, regions, strategy, rules)
        run.show(regions)
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
    look: bool = True,
) -> Hypotheses:
    """Caption pictures with any model and any strategy.

    Args:
        n_best: how many captions to return of each picture.
        attention: also return how the model looked at the picture for each word.
        graphs: where to keep captured steps between calls; on a GPU this is many times faster. The model's weights
            must not be replaced meanwhile (changing them in place is fine).
        look: now and then, whether all captions have ended already; without, a GPU is never waited for.
    """
    strategy, rules = strategy or Beam(), rules or Rules()
    rules.check(model.config)
    if not 1 <= n_best <= strategy.width:
        raise MeshcapError(f"{n_best} captions of each picture were asked for, and the search keeps {strategy.width}")
    if graphs is not None and regions.features.is_cuda:
        run: Run = graphs.get(model, regions, strategy, rules)
    else:
        run = Run(model, regions, strategy, rules)
    run.seed(strategy)
    run.begin()
    often = STEPS_BETWEEN_LOOKS if regions.features.is_cuda else 1
    for step in range(1, rules.max_length + 1):
        run.advance()
        if look and step % often == 0 and step < rules.max_length and run.search.over():
            break
    return best_of(run.search, strategy, n_best, model, regions if attention else None)


def best_of(search: Search, strategy: Strategy, n: int, model: Decodable, look_at: Regions | None) -> Hypotheses:
    order = strategy.rank(search).topk(n).indices  # (B, n)

    def pick(tensor: Tensor) -> Tensor:
        index = order.view(*order.shape, *[1] * (tensor.dim() - 2)).expand(*order.shape, *tensor.shape[2:])
        return tensor.gather(1, index)

    ids = pick(search.ids)
    seen = None
    if look_at is not None:
        spoken = torch.cat((torch.full_like(ids[..., :1], search.settings.bos), ids[..., :-1]), -1)
        _, seen = model(look_at, spoken, attention=True)
    return Hypotheses(
        ids=ids,
        log_probs=pick(search.log_probs),
        scores=pick(normal_scores(search, strategy)),
        lengths=pick(search.lengths),
        finished=pick(search.finished),
        satisfied=pick(strategy.satisfied(search)) if isinstance(strategy, ConstrainedBeam) else None,
        attention=seen,
    )


def normal_scores(search: Search, strategy: Strategy) -> Tensor:
    """Scores as a person reads them: without what constraints add to put captions in order."""
    return strategy.score(search) if isinstance(strategy, ConstrainedBeam) else strategy.rank(search)
