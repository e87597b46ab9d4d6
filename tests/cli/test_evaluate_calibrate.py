"""`meshcap evaluate --calibrate`: from a run and its val split to confidences that a captioner then gives."""

import gzip
import json
import shutil
from pathlib import Path

import numpy
import pytest

import tiny_data
from meshcap.calibration import CALIBRATION, FEWEST, Calibration
from meshcap.captioner import Captioner
from meshcap.evaluation.content_words import used_shares

VAL = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data.scenes(tmp_path_factory.mktemp("scenes"), train=16, val=VAL, test=3)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert tiny_data.call(tiny_data.train_words(data, folder, xe=6)) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def calibrate(run: Path, data: Path, *more: object) -> int:
    words = ["evaluate", run, data, "--calibrate", "--bootstrap", 0, "--device", "cpu", "--threads", 1, *more]
    return tiny_data.call([str(word) for word in words])


def test_training_ends_with_it(data: Path, trained: Path) -> None:
    """The folder of a run captions with confidences that were measured, and its report and captions tell the same."""
    found = Calibration.load(trained)
    told = {"data": "captions.jsonl", "split": "val", "captions": VAL, "beams": 5, "tokenizer": "ptb"}
    assert found.fitted_on == told | {"curve": found.fitted_on["curve"]}
    said = json.loads((trained / "captions-val.json").read_text("utf-8"))
    references = {one["image"]: one["captions"] for one in tiny_data.read_lines(data)}
    shares = used_shares([one["caption"] for one in said], [references[one["image_id"]] for one in said])
    figures = json.loads((trained / "scores.json").read_text("utf-8"))["val"]["confidence"]
    assert figures["captions"] == VAL and figures["mean_share"] == pytest.approx(numpy.mean(shares))
    first = said[0]
    captioner = Captioner.from_pretrained(trained)
    caption = captioner.caption(data.parent / first["image_id"], max_words=20, good_endings=False)
    assert first["confidence"] == pytest.approx(caption.confidence, abs=1e-3)
    assert first["confidence"] == pytest.approx(found.apply(first["log_probs"]), abs=1e-3)
    assert caption.probability == pytest.approx(numpy.exp(numpy.mean(first["log_probs"])), abs=1e-3)
    page = (trained / "report.html").read_text("utf-8")
    assert '<section id="confidence">' in page and page.count('class="card"') == VAL
    assert f"confidence <b>{100 * first['confidence']:.0f} %</b>" in page


def test_too_few_val_pictures_leave_the_probability(tmp_path: Path) -> None:
    data = tiny_data.scenes(tmp_path / "scenes", train=8, val=FEWEST - 1)
    assert tiny_data.call(tiny_data.train_words(data, tmp_path / "run", xe=1)) == 0
    assert not (tmp_path / "run" / CALIBRATION).exists()
    assert "confidence" not in json.loads((tmp_path / "run" / "scores.json").read_text("utf-8"))["val"]
    caption = Captioner.from_pretrained(tmp_path / "run").caption(data.parent / "0.png")
    assert caption.confidence == caption.probability


