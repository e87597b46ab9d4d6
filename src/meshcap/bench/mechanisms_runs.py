"""One case of the bench of mechanisms: how fast it is, and what it has learned to say."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from meshcap.bench.mechanisms_cases import Case, cases
from meshcap.bench.mechanisms_jobs import Work
from meshcap.data import Sample, read_dataset
from meshcap.data.without import without
from meshcap.decoding import Beam
from meshcap.errors import FailedError
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.examine import graded
from meshcap.training.eyes import see
from meshcap.training.progress import Watch
from meshcap.training.run import Run, with_val
from meshcap.training.settings import TrainSettings
from meshcap.training.start import begin
from meshcap.training.tasks import Parts, autocast

BEAMS = 5
WORDS = 12  # of each timed caption, its end counted: what has learned nothing yet would say more, or fewer


def splits(settings: TrainSettings) -> tuple[list[Sample], list[Sample]]:
    """What `prepared` learns from and judges on, without a model."""
    data = read_dataset(settings.data, pictures=None if settings.pictures is None else Path(settings.pictures))
    data = with_val(data, settings.val_share)
    if settings.without is not None:
        data = without(data, Path(settings.without))
    val = data.split("val")[: settings.val_pictures or None]
    return data.split("train"), data.split("test") or val


def prepared(settings: TrainSettings, world: World, watch: Watch) -> Run:
    """What all runs share; judged on the test pictures where there are any."""
    run = Run.prepare(settings, world, watch)
    test = run.data.split("test")
    return replace(run, val=test) if test else run


def worker(settings: TrainSettings, device: str, layers: int) -> Work:
    """A process of its own gets ready: it reads the data and looks at the pictures itself."""
    base = prepared(settings, World(torch.device(device)), Watch(0, Console(quiet=True), quiet=True))
    base.open_eyes()
    return work_of(base, layers)


def work_of(base: Run, layers: int) -> Work:
    known = {case.name: case for case in cases(layers)}
    return lambda job: judged(base, known[job[0]], job[1])


def timing_of(base: Run, layers: int) -> Work:
    known = {case.name: case for case in cases(layers)}
    return lambda job: timed(base, known[job[0]], job[1])


def started(base: Run, case: Case, seed: int, **changes: Any) -> Run:
    """A run of a case from new weights; the same eyes, and what they saw, for all."""
    own = {"slots": None, **case.changes, **changes}
    settings = base.settings.but(**own, model=case.model, options=case.options, seed=seed)
    torch.manual_seed(seed)
    model = begin(settings, base.tokens, base.store).model.to(base.world.device)
    return replace(base, settings=settings, parts=Parts(model, base.parts.vocabulary, base.parts.vision))


def judged(base: Run, case: Case, seed: int) -> dict[str, Any]:
    """One run: train a case from a seed, caption, score. Nothing is written."""
    run = started(base, case, seed)
    model = run.parts.model
    trainer = run.trainer("xe", Position("xe"))
    trainer.task.ready()
    start = time.perf_counter()
    for step in range(trainer.steps):
        trainer.step(step)
    synchronised(run.world.device)
    seconds = time.perf_counter() - start
    if not all(bool(torch.isfinite(weight).all()) for weight in model.parameters()):
        raise FailedError("weights are no longer finite after training, lower the rate")
    with trainer.average.applied():
        captions = run.examiner(False, beams=BEAMS).captions()
    result = graded(run.val, captions, tokenizer=run.settings.tokenizer, metrics=("bleu", "CIDEr")).result
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "seconds": seconds,  # for the log: beside other runs they say little
        "CIDEr": result.scores["CIDEr"],
        "BLEU-4": result.scores["BLEU-4"],
        "pictures": {id: round(scores["CIDEr"] or 0.0, 5) for id, scores in result.per_image.items()},
        "said": {sample.id: caption.text for sample, caption in zip(run.val, captions, strict=True)},
    }


def timed(base: Run, case: Case, seed: int) -> dict[str, Any]:
    """How fast a case trains and captions, with nothing beside it. What it learns in so few steps is thrown away."""
    device = base.world.device
    gpu = device.type == "cuda"
    warm, count = (5, 20) if gpu else (1, 3)
    run = started(base, case, seed, xe_steps=warm + count)
    trainer = run.trainer("xe", Position("xe"))
    trainer.task.ready()
    start = 0.0
    for step in range(warm + count):
        if step == warm:
            synchronised(device)
            start = time.perf_counter()
        trainer.step(step)
    synchronised(device)
    taken = time.perf_counter() - start
    examiner = run.examiner(False, beams=BEAMS)
    if run.parts.vision is not None:
        run.parts.vision.eval()
    pictures = len(run.val) if gpu else min(64, len(run.val))
    longest = min(WORDS, run.settings.max_length)

    @torch.no_grad()
    def search() -> float:
        start = time.perf_counter()
        for block in torch.arange(pictures).split(examiner.batch):
            with autocast(device, examiner.dtype):
                regions = see(run.parts.vision, examiner.eyes.view(block, training=False))
            examiner.captioner.describe(regions, strategy=Beam(BEAMS), min_length=longest, max_length=longest)
        synchronised(device)
        return time.perf_counter() - start

    if gpu:
        search()  # which is captured the first time
    return {
        "weights": sum(weight.numel() for weight in run.parts.model.parameters()),
        "step_seconds": taken / count,
        "captions_per_second": pictures / search(),
    }


def synchronised(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
