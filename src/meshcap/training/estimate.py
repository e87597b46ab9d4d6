"""What a plan costs, measured on its own first steps rather than guessed."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from meshcap.machine import peak_memory
from meshcap.training.captions import CaptionTable
from meshcap.training.checkpoint import Position
from meshcap.training.run import Run

STEPS = 3  # the first is left out: it sets things up


def estimate(run: Run) -> list[tuple[str, str]]:
    """Seconds a step, time and memory of each stage. Trains a few steps on the first pictures and writes nothing."""
    settings = run.settings
    assert settings.batch and settings.scst_batch
    some = max(settings.batch, settings.scst_batch)
    few = replace(
        run,
        # Compiling takes longer than this estimate should; what it saves later is not counted.
        settings=settings.but(compile=False, cache="memory", val_pictures=8),
        train=run.train[:some],
        val=run.val[:8],
        tokens=run.tokens[:some],
        table=CaptionTable.build(run.tokens[:some], run.parts.vocabulary, settings.max_length),
        _pixels={},
        _eyes={},
    )
    told, total = [], 0.0
    for stage, steps in (("xe", settings.xe_steps), ("scst", settings.scst_steps)):
        if stage not in settings.stages or not steps:
            continue
        trainer = few.trainer(stage, Position(stage))
        trainer.task.ready()
        seconds = []
        for step in range(STEPS):
            start = time.perf_counter()
            trainer.step(step)
            if run.world.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        each = sum(seconds[1:]) / (STEPS - 1)
        total += each * steps
        told.append((stage, f"{each:.2f} s a step, {minutes(each * steps)} for {steps:,} steps"))
    told.append(("together", f"about {minutes(total)}, without reading the pictures and validating"))
    told.append(("memory", f"{peak_memory(run.world.device) / 2**30:.1f} GiB at most in these steps"))
    return told


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
