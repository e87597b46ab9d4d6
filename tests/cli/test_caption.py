"""`meshcap caption` on pictures: what it looks at, what it says where, and how it leaves."""

import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import numpy
import pytest

import tiny_captioner
from meshcap import Captioner, cli, folders
from meshcap.batch.inputs import list_pictures
from meshcap.calibration import Calibration
from meshcap.cli.caption_output import printable
from meshcap.data.scenes import draw_scene
from meshcap.serving import fetch

CALIBRATION = Calibration({"mean": 1.0}, (-2.0, -0.8), (0.8, 0.95))  # trusted enough to be said whole
Done = tuple[int, str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_captioner.saved(tmp_path_factory.mktemp("models") / "model", CALIBRATION)


@pytest.fixture(scope="module")
def speaker(model: Path) -> Captioner:
    return Captioner.from_pretrained(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, one of them deeper, and what is none."""
    place = tmp_path_factory.mktemp("pictures")
    (place / "deep" / "er").mkdir(parents=True)
    (place / "empty").mkdir()
    (place / ".hidden").mkdir()
    names = ["b.png", "a.jpg", "C.JPEG", "deep/d.webp", "deep/er/e.gif", ".hidden/f.png", ".g.png"]
    for number, name in enumerate(names):
        draw_scene(number, 64).image.save(place / name)
    (place / "notes.txt").write_text("no picture", encoding="utf-8")
    return place


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str]):
    def call(*words: object, model: object = model) -> Done:
        with pytest.raises(SystemExit) as left:
            cli.main(["caption", *map(str, words), "--model", str(model), "--device", "cpu"])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


def refused(done: Done, message: str) -> None:
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_one_picture_is_one_sentence_and_nothing_else(run, speaker: Captioner, folder: Path) -> None:
    expected = speaker.caption(folder / "a.jpg").text
    assert run(folder / "a.jpg") == (0, f"{expected}\n", "")


def test_folders_are_listed_as_batch_lists_them(run, speaker: Captioner, folder: Path) -> None:
    code, out, err = run(folder, folder / "deep" / "d.webp")
    assert (code, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    names = ("C.JPEG", "a.jpg", "b.png", "deep/d.webp", "deep/er/e.gif")  # with folders inside, each picture once
    assert [name for name, _ in rows] == [str(folder / name) for name in names]
    assert [name for name, _ in rows] == [one.path for one in list_pictures([str(folder)])]
    assert [text for _, text in rows] == [speaker.caption(Path(name)).text for name, _ in rows]
    # A folder has a line each even where it holds one picture: a program need not ask how many there were.
    assert run(folder / "deep" / "er")[1].startswith(f"{folder / 'deep' / 'er' / 'e.gif'}\t")


def test_pictures_inside_shards_and_lists(run, speaker: Captioner, folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        tar.add(folder / "a.jpg", "a.jpg")
    (tmp_path / "list.txt").write_text(f"{folder / 'b.png'}\n", encoding="utf-8")
    code, out, err = run(tmp_path / "0.tar", tmp_path / "list.txt")
    assert (code, err) == (0, "")
    assert [line.split("\t") for line in out.splitlines()] == [
        [f"{tmp_path / '0.tar'}:a.jpg", speaker.caption(folder / "a.jpg").text],
        [str(folder / "b.png"), speaker.caption(folder / "b.png").text],
    ]


def test_patterns_that_no_shell_expanded(run, folder: Path) -> None:
    code, out, _ = run(folder / "[a-b].*g")
    assert code == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == [str(folder / "a.jpg"), str(folder / "b.png")]
    refused(run(folder / "*.tiff"), "*.tiff is not there")
    shutil.copy(folder / "a.jpg", folder / "empty" / "[odd].jpg")
    assert run(folder / "empty" / "[odd].jpg")[0] == 0  # there is such a file: no pattern
    (folder / "empty" / "[odd].jpg").unlink()


def test_web_addresses(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://example.org/a.jpg"
    refused(run(url), f"{url} is a web address, and nothing is fetched: --allow-urls allows it")
    picture = (folder / "a.jpg").read_bytes()
    monkeypatch.setattr(fetch.Fetcher, "__call__", lambda self, one: picture if one == url else b"")
    assert run(url, "--allow-urls") == run(folder / "a.jpg")
    assert [line.split("\t")[0] for line in run(folder / "b.png", url, "--allow-urls")[1].splitlines()] == [
        str(folder / "b.png"), url,
    ]  # fmt: skip
    monkeypatch.undo()
    code, _, err = run("http://127.0.0.1/a.jpg", "--allow-urls")  # whoever asks, this machine is no public one
    assert code == 1 and "not of a public address" in err


def test_standard_input(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    picture = (folder / "a.jpg").read_bytes()
    pipe(picture)
    alone = run("-")
    assert alone == run(folder / "a.jpg")
    pipe(picture)
    lines = run(folder / "a.jpg", "-")[1].splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(folder / "a.jpg"), "-"]
    assert len({line.split("\t")[1] for line in lines}) == 1
    pipe(picture)
    refused(run("-", "-"), "- was given twice")
    pipe(b"")
    refused(run("-"), "standard input is empty")
    pipe(b"GIF or not")
    code, out, err = run("-")
    assert (code, out) == (1, "")
    assert err == f"error: standard input is no picture: {err.split(': ', 2)[2]}"


def test_a_terminal_is_no_picture(run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", terminal)
    refused(run("-"), "send one")


def test_broken_pictures_are_told_at_the_end(run, folder: Path, tmp_path: Path) -> None:
    whole = (folder / "a.jpg").read_bytes()
    (tmp_path / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "2.png").write_text("no picture", encoding="utf-8")
    for number in (1, *range(3, 20)):
        shutil.copy(folder / "a.jpg", tmp_path / f"{number}.jpg")
    code, out, err = run(tmp_path, tmp_path / "gone.jpg")
    assert code == 1
    assert len(out.splitlines()) == 18
    complaints = err.splitlines()
    assert len(complaints) == 3
    for name, line in zip(("0.jpg", "2.png", "gone.jpg"), complaints, strict=True):
        assert line.startswith(f"error: {tmp_path / name} ")
    assert run(tmp_path / "2.png")[:2] == (1, "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_people_who_wait(run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pictures, captions into a file, somebody at the terminal: a bar there, and the file as it would be."""
    many = [tmp_path / f"{number}.jpg" for number in range(10)]
    for path in many:
        shutil.copy(folder / "a.jpg", path)
    quiet = run(*many)
    assert quiet[2] == ""
    for key, value in (("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(key, value)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    code, out, _ = run(*many)
    assert (code, out) == quiet[:2]
    assert "captions" in screen.getvalue() and "100%" in screen.getvalue()
    screen.truncate(0)
    run(*many[:3])
    assert screen.getvalue() == ""


def test_nothing_to_look_at(run, folder: Path) -> None:
    refused(run(folder / "gone.jpg", folder / "gone too.jpg"), "gone.jpg is not a file")
    refused(run(folder / "empty"), "empty holds no pictures")


def test_names_that_are_no_text(run, folder: Path, tmp_path: Path) -> None:
    for name in (b"a\tb.jpg", b"c\nd.jpg", b"e\x1b[31m.jpg", b"f\xff.jpg", "g é 猫.jpg".encode()):
        shutil.copy(folder / "a.jpg", os.path.join(os.fsencode(tmp_path), name))
    code, out, err = run(tmp_path)
    assert (code, err) == (0, "")
    assert [Path(line.split("\t")[0]).name for line in out.splitlines()] == [
        "a\N{REPLACEMENT CHARACTER}b.jpg", "c d.jpg", "e\N{REPLACEMENT CHARACTER}[31m.jpg",
        "f\N{REPLACEMENT CHARACTER}.jpg", "g é 猫.jpg",
    ]  # fmt: skip
    code, out, _ = run(tmp_path, "--json")
    assert len([json.loads(line)["file"] for line in out.splitlines()]) == 5
    assert printable("a\r\nb\udcff") == "a b\N{REPLACEMENT CHARACTER}"


def test_json_lines(run, speaker: Captioner, folder: Path) -> None:
    paths = sorted(folder.glob("[aCb].*"))
    code, out, _ = run(*paths, "--json", "--n", 2)
    assert code == 0
    for line, path in zip(out.splitlines(), paths, strict=True):
        told, expected = json.loads(line), speaker.caption(path, n=2)
        assert told["file"] == str(path)
        (other,) = told["alternatives"]
        for said, one in ((told, expected), (other, *expected.alternatives)):
            assert (said["caption"], said["words"], said["finished"]) == (one.text, one.words, one.finished)
            assert said["confidence"] == pytest.approx(one.confidence, abs=1e-4)
            assert said["probability"] == pytest.approx(one.probability, abs=1e-4)
            assert said["log_probs"] == pytest.approx(one.log_probs, abs=1e-3)
            assert not said["withheld"] and said["missing"] == 0


def test_confidence_is_that_of_the_calibration(run, speaker: Captioner, folder: Path) -> None:
    _, out, _ = run(folder / "a.jpg", "--confidence", "--n", 3)
    best = speaker.caption(folder / "a.jpg", n=3)
    for line, one in zip(out.splitlines(), (best, *best.alternatives), strict=True):
        expected = numpy.interp(numpy.mean(one.log_probs), (-2.0, -0.8), (0.8, 0.95))
        assert line == f"{expected:.2f}\t{one.text}"
        assert one.confidence != pytest.approx(one.probability, abs=1e-3)


def test_captions_that_are_trusted_too_little_are_withheld(run, speaker: Captioner, folder: Path) -> None:
    paths = sorted(folder.glob("[aCb].*"))
    sure = {path: speaker.caption(path).confidence for path in paths}
    least = sorted(sure.values())[1] - 1e-4
    assert min(sure.values()) < least
    doubted = min(sure, key=sure.__getitem__)
    code, out, err = run(*paths, "--min-confidence", least)
    assert code == 0
    assert err == f"1 caption was withheld: confidence below {least:g}\n"
    rows = dict(line.split("\t") for line in out.splitlines())
    assert [path for path in paths if not rows[str(path)]] == [doubted]
    code, out, _ = run(*paths, "--min-confidence", least, "--json")
    told = {line["file"]: line for line in map(json.loads, out.splitlines())}
    hidden = told[str(doubted)]
    assert hidden == {"file": str(doubted), "caption": "", "withheld": True, "confidence": hidden["confidence"]}
    assert run(doubted, "--min-confidence", least)[1] == ""
    assert run(*paths, "--min-confidence", 0)[2] == ""


def test_a_model_that_is_not_calibrated_says_so(run, folder: Path, tmp_path: Path) -> None:
    plain = tiny_captioner.saved(tmp_path / "plain")
    _, out, err = run(folder / "a.jpg", "--min-confidence", 1, model=plain)
    assert out == "" and "is not calibrated" in err and err.count("\n") == 1


def test_words_that_must_and_must_not_appear(run, folder: Path) -> None:
    _, out, err = run(folder / "a.jpg", "--must", "Cat|a dog", "--must", "grass", "--must-not", "of|The", "--json")
    words = json.loads(out)["words"]
    assert "grass" in words and ("cat" in words or "a dog" in " ".join(words))
    assert not {"of", "the"} & set(words)
    assert err == ""
    refused(run(folder / "a.jpg", "--must", "Hrose"), "unknown word 'hrose' to mention: this vocabulary has 15 words, "
            "nearest known: horse")  # fmt: skip
    refused(run(folder / "a.jpg", "--must-not", "gras"), "nearest known: grass")
    both = run(folder / "a.jpg", "--must", "dog|cat", "--must-not", "cat|dog")
    refused(both, "--must has 'dog' or 'cat', which is in --must-not, too")
    refused(run(folder / "a.jpg", "--must", "a red cat", "--max-words", "1"), "longer than 1 word")
    refused(run(folder / "a.jpg", "--must", "dog|"), "--must is 'dog|'")
    # Of three words one has no room: the caption says what it can, and a warning says what it could not.
    _, out, err = run(folder / "a.jpg", "--must", "dog", "--must", "cat", "--must", "horse", "--max-words", "2")
    assert err.startswith("warning: ") and err.count("\n") == 1
    assert len(out.split()) <= 2


def test_few_words_are_a_whole_sentence(run, folder: Path) -> None:
    for most in (1, 2, 5):
        _, out, _ = run(folder, "--max-words", most)
        for line in out.splitlines():
            text = line.split("\t")[1]
            assert 1 <= len(text.split()) <= most
            assert text.endswith(".") or len(text) == 1  # "A.": an initial, which a full stop would change
    _, out, _ = run(folder, "--min-words", 4, "--max-words", 4, "--json")
    assert {len(json.loads(line)["words"]) for line in out.splitlines()} == {4}
    refused(run(folder, "--max-words", 99), f"at most {tiny_captioner.LONGEST - 1} words")
    refused(run(folder, "--min-words", 50), "--min-words is 50")


def test_sampling_is_new_each_time_unless_seeded(run, folder: Path) -> None:
    words = (folder / "a.jpg", "--strategy", "sample", "--n", 5, "--temperature", 2)
    first, second = run(*words)[1], run(*words)[1]
    assert len(first.splitlines()) == 5
    assert first != second
    assert run(*words, "--seed", 1) == run(*words, "--seed", 1) != run(*words, "--seed", 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min-words", "5", "--max-words", "4"], "--min-words is 5 and --max-words is 4"),
        (
            ["--strategy", "sample", "--beams", "3"],
            "--beams is for a search by beam or diverse, and --strategy is",
        ),
        (["--strategy", "sample", "--groups", "2"], "--groups is for a search by"),
        (["--strategy", "sample", "--must", "dog"], "--must needs a beam search: leave --strategy out"),
        (["--strategy", "sample", "--length-penalty", "1"], "--length-penalty is for a search by"),
        (["--temperature", "0.5"], "--temperature is for a search by sample, and --strategy is beam"),
        (["--top-k", "3"], "--top-k is for"),
        (["--top-p", "0.9"], "--top-p is for"),
        (["--strategy", "sample", "--top-p", "0"], "--top-p is 0"),
        (["--must", "dog", "--groups", "2"], "--must needs a beam search"),
        (["--n", "3", "--beams", "2"], "--n is 3 and --beams is 2"),
        (["--n", "0"], "--n is 0, expected 1 or more"),
        (["--n", "two"], "--n is 'two', expected a whole number"),
        (["--beams", "5", "--groups", "2"], "5 beams do not divide into 2"),
        (["--show", "--json"], "leave one out"),
    ],
)
def test_contradictions(run, folder: Path, words: list[str], message: str) -> None:
    refused(run(folder / "a.jpg", *words), message)


def test_contradictions_need_no_model(run, folder: Path) -> None:
    refused(run(folder / "a.jpg", "--top-k", "3", model="nowhere"), "--top-k")


def test_the_default_model(run, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(folders, "PACKAGED", tmp_path / "none")
    refused(run(folder / "a.jpg", model="default"), "carries no model of its own")
    monkeypatch.setattr(folders, "PACKAGED", model)
    assert run(folder / "a.jpg", model="default") == run(folder / "a.jpg")


def test_the_default_model_needs_no_option(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folders, "PACKAGED", model)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["caption", str(folder / "a.jpg")])
    assert capsys.readouterr().out.count("\n") == 1


def test_features_and_pictures_are_not_mixed(run, folder: Path, tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.zeros((3, 5)))
    refused(run(folder / "a.jpg", tmp_path / "a.npy"), "expected one kind")
