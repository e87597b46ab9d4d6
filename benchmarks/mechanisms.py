"""Every captioner on one bench: the same regions, words, steps and searches; only the mechanism differs.

    python benchmarks/mechanisms.py scenes.jsonl --out bench --steps 500 --only m2 --only transformer

First the speed of each case is measured, alone. Then each is trained by cross-entropy for the same number of steps from
several seeds, captions the same pictures by beam search, and is compared with M² picture by picture. What is done
stands in `results.jsonl` and is not done again, so that a bench can be stopped and taken up. Whatever looks at the
pictures looks once, for all runs of a process.
"""

from __future__ import annotations

import gc
import json as json_format
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import set_up
from benchmarks.mechanisms_results import (
    BENCH,
    REFERENCE,
    Bench,
    Results,
    Row,
    comparable,
    page,
    plot,
    signature,
    speed_plot,
)
from benchmarks.side_by_side import Job, Work, failures, in_turn, side_by_side
from meshcap.data import Sample
from meshcap.data.workers import cores
from meshcap.errors import FailedError, MeshcapError
from meshcap.evaluation.evaluation import evaluate
from meshcap.files import write_text
from meshcap.machine import machine
from meshcap.metrics.meteor import meteor as meteor_measures
from meshcap.metrics.result import Missing
from meshcap.text.tokenizers import tokenize_each
from meshcap.training.build import Parts, build
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.folder import fingerprint
from meshcap.training.log import Watch
from meshcap.training.pictures import regions_of
from meshcap.training.run import Run, read_split_data
from meshcap.training.settings import TrainSettings, parse
from meshcap.training.tasks import autocast

PAGE, PLOT, SPEED = "mechanisms.md", "mechanisms.svg", "mechanisms-speed.svg"
TOGETHER = 8  # runs that METEOR scores at once: it takes seconds to start, and what it has scored is kept after each

Say = Callable[[str], object]
BEAMS = 5
WORDS = 12  # of each timed caption, its end counted: what has learned nothing yet would say more, or fewer
SLOTS = 40
SLOW = ("ntm", "show-attend-tell", "hierarchical")  # beginnings of what trains longest


@dataclass(frozen=True)
class Case:
    """A captioner and how its settings differ from the bench's."""

    name: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)  # of the model alone
    changes: dict[str, Any] = field(default_factory=dict)  # of the training settings


def cases(layers: int = 3) -> list[Case]:
    """All captioners, from the oldest to M², and M²'s ablations."""
    found = [Case("seq2seq", "seq2seq")]
    for attention in ("soft", "hard"):
        for how in ("additive", "dot", "scaled", "bilinear"):
            name = f"show-attend-tell, {attention}, {how}"
            found.append(Case(name, "show-attend-tell", {"attention": attention, "score": how}))
    found += [Case("hierarchical", "hierarchical"), Case("ntm", "ntm"), Case("hopfield", "hopfield")]
    found.append(Case("hopfield, no self-attention", "hopfield", {"self_attention": False}))
    for depth in (layers, 2 * layers):
        deep = {"model.encoder_layers": depth, "model.decoder_layers": depth}
        found.append(Case(f"transformer, {depth} layers", "transformer", {}, deep))
    found.append(Case(REFERENCE, "m2", {}, {"model.slots": SLOTS}))
    for slots in (0, 20, 60, 80):
        found.append(Case(f"m2, {slots} slots" if slots else "m2, no memory", "m2", {}, {"model.slots": slots}))
    for name, option in (("last level", {"mesh": "last"}), ("one-to-one", {"mesh": "one-to-one"})):
        found.append(Case(f"m2, {name}", "m2", option, {"model.slots": SLOTS}))
    found.append(Case("m2, softmax gates", "m2", {"gates": "softmax"}, {"model.slots": SLOTS}))
    return found


def chosen_cases(layers: int, only: Sequence[str]) -> list[Case]:
    """Those whose names begin with one of `only`; all without."""
    chosen = [case for case in cases(layers) if not only or any(case.name.startswith(one) for one in only)]
    if not chosen:
        known = ", ".join(sorted({case.model for case in cases(layers)}))
        raise MeshcapError(f"no captioner begins with {', '.join(only)!r}: expected some of {known}")
    return chosen


