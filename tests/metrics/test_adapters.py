"""The scores inside torchmetrics and evaluate, with the libraries themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshcap.errors import MeshcapError
from meshcap.metrics import score

CAPTIONS = ["a dog runs", "two boats sail home", "a man eats ½", "a cat"]
PEOPLE = [["a dog runs in the park", "x"], ["boats at sea"], ["a man eats apples", "b c", "d"], ["a cat sits"]]
EXPECTED = score(dict(enumerate(CAPTIONS)), dict(enumerate(PEOPLE)), bootstrap=0).scores

RANK = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from meshcap.metrics.for_torchmetrics import CaptionScores
captions, people, rank, folder = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
scores = CaptionScores()
for place in range(rank, len(captions), 2):
    scores.update(captions[place : place + 1], people[place : place + 1])
    if place == 1: scores.update(captions[3:], people[3:]); break
found = {name: float(value) for name, value in scores.compute().items()}
(folder / f"{rank}.json").write_text(json.dumps(found))
"""


def test_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    from meshcap.metrics.for_torchmetrics import CaptionScores

    scores = CaptionScores()
    assert isinstance(scores, torchmetrics.Metric)
    scores.update(CAPTIONS[:2], PEOPLE[:2])
    scores.update(CAPTIONS[2], PEOPLE[2])
    scores.update(CAPTIONS[3:], PEOPLE[3:])
    found = scores.compute()
    assert {name: value.item() for name, value in found.items()} == pytest.approx(EXPECTED, abs=1e-6)
    scores.reset()
    with pytest.raises(MeshcapError, match="call update"), pytest.warns(UserWarning, match="before the ``update``"):
        scores.compute()
    several = torchmetrics.MetricCollection({"captions": CaptionScores("cider", "unicode")})
    several.update(CAPTIONS, PEOPLE)
    assert list(several.compute()) == ["CIDEr"]
    with pytest.raises(MeshcapError, match="1 captions and references of 2"):
        scores.update(["x"], [["x"], ["y"]])
    with pytest.raises(MeshcapError, match="no metric"):
        CaptionScores("bleurt")


@pytest.mark.slow
def test_torchmetrics_over_processes(tmp_path: Path) -> None:
    """Two processes with unequal shares find what one would: CIDEr needs the references of both."""
    pytest.importorskip("torchmetrics")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps(CAPTIONS), json.dumps(PEOPLE), str(rank), str(tmp_path)]
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(EXPECTED, abs=1e-6)


def test_torchmetrics_states_merge() -> None:
    pytest.importorskip("torchmetrics")
    from meshcap.metrics.for_torchmetrics import CaptionScores

    one, other = CaptionScores("cider"), CaptionScores("cider")
    one.update(CAPTIONS[:3], PEOPLE[:3])
    other.update(CAPTIONS[3:], PEOPLE[3:])
    one.merge_state(other)
    assert one.compute()["CIDEr"].item() == pytest.approx(EXPECTED["CIDEr"], abs=1e-6)


@pytest.mark.slow
def test_evaluate(tmp_path: Path) -> None:
    pytest.importorskip("evaluate")
    script = f"""
import json, evaluate
from meshcap.metrics import for_evaluate
captions, people = {CAPTIONS!r}, {PEOPLE!r}
one, other = for_evaluate.CaptionScores(), evaluate.load(for_evaluate.__file__)
for caption, those in zip(captions, people):
    other.add(prediction=caption, reference=those)
found = [one.compute(predictions=captions, references=people, bootstrap=10), other.compute(metrics="cider")]
print("\\n" + json.dumps(found))
"""
    env = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert {name: first[name] for name in EXPECTED} == EXPECTED
    assert first["intervals"].keys() == EXPECTED.keys() and first["signature"].startswith("meshcap:")
    assert {name for name in second if name in EXPECTED} == {"CIDEr"} and second["CIDEr"] == EXPECTED["CIDEr"]
