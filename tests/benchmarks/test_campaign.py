"""A short form of `make campaign`, and what it calls a failure."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_a_short_campaign_finds_nothing() -> None:
    words = ["--tries", "600", "--seconds", "8", "--clients", "16", "--kills", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "benchmarks/campaign.py", *words], cwd=TOP, capture_output=True, text=True, timeout=1500
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row for row in rows if row["failures"]] == [] and done.returncode == 0
    assert sum(row["tries"] for row in rows) > 1000
