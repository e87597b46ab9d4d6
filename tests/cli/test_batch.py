"""`meshcap batch`: every way in and out, jobs that are killed, and one line for what makes no sense."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

from batch.seeing import captioner, draw
from meshcap import Captioner
from meshcap.batch import local, output
from meshcap.batch.inputs import Picture
from tiny_data import call, read_lines

ALWAYS = ["--device", "cpu", "--threads", "2", "--batch-size", "2", "--max-words", "8"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    captioner().save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/: 20 PNG; jpegs/: 3 JPEG; s.tar: 2 members."""
    draw(tmp_path / "photos", 20)
    draw(tmp_path / "jpegs", 3, first=20, suffix=".jpg")
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for number in (1, 2):
            tar.add(tmp_path / f"photos/{number:03}.png", f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def batch(model: Path, *more: object) -> int:
    return call(["batch", *(str(one) for one in more), "--model", str(model), *ALWAYS])


def expected(model: Path, paths: list[Path]) -> dict[str, str]:
    one = Captioner.from_pretrained(model)
    return {str(path): one.caption(path, max_words=8).text for path in paths}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_everything_in_at_once(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "list.csv").write_text("path\njpegs/020.jpg\njpegs/020.jpg\n")
    assert batch(model, "photos/00*.png", "list.csv", "jpegs", "s.tar", "--out", "c.jsonl") == 0
    out, err = capsys.readouterr()
    assert out == "c.jsonl: 15 captions\n" and "15 pictures in " in err and "/s" in err
    rows = read_lines(here / "c.jsonl")
    paths = [*(f"photos/{n:03}.png" for n in range(10)), *(f"jpegs/{n:03}.jpg" for n in (20, 21, 22))]
    assert [row["path"] for row in rows] == [*paths, "s.tar:1.png", "s.tar:2.png"]
    said = expected(model, [Path(path) for path in paths])
    assert {row["path"]: row["caption"] for row in rows[:13]} == said
    assert [row["caption"] for row in rows[13:]] == [said["photos/001.png"], said["photos/002.png"]]
    assert len(set(said.values())) > 3
    # Called again, it has nothing to do.
    before = (here / "c.jsonl").stat().st_mtime_ns
    assert batch(model, "photos/00*.png", "list.csv", "jpegs", "s.tar", "--out", "c.jsonl", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"captions": 15, "withheld": 0, "errors": 0, "out": "c.jsonl", "errors_file": None}
    assert err == "" and (here / "c.jsonl").stat().st_mtime_ns == before


def test_tables_say_the_same(here: Path, model: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("c.jsonl", "c.csv", "c.parquet"):
        assert batch(model, "photos", "--out", name, "--n", 2, "--log-probs") == 0
    rows = read_lines(here / "c.jsonl")
    with open(here / "c.csv", encoding="utf-8", newline="") as file:
        by_csv = list(csv.DictReader(file))
    by_parquet = parquet.read_table(here / "c.parquet").to_pylist()
    for table in (by_csv, by_parquet):
        assert [row["caption"] for row in table] == [row["caption"] for row in rows]
        assert [float(row["confidence"]) for row in table] == pytest.approx([row["confidence"] for row in rows])
    assert [row["words"] for row in by_parquet] == [row["words"] for row in rows]
    assert json.loads(by_csv[3]["alternatives"]) == rows[3]["alternatives"]


def test_excel_and_gallery(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(here / "photos/001.png", here / "-1.png")
    words = ["--out", "c.csv", "--excel", "--gallery", "g.html", "--model", str(model), *ALWAYS]
    assert call(["batch", *words, "--", "photos/00*.png", "-1.png"]) == 0
    assert capsys.readouterr().out == "c.csv: 11 captions, g.html\n"
    content = (here / "c.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfpath,") and b"\n'-1.png," in content
    page = (here / "g.html").read_text()
    assert page.count("<figure ") == 11 and page.count("data:image/jpeg") == 11
    # A page can be asked for when all is done.
    assert call(["batch", *words[:4], "other.html", *words[5:], "--", "photos/00*.png", "-1.png"]) == 0
    assert (here / "other.html").read_text() == page and "nothing new" in capsys.readouterr().out


def test_broken_pictures_are_listed(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        (here / f"photos/b{number:02}.jpg").write_bytes(b"no picture")
    assert batch(model, "photos", "--out", "c.csv", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "captions": 20, "withheld": 0, "errors": 12, "out": "c.csv", "errors_file": "c.errors.jsonl"
    }  # fmt: skip
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert lines[0].startswith("error: photos/b00.jpg is no picture")
    assert lines[10:] == ["error: 2 more, all in c.errors.jsonl"]
    errors = read_lines(here / "c.errors.jsonl")
    assert [row["path"] for row in errors] == [f"photos/b{number:02}.jpg" for number in range(12)]
    assert batch(model, "photos", "--out", "c.csv") == 1  # told again


def test_texts_beside_pictures(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(here)
    assert batch(model, "photos/*", "--sidecar") == 0
    assert capsys.readouterr().out == "20 captions\n"
    said = expected(model, sorted(here.glob("photos/*.png")))
    new = files(here) - before
    [record] = [name for name in new if name.endswith(".job.json")]  # and no folder of the job
    assert new - {record} == {f"photos/{number:03}.txt" for number in range(20)}
    for path, text in said.items():
        assert Path(path).with_suffix(".txt").read_text(encoding="utf-8") == text + "\n"
    assert [path.name for path in here.glob(".meshcap*")] == [record]


def test_descriptions(here: Path, model: Path) -> None:
    said = expected(model, sorted(here.glob("jpegs/*.jpg")))
    assert batch(model, "jpegs", "photos/000.png", "--write-exif", "--out", "copies") == 1  # EXIF into PNG
    assert [row["path"] for row in read_lines(here / "copies/captions.errors.jsonl")] == ["photos/000.png"]
    assert batch(model, "jpegs", "--write-exif", "--write-iptc", "--write-xmp", "--in-place", "--out", "c.csv") == 0
    for path, text in said.items():
        for place_ in (Path(path), here / "copies" / Path(path).relative_to(here)):
            with Image.open(place_) as image:
                assert image.getexif()[0x010E] == text


def test_pages(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = '<p><img src="photos/000.png">\n<img src=photos/001.png alt=""><img src="jpegs/020.jpg" alt="mine"></p>'
    (here / "page.html").write_text(page)
    said = expected(model, [here / "photos/000.png"])[str(here / "photos/000.png")]
    after = page.replace("<img ", f'<img alt="{said}" ', 1)
    assert batch(model, "--html", "*.html", "--out", "site") == 0
    assert capsys.readouterr().out == "site/captions.jsonl: 1 caption, 1 written into pages\n"
    assert (here / "site/page.html").read_text() == after and (here / "page.html").read_text() == page
    assert batch(model, "--html", "page.html", "--in-place") == 0
    assert (here / "page.html").read_text() == after
    assert batch(model, "--html", "page.html", "--in-place") == 0  # nothing to do
    assert (here / "page.html").read_text() == after


def test_shards_of_a_job(here: Path, model: Path) -> None:
    assert batch(model, "photos", "s.tar", "--out", "all.jsonl") == 0
    found = []
    for number in (1, 2, 3):
        assert batch(model, "photos", "s.tar", "--out", f"{number}.jsonl", "--shard", f"{number}/3") == 0
        found += read_lines(here / f"{number}.jsonl")
    key = {row["path"]: row["caption"] for row in read_lines(here / "all.jsonl")}
    assert len(found) == 22 and {row["path"]: row["caption"] for row in found} == key


class Killed(BaseException):
    """As sudden as a kill, but inside this process."""


@pytest.mark.parametrize("out", ["c.csv", None])
def test_killed_while_it_writes(here: Path, model: Path, monkeypatch: pytest.MonkeyPatch, out: str | None) -> None:
    """Whichever file it was about to put into its place, the next call ends as if nothing had happened."""
    words = ["photos", "--sidecar", "--write-xmp", "--in-place", *(["--out", out] if out else [])]
    shutil.copytree("photos", "kept")
    really, count, fatal = os.replace, 0, 10_000

    def deadly(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count > fatal:
            raise Killed
        really(source, target)

    def results() -> dict[str, bytes]:
        return {name: (here / name).read_bytes() for name in files(here) if not name.startswith(("kept", ".meshcap"))}

    monkeypatch.setattr(os, "replace", deadly)
    assert batch(model, *words) == 0
    whole, all_ = results(), count
    assert all_ == 2 * 20 + 10 + 2 + bool(out)  # pictures and texts, blocks, the job's own file twice, the table
    for last in [0, 1, 9, 30, all_ - 3, all_ - 2, all_ - 1] if out else [10, all_ - 1]:
        shutil.rmtree("photos")
        shutil.copytree("kept", "photos")
        if out:
            Path(".c.csv.job.json").unlink()
            Path("c.csv").unlink()
        count, fatal = 0, last
        with pytest.raises(Killed):
            batch(model, *words)
        fatal = 10_000
        assert batch(model, *words) == 0
        assert results() == whole


def test_what_was_done_is_not_done_again(here: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    row_of = local.row_of

    def counting(picture: Picture, *rest):
        read[picture.path] += 1
        if len(read) > 12:
            raise Killed
        return row_of(picture, *rest)

    monkeypatch.setattr(local, "row_of", counting)
    with pytest.raises(Killed):
        batch(model, "photos", "--out", "c.csv")
    blocks = list((here / "c.csv.parts").rglob("0*.jsonl"))
    done = {row["path"] for block in blocks for row in read_lines(block)}
    monkeypatch.setattr(local, "row_of", row_of)
    again: Counter[str] = Counter()

    def noting(picture: Picture, *rest):
        again[picture.path] += 1
        return row_of(picture, *rest)

    monkeypatch.setattr(local, "row_of", noting)
    assert batch(model, "photos", "--out", "c.csv") == 0
    assert set(again) == {f"photos/{number:03}.png" for number in range(20)} - done and set(again.values()) == {1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["photos"], "nowhere to write to: give --out FILE.jsonl"),
        (["--out", "c.csv"], "nothing to caption"),
        (["none", "--out", "c.csv"], "none is not there"),
        (["photos", "--out", "c.xlsx"], "--out is c.xlsx, expected a folder or a name that ends in .jsonl, .csv"),
        (["photos", "--out", "c.csv", "--write-exif"], "not changed without --in-place: give it, or --out FOLDER"),
        (["photos", "--out", "taken.csv"], "taken.csv is there, and no job that wrote it"),
        (["photos", "--out", "c.csv", "--shard", "3"], "as in 3/8"),
        (["photos", "--out", "c.csv", "--must", "unheard"], "unknown word 'unheard'"),
        (["photos", "--out", "c.csv", "--max-words", "3", "--min-words", "4"], "expected no more than that"),
        (["s.tar", "--sidecar"], "inside a shard, which is not changed"),
        (["--html", "none.html", "--in-place"], "there is no such page"),
        (["--html", "p.html", "--in-place", "--shard", "1/2"], "a page is filled in by one job"),
        (["--html", "p.html", "--in-place", "--must", "unheard"], "unknown word 'unheard'"),
        (["photos", "--out", "photos", "--write-xmp"], "photos is inside --out, where copies go"),
    ],
)
def test_one_line_for_mistakes_and_nothing_written(
    here: Path, model: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "taken.csv").write_text("mine")
    (here / "p.html").write_text("")
    before = files(here)
    assert call(["batch", *words, "--model", str(model), "--device", "cpu"]) == 2
    err = capsys.readouterr().err.strip()
    assert told in err and len(err.splitlines()) == 1 and err.startswith("error:")
    assert files(here) == before


def test_another_job_under_the_same_name(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch(model, "photos", "--out", "c.csv") == 0
    assert batch(model, "photos", "jpegs", "--out", "c.csv") == 2
    assert "started with 20 pictures, and these 23 are others" in capsys.readouterr().err
    assert batch(model, "photos", "--out", "c.csv", "--beams", 3) == 2
    assert "beams was None and is 3" in capsys.readouterr().err
    before = (here / ".c.csv.job.json").read_bytes()
    assert batch(model, "photos", "jpegs", "--out", "c.csv", "--restart", "--must", "unheard") == 2
    assert (here / ".c.csv.job.json").read_bytes() == before  # a mistake costs nothing
    assert batch(model, "photos", "jpegs", "--out", "c.csv", "--restart") == 0
    (here / "c.csv").unlink()
    assert batch(model, "photos", "jpegs", "--out", "c.csv") == 2
    assert "was written and is gone: give --restart" in capsys.readouterr().err


def test_withheld(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch(model, "jpegs", "--out", "c.jsonl", "--min-confidence", 1) == 0
    assert capsys.readouterr().out == "c.jsonl: 0 captions, 3 withheld\n"
    assert [row["caption"] for row in read_lines(here / "c.jsonl")] == [None] * 3


def test_without_ray_it_says_what_to_install(
    here: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert batch(model, "photos", "--ray", "local", "--out", "c.csv") == 2
    assert "--ray needs another package: pip install 'meshcap[scale]'" in capsys.readouterr().err


@pytest.fixture
def command(here: Path, model: Path) -> Iterator[list[str]]:
    for folder in ("photos", "jpegs"):
        shutil.rmtree(here / folder)
    draw(here / "photos", 600, suffix=".jpg")
    (here / "photos/300.jpg").write_bytes(b"no picture")
    yield [
        sys.executable, "-m", "meshcap", "batch", "photos", "--out", "c.jsonl", "--sidecar", "--write-exif",
        "--in-place", "--model", str(model), *ALWAYS,
    ]  # fmt: skip


def readers_of(parent: int) -> list[str]:
    """Processes that read for it, also where it is gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            text = path.read_text(errors="replace")
            if "meshcap.vision.readers" in text and f'"parent": {parent}}}' in text:
                found.append(path.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_processes_that_read_end_with_the_command(here: Path, model: Path, command: list[str], how: int) -> None:
    with subprocess.Popen([*command, "--processes"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        patience = time.monotonic() + 120
        while not any((here / "c.jsonl.parts").rglob("0*.jsonl")):
            assert process.poll() is None and time.monotonic() < patience
            time.sleep(0.01)
        assert len(readers_of(process.pid)) == 2
        process.send_signal(how)
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    while readers_of(process.pid):
        assert time.monotonic() < patience
        time.sleep(0.05)
    assert subprocess.run([*command, "--no-processes"], capture_output=True).returncode == 1  # one picture is broken
    assert [row["path"] for row in read_lines(here / "c.errors.jsonl")] == ["photos/300.jpg"]
    assert len(read_lines(here / "c.jsonl")) == 599


@pytest.mark.slow
@pytest.mark.parametrize("readers", ["--no-processes", "--processes"])
def test_sigkill(here: Path, model: Path, command: list[str], readers: str) -> None:
    """Killed again and again at random moments: at the end every picture is there once, as if nothing had been."""
    command.append(readers)
    dice = random.Random(7)
    kills, begun = 0, 0
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            parts = here / "c.jsonl.parts"
            before = len(list(parts.rglob("0*.jsonl")))
            patience = time.monotonic() + 120
            while process.poll() is None and len(list(parts.rglob("0*.jsonl"))) <= before:
                assert time.monotonic() < patience
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.5))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
        begun += process.returncode == -signal.SIGKILL
        assert not (here / "c.jsonl").exists() or process.returncode != -signal.SIGKILL or len(files(parts)) > 2
    assert kills == begun >= 3
    assert subprocess.run(command, capture_output=True).returncode == 1  # one picture is broken
    rows = read_lines(here / "c.jsonl")
    names = [f"photos/{number:03}.jpg" for number in range(600) if number != 300]
    assert [row["path"] for row in rows] == names
    assert [row["path"] for row in read_lines(here / "c.errors.jsonl")] == ["photos/300.jpg"]
    assert not (here / "c.jsonl.parts").exists() and (here / ".c.jsonl.job.json").exists()
    assert [name for name in files(here) if name.endswith(".part")] == []  # nor anything unfinished elsewhere
    said = {row["path"]: row["caption"] for row in rows}
    assert {str(path.with_suffix(".jpg")): path.read_text()[:-1] for path in Path("photos").glob("*.txt")} == said
    # A second folder, done without a kill: the same bytes.
    shutil.rmtree("photos")
    draw(here / "photos", 600, suffix=".jpg")
    (here / "photos/300.jpg").write_bytes(b"no picture")
    assert subprocess.run([*command, "--restart"], capture_output=True).returncode == 1
    assert read_lines(here / "c.jsonl") == rows
    for path, text in said.items():
        with Image.open(path) as image:
            assert image.getexif()[0x010E] == text


def test_what_a_kill_left_behind_is_swept_away(here: Path, model: Path) -> None:
    """A kill leaves files under the names that they have while they are written."""
    before = files(here)
    (here / "c.csv.parts").mkdir()
    names = [".c.csv.0a1b2c3d.part", "c.csv.parts/.job.json.0a1b2c3d.part", "photos/.000.txt.0a1b2c3d.part"]
    for name in names:
        (here / name).write_text("half")
    (here / ".other.csv.0a1b2c3d.part").write_text("somebody else's")
    assert batch(model, "photos", "--out", "c.csv", "--sidecar") == 0
    made = {"c.csv", ".c.csv.job.json", *(f"photos/{number:03}.txt" for number in range(20))}
    assert files(here) - before == made | {".other.csv.0a1b2c3d.part"}


def test_folders_are_made_for_outputs(here: Path) -> None:
    """Pictures, texts and pages go through here."""
    output.write_output(here / "deep/er/a.txt", b"x")
    assert (here / "deep/er/a.txt").read_bytes() == b"x" and files(here / "deep") == {"er/a.txt"}


def test_a_repeat_says_that_nothing_is_new_without_a_model(
    here: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert batch(model, "photos", "--out", "c.csv") == 0
    assert not (here / "c.csv.parts").exists()
    before = (here / "c.csv").stat().st_mtime_ns
    capsys.readouterr()
    monkeypatch.setattr("meshcap.cli.options.load_captioner", None)  # would be an error of another kind
    assert batch(model, "photos", "--out", "c.csv") == 0
    assert capsys.readouterr().out == "c.csv: 20 captions, nothing new\n"
    assert (here / "c.csv").stat().st_mtime_ns == before and not (here / "c.csv.parts").exists()
    (here / "c.csv").unlink()
    assert batch(model, "photos", "--out", "c.csv") == 2
    assert "was written and is gone" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["sidecar", "exif", "html"])
def test_a_repeat_without_a_table_does_nothing(
    here: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (here / "jpegs/bad.jpg").write_bytes(b"no picture")
    (here / "page.html").write_text('<img src="photos/000.png">')
    words: list[str] = {
        "sidecar": ["jpegs", "--sidecar"],
        "exif": ["jpegs", "--write-exif", "--in-place"],
        "html": ["--html", "page.html", "--in-place"],
    }[where]
    code = 0 if where == "html" else 1
    assert batch(model, *words) == code
    first = capsys.readouterr()
    before = {name: (here / name).stat().st_mtime_ns for name in files(here)}
    with monkeypatch.context() as patched:
        patched.setattr("meshcap.cli.options.load_captioner", None)  # would be an error of another kind
        assert batch(model, *words) == code
        again = capsys.readouterr()
        assert again.out == first.out.replace("\n", ", nothing new\n")
        assert again.err == "".join(line for line in first.err.splitlines(True) if line.startswith("error"))
        assert {name: (here / name).stat().st_mtime_ns for name in files(here)} == before
    if where == "sidecar":  # what is gone is made again, and other options are another job
        (here / "jpegs/021.txt").unlink()
        assert batch(model, *words) == code and (here / "jpegs/021.txt").exists()
        assert "nothing new" not in capsys.readouterr().out
        assert batch(model, *words, "--overwrite", "--beams", "1") == code
        assert "nothing new" not in capsys.readouterr().out
        draw(here / "jpegs", 1, first=30, suffix=".jpg")
        assert batch(model, *words, "--overwrite", "--beams", "1") == code and (here / "jpegs/030.txt").exists()
        assert len(list(here.glob(".meshcap*"))) == 1


def test_ctrl_c_keeps_what_is_done_and_says_so(
    here: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row_of, count = local.row_of, 0

    def interrupted(*given: object) -> object:
        nonlocal count
        count += 1
        if count > 14:
            raise KeyboardInterrupt
        return row_of(*given)

    monkeypatch.setattr(local, "row_of", interrupted)
    assert batch(model, "photos", "--out", "c.csv", "--threads", 1, "--batch-size", 4) == 130
    kept = sum(len(read_lines(block)) for block in (here / "c.csv.parts").rglob("0*.jsonl"))
    assert f"stopped: {kept} of 20 pictures are done; the same call goes on" in capsys.readouterr().err and kept >= 8
    monkeypatch.setattr(local, "row_of", row_of)
    assert batch(model, "photos", "--out", "c.csv", "--threads", 1, "--batch-size", 4) == 0


def test_one_picture_cannot_stop_a_job(here: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG whose XMP chunk ends after its keyword, and a pipe."""
    content = (here / "photos/003.png").read_bytes()
    data = b"iTXtXML:com.adobe.xmp\0"
    chunk = (len(data) - 4).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    (here / "photos/003.png").write_bytes(content[:33] + chunk + content[33:])
    os.mkfifo(here / "photos/zzz.png")
    assert batch(model, "photos", "--out", "c.jsonl", "--write-xmp", "--in-place") == 1
    assert len(read_lines(here / "c.jsonl")) == 20
    errors = {row["path"]: row["error"] for row in read_lines(here / "c.errors.jsonl")}
    assert "its XMP is damaged" in errors["photos/003.png"] and "a regular file" in errors["photos/zzz.png"]


def test_hard_links_are_said_and_kept(here: Path, model: Path) -> None:
    os.link(here / "photos/000.png", here / "twin.png")
    before = (here / "twin.png").read_bytes()
    assert batch(model, "photos", "--out", "c.jsonl", "--write-xmp", "--in-place") == 1
    assert "has 2 names" in read_lines(here / "c.errors.jsonl")[0]["error"]
    assert (here / "photos/000.png").read_bytes() == (here / "twin.png").read_bytes() == before
