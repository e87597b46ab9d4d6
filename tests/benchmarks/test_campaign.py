"""A short form of `make campaign`, and what it calls a failure."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from benchmarks import campaign as module
from benchmarks.campaign import Round, broken, good_pictures
from meshcap.errors import MeshcapError

TOP = Path(__file__).parents[2]


def test_what_counts_as_a_failure() -> None:
    found = Round("test")
    with found.trying("fine"):
        pass
    with found.trying("refused"):
        raise MeshcapError("one line")
    assert (found.tries, found.failures) == (2, [])
    with found.trying("lines"):
        raise MeshcapError("two\nlines")
    with found.trying("crash"):
        raise IndexError("out of range")
    with found.trying("slow", hang=0.0):
        time.sleep(0.001)
    assert [one.partition(":")[0] for one in found.failures] == ["lines", "crash", "slow"]


def test_broken_pictures_are_the_same_for_the_same_seed() -> None:
    import random

    kinds = good_pictures()
    first, second = ([broken(one, kinds, random.Random(7)) for one in kinds] for _ in range(2))
    assert first == second and len(set(first) - set(kinds)) > len(kinds) // 2


def test_results_are_kept_and_failed_rounds_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def one(name: str, *failures: str) -> Callable[..., None]:
        def run(found: Round, *_: object) -> None:
            ran.append(name)
            found.tries, found.failures = 3, list(failures)

        return run

    for name in module.ROUNDS:
        monkeypatch.setattr(module, name, one(name, *(["it broke"] if name == "slow" else [])))
    results = tmp_path / "rounds.jsonl"
    module.campaign(only=["folders"], kept=results)
    with pytest.raises(typer.Exit):
        module.campaign(only=["folders", "slow"], kept=results)
    assert ran == ["folders", "slow"]
    monkeypatch.setattr(module, "slow", one("slow"))
    module.campaign(kept=results)
    assert Counter(ran) == {name: 2 if name == "slow" else 1 for name in module.ROUNDS}
    assert len(results.read_text().splitlines()) == len(module.ROUNDS) + 1  # the failed one stays on record
    with pytest.raises(MeshcapError, match="other settings"):
        module.campaign(kills=1, kept=results)


@pytest.mark.slow
def test_a_short_campaign_finds_nothing() -> None:
    words = ["--tries", "600", "--seconds", "8", "--clients", "16", "--kills", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "benchmarks/campaign.py", *words], cwd=TOP, capture_output=True, text=True, timeout=1500
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row for row in rows if row["failures"]] == [] and done.returncode == 0
    assert sum(row["tries"] for row in rows) > 1000
