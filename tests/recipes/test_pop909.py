"""Captioners of scores beside each other: what is counted, kept and printed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("symusic")

from benchmarks.mechanisms import cases
from meshcap.data import read_dataset
from meshcap.data.pack import write_dataset
from meshcap.data.shards import Packed
from meshcap.errors import MeshcapError
from meshcap.music.captions import check_caption, write_captions
from meshcap.music.facts import facts_of
from meshcap.music.harmony import Key
from music_scores import EIGHT
from recipes import pop909


def packed(number: int, split: str, ending: str = "") -> Packed:
    """The same tune in another key and tempo, and what is true of it."""
    score = EIGHT.transposed(number % 12 - 6).at_tempo(0.7 + 0.1 * (number % 8))
    facts = facts_of(score, Key(number % 12, "major"), ())
    id = f"{split}-{number}{ending}"
    record = {"id": id, "filename": f"{id}.mid", "captions": write_captions(facts, random.Random(number))}
    return Packed(number, id, "mid", score.to_midi(), {**record, "split": split, "facts": facts.to_dict()})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("excerpts") / "data"
    both = ("-given", "-bare")
    splits = {
        "train": [packed(number, "train") for number in range(16)],
        "val": [packed(number, "val", both[number % 2]) for number in range(6)],
    }
    write_dataset(
        folder, {}, {name: lambda start, own=own: iter(own[start:]) for name, own in splits.items()}, shard_mb=1
    )
    return folder


def run(data: Path, out: Path, *, only: list[str], seeds: int = 2, jobs: int = 1) -> list[dict]:
    pop909.compare(data, out, seeds=seeds, steps=2, only=only, jobs=jobs)
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_captioners_are_those_of_the_bench() -> None:
    assert set(pop909.COMPARED) <= {case.name for case in cases(layers=2)}


def test_runs_are_kept_and_printed(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["seq2seq", "m2, last"]
    lines = run(data, tmp_path / "out", only=only)
    assert [(line["case"], line["seed"]) for line in lines] == [
        ("seq2seq", 0), ("m2, last level", 0), ("seq2seq", 1), ("m2, last level", 1)
    ]  # fmt: skip
    facts = {sample.id: pop909.truth(sample) for sample in read_dataset(data).split("val")}
    for line in lines:  # of notes alone, and counted as the rules count
        assert set(line["said"]) == set(line["pictures"]) == {"val-1-bare", "val-3-bare", "val-5-bare"}
        held = [holds for id, text in line["said"].items() for _, holds in check_caption(text, facts[id])]
        assert (line["statements"], line["true"]) == (len(held), sum(held))
    printed = capsys.readouterr().out
    assert [row.split(" | ")[0] for row in printed.splitlines()[-2:]] == ["| seq2seq", "| m2, last level"]
    assert run(data, tmp_path / "out", only=only) == lines  # nothing is done again
    assert capsys.readouterr().out == printed[printed.index("\n3 pieces") :]


@pytest.mark.slow
def test_side_by_side_is_in_turn(data: Path, tmp_path: Path) -> None:
    """The same numbers in whatever process; what a stop cut off is done again."""
    lines = run(data, tmp_path, only=["seq2seq"])
    kept = [json.dumps(line) for line in lines]
    (tmp_path / "results.jsonl").write_text(kept[0][:50])
    pop909.compare(data, tmp_path, seeds=2, steps=2, only=["seq2seq"], jobs=2)
    again = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()[1:]]
    again.sort(key=lambda line: line["seed"])
    assert [{**line, "seconds": 0} for line in again] == [{**line, "seconds": 0} for line in lines]


def test_the_share_of_true_statements_and_the_distance_to_m2(capsys: pytest.CaptureFixture[str]) -> None:
    def line(name: str, seed: int, cider: float, true: int) -> dict:
        pictures = {"a-bare": cider, "b-bare": cider}
        return {
            "case": name, "seed": seed, "CIDEr": cider, "BLEU-4": 0.0, "weights": 500_000, "pictures": pictures,
            "said": dict.fromkeys(pictures, ""), "statements": 4, "true": true, "machine": "a machine",
        }  # fmt: skip

    pop909.print_compared(
        [[line("m2", 0, 0.5, 2), line("m2", 1, 0.7, 3)], [line("ntm", seed, 0.4, 4) for seed in (0, 1)]]
    )
    *_, m2, ntm = capsys.readouterr().out.splitlines()
    assert m2 == "| m2 | 60.0 (60.0–60.0) | 50.0–70.0 | – | 62.5 | 50.0–75.0 | 2.0 | 0.50 M |"
    assert ntm.startswith("| ntm | 40.0 (40.0–40.0) | 40.0–40.0 | -20.0 (-20.0 to -20.0), p ")
    assert ntm.endswith(" | 100.0 | 100.0–100.0 | 2.0 | 0.50 M |")


def test_a_name_that_is_none_is_told(data: Path, tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="no captioner begins with 'lstm'"):
        run(data, tmp_path, only=["lstm"])
