"""What the bench of mechanisms keeps on disk: `results.jsonl`, and in `bench.json` what the results are of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy

from meshcap.bench.mechanisms_cases import REFERENCE
from meshcap.bench.mechanisms_jobs import Job
from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.metrics.bootstrap import Measure, differences, intervals

RESULTS, BENCH = "results.jsonl", "bench.json"
RESAMPLES = 1000
# Settings that say where things are or how the work is shared out: results do not depend on them.
ELSEWHERE = ("data", "out", "seed", "model", "threads", "workers")


@dataclass(frozen=True)
class Bench:
    """What results belong to: with it they can be finished on another machine than that of the runs."""

    signature: str  # of data and settings
    machine: str
    seeds: list[int]
    layers: int
    asked: dict[str, Any]  # settings as they were given
    settings: dict[str, Any]  # and as the data and the device completed them
    data: str  # fingerprint of what was learned from and judged on
    references: str  # fingerprint of what was judged on
    counts: dict[str, int]

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, default=str) + "\n"
        write_text(folder / BENCH, text)

    @classmethod
    def load(cls, folder: Path) -> Bench:
        """
        Raises:
            MeshcapError: there is none, or it cannot be read.
        """
        if not (folder / BENCH).is_file():
            raise MeshcapError(f"{folder} holds no {BENCH}: run the bench there first")
        try:
            return cls(**json.loads((folder / BENCH).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise MeshcapError(f"{folder / BENCH} cannot be read ({error}): remove it, run the bench anew") from None


@dataclass
class Results:
    """The lines of one signature."""

    path: Path
    signature: str
    runs: dict[Job, dict[str, Any]] = field(default_factory=dict)
    timings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, signature: str) -> Results:
        found = cls(folder / RESULTS, signature)
        for line in read_results(found.path):
            if line.get("signature") == signature:
                found._take(line)
        return found

    def _take(self, line: dict[str, Any]) -> None:
        if line.get("timing"):
            self.timings[line["case"]] = line
            return
        job = (line["case"], line["seed"])
        if not line.get("meteor"):
            self.runs[job] = line
        elif job in self.runs:
            self.runs[job] = self.runs[job] | {"METEOR": line["METEOR"]}

    def add(self, case: str, line: dict[str, Any], seed: int | None = None) -> None:
        whole = {"case": case, **({} if seed is None else {"seed": seed}), "signature": self.signature, **line}
        append(self.path, whole)
        self._take(whole)

    def rows(self, names: Sequence[str], seeds: Sequence[int]) -> list[Row]:
        return summed_up([[self.runs[name, seed] for seed in seeds] for name in names], self.timings)


@dataclass(frozen=True)
class Row:
    """What became of a case: means over its seeds, of numbers times 100 where they are scores."""

    name: str
    seeds: int
    weights: int
    cider: float
    interval: tuple[float, float]  # over pictures, of the mean of all seeds
    lowest: float  # of the seeds
    highest: float
    bleu: float
    meteor: float | None = None
    step_ms: float | None = None  # of training; this and the next measured alone
    captions: float | None = None  # a second
    ahead: float | None = None  # of M², on the same pictures
    ahead_interval: tuple[float, float] | None = None
    p: float | None = None


def summed_up(
    lines: Sequence[Sequence[dict[str, Any]]], timings: Mapping[str, dict[str, Any]] | None = None
) -> list[Row]:
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
            cider=mean(ciders),
            interval=(100 * low, 100 * high),
            lowest=min(ciders),
            highest=max(ciders),
            bleu=100 * mean(run["BLEU-4"] for run in runs),
            meteor=100 * mean(run["METEOR"] for run in runs) if all("METEOR" in run for run in runs) else None,
        )
        if timing := (timings or {}).get(name):
            row = replace(row, step_ms=1000 * timing["step_seconds"], captions=timing["captions_per_second"])
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
    """Add what is finished, on a line of its own even if the one before was cut off."""
    with path.open("ab+") as file:
        if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
            file.write(b"\n")
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Finished lines; a last one that was cut off is none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that results depend on, as JSON would give them back."""
    told = {key: value for key, value in settings.items() if key not in ELSEWHERE}
    found: dict[str, Any] = json.loads(json.dumps(told, default=str))
    return found


def signature(settings: Mapping[str, Any], data: str) -> str:
    """What runs must have in common to be compared, in a few letters: data, and settings but where they come from."""
    text = json.dumps([comparable(settings), data], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
