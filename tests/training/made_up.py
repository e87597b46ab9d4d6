"""A run in memory: made-up regions and captions for a tiny model, and the trainer around them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
from rich.console import Console

import tiny
import tiny_data
from meshcap.metrics.reward import CiderReward
from meshcap.regions import Regions
from meshcap.text import Vocabulary
from meshcap.training.build import Parts
from meshcap.training.captions import CaptionTable
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.log import RunLog, Watch
from meshcap.training.optimizer import Average, make_optimizer, named_weights
from meshcap.training.pictures import CachedRegions, Views
from meshcap.training.settings import TrainSettings
from meshcap.training.tasks import CrossEntropy, SelfCritical
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
    """Settings by their own names, as of `tiny_data.setting_name`."""
    usual = {
        "captions": 3, "scst_captions": 3, "samples": 3, "max_length": 8, "precision": "float32", "batch": 6,
        "scst_batch": 6, "steps": 6, "scst_steps": 6, "label_smoothing": 0.0, "region_dropout": 0.0,
    }  # fmt: skip
    given = {tiny_data.setting_name(name): value for name, value in {**usual, **changes}.items()}
    return TrainSettings.named({"data.path": "", "run.out": "", **given})


def parts_of(**model: object) -> Parts:
    return Parts(tiny.build("m2", **{"suppressed_ids": (0, 1, 2), "dropout": 0.0, **model}), VOCABULARY, None)


def views() -> CachedRegions:
    regions: Regions = tiny.pictures(*[4] * PICTURES)
    return CachedRegions(regions, CPU, count=PICTURES)


def reward() -> CiderReward:
    references = [[VOCABULARY.encode(caption) for caption in captions] for captions in TOKENS]
    return CiderReward(references, eos=VOCABULARY.eos, pad=VOCABULARY.pad)


def table() -> CaptionTable:
    return CaptionTable.build(TOKENS, VOCABULARY, 8)


def options_of(settings: TrainSettings) -> dict:
    return {"seed": settings.run.seed, "accumulate": settings.run.accumulate}


def xe_task(parts: Parts, settings: TrainSettings, world: World | None = None) -> CrossEntropy:
    return CrossEntropy(parts, views(), table(), settings.xe, world or World(CPU), **options_of(settings))


def scst_task(
    parts: Parts,
    settings: TrainSettings,
    world: World | None = None,
    judge: object = None,
    shown: Views | None = None,
) -> SelfCritical:
    return SelfCritical(
        parts, shown or views(), judge or reward(), table(), settings.scst, world or World(CPU),
        max_length=settings.data.max_length, **options_of(settings),
    )  # fmt: skip


class Validator:
    """Gives what a test wants at each validation."""

    def __init__(self, ciders: list[float]):
        self.ciders, self.asked = ciders, 0

    def validate(self) -> SimpleNamespace:
        cider = self.ciders[min(self.asked, len(self.ciders) - 1)]
        self.asked += 1
        return SimpleNamespace(cider=cider, bad_endings=0.0, words=5, captions=[])


def trainer_of(
    task: CrossEntropy | SelfCritical,
    folder: Path,
    settings: TrainSettings | None = None,
    *,
    steps: int = 6,
    ciders: list[float] | None = None,
    position: Position | None = None,
    lr: float = 1e-3,
    **more: object,
) -> Trainer:
    weights = named_weights(task.parts.model, None)
    kept: list[int] = []
    settings = settings or settings_of()
    trainer = Trainer(
        task=task,
        weights=weights,
        optimizer=make_optimizer(weights, lr=lr, lr_vision=0.0, weight_decay=0.0, device=CPU),
        average=Average(weights, 0.5),
        position=position or Position(task.name),
        pictures=PICTURES,
        stage=replace(task.settings, steps=steps, batch=6, last_rate=0.01),
        settings=settings.run,
        world=task.world,
        folder=folder,
        validator=Validator(ciders or [0.1]),  # type: ignore[arg-type]
        keep=lambda: kept.append(trainer.position.step),
        watch=Watch(steps, Console(quiet=True), quiet=True),
        log=RunLog(folder / "log.jsonl"),
        **{"look_every": 1, **more},  # type: ignore[arg-type]
    )
    trainer.kept = kept  # type: ignore[attr-defined]
    return trainer
