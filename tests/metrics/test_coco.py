"""pycocoevalcap's classes and ours, called by the same code."""

import contextlib
import importlib
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from meshcap.errors import MeshcapError
from meshcap.metrics import coco as ours
from meshcap.metrics.meteor import find_data

needs_judge = pytest.mark.skipif(importlib.util.find_spec("pycocoevalcap") is None, reason="pycocoevalcap is missing")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Java is missing")
needs_meteor = pytest.mark.skipif(find_data() is None, reason="METEOR's data is missing")

REFERENCES = {
    7: ["A dog runs in the park.", "The dog is running outside!", "It's a dog (brown)"],
    3: ["Two red boats sail slowly home", "boats on the water, 1 1/2 of them"],
    11: ["a man eats three green apples"],
    5: ["A man-made lake at 3 p.m.", "a lake", ""],
}
RESULTS = {
    7: "a dog runs in the garden",
    3: "red boats sail on water",
    11: "a man eats three green apples",
    5: "the lake",
}


def judge() -> SimpleNamespace:
    """What pycocoevalcap's users import."""
    modules = {"Bleu": "bleu.bleu", "Cider": "cider.cider", "Rouge": "rouge.rouge", "Meteor": "meteor.meteor"}
    modules |= {"PTBTokenizer": "tokenizer.ptbtokenizer"}
    return SimpleNamespace(
        **{name: getattr(importlib.import_module(f"pycocoevalcap.{where}"), name) for name, where in modules.items()}
    )


def written(captions: dict[int, Any]) -> dict[int, list[dict[str, str]]]:
    return {
        id: [{"caption": text} for text in ([those] if isinstance(those, str) else those)]
        for id, those in captions.items()
    }


def tokenized() -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    return ours.PTBTokenizer().tokenize(written(REFERENCES)), ours.PTBTokenizer().tokenize(written(RESULTS))


def equal(one: Any, other: Any) -> None:
    """The same kinds of things, holding the same numbers."""
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            equal(a, b)
    else:
        assert numpy.asarray(one).dtype == numpy.asarray(other).dtype
        assert one == pytest.approx(other, abs=1e-9)


@needs_judge
@pytest.mark.parametrize("make", [
    lambda them: them.Bleu(), lambda them: them.Bleu(2), lambda them: them.Rouge(),
    lambda them: them.Cider(), lambda them: them.Cider(sigma=4.0),
])  # fmt: skip
def test_same_code_same_results(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    gts, res = tokenized()
    found, printed = [], []
    for them in (ours, judge()):
        scorer = make(them)
        found.append((scorer.method(), scorer.compute_score(gts, res)))
        printed.append(capsys.readouterr().out)
    equal(found[0], found[1])
    assert printed[0].splitlines()[:1] == printed[1].splitlines()[:1]  # BLEU's counts


@needs_judge
@needs_java
def test_same_tokens() -> None:
    for captions in (written(REFERENCES), written(RESULTS)):
        theirs = judge().PTBTokenizer().tokenize(captions)
        apart = {id: [text.replace("\xa0", " ") for text in texts] for id, texts in theirs.items()}  # in "1 1/2"
        assert ours.PTBTokenizer().tokenize(captions) == apart


@needs_judge
@needs_java
@needs_meteor
@pytest.mark.slow
def test_same_meteor() -> None:
    gts, res = tokenized()
    one, other = ours.Meteor(), judge().Meteor()
    assert one.method() == other.method() == "METEOR"
    equal(one.compute_score(gts, res), other.compute_score(gts, res))


def example(script: str, folder: Path) -> dict[str, Any]:
    """What the example that comes with pycocoevalcap leaves behind, run in a folder with its two files."""
    names: dict[str, Any] = {}
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(script, "example", "exec"), names)
    return names


@needs_judge
@needs_java
@needs_meteor
@pytest.mark.slow
def test_the_example_script_with_the_import_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocotools")
    theirs = importlib.import_module("pycocoevalcap.eval")
    annotations = [
        {"id": number, "image_id": id, "caption": text}
        for number, (id, text) in enumerate((id, text) for id, texts in REFERENCES.items() for text in texts)
    ]
    images = [{"id": id} for id in (*REFERENCES, 99)]  # the last has no result: the example leaves it out
    annotations.append({"id": 100, "image_id": 99, "caption": "nothing"})
    (tmp_path / "captions_val2014.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    results = [{"image_id": id, "caption": text} for id, text in RESULTS.items()]
    (tmp_path / "captions_val2014_fakecap_results.json").write_text(json.dumps(results))
    script = (Path(theirs.__file__).parent / "example" / "coco_eval_example.py").read_text()
    mine = example(script.replace("pycocoevalcap.eval", "meshcap.metrics.coco"), tmp_path)["coco_eval"]

    class NoSpice:  # needs an old Java and a download
        def method(self) -> str:
            return "SPICE"

        def compute_score(self, gts: Any, res: Any) -> tuple[float, list[float]]:
            return 0.0, [0.0] * len(gts)

    monkeypatch.setattr(theirs, "Spice", NoSpice)
    judged = example(script, tmp_path)["coco_eval"]
    del judged.eval["SPICE"]
    mine.eval.pop("SPICE", None)
    assert mine.eval.keys() == judged.eval.keys()
    assert mine.eval == pytest.approx(judged.eval, abs=1e-9)
    assert [one["image_id"] for one in mine.evalImgs] == [one["image_id"] for one in judged.evalImgs]
    for id, scores in judged.imgToEval.items():
        for name in judged.eval:
            assert mine.imgToEval[id][name] == pytest.approx(scores[name], abs=1e-9)


def test_evaluation_needs_no_pycocotools(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("meshcap.metrics.meteor.find_spec", lambda name: None)
    monkeypatch.setattr("meshcap.metrics.spice.shutil.which", lambda name: None)
    coco = SimpleNamespace(getImgIds=lambda: list(REFERENCES), imgToAnns=written(REFERENCES))
    found = ours.COCOEvalCap(coco, SimpleNamespace(imgToAnns=written(RESULTS)))
    found.evaluate()
    gts, res = tokenized()
    assert list(found.eval) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]
    assert found.eval["CIDEr"] == ours.Cider().compute_score(gts, res)[0]
    assert found.imgToEval[3]["ROUGE_L"] == ours.Rouge().calc_score(res[3], gts[3])
    assert found.evalImgs == list(found.imgToEval.values())
    out = capsys.readouterr().out
    assert "METEOR: METEOR's data is not installed" in out and "SPICE: SPICE left out" in out


def test_mistakes() -> None:
    gts, res = tokenized()
    with pytest.raises(MeshcapError, match="different pictures"):
        ours.Cider().compute_score(gts, {7: ["x"]})
    with pytest.raises(MeshcapError, match=r"picture 7 has .* in res, expected a list of one caption"):
        ours.Rouge().compute_score(gts, res | {7: "a dog"})
    with pytest.raises(MeshcapError, match=r"picture 7 has .* in gts"):
        ours.Bleu().compute_score(gts | {7: []}, res)
    with pytest.raises(MeshcapError, match="n is 5, expected 1 to 4"):
        ours.Bleu(5)
    with pytest.raises(MeshcapError, match="no pictures"):
        ours.Cider().compute_score({}, {})
