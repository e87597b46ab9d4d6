"""The bench of mechanisms at its smallest: everything runs, what is done is kept, figures are those of the runs."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tiny_data
from meshcap.bench.mechanisms import REFERENCE, cases, read_results, summed_up
from meshcap.models import MODELS

SETTINGS = {
    "d_model": 16, "heads": 2, "d_ff": 32, "batch": 4, "captions": 2, "workers": 1, "size": 48, "min_count": 1,
}  # fmt: skip


def words(data: Path, out: Path, *more: object) -> list[str]:
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    usual = ("--steps", 2, "--layers", 1, "--vision", "patches", "--device", "cpu", "--threads", 1, "--json")
    return [str(word) for word in ("bench", "mechanisms", data, "--out", out, *usual, *sets, *more)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"), train=8, val=2, test=3)


def test_every_captioner_runs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(words(data, tmp_path, "--seeds", 1)) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [case.name for case in cases(1)]
    assert {case.model for case in cases(1)} == set(MODELS)
    assert [row["name"] for row in rows if row["ahead"] is None] == [REFERENCE]
    page = (tmp_path / "mechanisms.md").read_text()
    assert page.count("\n| ") == len(rows) + 1
    ElementTree.parse(tmp_path / "mechanisms.svg")


def test_what_is_done_is_not_done_again(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "m2, last", "--only", "seq2seq")
    assert tiny_data.call(words(data, tmp_path, *only, "--seeds", 1)) == 0
    results = tmp_path / "results.jsonl"
    before = results.read_text()
    results.write_text(before + '{"case": "cut o')
    assert tiny_data.call(words(data, tmp_path, *only, "--seeds", 2)) == 0
    capsys.readouterr()
    text = results.read_text()
    assert text.startswith(before)
    found = [(line["case"], line["seed"]) for line in read_results(results)]
    assert found == [("seq2seq", 0), ("m2, last level", 0), ("seq2seq", 1), ("m2, last level", 1)]
    lines = [json.loads(line) for line in before.splitlines()]
    assert [(line["case"], line["seed"]) for line in lines] == [("seq2seq", 0), ("m2, last level", 0)]
    assert set(lines[0]["said"]) == set(lines[0]["pictures"]) == {"10.png", "11.png", "12.png"}  # the test split
    # Other steps are another bench: nothing of it is taken for done.
    assert tiny_data.call([*words(data, tmp_path, *only, "--seeds", 1), "--steps", "3"]) == 0
    assert len(results.read_text().splitlines()) == len(text.splitlines()) + 2


def test_only_what_there_is(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny_data.call(words(data, tmp_path / "out", "--only", "m3")) == 2
    assert "no captioner begins with 'm3'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_sums_by_hand() -> None:
    """Two seeds, two pictures: means, and how far ahead on the same pictures."""

    def run(case: str, seed: int, *ciders: float) -> dict:
        pictures = dict(zip("ab", ciders, strict=True))
        return {"case": case, "seed": seed, "weights": 5, "seconds": 2.0 + seed, "captions_per_second": 4.0,
                "CIDEr": sum(ciders) / 2, "BLEU-4": 0.1 * (1 + seed), "pictures": pictures}  # fmt: skip

    m2, other = summed_up([
        [run("m2", 0, 1.0, 0.2), run("m2", 1, 0.6, 0.2)], [run("ntm", 0, 0.9, 0.1), run("ntm", 1, 0.5, 0.1)]
    ])  # fmt: skip
    assert (m2.cider, m2.lowest, m2.highest) == pytest.approx((50, 40, 60))
    assert m2.interval == pytest.approx((20, 80))  # of two pictures, twice the worse or twice the better
    assert (m2.seconds, m2.bleu, m2.ahead) == (pytest.approx(2.5), pytest.approx(15), None)
    assert other.ahead == pytest.approx(-10)
    assert other.ahead_interval == pytest.approx((-10, -10))
    assert other.p < 0.01
