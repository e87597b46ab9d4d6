"""SPICE: what is reported of everything that can be missing, and how its program is spoken to."""

import os
import sys
from pathlib import Path

import pytest

from meshcap.metrics import score, spice
from meshcap.metrics.result import Missing

CANDIDATES = [caption.split() for caption in ("a man rides a horse", "two dogs play in the snow", "")]
REFERENCES = [
    [caption.split() for caption in captions]
    for captions in (
        ("a man riding a horse on the beach", "someone on a horse"),
        ("two dogs playing in snow", "dogs run outside"),
        ("a cat",),
    )
]

posix = pytest.mark.skipif(os.name == "nt", reason="the made-up Java is a script")


FAKE = """#!{python}
import json, sys, time
if "-version" in sys.argv:
    print('openjdk version "{version}"', file=sys.stderr)
    sys.exit(0)
{body}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine with this Java and a pycocoevalcap whose programs are all there."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    home = tmp_path / "pycocoevalcap"
    for jar in ("spice/spice-1.0.jar", *(f"spice/lib/{name}" for name in spice.CORENLP)):
        (home / jar).parent.mkdir(parents=True, exist_ok=True)
        (home / jar).touch()
    monkeypatch.setattr(spice, "_home", lambda: home)

    def make(body: str, version: str = "11.0.2") -> Path:
        path = tmp_path / "bin" / "java"
        path.write_text(FAKE.format(python=sys.executable, version=version, body=body))
        path.chmod(0o755)
        return home

    return make


def missing(message: str) -> None:
    with pytest.raises(Missing) as raised:
        spice.spice([CANDIDATES], REFERENCES)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing("SPICE left out: it is a Java program, and there is no Java: install one (8 or 11)")


@posix
def test_no_pycocoevalcap(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("")
    monkeypatch.undo()
    monkeypatch.setattr(spice, "find_java", lambda: ("java", 11))
    monkeypatch.setattr(spice, "find_spec", lambda name: None)
    missing('SPICE left out: pycocoevalcap is not installed: pip install "meshcap[spice]"')


@posix
@pytest.mark.parametrize(
    ("said", "version"),
    [("1.8.0_292", 8), ("11.0.2", 11), ("17.0.15", 17), ("21", 21), ("9-ea", 9)],
)
def test_java_versions(machine, said: str, version: int) -> None:
    machine("", said)
    assert spice.find_java()[1] == version


@posix
def test_java_that_is_none(machine) -> None:
    machine("", 'no"')
    missing("-version does not print a version, expected Java 8 or 11")


@posix
def test_spice_says_which_parts_are_missing(machine) -> None:
    home = machine("")
    (home / "spice/lib" / spice.CORENLP[1]).unlink()
    where = f"expected in {home / 'spice/lib'}: get them from {spice.CORENLP_FROM}"
    missing(f"SPICE left out: stanford-corenlp-3.6.0-models.jar is missing, {where}")
    (home / "spice/lib" / spice.CORENLP[0]).unlink()
    both = "stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar are missing"
    missing(f"SPICE left out: {both}, {where}")


@posix
def test_java_too_new_for_spice(machine) -> None:
    machine("", "17.0.15")
    missing("SPICE left out: it needs Java 8 or 11, and ")
    missing("is Java 17: put an older one first")


SPICE = """
asked = json.load(open(next(word for word in sys.argv if word.endswith("captions.json"))))
told = [{"image_id": item["image_id"], "scores": {"All": {"f": len(item["test"]) / 100}}} for item in asked]
json.dump(told[::-1], open(sys.argv[sys.argv.index("-out") + 1], "w"))
print("noise")
"""


@posix
def test_spice_of_several_systems(machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine(SPICE)
    first, second = spice.spice([CANDIDATES, CANDIDATES[::-1]], REFERENCES)
    assert first.per_image.tolist() == [0.19, 0.25, 0]
    assert second.per_image.tolist() == [0, 0.25, 0.19]
    assert first.corpus() == pytest.approx(0.44 / 3)
    assert capfd.readouterr() == ("", "")  # stdout may be somebody's JSON


@posix
def test_spice_that_fails(machine) -> None:
    machine("sys.stderr.write('Parsing\\njava.lang.Error: no\\n'); sys.exit(1)")
    missing("SPICE left out: it failed (java.lang.Error: no)")
    machine("")
    missing("SPICE left out: its answer cannot be read (FileNotFoundError")


@posix
def test_other_metrics_are_scored_without_them(machine) -> None:
    machine("sys.exit(1)", "17.0.1")
    names = ["cider", "spice"]
    found = score({1: "a dog runs far", 2: "a cat"}, {1: ["a dog runs far"], 2: ["a cat"]}, metrics=names)
    assert list(found.scores) == ["CIDEr"]
    assert [line.split(":")[0] for line in found.warnings] == ["SPICE left out"]
    assert "SPICE" not in found.signature
    alone = score({1: "a dog", 2: "a cat"}, {1: ["a dog"], 2: ["a cat"]}, metrics=["spice"], domains={"1": "x"})
    assert (alone.scores, alone.intervals, alone.per_image) == ({}, {}, {"1": {}, "2": {}})


@posix
def test_spice_reads_and_writes_json_in_any_alphabet(machine) -> None:
    machine(SPICE.replace('len(item["test"])', 'item["refs"].count("un café ☕")'))
    (found,) = spice.spice([[["x"]]], [[["un", "café", "☕"]]])
    assert found.per_image.tolist() == [0.01]
