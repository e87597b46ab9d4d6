"""A run in memory: made-up regions and captions for a tiny model, and the trainer around them."""

from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
from rich.console import Console

import tiny
from meshcap.metrics.reward import CiderReward
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.captions import CaptionTable
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.eyes import Kept
from meshcap.training.log import RunLog
from meshcap.training.optimiser import Average, make_optimiser, named_weights
from meshcap.training.progress import Watch
from meshcap.training.settings import TrainSettings
from meshcap.training.tasks import CrossEntropy, Parts, SelfCritical
from meshcap.training.trainer import Trainer

CPU = torch.device("cpu")
PICTURES = 12
VOCABULARY = Vocabulary(["<unk>", "<pad>", "<bos>", "<eos>", *"abcdef"])


def made_up_tokens(seed: int = 0) -> list[list[list[str]]]:
    rng = numpy.random.default_rng(seed)
    return [
        [[str(word) for word in rng.choice(list("abcdef"), rng.integers(1, 7))] for _ in range(3)]
        for _ in range(PICTURES)
    ]


TOKENS = made_up_tokens()


def settings_of(**changes: object) -> TrainSettings:
    usual = {"data": "", "out": "", "captions": 3, "samples": 3, "max_length": 8, "precision": "float32", "batch": 6}
    return TrainSettings(**{**usual, "label_smoothing": 0.0, "region_dropout": 0.0, **changes})


def parts_of(**model: object) -> Parts:
    return Parts(tiny.build("m2", **{"suppressed_ids": (0, 1, 2), "dropout": 0.0, **model}), VOCABULARY, None)


def eyes() -> Kept:
    regions: Regions = tiny.pictures(*[4] * PICTURES)
    return Kept(regions, CPU, count=PICTURES)


def reward() -> CiderReward:
    references = [[VOCABULARY.encode(caption) for caption in captions] for captions in TOKENS]
    return CiderReward(references, eos=VOCABULARY.eos, pad=VOCABULARY.pad)


def table() -> CaptionTable:
    return CaptionTable.build(TOKENS, VOCABULARY, 8)


def xe_task(parts: Parts, settings: TrainSettings, world: World | None = None) -> CrossEntropy:
    return CrossEntropy(parts, eyes(), table(), settings, world or World(CPU), compiled=False)


def scst_task(parts: Parts, settings: TrainSettings, world: World | None = None, judge: object = None) -> SelfCritical:
    return SelfCritical(parts, eyes(), judge or reward(), table(), settings, world or World(CPU), compiled=False)  # type: ignore[arg-type]


class Examiner:
    """Says what a test wants to hear at each validation."""

    def __init__(self, ciders: list[float]):
        self.ciders, self.asked = ciders, 0

    def examine(self) -> SimpleNamespace:
        cider = self.ciders[min(self.asked, len(self.ciders) - 1)]
        self.asked += 1
        return SimpleNamespace(cider=cider, bad_endings=0.0, words=5, captions=[])


def trainer_of(
    task: CrossEntropy | SelfCritical,
    run: Path,
    *,
    steps: int = 6,
    ciders: list[float] | None = None,
    position: Position | None = None,
    lr: float = 1e-3,
    **more: object,
) -> Trainer:
    weights = named_weights(task.parts.model, None)
    kept: list[int] = []
    trainer = Trainer(
        task=task,
        weights=weights,
        optimiser=make_optimiser(weights, lr=lr, lr_vision=0.0, decay=0.0, device=CPU),
        average=Average(weights, 0.5),
        position=position or Position(task.name),
        steps=steps,
        batch=6,
        pictures=PICTURES,
        settings=task.settings,
        world=task.world,
        run=run,
        examiner=Examiner(ciders or [0.1]),  # type: ignore[arg-type]
        keep_best=lambda exam: kept.append(trainer.position.step),
        watch=Watch(steps, Console(quiet=True), quiet=True),
        log=RunLog(run / "log.jsonl"),
        **{"look_every": 1, **more},  # type: ignore[arg-type]
    )
    trainer.kept = kept  # type: ignore[attr-defined]
    return trainer
