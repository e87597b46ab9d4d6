"""benchmarks/score.py: it runs, on made-up captions and on a file of Karpathy's layout."""

import gzip
import json
from pathlib import Path

import pytest

import tiny_data
from benchmarks.score import bench_reward, command, make_captions


@pytest.fixture(autouse=True)
def without_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table is indexed at the first use, which takes longer than all the rest."""
    monkeypatch.setattr("benchmarks.score.find_data", lambda: None)


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = tiny_data.bench(command, *words)
    out, err = capsys.readouterr()
    return code, out, err


def test_made_up_captions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(
        capsys, "--pictures", 20, "--training", 60, "--repeat", 1, "--no-compare", "--device", "cpu", "--json"
    )
    assert code == 0
    rows = {row["work"]: row for row in json.loads(out)["rows"]}
    assert {"tokenize", "BLEU-1 to 4", "ROUGE-L", "CIDEr-D", "CIDEr", "document frequencies"} <= set(rows)
    assert {"CIDEr-D reward, index", "BLEU-4 reward", "ROUGE-L reward", "CIDEr-D + BLEU-4"} <= set(rows)
    assert any(work.endswith("all of 20 words") for work in rows)
    assert all(row["seconds"] > 0 and row["memory"] > 0 for row in rows.values())


def test_beside_pycocoevalcap(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    pytest.importorskip("pycocoevalcap")
    monkeypatch.setattr("shutil.which", lambda name: None)  # starting Java takes longer than all the rest
    captions = make_captions(40, 0)
    splits = ["test"] * 10 + ["train"] * 20 + ["restval"] * 5 + ["val"] * 5
    images = [
        {"split": split, "sentences": [{"raw": caption} for caption in those]}
        for split, those in zip(splits, captions, strict=True)
    ]
    path = tmp_path / "dataset.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"images": images}).encode()))
    code, out, _ = call(capsys, "--data", path, "--repeat", 1, "--device", "cpu", "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["work"] for row in rows if row["setting"] == "pycocoevalcap"] == [
        "BLEU-1 to 4", "ROUGE-L", "CIDEr-D", "all of these",
    ]  # fmt: skip
    assert [row["setting"] for row in rows if row["work"] == "document frequencies"] == ["25 pictures"]


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def mistake(message: str, content: object) -> None:
        path = tmp_path / "dataset.json"
        path.write_text(json.dumps(content))
        code, _, err = call(capsys, "--data", path)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err

    code, _, err = call(capsys, "--data", tmp_path / "none.json")
    assert code == 2 and "cannot be read" in err
    mistake("not a dataset", [1, 2])
    mistake("not a dataset", {"images": [{"split": "test"}]})
    mistake(
        "the splits ['test'], expected test and train", {"images": [{"split": "test", "sentences": [{"raw": "a"}]}]}
    )


@pytest.mark.gpu
def test_rewards_on_a_gpu() -> None:
    import torch

    rows = bench_reward(torch.device("cuda"), repeat=1, training=100)
    assert [row.setting for row in rows[-2:]] == ["GPU, 1,280 candidates", "GPU, in a graph, 1,280 candidates"]