def test_the_captioner_then_says_what_was_measured(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(run, data, "--beams", 2, "--dtype", "float32", "--json", "--plot", tmp_path / "r.svg") == 0
    told = json.loads(capsys.readouterr().out)["confidence"]
    found = Calibration.load(run)
    assert found.fitted_on | {"data": "captions.jsonl", "split": "val", "captions": VAL, "beams": 2} == found.fitted_on

    # The same captions by hand: what people used of them, and what the captioner now says of itself.
    val = [one for one in tiny_data.read_lines(data) if one["split"] == "val"]
    captioner = Captioner.from_pretrained(run, dtype="float32")
    said = captioner.caption([data.parent / one["image"] for one in val], beams=2, good_endings=False)
    shares = numpy.array(used_shares([one.text for one in said], [one["captions"] for one in val]))
    assert told["mean_share"] == pytest.approx(shares.mean())
    plain = numpy.exp([numpy.mean(one.log_probs) for one in said])
    assert told["before"]["squared_error"] == pytest.approx(float(((plain - shares) ** 2).mean()), abs=1e-5)
    assert [one.confidence for one in said] == pytest.approx([found.apply(one.log_probs) for one in said])
    assert numpy.mean([one.confidence for one in said]) == pytest.approx(shares.mean(), abs=0.05)

    assert {one["level"] for one in told["after"]["withheld"]} == {0.5, 0.6, 0.7, 0.8}
    assert (tmp_path / "r.svg").read_text("utf-8").startswith("<svg")


def test_captions_that_evaluate_wrote_need_no_second_look(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", run, data, "--split", "val", "--out", tmp_path / "out", "--bootstrap", 0, "--device", "cpu"]
    assert tiny_data.call([str(word) for word in words]) == 0
    capsys.readouterr()
    captions = tmp_path / "out" / "captions-val.json"
    by_training = (run / CALIBRATION).read_bytes()
    assert calibrate(run, data, "--out", tmp_path / "looked") == 0
    (data.parent / "hidden").mkdir()
    for picture in data.parent.glob("*.png"):
        picture.rename(data.parent / "hidden" / picture.name)
    try:
        assert calibrate(run, data, "--out", tmp_path / "read", "--captions", captions) == 0
    finally:
        for picture in (data.parent / "hidden").iterdir():
            picture.rename(data.parent / picture.name)
        (data.parent / "hidden").rmdir()
    told = capsys.readouterr().out
    assert "calibration error" in told and "rough figures" in told
    looked, read = (Calibration.load(tmp_path / name) for name in ("looked", "read"))
    assert read.weights == looked.weights and read.y == pytest.approx(looked.y, abs=1e-3)
    assert (run / CALIBRATION).read_bytes() == by_training


def field_files(folder: Path, pictures: list[tuple[int, list[str]]]) -> dict[str, Path]:
    """The same references as Karpathy and as COCO write them."""
    karpathy = {
        "images": [
            {
                "cocoid": id,
                "filename": f"COCO_val2014_{id:012d}.jpg",
                "filepath": "val2014",
                "split": "train" if id == 1 else "val",
                "sentences": [{"raw": line} for line in lines],
            }
            for id, lines in pictures
        ]
    }
    coco = {
        "images": [{"id": id, "file_name": f"{id:012d}.jpg"} for id, _ in pictures],
        "annotations": [{"image_id": id, "caption": line} for id, lines in pictures for line in lines],
    }
    paths = {"karpathy": folder / "dataset_coco.json.gz", "coco": folder / "captions_val2017.json"}
    paths["karpathy"].write_bytes(gzip.compress(json.dumps(karpathy).encode()))
    paths["coco"].write_text(json.dumps(coco))
    return paths


def test_captions_from_elsewhere_beside_the_fields_files(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No pictures, captions of some of the val pictures only, in any order, by number or by file name."""
    luck = numpy.random.default_rng(0)
    nouns = "dog cat boat tree house car ball fish".split()
    pictures = [(id, [f"a {luck.choice(nouns)}", f"the {luck.choice(nouns)}"]) for id in range(1, 61)]
    paths = field_files(tmp_path, pictures)
    records = [
        {"image_id": id, "caption": lines[0] if id % 2 else "a plane", "log_probs": [-0.1 if id % 2 else -1.0, -0.1]}
        for id, lines in reversed(pictures[10:])
    ]
    found = []
    for file, prefix in (("karpathy", None), ("karpathy", "COCO_val2014_"), ("coco", None), ("coco", "")):
        named = [
            one if prefix is None else one | {"image_id": f"{prefix}{one['image_id']:012d}.jpg"} for one in records
        ]
        (tmp_path / "captions.json").write_text(json.dumps(named))
        words = ("--captions", tmp_path / "captions.json", "--out", tmp_path / "out", "--json")
        assert calibrate(run, paths[file], *words) == 0
        out, err = capsys.readouterr()
        assert f"has no caption of {9 if file == 'karpathy' else 10} of" in err
        assert json.loads(out)["confidence"]["mean_share"] == 0.5  # of 50 captions, every second is its picture's own
        found.append(Calibration.load(tmp_path / "out"))
    assert len({(one.x, one.y) for one in found}) == 1
    assert found[0].apply([-0.1, -0.1]) > 0.95 and found[0].apply([-1.0, -0.1]) < 0.05
    assert found[0].fitted_on["captions"] == 50 and "beams" not in found[0].fitted_on

    (tmp_path / "captions.json").write_text(json.dumps([*records, records[0] | {"image_id": 1}]))
    words = ("--captions", tmp_path / "captions.json", "--out", tmp_path / "out", "--json")
    assert calibrate(run, paths["karpathy"], *words) == 2
    assert "1 of the 51 captions are of no picture in" in capsys.readouterr().err
    assert calibrate(run, paths["karpathy"], *words, "--split", "all") == 0
    assert Calibration.load(tmp_path / "out").fitted_on["captions"] == 51


def test_mistakes(data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(message: str, *words: object) -> None:
        capsys.readouterr()
        assert calibrate(*words) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("error: ")
        assert message in err

    def captions(content: object) -> Path:
        path = tmp_path / "captions.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    one = {"image_id": "16.png", "caption": "a dog", "log_probs": [-1.0]}
    before = (run / CALIBRATION).read_bytes()
    refused("3 pictures in test", run, data, "--split", "test")
    refused("no pictures in the split 'dev'", run, data, "--split", "dev")
    refused("give --out", tmp_path / "nowhere", data)
    refused(".svg or .png", run, data, "--plot", tmp_path / "r.pdf")
    refused("is not a folder", run, data, "--plot", tmp_path / "gone" / "r.svg")
    refused("cannot be read", run, data, "--captions", tmp_path / "gone.json")
    refused("is not JSON", run, data, "--captions", captions("{"))
    refused("image_id", run, data, "--captions", captions([1]))
    refused("no log_probs", run, data, "--captions", captions([one | {"log_probs": None}]))
    refused("no log_probs", run, data, "--captions", captions([one | {"log_probs": ["x"]}]))
    refused("two captions", run, data, "--captions", captions([one, one]))
    refused("1 of the 2 captions", run, data, "--captions", captions([one, one | {"image_id": "0.png"}]))
    assert (run / CALIBRATION).read_bytes() == before
    (tmp_path / "file").write_text("")
    refused("cannot be made", run, data, "--out", tmp_path / "file" / "out")
