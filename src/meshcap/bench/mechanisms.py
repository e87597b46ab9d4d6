"""Every captioner on one bench: the same regions, words, steps and searches; only the mechanism differs.

Each case is trained by cross-entropy for the same number of steps from several seeds, captions the same pictures by
beam search, and is compared with M² picture by picture. Runs that are done stand in `results.jsonl` and are not done
again, so that a bench can be stopped and taken up. Whatever looks at the pictures looks once, for all runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy
import torch

from meshcap.bench.mechanisms_page import page, plot
from meshcap.errors import FailedError, MeshcapError
from meshcap.files import write_beside
from meshcap.metrics.bootstrap import Measure, differences, intervals
from meshcap.training.checkpoint import Position
from meshcap.training.distributed import World
from meshcap.training.examine import graded
from meshcap.training.progress import Watch
from meshcap.training.run import Run, fingerprint
from meshcap.training.settings import TrainSettings
from meshcap.training.start import begin
from meshcap.training.tasks import Parts

RESULTS, PAGE, PLOT = "results.jsonl", "mechanisms.md", "mechanisms.svg"
REFERENCE = "m2"  # what all others are compared with
SLOTS, BEAMS, RESAMPLES = 40, 5, 1000


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
        for score in ("additive", "dot", "scaled", "bilinear"):
            name = f"show-attend-tell, {attention}, {score}"
            found.append(Case(name, "show-attend-tell", {"attention": attention, "score": score}))
    found += [Case("hierarchical", "hierarchical"), Case("ntm", "ntm"), Case("hopfield", "hopfield")]
    found.append(Case("hopfield, no self-attention", "hopfield", {"self_attention": False}))
    for depth in (layers, 2 * layers):
        deep = {"encoder_layers": depth, "decoder_layers": depth}
        found.append(Case(f"transformer, {depth} layers", "transformer", {}, deep))
    found.append(Case(REFERENCE, "m2", {}, {"slots": SLOTS}))
    for slots in (0, 20, 60, 80):
        found.append(Case(f"m2, {slots} slots" if slots else "m2, no memory", "m2", {}, {"slots": slots}))
    for name, option in (("last level", {"mesh": "last"}), ("one-to-one", {"mesh": "one-to-one"})):
        found.append(Case(f"m2, {name}", "m2", option, {"slots": SLOTS}))
    found.append(Case("m2, softmax gates", "m2", {"gates": "softmax"}, {"slots": SLOTS}))
    return found


@dataclass(frozen=True)
class Row:
    """What became of a case: means over its seeds, of numbers times 100 where they are scores."""

    name: str
    seeds: int
    weights: int
    seconds: float  # of training
    captions: float  # a second
    cider: float
    interval: tuple[float, float]  # over pictures, of the mean of all seeds
    lowest: float  # of the seeds
    highest: float
    bleu: float
    ahead: float | None = None  # of M², on the same pictures
    ahead_interval: tuple[float, float] | None = None
    p: float | None = None


def bench_mechanisms(
    settings: TrainSettings,
    out: Path,
    world: World,
    watch: Watch,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    layers: int = 3,
    only: Sequence[str] = (),
    say: Callable[[str], object] = lambda line: None,
) -> list[Row]:
    """Train and judge every case (or those whose names begin with one of `only`) and write page and plot to `out`.

    Args:
        settings: data, eyes, steps and sizes for all; the eyes do not learn, pictures do not vary.

    Raises:
        MeshcapError: `only` names nothing, or the data or settings cannot work.
        FailedError: weights of a run are no longer finite.
    """
    chosen = [case for case in cases(layers) if not only or any(case.name.startswith(one) for one in only)]
    if not chosen:
        known = ", ".join(sorted({case.model for case in cases(layers)}))
        raise MeshcapError(f"no captioner begins with {', '.join(only)!r}: expected some of {known}")
    settings = settings.but(
        model=REFERENCE, stages=("xe",), train_vision=False, augment=0.0, region_dropout=0.0, patience=0, track=(),
        encoder_layers=layers, decoder_layers=layers,
    )  # fmt: skip
    base = Run.prepare(settings, world, watch)
    if test := base.data.split("test"):
        base = replace(base, val=test)
    base.open_eyes()
    out.mkdir(parents=True, exist_ok=True)
    sign = signature(base)
    done = {(line["case"], line["seed"]): line for line in read_results(out / RESULTS) if line["signature"] == sign}
    for seed in seeds:  # all cases once, then again: a bench that is stopped has something of each
        for case in chosen:
            if (case.name, seed) in done:
                continue
            line = {"case": case.name, "seed": seed, "signature": sign, **judged(base, case, seed)}
            done[case.name, seed] = line
            append(out / RESULTS, line)
            say(f"{case.name}, seed {seed}: CIDEr {100 * line['CIDEr']:.1f}, {line['seconds']:.0f} s")
    rows = summed_up([[done[case.name, seed] for seed in seeds] for case in chosen])
    told = page(rows, machine_of(base), f"{base.settings.xe_steps:,} steps of {base.settings.batch} pictures")
    write_beside(out / PAGE, lambda path: path.write_text(told, encoding="utf-8"))
    write_beside(out / PLOT, lambda path: path.write_text(plot(rows), encoding="utf-8"))
    return rows


def judged(base: Run, case: Case, seed: int) -> dict[str, Any]:
    """One run: train a case from a seed, caption, score. Nothing is written."""
    settings = base.settings.but(**{"slots": None, **case.changes}, model=case.model, options=case.options, seed=seed)
    torch.manual_seed(seed)
    model = begin(settings, base.tokens, base.store).model.to(base.world.device)
    # The same eyes, and what they saw, for all.
    run = replace(base, settings=settings, parts=Parts(model, base.parts.vocabulary, base.parts.vision))
    trainer = run.trainer("xe", Position("xe"))
    trainer.task.ready()
    start = time.perf_counter()
    for step in range(trainer.steps):
        trainer.step(step)
    synchronised(run.world.device)
    seconds = time.perf_counter() - start
    if not all(bool(torch.isfinite(weight).all()) for weight in model.parameters()):
        raise FailedError(f"{case.name}, seed {seed}: weights are no longer finite after training: lower the rate")
    with trainer.average.applied():
        examiner = run.examiner(False, beams=BEAMS)
        if run.world.device.type == "cuda":
            examiner.captions()  # a search is captured the first time
        start = time.perf_counter()
        captions = examiner.captions()
        taken = time.perf_counter() - start
    result = graded(run.val, captions, tokenizer=settings.tokenizer, metrics=("bleu", "CIDEr")).result
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "seconds": seconds,
        "captions_per_second": len(captions) / taken,
        "CIDEr": result.scores["CIDEr"],
        "BLEU-4": result.scores["BLEU-4"],
        "pictures": {id: round(scores["CIDEr"] or 0.0, 5) for id, scores in result.per_image.items()},
        "said": {sample.id: caption.text for sample, caption in zip(run.val, captions, strict=True)},
    }


def summed_up(lines: Sequence[Sequence[dict[str, Any]]]) -> list[Row]:
    """A row for each case from its runs, and how far it is ahead of M² where that is among them.

    A picture's CIDEr is the mean of all seeds before pictures are drawn: the interval says what other pictures would
    have changed, `lowest` and `highest` what other seeds did.
    """
    measures = {runs[0]["case"]: measure_of(runs) for runs in lines}
    rows = []
    for runs in lines:
        name = runs[0]["case"]
        ciders = [100 * run["CIDEr"] for run in runs]
        ((low, high),) = intervals([measures[name]], RESAMPLES, 0)
        row = Row(
            name=name,
            seeds=len(runs),
            weights=runs[0]["weights"],
            seconds=mean(run["seconds"] for run in runs),
            captions=mean(run["captions_per_second"] for run in runs),
            cider=mean(ciders),
            interval=(100 * low, 100 * high),
            lowest=min(ciders),
            highest=max(ciders),
            bleu=100 * mean(run["BLEU-4"] for run in runs),
        )
        if REFERENCE in measures and name != REFERENCE:
            (apart,) = differences([measures[name]], [measures[REFERENCE]], RESAMPLES, 0)
            assert apart.interval is not None
            ends = (100 * apart.interval[0], 100 * apart.interval[1])
            row = replace(row, ahead=100 * apart.value, ahead_interval=ends, p=apart.p)
        rows.append(row)
    return rows


def measure_of(runs: Sequence[dict[str, Any]]) -> Measure:
    """CIDEr of each picture, the mean over runs; pictures in the same order for all."""
    ids = sorted(runs[0]["pictures"])
    return Measure.mean("CIDEr", numpy.array([[run["pictures"][id] for id in ids] for run in runs]).mean(0))


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a finished run, on a line of its own even if the one before was cut off."""
    with path.open("ab+") as file:
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Finished runs; a last line that was cut off is none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def signature(run: Run) -> str:
    """What runs must have in common to be compared, in a few letters: data, and settings but where they come from."""
    told = {key: value for key, value in run.settings.to_dict().items() if key not in ("data", "out", "seed", "model")}
    text = json.dumps([told, fingerprint(run.train, run.val)], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def machine_of(run: Run) -> str:
    from meshcap.bench.measure import machine

    return machine(run.world.device)


def synchronised(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
