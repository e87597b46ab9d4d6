"""METEOR and SPICE: the field's own Java programs, where they are there.

Both come with pycocoevalcap (the extra `java-metrics`). Its METEOR class asks for one caption at a time, never reads
what the program complains about and waits for ever where it died, so the same program is spoken to here directly: UTF-8
in every locale, questions and answers side by side, an end to waiting. What METEOR answers are 23 counts for each
picture; the score of a picture or of any set of pictures follows from their sum.

Whatever is missing is told as `Missing`: one line, and how to get it.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy

from meshcap.metrics.result import Measure

Array = numpy.ndarray
Tokens = Sequence[str]
Report = Callable[[str], object]

METEOR_JAR = "meteor-1.5.jar"
SPICE_JAR = "spice-1.0.jar"
CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
CORENLP_FROM = "https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
SPICE_JAVA = 15  # from 16 on, Java closes the classes that SPICE's libraries reach into

START, ANSWER, WHOLE = 300.0, 60.0, 4 * 3600.0  # seconds to wait: for the first answer, for each other, for SPICE

# English METEOR 1.5: weights of exact, stem, synonym and paraphrase matches, then the paper's α, β, γ, δ.
WEIGHTS = numpy.array([1.0, 0.6, 0.8, 0.6])
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
COUNTS = 23


class Missing(Exception):  # noqa: N818 - no error: the other metrics are still wanted
    """A metric cannot be computed here; the message is one line and says why and what to do."""


def meteor(
    systems: Sequence[Sequence[Tokens]], references: Sequence[Sequence[Tokens]], report: Report = lambda line: None
) -> list[Measure]:
    """METEOR 1.5 of each system's candidates, as pycocoevalcap's. It starts once for all of them.

    Raises:
        Missing: no Java, no pycocoevalcap, or the program fails.
    """
    captions = [words for candidates in systems for words in candidates]
    table = meteor_statistics(captions, list(references) * len(systems), report)
    parts = table.reshape(len(systems), len(references), COUNTS)
    return [Measure("METEOR", meteor_from_statistics(part), part, _meteor_total) for part in parts]


def _meteor_total(sums: Array, _: int) -> Array:
    return meteor_from_statistics(sums)


def meteor_from_statistics(sums: Array) -> Array:
    """METEOR (…) from the program's counts (…, 23), of one picture or summed over many.

    The counts: words and function words of candidate and reference; for each kind of match its content and function
    words in candidate and reference; chunks; matched words in candidate and reference.
    """
    lengths, functions = sums[..., 0:2], sums[..., 2:4]
    matches = sums[..., 4:20].reshape(*sums.shape[:-1], 4, 2, 2)  # kind, content or function, candidate or reference
    found = numpy.einsum("k,f,...kfs->...s", WEIGHTS, numpy.array([DELTA, 1 - DELTA]), matches)
    size = DELTA * (lengths - functions) + (1 - DELTA) * functions
    precision, recall = numpy.moveaxis(_ratio(found, size), -1, 0)
    harmonic = _ratio(precision * recall, ALPHA * precision + (1 - ALPHA) * recall)
    chunks, matched = sums[..., 20], sums[..., 21:23]
    return harmonic * (1 - GAMMA * _ratio(chunks, matched.mean(-1)) ** BETA)


def _ratio(above: Array, below: Array) -> Array:
    return numpy.divide(above, below, out=numpy.zeros(numpy.broadcast(above, below).shape), where=below != 0)


def meteor_statistics(
    candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]], report: Report = lambda line: None
) -> Array:
    """(images, 23): what METEOR counts for each picture, its best reference chosen."""
    java, _ = find_java("METEOR")
    jar = _home("METEOR") / "meteor" / METEOR_JAR
    if not jar.is_file():
        raise Missing(f'METEOR left out: {jar} is missing: pip install --force-reinstall "meshcap[java-metrics]"')
    lines = [
        " ||| ".join(["SCORE", *map(_plain, those), _plain(one)])
        for one, those in zip(candidates, references, strict=True)
    ]
    command = [java, "-Xmx2G", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-jar", str(jar)]
    answers = _converse([*command, "-", "-", "-stdio", "-l", "en", "-norm"], lines, jar.parent, report)
    table = numpy.zeros((len(lines), COUNTS))
    for row, answer in zip(table, answers, strict=True):
        try:
            row[:] = [float(word) for word in answer.split()]
        except ValueError:
            raise Missing(f"METEOR left out: it answered {answer[:60]!r}, expected {COUNTS} numbers") from None
    # One chunk that is the whole of both sentences is not broken at all: METEOR does not count it, alone or in sums.
    whole = (table[:, 21:23] == table[:, 0:2]).all(1) & (table[:, 20] == 1)
    table[whole, 20] = 0
    return table


def _plain(words: Tokens) -> str:
    return " ".join(words).replace("|||", "").replace("  ", " ")


def _converse(command: list[str], lines: list[str], folder: Path, report: Report) -> list[str]:
    """Send every line to a program and read a line for each. Nobody waits for anybody longer than told above."""
    answers: queue.Queue[str] = queue.Queue()
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, cwd=folder
        ) as program,
    ):
        assert program.stdin is not None and program.stdout is not None
        writing, reading = program.stdin, program.stdout

        def ask() -> None:
            try:
                writing.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
                writing.close()
            except OSError:  # it died; the reader finds out
                pass

        def listen() -> None:
            for answer in reading:
                answers.put(answer.decode("utf-8", "replace").strip())
            answers.put("")  # no answer of METEOR's is empty

        threads = [threading.Thread(target=work, daemon=True) for work in (ask, listen)]
        for thread in threads:
            thread.start()
        found: list[str] = []
        try:
            for _ in lines:
                if len(found) % 100 == 0:
                    report(f"METEOR: {len(found):,} of {len(lines):,} captions")
                found.append(answers.get(timeout=ANSWER if found else START))
                if not found[-1]:
                    raise Missing(f"METEOR left out: it ended after {len(found) - 1} captions ({_last(complaints)})")
        except queue.Empty:
            raise Missing(f"METEOR left out: no answer for {ANSWER if found else START:g} s") from None
        finally:
            program.kill()
            program.wait()
            for thread in threads:
                thread.join()
    return found


def _last(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode("utf-8", "replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "it said nothing")


def spice(
    systems: Sequence[Sequence[Tokens]], references: Sequence[Sequence[Tokens]], report: Report = lambda line: None
) -> list[Measure]:
    """SPICE 1.0 of each system's candidates: the F-score of each picture and their mean, as pycocoevalcap's.

    Raises:
        Missing: no Java of the right age, no pycocoevalcap, no CoreNLP beside it, or the program fails.
    """
    java, version = find_java("SPICE")
    home = _home("SPICE") / "spice"
    missing = [name for name in CORENLP if not (home / "lib" / name).is_file()]
    if missing:
        raise Missing(
            f"SPICE left out: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, "
            f"expected in {home / 'lib'}: get them from {CORENLP_FROM}"
        )
    if version > SPICE_JAVA:
        raise Missing(f"SPICE left out: it needs Java 8 or 11, and {java} is Java {version}: put an older one first")
    items = [
        {"image_id": number, "test": " ".join(one), "refs": [" ".join(words) for words in those]}
        for number, (one, those) in enumerate(
            (one, those) for candidates in systems for one, those in zip(candidates, references, strict=True)
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "asked.json", Path(folder) / "told.json"
        asked.write_text(json.dumps(items), encoding="ascii")
        command = [java, "-Xmx8G", "-Dfile.encoding=UTF-8", "-jar", str(home / SPICE_JAR), str(asked)]
        try:
            report(f"SPICE: {len(items):,} captions")
            command += ["-out", str(told), "-silent"]
            done = subprocess.run(command, capture_output=True, timeout=WHOLE, cwd=home)
            if done.returncode:
                lines = done.stderr.decode("utf-8", "replace").strip().split("\n")
                raise Missing(f"SPICE left out: it failed ({lines[-1].strip()[:200] or 'it said nothing'})")
            scores = {item["image_id"]: item["scores"]["All"]["f"] for item in json.loads(told.read_bytes())}
            each = numpy.array([float(scores[number]) for number in range(len(items))])
        except subprocess.TimeoutExpired:
            raise Missing(f"SPICE left out: not done after {WHOLE / 3600:.0f} hours") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Missing(f"SPICE left out: its answer cannot be read ({type(error).__name__}: {error})") from None
    return [Measure.mean("SPICE", part) for part in each.reshape(len(systems), len(references))]


def find_java(metric: str) -> tuple[str, int]:
    """The path and the version (8, 11, 17, …) of the Java that would be run."""
    java = shutil.which("java")
    if not java:
        raise Missing(f"{metric} left out: there is no Java: install one (METEOR: 8 or later; SPICE: 8 or 11)")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, timeout=START, text=True, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{metric} left out: {java} cannot be run ({error})") from None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if not found:
        raise Missing(f"{metric} left out: {java} -version does not tell a version, expected a Java of 8 or later")
    return java, int(found[1])


def _home(metric: str) -> Path:
    """The folder of pycocoevalcap, which need not be imported to find its programs."""
    spec = find_spec("pycocoevalcap")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise Missing(f'{metric} left out: pycocoevalcap is not installed: pip install "meshcap[java-metrics]"')
    return Path(os.fspath(places[0]))
