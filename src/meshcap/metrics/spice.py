"""SPICE 1.0: the field's own Java program, where it is there.

It comes with pycocoevalcap (the extra `spice`) and needs Stanford CoreNLP beside it and an old Java. Whatever is
missing is reported as `Missing`: one line, and how to get it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy

from meshcap.metrics.result import Measure, Missing

Tokens = Sequence[str]
Report = Callable[[str], object]

SPICE_JAR = "spice-1.0.jar"
CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
CORENLP_FROM = "https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
SPICE_JAVA = 15  # from 16 on, Java closes the classes that SPICE's libraries reach into

START, WHOLE = 300.0, 4 * 3600.0  # seconds to wait: for Java's version, for SPICE


def spice(
    systems: Sequence[Sequence[Tokens]], references: Sequence[Sequence[Tokens]], report: Report = lambda line: None
) -> list[Measure]:
    """SPICE 1.0 of each system's candidates: the F-score of each picture and their mean, as pycocoevalcap's.

    Raises:
        Missing: no Java of the right age, no pycocoevalcap, no CoreNLP beside it, or the program fails.
    """
    java, home = check_spice()
    items = [
        {"image_id": number, "test": " ".join(one), "refs": [" ".join(words) for words in those]}
        for number, (one, those) in enumerate(
            (one, those) for candidates in systems for one, those in zip(candidates, references, strict=True)
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        captions, scored = Path(folder) / "captions.json", Path(folder) / "scores.json"
        captions.write_text(json.dumps(items), encoding="ascii")
        command = [java, "-Xmx8G", "-Dfile.encoding=UTF-8", "-jar", str(home / SPICE_JAR), str(captions)]
        try:
            report(f"SPICE: {len(items):,} captions")
            command += ["-out", str(scored), "-silent"]
            done = subprocess.run(command, capture_output=True, timeout=WHOLE, cwd=home)
            if done.returncode:
                lines = done.stderr.decode("utf-8", "replace").strip().split("\n")
                raise Missing(f"SPICE left out: it failed ({lines[-1].strip()[:200] or 'it said nothing'})")
            scores = {item["image_id"]: item["scores"]["All"]["f"] for item in json.loads(scored.read_bytes())}
            each = numpy.array([float(scores[number]) for number in range(len(items))])
        except subprocess.TimeoutExpired:
            raise Missing(f"SPICE left out: not done after {WHOLE / 3600:.0f} hours") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Missing(f"SPICE left out: its answer cannot be read ({type(error).__name__}: {error})") from None
    return [Measure.mean("SPICE", part) for part in each.reshape(len(systems), len(references))]


def check_spice() -> tuple[str, Path]:
    """Java's path and SPICE's folder, where all that it needs is there.

    Raises:
        Missing: no Java of the right age, no pycocoevalcap, or no CoreNLP beside it.
    """
    java, version = find_java()
    home = _home() / "spice"
    missing = [name for name in CORENLP if not (home / "lib" / name).is_file()]
    if missing:
        raise Missing(
            f"SPICE left out: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, "
            f"expected in {home / 'lib'}: get them from {CORENLP_FROM}"
        )
    if version > SPICE_JAVA:
        raise Missing(f"SPICE left out: it needs Java 8 or 11, and {java} is Java {version}: put an older one first")
    return java, home


def find_java() -> tuple[str, int]:
    """The path and the version (8, 11, 17, …) of the Java that would be run."""
    java = shutil.which("java")
    if not java:
        raise Missing("SPICE left out: it is a Java program, and there is no Java: install one (8 or 11)")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, timeout=START, text=True, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"SPICE left out: {java} cannot be run ({error})") from None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if not found:
        raise Missing(f"SPICE left out: {java} -version does not print a version, expected Java 8 or 11")
    return java, int(found[1])


def _home() -> Path:
    """The folder of pycocoevalcap, which need not be imported to find its programs."""
    spec = find_spec("pycocoevalcap")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise Missing('SPICE left out: pycocoevalcap is not installed: pip install "meshcap[spice]"')
    return Path(os.fspath(places[0]))
