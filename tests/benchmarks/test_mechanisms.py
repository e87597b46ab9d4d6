"""The bench of mechanisms at its smallest: everything runs, what is done is kept, figures are those of the runs."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tiny_data
import tiny_workers
from benchmarks import mechanisms
from benchmarks.mechanisms import REFERENCE, cases, slow_first
from benchmarks.mechanisms_results import read_results, round_ticks, summed_up
from benchmarks.side_by_side import side_by_side
from meshcap.data import read_dataset
from meshcap.errors import FailedError
from meshcap.metrics import score
from meshcap.metrics.meteor import find_data
from meshcap.models import MODELS
from meshcap.training.run import Run

SETTINGS = {
    "model.d_model": 16, "model.heads": 2, "model.d_ff": 32, "model.size": 48, "xe.batch": 4, "xe.captions": 2,
    "data.workers": 1, "data.min_count": 1,
}  # fmt: skip


def words(data: Path, out: Path, *more: object) -> list[str]:
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    usual = ("--steps", 2, "--layers", 1, "--vision", "patches", "--device", "cpu", "--threads", 1, "--json")
    return [str(word) for word in (data, "--out", out, *usual, *sets, *more)]


def launch(words: list[str]) -> int:
    return tiny_data.bench(mechanisms.command, *words)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"), train=8, val=2, test=3)


def test_every_captioner_runs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(words(data, tmp_path, "--seeds", 1)) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [case.name for case in cases(1)]
    assert {case.model for case in cases(1)} == set(MODELS)
    assert [row["name"] for row in rows if row["ahead"] is None] == [REFERENCE]
    assert all(row["step_ms"] > 0 and row["captions"] > 0 and row["meteor"] is None for row in rows)
    page = (tmp_path / "mechanisms.md").read_text()
    assert page.count("\n| ") == 2 * (len(rows) + 1)
    assert page.startswith("Pictures: 8 train, 3 test. Each captioner: 2 steps of 4 pictures by cross-entropy, 1 seed;")
    ElementTree.parse(tmp_path / "mechanisms.svg")
    dots = ElementTree.parse(tmp_path / "mechanisms-speed.svg").findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(dots) == len(rows)


def test_what_is_done_is_not_done_again(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "m2, last", "--only", "seq2seq", "--no-timing")
    assert launch(words(data, tmp_path, *only, "--seeds", 1)) == 0
    results = tmp_path / "results.jsonl"
    before = results.read_text()
    results.write_text(before + '{"case": "cut o')
    assert launch(words(data, tmp_path, *only, "--seeds", 2)) == 0
    capsys.readouterr()
    text = results.read_text()
    assert text.startswith(before)
    found = [(line["case"], line["seed"]) for line in read_results(results)]
    assert found == [("seq2seq", 0), ("m2, last level", 0), ("seq2seq", 1), ("m2, last level", 1)]
    lines = [json.loads(line) for line in before.splitlines()]
    assert [(line["case"], line["seed"]) for line in lines] == [("seq2seq", 0), ("m2, last level", 0)]
    assert set(lines[0]["said"]) == set(lines[0]["pictures"]) == {"10.png", "11.png", "12.png"}  # the test split
    # Other steps are another bench: nothing of it is taken for done.
    assert launch([*words(data, tmp_path, *only, "--seeds", 1), "--steps", "3"]) == 0
    assert len(results.read_text().splitlines()) == len(text.splitlines()) + 2


def test_side_by_side_is_in_turn(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same numbers, bit by bit, in whatever process; the same signature, so that the one goes on with the other."""
    only = ("--only", "m2, last", "--only", "ntm", "--no-timing", "--seeds", 1)
    runs = []
    for name, jobs in (("one", 1), ("two", 2)):
        assert launch(words(data, tmp_path / name, *only, "--jobs", jobs)) == 0
        lines = read_results(tmp_path / name / "results.jsonl")
        runs.append({line["case"]: {**line, "seconds": 0} for line in lines})
    assert runs[0] == runs[1]
    assert set(runs[0]) == {"ntm", "m2, last level"}
    pages = [(tmp_path / name / "mechanisms.md").read_text() for name in ("one", "two")]
    assert pages[0] == pages[1]
    assert "| – | – |" in pages[0]  # no speed
    capsys.readouterr()


