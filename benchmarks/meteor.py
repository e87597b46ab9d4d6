"""METEOR in Python beside its Java program: time, memory, and whether the scores are equal.

python benchmarks/meteor.py --references dataset_coco.json.gz --candidates results/coco-test.json
python benchmarks/meteor.py --references dataset_coco.json.gz     # each picture's first caption, against the others
python benchmarks/meteor.py --references dataset_coco.json.gz --random 20000

Both run in processes of their own on one core, start-up included. Java is sent all captions at once, which is faster
than pycocoevalcap's way of asking for one at a time. The time is the CPU's, whatever else the machine is busy with.
"""

from __future__ import annotations

import json as json_format
import os
import random as random_numbers
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy
import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Row, progress, report
from meshcap.data.caption_files import read_candidates, read_references
from meshcap.errors import MeshcapError
from meshcap.metrics.meteor import JAR, find_data
from meshcap.text.tokenizers import tokenize_each

Pairs = list[tuple[str, list[str]]]  # a caption and its references

WORK = """
import json, sys
from meshcap.metrics.meteor import Meteor
pairs = json.load(open(sys.argv[1], encoding="utf-8"))
meteor = Meteor()
candidates = [one.split(" ") for one, _ in pairs]
counts = meteor.statistics(candidates, [[text.split(" ") for text in those] for _, those in pairs])
json.dump([meteor.scores(counts).tolist(), float(meteor.scores(counts.sum(0)))], sys.stdout)
"""
# A process begins with the memory of the one that starts it: between the two is a small one, which measures.
LAUNCH = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.call(sys.argv[2:])
wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
json.dump([code, used.ru_utime + used.ru_stime, wall, used.ru_maxrss], open(sys.argv[1], "w"))
"""
JAVA = ["java", "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", JAR, "-", "-", "-stdio", "-l", "en", "-norm"]

ODD = (
    "U.S. U.S.-based Mr. e.g. 1,000 3.14 1990's it's don't rock'n'roll O'Neil 'tis dogs' x-ray t-shirt a/b C++ etc. "
    "p.m. 5' 6'2\" a...b a..b end. a--b -x ' '' \"hi\" , ,, a,b 10% $5 #1 . ; : ! ? ` – — ( ) [ ] … -- ... naïve "
    "Straße ΣΊΣΥΦΟΣ привет 日本語 😀 İstanbul ﬁne ½ x² ž don’t “quoted” aÿ bà"
).split()


def random_pairs(references: Sequence[Sequence[str]], count: int, seed: int) -> Pairs:
    """Sentences of no, one, repeated and many words, with punctuation, in any alphabet; references like or unlike."""
    draw = random_numbers.Random(seed)
    common_words = [word for captions in references for word in captions[0].split()]

    def word() -> str:
        return draw.choice(ODD) if draw.random() < 0.1 else draw.choice(common_words)

    def sentence() -> str:
        length = draw.choice([0, 1, 1, 4, 8, 8, 12, 12, 12, 16, 16, 25, 60])
        if draw.random() < 0.2:  # few words, again and again
            some = [word() for _ in range(draw.randint(1, 4))]
            return " ".join(draw.choice(some) for _ in range(length))
        return " ".join(word() for _ in range(length))

    def like(line: str) -> str:
        words = line.split()
        for _ in range(draw.randint(0, 4) if words else 0):
            i, j = draw.randrange(len(words)), draw.randrange(len(words))
            words[i], words[j] = words[j], word() if draw.random() < 0.4 else words[i]
        return " ".join(words)

    pairs = []
    for _ in range(count):
        one = sentence()
        pairs.append(
            (one, [like(one) if draw.random() < 0.5 else sentence() for _ in range(draw.choice([1, 1, 1, 2, 5]))])
        )
    return pairs


def measured(
    command: list[str], folder: Path | None, given: bytes, cache: Path | None = None
) -> tuple[str, float, float, float]:
    """What a process on one core says, its CPU and wall seconds, and its memory in bytes."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"XDG_CACHE_HOME": str(cache)} if cache else {})
    with tempfile.NamedTemporaryFile("r") as used:
        try:
            if cores:
                os.sched_setaffinity(0, {max(cores)})
            launch = [sys.executable, "-S", "-c", LAUNCH, used.name, *command]
            done = subprocess.run(launch, cwd=folder, input=given, capture_output=True, env=environment)
        finally:
            if cores:
                os.sched_setaffinity(0, cores)
        code, seconds, wall, memory = json_format.load(used)
    if code:
        raise MeshcapError(f"{command[0]} ended with {code}: {done.stderr.decode()[-200:]}")
    return done.stdout.decode(), seconds, wall, memory * (1 if sys.platform == "darwin" else 1024)