def slow_first(jobs: Sequence[Job], layers: int) -> list[Job]:
    """Seed by seed, in each what takes longest first, so that no long run is left at the end."""
    slow = (*SLOW, f"transformer, {2 * layers} layers")

    def place(job: Job) -> tuple[int, int]:
        found = [number for number, start in enumerate(slow) if job[0].startswith(start)]
        return job[1], found[0] if found else len(slow)

    return sorted(jobs, key=place)


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
        settings: data, vision, steps and sizes for all; the vision does not learn, pictures do not vary.
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
        {
            "model.arch": REFERENCE, "model.encoder_layers": layers, "model.decoder_layers": layers,
            "xe.lr_vision": 0.0, "xe.augment": 0.0, "xe.region_dropout": 0.0,
            "run.stages": ("xe",), "run.patience": 0, "run.track": (),
        }
    )  # fmt: skip
    if (before := done_before(settings, out, names, seeds, timing)) is not None:
        return written(out, before, names)
    base = prepared(settings, world, watch)
    everything = fingerprint(base.train, base.val)
    bench = Bench(
        signature=signature(base.settings.flat(), everything),
        machine=machine(world.device),
        seeds=seeds,
        layers=layers,
        asked=comparable(settings.flat()),
        settings=base.settings.flat(),
        data=everything,
        references=fingerprint(base.val),
        counts={"train": len(base.train), "test" if base.data.split("test") else "val": len(base.val)},
    )
    results = Results.read(out, bench.signature)
    untimed = [case for case in chosen if timing and case.name not in results.timings]
    # All cases once, then again: a bench that is stopped has something of each.
    left = [(name, seed) for seed in seeds for name in names if (name, seed) not in results.runs]
    if untimed or (left and jobs == 1):
        base.read_pictures()  # what is missing is told before a file is made
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
            {
                "run.threads": base.settings.run.threads or max(1, cores() // jobs),
                "data.workers": base.settings.data.workers or max(1, cores() // jobs),
            }
        )
        del base  # what it has seen would take room that the workers need
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        ready = partial(worker, own, str(world.device), layers)
        failed = side_by_side(ready, slow_first(left, layers), jobs, finished, lost)
    failed |= {(f"speed of {name}", seed): why for (name, seed), why in unmeasured.items()}
    if failed:
        raise FailedError(failures(failed, len(left) + len(untimed)))
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
    if not done or bench.asked != comparable(settings.flat()) or bench.data != fingerprint(*splits(settings)):
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
    samples = splits(TrainSettings.named(bench.settings).but({"data.path": data, "data.without": None}))[1]
    if fingerprint(samples) != bench.references:
        raise MeshcapError(f"{data} does not hold the pictures and captions that {out} was judged on: give those")
    left = [(name, seed) for seed in bench.seeds for name in names if "METEOR" not in results.runs[name, seed]]
    for start in range(0, len(left), TOGETHER):
        some = left[start : start + TOGETHER]
        said = [[results.runs[job]["said"][sample.id] for sample in samples] for job in some]
        for (name, seed), found in zip(some, meteors(said, samples, bench.settings["data.tokenizer"]), strict=True):
            results.add(name, {"meteor": True, "METEOR": found}, seed)
            say(f"{name}, seed {seed}: METEOR {100 * found:.1f}")
    return written(out, bench, names)


def meteors(systems: Sequence[Sequence[str]], samples: Sequence[Sample], tokenizer: str) -> list[float]:
    """METEOR of several systems' captions of the same pictures."""
    flat = tokenize_each(tokenizer, (caption for sample in samples for caption in sample.captions))
    references = [[next(flat) for _ in sample.captions] for sample in samples]
    try:
        measures = meteor_measures([list(tokenize_each(tokenizer, said)) for said in systems], references)
    except Missing as missing:
        raise MeshcapError(str(missing)) from None
    return [measure.corpus() for measure in measures]


def written(out: Path, bench: Bench, names: Sequence[str]) -> list[Row]:
    """Page and plots of results that are all there."""
    rows = Results.read(out, bench.signature).rows(names, bench.seeds)
    text = page(rows, bench, BEAMS, WORDS)
    write_text(out / PAGE, text)
    write_text(out / PLOT, plot(rows))
    if any(row.captions for row in rows):
        write_text(out / SPEED, speed_plot(rows))
    return rows


def splits(settings: TrainSettings) -> tuple[list[Sample], list[Sample]]:
    """What `prepared` learns from and judges on, without a model."""
    data = read_split_data(settings)
    val = data.split("val")[: settings.data.val_pictures or None]
    return data.split("train"), data.split("test") or val


def prepared(settings: TrainSettings, world: World, watch: Watch) -> Run:
    """What all runs share; judged on the test pictures where there are any."""
    run = Run.prepare(settings, world, watch)
    test = run.data.split("test")
    return replace(run, val=test) if test else run


def worker(settings: TrainSettings, device: str, layers: int) -> Work:
    """A process of its own gets ready: it reads the data and looks at the pictures itself."""
    base = prepared(settings, World(torch.device(device)), Watch(0, Console(quiet=True), quiet=True))
    base.read_pictures()
    return work_of(base, layers)


def work_of(base: Run, layers: int) -> Work:
    known = {case.name: case for case in cases(layers)}
    return lambda job: judged(base, known[job[0]], job[1])


def timing_of(base: Run, layers: int) -> Work:
    known = {case.name: case for case in cases(layers)}
    return lambda job: speed_of(base, known[job[0]], job[1])


def started(base: Run, case: Case, seed: int, changes: Mapping[str, Any] | None = None) -> Run:
    """A run of a case from new weights; the same vision, and what it saw, for all."""
    own = {"model.slots": None, **case.changes, **(changes or {}), "model.arch": case.model, "run.seed": seed}
    settings = base.settings.but(own | {f"model.{name}": value for name, value in case.options.items()})
    torch.manual_seed(seed)
    model = build(settings, base.tokens, base.store).model.to(base.world.device)
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
        captions = run.validator("xe", beams=BEAMS).captions()
    tokenizer, metrics = run.settings.data.tokenizer, ("bleu", "CIDEr")
    result = evaluate(None, run.val, captions=captions, tokenizer=tokenizer, metrics=metrics).result
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "seconds": seconds,  # for the log: beside other runs they say little
        "CIDEr": result.scores["CIDEr"],
        "BLEU-4": result.scores["BLEU-4"],
        "pictures": {id: round(scores["CIDEr"] or 0.0, 5) for id, scores in result.per_image.items()},
        "said": {sample.id: caption.text for sample, caption in zip(run.val, captions, strict=True)},
    }


