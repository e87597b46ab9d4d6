"""METEOR and SPICE: the real METEOR where it is there, and what is said of everything that can be missing."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest

from meshcap.metrics import java, score
from meshcap.metrics.result import intervals

CANDIDATES = [caption.split() for caption in ("a man rides a horse", "two dogs play in the snow", "")]
REFERENCES = [
    [caption.split() for caption in captions]
    for captions in (
        ("a man riding a horse on the beach", "someone on a horse"),
        ("two dogs playing in snow", "dogs run outside"),
        ("a cat",),
    )
]
# What METEOR answers for the first two, and the scores it then gives: 0.363…, 0.421…, and 0.384… for both together.
COUNTS = numpy.array(
    [
        [5, 8, 2, 4, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 5, 5],
        [6, 5, 3, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 5, 5],
    ],
    float,
)

posix = pytest.mark.skipif(os.name == "nt", reason="the made-up Java is a script")


def test_score_of_counts() -> None:
    assert java.meteor_from_statistics(COUNTS) == pytest.approx([0.363166923119682, 0.42191927446219163], abs=1e-15)
    assert java.meteor_from_statistics(COUNTS.sum(0)) == pytest.approx(0.38428956264874653, abs=1e-15)
    assert java.meteor_from_statistics(numpy.zeros(23)) == 0


FAKE = """#!{python}
import json, sys, time
if "-version" in sys.argv:
    print('openjdk version "{version}"', file=sys.stderr)
    sys.exit(0)
{body}
"""
ANSWERING = "for line in sys.stdin: print({!r}, flush=True)"
COUNTED = " ".join(str(count) for count in COUNTS[0])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine with this Java and a pycocoevalcap whose programs are all there."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    home = tmp_path / "pycocoevalcap"
    for jar in ("meteor/meteor-1.5.jar", "spice/spice-1.0.jar", *(f"spice/lib/{name}" for name in java.CORENLP)):
        (home / jar).parent.mkdir(parents=True, exist_ok=True)
        (home / jar).touch()
    monkeypatch.setattr(java, "_home", lambda metric: home)

    def make(body: str, version: str = "11.0.2") -> Path:
        path = tmp_path / "bin" / "java"
        path.write_text(FAKE.format(python=sys.executable, version=version, body=body))
        path.chmod(0o755)
        return home

    return make


def missing(program, message: str) -> None:
    with pytest.raises(java.Missing) as raised:
        program([CANDIDATES], REFERENCES)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing(java.meteor, "METEOR left out: there is no Java: install one (METEOR: 8 or later; SPICE: 8 or 11)")
    missing(java.spice, "SPICE left out: there is no Java: install one")


@posix
def test_no_pycocoevalcap(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(ANSWERING.format(COUNTED))
    monkeypatch.undo()
    monkeypatch.setattr(java, "find_java", lambda metric: ("java", 11))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    message = 'left out: pycocoevalcap is not installed: pip install "meshcap[java-metrics]"'
    missing(java.meteor, f"METEOR {message}")
    missing(java.spice, f"SPICE {message}")


@posix
@pytest.mark.parametrize(
    ("said", "version"),
    [("1.8.0_292", 8), ("11.0.2", 11), ("17.0.15", 17), ("21", 21), ("9-ea", 9)],
)
def test_java_versions(machine, said: str, version: int) -> None:
    machine("", said)
    assert java.find_java("METEOR")[1] == version


@posix
def test_java_that_is_none(machine) -> None:
    machine("", 'no"')
    missing(java.meteor, "-version does not tell a version, expected a Java of 8 or later")


@posix
def test_meteor_of_several_systems(machine) -> None:
    machine(
        "counts = " + repr(COUNTED) + "\n"
        "for line in sys.stdin:\n"
        "    parts = line.rstrip('\\n').split(' ||| ')\n"
        "    assert parts[0] == 'SCORE' and len(parts) in (3, 4), parts\n"
        "    print(counts if 'horse' in parts[-1] else ' '.join(['0.0'] * 23), flush=True)"
    )
    told: list[str] = []
    first, second = java.meteor([CANDIDATES, CANDIDATES[::-1]], REFERENCES, told.append)
    assert first.per_image == pytest.approx([0.363166923119682, 0, 0])
    assert second.per_image == pytest.approx([0, 0, 0.363166923119682])
    assert told == ["METEOR: 0 of 6 captions"]


@posix
def test_meteor_that_fails(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("sys.stderr.write('loading\\nout of memory\\n\\n'); sys.exit(1)")
    missing(java.meteor, "METEOR left out: it ended after 0 captions (out of memory)")
    machine(f"print({COUNTED!r}, flush=True); sys.stdin.read(); print({COUNTED!r}); sys.exit(0)")
    missing(java.meteor, "METEOR left out: it ended after 2 captions (it said nothing)")
    machine(ANSWERING.format("what?"))
    missing(java.meteor, "METEOR left out: it answered 'what?', expected 23 numbers")
    monkeypatch.setattr(java, "START", 0.5)
    monkeypatch.setattr(java, "find_java", lambda metric: (shutil.which("java"), 11))
    machine("time.sleep(60)")
    missing(java.meteor, "METEOR left out: no answer for 0.5 s")


@posix
def test_meteor_jar_is_gone(machine) -> None:
    jar = machine("") / "meteor/meteor-1.5.jar"
    jar.unlink()
    missing(java.meteor, f"METEOR left out: {jar} is missing: pip install --force-reinstall")


@posix
def test_spice_says_which_parts_are_missing(machine) -> None:
    home = machine("")
    (home / "spice/lib" / java.CORENLP[1]).unlink()
    where = f"expected in {home / 'spice/lib'}: get them from {java.CORENLP_FROM}"
    missing(java.spice, f"SPICE left out: stanford-corenlp-3.6.0-models.jar is missing, {where}")
    (home / "spice/lib" / java.CORENLP[0]).unlink()
    both = "stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar are missing"
    missing(java.spice, f"SPICE left out: {both}, {where}")


@posix
def test_java_too_new_for_spice(machine) -> None:
    machine("", "17.0.15")
    missing(java.spice, "SPICE left out: it needs Java 8 or 11, and ")
    missing(java.spice, "is Java 17: put an older one first")


SPICE = """
asked = json.load(open(next(word for word in sys.argv if word.endswith("asked.json"))))
told = [{"image_id": item["image_id"], "scores": {"All": {"f": len(item["test"]) / 100}}} for item in asked]
json.dump(told[::-1], open(sys.argv[sys.argv.index("-out") + 1], "w"))
print("noise")
"""


@posix
def test_spice_of_several_systems(machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine(SPICE)
    first, second = java.spice([CANDIDATES, CANDIDATES[::-1]], REFERENCES)
    assert first.per_image.tolist() == [0.19, 0.25, 0]
    assert second.per_image.tolist() == [0, 0.25, 0.19]
    assert first.corpus() == pytest.approx(0.44 / 3)
    assert capfd.readouterr() == ("", "")  # stdout may be somebody's JSON


@posix
def test_spice_that_fails(machine) -> None:
    machine("sys.stderr.write('Parsing\\njava.lang.Error: no\\n'); sys.exit(1)")
    missing(java.spice, "SPICE left out: it failed (java.lang.Error: no)")
    machine("")
    missing(java.spice, "SPICE left out: its answer cannot be read (FileNotFoundError")


@posix
def test_other_metrics_are_scored_without_them(machine) -> None:
    machine("sys.exit(1)", "17.0.1")
    names = ["cider", "meteor", "spice"]
    found = score({1: "a dog runs far", 2: "a cat"}, {1: ["a dog runs far"], 2: ["a cat"]}, metrics=names)
    assert list(found.scores) == ["CIDEr"]
    assert [line.split(":")[0] for line in found.warnings] == ["METEOR left out", "SPICE left out"]
    assert "METEOR" not in found.signature
    alone = score({1: "a dog", 2: "a cat"}, {1: ["a dog"], 2: ["a cat"]}, metrics=["spice"], domains={"1": "x"})
    assert (alone.scores, alone.intervals, alone.per_image) == ({}, {}, {"1": {}, "2": {}})


def real_meteor() -> str | None:
    if not shutil.which("java"):
        return "there is no Java"
    return None if find_spec("pycocoevalcap") else "pycocoevalcap is not installed"


@pytest.mark.slow
@pytest.mark.skipif(real_meteor() is not None, reason=str(real_meteor()))
def test_meteor_is_pycocoevalcaps(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycocoevalcap.meteor.meteor import Meteor

    random = numpy.random.default_rng(0)
    words = "a man woman dog dogs running runs the red big large on in park café sits sitting bike bicycle".split()
    candidates = [list(random.choice(words, random.integers(0, 12))) for _ in range(200)]
    references = [[list(random.choice(words, random.integers(1, 12))) for _ in range(k % 5 + 1)] for k in range(200)]
    candidates[3], candidates[5], references[5] = references[3][0], ["dog"], [["dog"]]  # not broken at all
    theirs = Meteor().compute_score(
        {k: [" ".join(those) for those in captions] for k, captions in enumerate(references)},
        {k: [" ".join(caption)] for k, caption in enumerate(candidates)},
    )
    monkeypatch.setenv("LC_ALL", "C")  # UTF-8 all the same
    (found,) = java.meteor([candidates], references)
    assert found.corpus() == pytest.approx(theirs[0], abs=1e-12)
    assert found.per_image == pytest.approx(theirs[1], abs=1e-12)
    assert found.per_image[5] == 1
    ((low, high),) = intervals([found], 200, 0)
    assert low < theirs[0] < high


@posix
def test_spice_reads_and_writes_json_in_any_alphabet(machine) -> None:
    machine(SPICE.replace('len(item["test"])', 'item["refs"].count("un café ☕")'))
    (found,) = java.spice([[["x"]]], [[["un", "café", "☕"]]])
    assert found.per_image.tolist() == [0.01]