def bench_meteor(name: str, pairs: Pairs, *, compare: bool) -> list[Row]:
    """Rows for our METEOR, the first time and every other, and for Java's."""
    data = find_data()
    if data is None:
        raise MeshcapError('METEOR\'s data is not installed: pip install "meshcap[meteor]"')
    rows = []

    def row(work: str, used: Sequence[float], notes: dict[str, str] | None = None) -> None:
        seconds, wall, memory = used
        rate = f"{len(pairs) / seconds:,.0f} captions/s"
        rows.append(Row(work, name, seconds, rate, memory, notes={"wall": f"{wall:.1f} s"} | (notes or {})))

    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder) / "pairs.json", Path(folder) / "cache"
        file.write_text(json_format.dumps(pairs), encoding="utf-8")
        command = [sys.executable, "-c", WORK, str(file)]
        progress(f"{name}: meshcap")
        _, *first = measured(command, None, b"", cache)
        row("meshcap, which indexes the paraphrases", first)
        answer, *usual = measured(command, None, b"", cache)
        row("meshcap", usual)
    each, total = json_format.loads(answer)
    if not compare or not shutil.which("java"):
        return rows
    progress(f"{name}: Java")
    lines = "".join(" ||| ".join(["SCORE", *those, one]) + "\n" for one, those in pairs)
    answer, *theirs = measured(JAVA, data, lines.encode())
    counts = answer.strip().split("\n")
    *scores, corpus = measured(JAVA, data, ("EVAL ||| " + " ||| ".join(counts) + "\n").encode())[0].split()
    apart = abs(numpy.array(each) - numpy.array(scores, float))
    told = f"{(apart > 1e-6).sum()} of {len(pairs):,} by more than 1e-6, at most {apart.max():.0e}"
    notes = {"scores differ": told, "corpus": f"{float(corpus):.6f}, ours {total:.6f}"}
    row("Java", theirs, notes)
    return rows


def command(
    references: Annotated[Path, typer.Option(help="COCO or Karpathy JSON, as of meshcap score.")],
    candidates: Annotated[
        list[Path] | None, typer.Option(help="Captions, as of meshcap score; several times for more pictures.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of Karpathy's JSON; several with +, or all.", show_default="test")
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, help="At most so many.")] = 5000,
    random: Annotated[int, typer.Option(min=0, help="So many random captions instead.")] = 0,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="Java too, if it is there.")] = True,
    seed: common.Seed = 0,
    json: common.Json = False,
) -> None:
    """METEOR in Python beside its Java program."""
    said = {id: captions for path in candidates or [] for id, captions in read_candidates(path).items()}
    known = read_references(references, split=split, like=said).captions
    if random:
        name, pairs = f"{random:,} random", random_pairs(list(known.values()), random, seed)
    elif candidates:
        chosen = [id for id in said if id in known][:pictures]
        name = f"{len(chosen):,} pictures, {sum(len(known[id][:5]) for id in chosen):,} references"
        pairs = tokenized([(said[id][0], known[id][:5]) for id in chosen])
    else:
        chosen = [id for id in known if len(known[id]) > 1][:pictures]
        name = f"{len(chosen):,} pictures, people"
        pairs = tokenized([(known[id][0], known[id][1:]) for id in chosen])
    report("METEOR 1.5", bench_meteor(name, pairs, compare=compare), torch.device("cpu"), json)


def tokenized(pairs: Pairs) -> Pairs:
    """As the metrics read captions."""
    ours = tokenize_each("ptb", (one for one, _ in pairs))
    theirs = tokenize_each("ptb", (text for _, those in pairs for text in those))
    return [(" ".join(next(ours)), [" ".join(next(theirs)) for _ in those]) for _, those in pairs]


if __name__ == "__main__":
    common.main(command)