def test_workers_that_die_lose_their_own_job_alone() -> None:
    jobs = [(name, seed) for seed in range(2) for name in ("killed", "failed", "broken", "good")]
    found: dict[tuple[str, int], dict] = {}
    lost: dict[tuple[str, int], str] = {}
    failed = side_by_side(tiny_workers.ready, jobs, 2, found.__setitem__, lost.__setitem__)
    assert {job: line["twice"] for job, line in found.items()} == {("good", 0): 0, ("good", 1): 2}
    assert set(failed) == {job for job in jobs if job[0] != "good"}
    assert lost == failed  # told of at once, not only in the end
    assert "killed by signal 9" in failed["killed", 1]
    assert failed["failed", 0] == "weights are no longer finite"
    assert failed["broken", 0] == "RuntimeError: CUDA out of memory"
    # Who cannot begin takes no job; all jobs are told of.
    failed = side_by_side(tiny_workers.never_ready, jobs[:2], 2, found.__setitem__, lost.__setitem__)
    assert failed == dict.fromkeys(jobs[:2], "a worker could not begin: no room")


def test_slow_ones_come_first_in_each_seed() -> None:
    jobs = [(case.name, seed) for seed in (0, 1) for case in cases(3)]
    ordered = slow_first(jobs, 3)
    assert sorted(ordered) == sorted(jobs)
    assert [seed for _, seed in ordered] == [seed for _, seed in jobs]
    assert [name for name, _ in ordered[:2]] == ["ntm", "show-attend-tell, soft, additive"]
    assert ordered[10][0] == "transformer, 6 layers"