def speed_of(base: Run, case: Case, seed: int) -> dict[str, Any]:
    """How fast a case trains and captions, with nothing beside it. What it learns in so few steps is thrown away."""
    device = base.world.device
    gpu = device.type == "cuda"
    warm, count = (5, 20) if gpu else (1, 3)
    run = started(base, case, seed, {"xe.steps": warm + count})
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
    validator = run.validator("xe", beams=BEAMS)
    if run.parts.vision is not None:
        run.parts.vision.eval()
    pictures = len(run.val) if gpu else min(64, len(run.val))
    longest = min(WORDS, run.settings.data.max_length)

    @torch.no_grad()
    def search() -> float:
        start = time.perf_counter()
        for block in torch.arange(pictures).split(validator.batch):
            with autocast(device, validator.dtype):
                regions = regions_of(run.parts.vision, validator.views.view(block, training=False))
            validator.captioner.describe(regions, beams=BEAMS, min_words=longest - 1, max_words=longest - 1)
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


def command(
    data: Annotated[str, typer.Argument(help="Pictures with captions, as for `meshcap train`.")],
    out: Annotated[Path, typer.Option(help="Where results are kept; what is done is not done again.")],
    steps: Annotated[int, typer.Option(min=1, help="Of cross-entropy, for every captioner.")] = 2000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each captioner.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Beginning of a name; may be given several times.", show_default="all")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of encoders and decoders each.")] = 3,
    vision: Annotated[
        str | None, typer.Option(help="The image encoder, which does not learn.", show_default="(by size)")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="Precomputed regions instead of pictures.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other training setting, as in model.d_model=256.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs side by side, each in a process of its own; on a GPU far sooner done.")
    ] = 1,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Measure the speed of each captioner alone, before the runs.")
    ] = True,
    meteor: Annotated[
        bool,
        typer.Option(
            "--meteor",
            help="Only add METEOR to a finished bench in --out and write its page again: seeds, layers and steps are "
            "the bench's own, nothing is trained, no GPU is needed (the extra meteor is).",
        ),
    ] = False,
    device: common.Device = "auto",
    threads: common.Threads = None,
    json: common.Json = False,
) -> None:
    """Train every captioner and M²'s ablations alike, and compare what they say with M², picture by picture."""
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        if not json:
            console.print(line)

    if meteor:
        rows = bench_meteor(data, out, only=only or (), say=say)
    else:
        where = set_up(device, threads)
        given = {
            "data.path": data, "run.out": str(out), "model.vision": vision, "xe.steps": steps,
            "run.threads": threads, "data.features": None if features is None else str(features),
        }  # fmt: skip
        settings = TrainSettings.named(given | dict(parse(one) for one in set_ or []))
        world = World.join(where)
        try:
            with Watch(0, console, quiet=True) as watch:
                rows = bench_mechanisms(
                    settings,
                    out,
                    world,
                    watch,
                    seeds=range(seeds),
                    layers=layers,
                    only=only or (),
                    jobs=jobs,
                    timing=timing,
                    say=say,
                )
        finally:
            world.leave()
    if json:
        machine = Bench.load(out).machine  # where the runs were made, which need not be here
        typer.echo(json_format.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}))
    else:
        typer.echo((out / PAGE).read_text(encoding="utf-8"))


if __name__ == "__main__":
    common.main(command)
