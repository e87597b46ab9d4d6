"""Every captioner on one bench: the same regions, words, steps and searches; only the mechanism differs.

First the speed of each case is measured, alone. Then each is trained by cross-entropy for the same number of steps from
several seeds, captions the same pictures by beam search, and is compared with M² picture by picture. What is done
stands in `results.jsonl` and is not done again, so that a bench can be stopped and taken up. Whatever looks at the
pictures looks once, for all runs of a process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from meshcap.bench.measure import machine
from meshcap.bench.mechanisms_cases import REFERENCE, chosen_cases, slow_first
from meshcap.bench.mechanisms_jobs import Job, in_turn, side_by_side, told_of
from meshcap.bench.mechanisms_page import page, plot
from meshcap.bench.mechanisms_results import BENCH, Bench, Results, Row, comparable, signature
from meshcap.bench.mechanisms_runs import BEAMS, WORDS, prepared, splits, timing_of, work_of, worker
from meshcap.bench.mechanisms_speed import speed_plot
from meshcap.data import Sample
from meshcap.data.pool import cores
from meshcap.errors import FailedError, MeshcapError
from meshcap.files import write_text
from meshcap.metrics import java
from meshcap.text.tokenizers import tokenize_each
from meshcap.training.distributed import World
from meshcap.training.progress import Watch
from meshcap.training.run import fingerprint
from meshcap.training.settings import TrainSettings

PAGE, PLOT, SPEED = "mechanisms.md", "mechanisms.svg", "mechanisms-speed.svg"
TOGETHER = 8  # runs that METEOR scores at once: it takes seconds to start, and what it has scored is kept after each

Say = Callable[[str], object]


def bench_mechanisms(
    settings: TrainSettings,
    out: Path,
    world: World,
    watch: Watch,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    layers: int = 3,
    only: Sequence[str] = (),
    jobs: int = 1,
    timing: bool = True,
    say: Say = lambda line: None,
) -> list[Row]:
    """Train and judge every case (or those whose names begin with one of `only`) and write page and plots to `out`.

    Args:
        settings: data, eyes, steps and sizes for all; the eyes do not learn, pictures do not vary.
        jobs: runs side by side, each in a process of its own; speed is measured in this one, before they start.
        timing: whether to measure speed.

    Raises:
        MeshcapError: `only` names nothing, or the data or settings cannot work.
        FailedError: some runs failed; what is done is kept.
    """
    chosen = chosen_cases(layers, only)
    names, seeds = [case.name for case in chosen], list(seeds)
    if jobs > 1 and world.size > 1:
        raise MeshcapError(f"{jobs} jobs in each of {world.size} processes: give --jobs without torchrun")
    settings = settings.but(
        model=REFERENCE, stages=("xe",), train_vision=False, augment=0.0, region_dropout=0.0, patience=0, track=(),
        encoder_layers=layers, decoder_layers=layers,
    )  # fmt: skip
    if (before := done_before(settings, out, names, seeds, timing)) is not None:
        return written(out, before, names)
    base = prepared(settings, world, watch)
    everything = fingerprint(base.train, base.val)
    bench = Bench(
        signature=signature(base.settings.to_dict(), everything),
        machine=machine(world.device),
        seeds=seeds,
        layers=layers,
        asked=comparable(settings.to_dict()),
        settings=base.settings.to_dict(),
        data=everything,
        references=fingerprint(base.val),
        counts={"train": len(base.train), "test" if base.data.split("test") else "val": len(base.val)},
    )
    results = Results.read(out, bench.signature)
    untimed = [case for case in chosen if timing and case.name not in results.timings]
    # All cases once, then again: a bench that is stopped has something of each.
    left = [(name, seed) for seed in seeds for name in names if (name, seed) not in results.runs]
    if untimed or (left and jobs == 1):
        base.open_eyes()  # what is missing is told before a file is made
    out.mkdir(parents=True, exist_ok=True)
    bench.save(out)

    def measured(job: Job, line: dict[str, Any]) -> None:
        results.add(job[0], {"timing": True, **line})
        say(f"{job[0]}: {1000 * line['step_seconds']:.1f} ms a step, {line['captions_per_second']:.1f} captions/s")

    def finished(job: Job, line: dict[str, Any]) -> None:
        results.add(job[0], line, job[1])
        say(f"{job[0]}, seed {job[1]}: CIDEr {100 * line['CIDEr']:.1f}, {line['seconds']:.0f} s")

    def lost(job: Job, why: str) -> None:
        say(f"{job[0]}, seed {job[1]} failed: {why}")

    unmeasured = in_turn(timing_of(base, layers), [(case.name, 0) for case in untimed], measured, lost)
    if jobs == 1:
        failed = in_turn(work_of(base, layers), left, finished, lost)
    else:
        own = base.settings.but(
            threads=base.settings.threads or max(1, cores() // jobs),
            workers=base.settings.workers or max(1, cores() // jobs),
        )
        del base  # what it has seen would take room that the workers need
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        ready = partial(worker, own, str(world.device), layers)
        failed = side_by_side(ready, slow_first(left, layers), jobs, finished, lost)
    failed |= {(f"speed of {name}", seed): why for (name, seed), why in unmeasured.items()}
    if failed:
        raise FailedError(told_of(failed, len(left) + len(untimed)))
    return written(out, bench, names)


def done_before(
    settings: TrainSettings, out: Path, names: Sequence[str], seeds: list[int], timing: bool
) -> Bench | None:
    """The bench in `out` if it was asked for the same and has it all, wherever it ran."""
    if not (out / BENCH).is_file():
        return None
    bench = Bench.load(out)
    results = Results.read(out, bench.signature)
    done = all((name, seed) in results.runs for name in names for seed in seeds)
    done = done and not (timing and any(name not in results.timings for name in names))
    if not done or bench.asked != comparable(settings.to_dict()) or bench.data != fingerprint(*splits(settings)):
        return None
    return replace(bench, seeds=seeds)


def bench_meteor(data: str, out: Path, *, only: Sequence[str] = (), say: Say = lambda line: None) -> list[Row]:
    """Add METEOR to what a finished bench said, and write its page and plots again. Nothing is trained or looked at.

    Raises:
        MeshcapError: there is no bench, some of its runs are missing, `data` is not what it was judged on, or METEOR
            cannot be run here.
    """
    bench = Bench.load(out)
    results = Results.read(out, bench.signature)
    begun = {name for name, _ in results.runs}
    names = [case.name for case in chosen_cases(bench.layers, only) if case.name in begun]
    missing = [(name, seed) for name in names for seed in bench.seeds if (name, seed) not in results.runs]
    if missing or not names:
        named = f", for one {missing[0][0]} with seed {missing[0][1]}" if missing else ""
        raise MeshcapError(f"{out} is not finished{named}: run the bench without --meteor first")
    samples = splits(TrainSettings.from_dict(bench.settings).but(data=data, without=None))[1]
    if fingerprint(samples) != bench.references:
        raise MeshcapError(f"{data} does not hold the pictures and captions that {out} was judged on: give those")
    left = [(name, seed) for seed in bench.seeds for name in names if "METEOR" not in results.runs[name, seed]]
    for start in range(0, len(left), TOGETHER):
        some = left[start : start + TOGETHER]
        said = [[results.runs[job]["said"][sample.id] for sample in samples] for job in some]
        for (name, seed), found in zip(some, meteors(said, samples, bench.settings["tokenizer"]), strict=True):
            results.add(name, {"meteor": True, "METEOR": found}, seed)
            say(f"{name}, seed {seed}: METEOR {100 * found:.1f}")
    return written(out, bench, names)


def meteors(systems: Sequence[Sequence[str]], samples: Sequence[Sample], tokenizer: str) -> list[float]:
    """METEOR of several systems' captions of the same pictures; Java starts once."""
    flat = tokenize_each(tokenizer, (caption for sample in samples for caption in sample.captions))
    references = [[next(flat) for _ in sample.captions] for sample in samples]
    try:
        measures = java.meteor([list(tokenize_each(tokenizer, said)) for said in systems], references)
    except java.Missing as missing:
        raise MeshcapError(str(missing)) from None
    return [measure.corpus() for measure in measures]


def written(out: Path, bench: Bench, names: Sequence[str]) -> list[Row]:
    """Page and plots of results that are all there."""
    rows = Results.read(out, bench.signature).rows(names, bench.seeds)
    told = page(rows, bench, BEAMS, WORDS)
    write_text(out / PAGE, told)
    write_text(out / PLOT, plot(rows))
    if any(row.captions for row in rows):
        write_text(out / SPEED, speed_plot(rows))
    return rows