def test_a_run_that_fails_does_not_lose_the_others(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only = ("--only", "m2, last", "--only", "seq2seq", "--no-timing", "--seeds", 1)
    judged = mechanisms.judged

    def failing(base, case, seed):
        if case.name == "seq2seq":
            raise FailedError("weights are no longer finite")
        return judged(base, case, seed)

    monkeypatch.setattr(mechanisms, "judged", failing)
    assert launch(words(data, tmp_path, *only)) == 1
    error = capsys.readouterr().err
    assert "1 of 2 runs failed: seq2seq (seed 0): weights are no longer finite" in error
    assert error.count("error:") == 1 and error.splitlines()[-1].startswith("error: 1 of 2")
    assert [line["case"] for line in read_results(tmp_path / "results.jsonl")] == ["m2, last level"]
    assert not (tmp_path / "mechanisms.md").exists()
    monkeypatch.undo()
    assert launch(words(data, tmp_path, *only)) == 0
    assert [line["case"] for line in read_results(tmp_path / "results.jsonl")] == ["m2, last level", "seq2seq"]


def test_speed_is_measured_once_and_the_rest_added_without_pictures(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only = ("--only", "m2, last", "--only", "seq2seq", "--seeds", 2)
    meteor = [str(word) for word in (data, "--out", tmp_path, "--meteor", "--json")]
    assert launch(meteor) == 2
    assert "run the bench there first" in capsys.readouterr().err
    assert launch(words(data, tmp_path, *only[:-1], 1)) == 0
    assert launch(words(data, tmp_path, *only)) == 0
    results = tmp_path / "results.jsonl"
    timings = [line for line in read_results(results) if line.get("timing")]
    assert [line["case"] for line in timings] == ["seq2seq", "m2, last level"]
    first = json.loads(capsys.readouterr().out.splitlines()[-1])

    def closed(run: Run) -> None:
        raise AssertionError("nothing is left to look at")

    monkeypatch.setattr(Run, "read_pictures", closed)
    monkeypatch.setattr(Run, "prepare", closed)
    before = results.read_text()
    assert launch(words(data, tmp_path, *only, "--jobs", 2)) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert results.read_text() == before
    # The bench knows where it was made, and its settings, whatever the machine that finishes it would choose.
    bench = json.loads((tmp_path / "bench.json").read_text())
    (tmp_path / "bench.json").write_text(json.dumps({**bench, "machine": "another machine"}))
    other = tiny_data.scenes(tmp_path / "other", train=8, val=2, test=2)
    assert launch([str(other), *meteor[1:]]) == 2
    assert "does not hold the pictures and captions" in capsys.readouterr().err
    if find_data() is None:
        pytest.skip("METEOR's data is not installed")
    assert launch(meteor) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"] == "another machine"
    assert all(0 < row["meteor"] < 100 for row in told["rows"])
    assert [{**row, "meteor": None} for row in told["rows"]] == first["rows"]
    assert "; another machine. Speed was measured alone" in (tmp_path / "mechanisms.md").read_text()
    scored = results.read_text()
    assert scored.startswith(before)
    assert sum('"meteor": true' in line for line in scored.splitlines()) == 4
    lines = read_results(results)
    (run,) = [line for line in lines if line["case"] == "seq2seq" and line.get("seed") == 1 and "said" in line]
    (found,) = [line for line in lines if line["case"] == "seq2seq" and line.get("seed") == 1 and "METEOR" in line]
    references = {sample.id: list(sample.captions) for sample in read_dataset(data).split("test")}
    assert found["METEOR"] == score(run["said"], references, metrics=["METEOR"], bootstrap=0).scores["METEOR"]
    monkeypatch.setattr("meshcap.metrics.meteor.find_spec", lambda name: None)  # what has been scored needs no data
    assert launch(meteor) == 0
    assert results.read_text() == scored
    results.write_text(before)
    assert launch(meteor) == 2
    assert "data is not installed" in capsys.readouterr().err


def test_only_what_there_is(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(words(data, tmp_path / "out", "--only", "m3")) == 2
    assert "no captioner begins with 'm3'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ticks_of_speed_hold_every_dot() -> None:
    assert round_ticks(3, 40) == [2, 5, 10, 20, 50]
    assert round_ticks(20, 20) == [20, 50]
    assert round_ticks(0.3, 0.4) == [0.2, 0.5]


def test_sums_by_hand() -> None:
    """Two seeds, two pictures: means, and how far ahead on the same pictures."""

    def run(case: str, seed: int, *ciders: float) -> dict:
        pictures = dict(zip("ab", ciders, strict=True))
        return {"case": case, "seed": seed, "weights": 5, "seconds": 2.0 + seed, "METEOR": 0.2 + 0.2 * seed,
                "CIDEr": sum(ciders) / 2, "BLEU-4": 0.1 * (1 + seed), "pictures": pictures}  # fmt: skip

    m2, other = summed_up([
        [run("m2", 0, 1.0, 0.2), run("m2", 1, 0.6, 0.2)], [run("ntm", 0, 0.9, 0.1), run("ntm", 1, 0.5, 0.1)]
    ], {"ntm": {"step_seconds": 0.02, "captions_per_second": 4.0}})  # fmt: skip
    assert (m2.cider, m2.lowest, m2.highest) == pytest.approx((50, 40, 60))
    assert m2.interval == pytest.approx((20, 80))  # of two pictures, twice the worse or twice the better
    assert (m2.bleu, m2.meteor, m2.ahead) == (pytest.approx(15), pytest.approx(30), None)
    assert (m2.step_ms, m2.captions) == (None, None)
    assert (other.step_ms, other.captions) == pytest.approx((20, 4))
    assert other.ahead == pytest.approx(-10)
    assert other.ahead_interval == pytest.approx((-10, -10))
    assert other.p < 0.01
