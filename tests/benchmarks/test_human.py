"""benchmarks/human.py: correlations against scipy's, whose ratings count, and that it runs."""

import json
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_captioner
import tiny_data
from benchmarks import human
from benchmarks.human import command, kendall, read_crowd, read_cxc, read_expert, spearman

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=4, max_size=40).filter(
    lambda rows: len({a for a, _ in rows}) > 1 and len({b for _, b in rows}) > 1
)
KNOWN = {
    "2513260012_03d33305cf.jpg": ["a dog runs", "two dogs", "a dog", "dogs play", "the dog"],
    "b.jpg": ["a cat", "the cat sits", "one cat", "a dog", "cats"],
}
A = "2513260012_03d33305cf.jpg"


@settings(max_examples=30, deadline=None)
@given(pairs)
def test_correlations_are_scipys(rows: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    scores, ratings = numpy.array(rows, float).T
    for variant in "bc":
        expected = stats.kendalltau(scores, ratings, variant=variant)[0]
        assert kendall(scores, ratings, variant) == pytest.approx(expected, abs=1e-12)
        twice = kendall(scores, ratings, variant, numpy.arange(len(rows)) % 2 + 1.0)
        rows_twice = numpy.repeat(numpy.array(rows, float), numpy.arange(len(rows)) % 2 + 1, axis=0)
        assert twice == pytest.approx(stats.kendalltau(*rows_twice.T, variant=variant)[0], abs=1e-12)
    assert spearman(scores, ratings) == pytest.approx(stats.spearmanr(scores, ratings)[0], abs=1e-12)


def write(folder: Path) -> dict[str, Path]:
    expert = [
        ("b.jpg", f"{A}#0", 1, 1, 2),
        ("b.jpg", "b.jpg#2", 4, 4, 4),
        (A, "b.jpg#1", 2, 1, 1),
        (A, f"{A}#1", 4, 4, 4),
    ]
    expert += [("b.jpg", f"{A}#2", 3, 3, 3)]  # "a dog", which is a reference of b.jpg, too
    crowd = [("b.jpg", "b.jpg#1", 1, 3, 0), ("b.jpg", f"{A}#0", 0, 0, 3), (A, f"{A}#4", "0.5", 2, 2)]
    images = [
        {"filename": name, "split": "test", "imgid": k, "sentences": [{"raw": text} for text in texts]}
        for k, (name, texts) in enumerate(KNOWN.items())
    ]
    annotations = [
        {"id": 10 * image + k, "image_id": image, "caption": f"{text} of {image}"}
        for image, texts in ((1, KNOWN[A]), (2, KNOWN["b.jpg"]))
        for k, text in enumerate(texts)
    ]
    files = [{"id": k, "file_name": f"COCO_val2014_{k:012}.jpg"} for k in (1, 2)]
    sits = [(10, 1, 5), (20, 2, 4.5), (12, 2, 1), (21, 1, 0.2), (11, 1, 4)]
    lines = [f"COCO_val2014:sentid:{text},COCO_val2014_{image:012}.jpg,{rating},x" for text, image, rating in sits]
    (folder / "expert.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in expert))
    (folder / "crowd.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in crowd))
    (folder / "flickr8k.json").write_text(json.dumps({"images": images}))
    (folder / "coco.json").write_text(json.dumps({"images": files, "annotations": annotations}))
    (folder / "sits.csv").write_text("\n".join(["caption,image,agg_score,sampling_method", *lines]) + "\n")
    return {path.stem: path for path in folder.iterdir()}


def test_what_is_judged(tmp_path: Path) -> None:
    files = write(tmp_path)
    expert = read_expert(files["expert"], KNOWN)
    assert expert.captions == ["a dog runs"] * 3 + ["the cat sits"] * 3  # the others are references
    assert expert.ratings.tolist() == [1, 1, 2, 2, 1, 1] and expert.references[0] == KNOWN["b.jpg"]
    crowd = read_crowd(files["crowd"], KNOWN)
    assert crowd.ratings.tolist() == [1, 0, 0.5]
    assert crowd.references[1] == ["a cat", "one cat", "a dog", "cats"]  # what is judged is none
    cxc = read_cxc(files["sits"], files["coco"])
    assert [len(those) for those in cxc.references] == [4, 4, 5, 5, 4]
    assert cxc.captions[:2] == ["a dog runs of 1", "a cat of 2"] and cxc.ratings.tolist() == [5, 4.5, 1, 0.2, 4]


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write(tmp_path)
    (tmp_path / "pictures").mkdir()
    tiny_data.scenes(tmp_path / "pictures", train=5)
    for number, name in enumerate((A, "b.jpg", "000000000001.jpg", "000000000002.jpg")):
        (tmp_path / "pictures" / f"{number}.png").rename((tmp_path / "pictures" / name).with_suffix(".png"))
    words = [f"--{name}={files[name]}" for name in ("expert", "crowd", "flickr8k", "coco")]
    words += ["--cxc", files["sits"], "--draws", 5, "--metrics", "cider,bleu"]
    model = tiny_captioner.saved(tmp_path / "model")
    assert tiny_data.bench(command, *words, "--pictures", tmp_path / "pictures", "--model", model, "--json") == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {"CIDEr", "BLEU-4", "PMI"} <= set(rows)
    for data in ("expert", "crowd", "cxc"):
        value, low, high = rows["PMI"][data]
        assert -100 <= value <= 100 and low <= high
    assert rows["CLIPScore"]["missing"] == "published alone"
    assert tiny_data.bench(command, *words) == 0
    assert "43.9" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write(tmp_path)

    def mistake(message: str, *words: object) -> None:
        code = tiny_data.bench(command, *words)
        assert code == 2 and message in capsys.readouterr().err

    mistake("--expert and --crowd need --flickr8k", "--expert", files["expert"])
    mistake("nothing to compare with", "--flickr8k", files["flickr8k"])
    mistake("holds no judgements", "--expert", files["sits"], "--flickr8k", files["flickr8k"])
    mistake("is not CxC's", "--cxc", files["expert"], "--coco", files["coco"])
    mistake("--model and --clip need --pictures", "--model", "default")


def test_broken_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "crowd.txt"
    path.write_bytes(b"b.jpg\tb.jpg#1\t1\t3\t0\n" * 20 + b"\xff\xff\x00\n")
    lines: list[str] = []
    monkeypatch.setattr(human, "progress", lines.append)
    assert len(read_crowd(path, KNOWN).captions) == 20
    assert lines == ["crowd.txt: 1 of 21 lines cannot be read and are left out"]
