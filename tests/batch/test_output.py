"""Captions written out: tables, texts beside pictures, descriptions inside them or inside copies."""

import csv
import json
import os
import stat
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from batch.seeing import draw
from meshcap import MeshcapError
from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.output import Delivery, check_table, write_errors, write_table

DESCRIPTION = 0x010E


def deliver(delivery: Delivery, pictures: list[Picture], text: str = "A cat.") -> list[dict]:
    rows = [{"path": picture.path, "caption": text, "confidence": 0.5} for picture in pictures]
    delivery.check(pictures)
    delivery(pictures, rows)
    return rows


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_texts_beside_pictures(tmp_path: Path) -> None:
    paths = draw(tmp_path, 2)
    before = [path.read_bytes() for path in paths]
    deliver(Delivery(sidecar=True), [Picture(str(path)) for path in paths], "Zürich")
    assert [path.with_suffix(".txt").read_text(encoding="utf-8") for path in paths] == ["Zürich\n"] * 2
    assert [path.read_bytes() for path in paths] == before
    assert len(list(tmp_path.iterdir())) == 4


def test_texts_of_people_stay(tmp_path: Path) -> None:
    path = draw(tmp_path, 1)[0]
    text = path.with_suffix(".txt")
    text.write_text("What a person wrote.\n")
    row = deliver(Delivery(sidecar=True), [Picture(str(path))])[0]
    assert row["error"] == f"{text} is there and says something else: --overwrite replaces it"
    assert text.read_text() == "What a person wrote.\n"
    for _ in range(2):
        assert "error" not in deliver(Delivery(sidecar=True, overwrite=True), [Picture(str(path))])[0]
    assert "error" not in deliver(Delivery(sidecar=True), [Picture(str(path))])[0]  # its own of before
    assert text.read_text() == "A cat.\n"


def test_pictures_without_a_caption_get_nothing(tmp_path: Path) -> None:
    path = draw(tmp_path, 1, suffix=".jpg")[0]
    before = path.read_bytes()
    rows = [{"path": str(path), "caption": None}, {"path": str(path), "error": "broken"}]
    Delivery(sidecar=True, kinds=("exif",))([Picture(str(path))] * 2, rows)
    assert path.read_bytes() == before and not path.with_suffix(".txt").exists() and rows[1]["error"] == "broken"


def test_inside_pictures(tmp_path: Path) -> None:
    path = draw(tmp_path, 1, suffix=".jpg")[0]
    before = pixels(path)
    path.chmod(0o640)
    delivery = Delivery(kinds=("exif", "xmp", "iptc"))
    assert "error" not in deliver(delivery, [Picture(str(path))])[0]
    once = path.read_bytes()
    deliver(delivery, [Picture(str(path))])
    assert path.read_bytes() == once  # twice is once
    deliver(delivery, [Picture(str(path))], "Another.")
    assert path.read_bytes() == once  # what is there stays
    assert np.array_equal(pixels(path), before) and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    deliver(Delivery(kinds=("exif",), overwrite=True), [Picture(str(path))], "Another.")
    with Image.open(path) as image:
        assert image.getexif()[DESCRIPTION] == "Another."


def test_links_stay_links(tmp_path: Path) -> None:
    path = draw(tmp_path / "real", 1, suffix=".jpg")[0]
    link = tmp_path / "link.jpg"
    link.symlink_to(path)
    deliver(Delivery(kinds=("exif",)), [Picture(str(link))])
    assert link.is_symlink()
    with Image.open(path) as image:
        assert image.getexif()[DESCRIPTION] == "A cat."


def test_inside_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    originals = {path: path.read_bytes() for path in draw(Path("a"), 2, suffix=".jpg") + draw(Path("a"), 1)}
    with tarfile.open("s.tar", "w") as tar:
        tar.add("a/001.jpg", "x/001.jpg")
    shard = Path("s.tar").read_bytes()
    pictures = list_pictures(["a", "s.tar"])
    rows = deliver(Delivery(sidecar=True, kinds=("xmp",), folder=Path("out")), pictures)
    assert not any("error" in row for row in rows)
    found = sorted(str(path) for path in Path("out").rglob("*") if path.is_file())
    assert found == [f"out/{name}" for name in ("a/000.jpg", "a/000.jpg.txt", "a/000.png", "a/000.png.txt",
                                                "a/001.jpg", "a/001.txt", "s/x/001.jpg", "s/x/001.txt")]  # fmt: skip
    for path, content in originals.items():
        assert path.read_bytes() == content
        assert np.array_equal(pixels(Path("out") / path), pixels(path))
        assert b"A cat." in (Path("out") / path).read_bytes()
    assert Path("s.tar").read_bytes() == shard


def test_other_formats_get_a_packet_beside_them(tmp_path: Path) -> None:
    path = draw(tmp_path, 1, suffix=".webp")[0]
    before = path.read_bytes()
    row = deliver(Delivery(kinds=("xmp", "exif")), [Picture(str(path))])[0]
    assert "only JPEG takes EXIF here: use --write-xmp" in row["error"] and row["caption"] == "A cat."
    assert path.read_bytes() == before and b"A cat." in Path(f"{path}.xmp").read_bytes()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_no_right_to_write(tmp_path: Path) -> None:
    path = draw(tmp_path, 1, suffix=".jpg")[0]
    tmp_path.chmod(0o500)
    assert "cannot be written" in deliver(Delivery(kinds=("exif",)), [Picture(str(path))])[0]["error"]


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    path = draw(tmp_path, 1, suffix=".jpg")[0]
    path.with_suffix(".txt").mkdir()
    assert "000.txt cannot be written" in deliver(Delivery(sidecar=True), [Picture(str(path))])[0]["error"]


def test_shards_are_not_changed(tmp_path: Path) -> None:
    path = draw(tmp_path, 1, suffix=".jpg")[0]
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        tar.add(path, "a.jpg")
    pictures = list_pictures([str(tmp_path / "s.tar")])
    for delivery in (Delivery(sidecar=True), Delivery(kinds=("exif",))):
        with pytest.raises(MeshcapError, match="inside a shard, which is not changed: give --out FOLDER"):
            delivery.check(pictures)
    Delivery().check(pictures)


ROWS = [
    {"path": 'a, "b".jpg', "caption": "Zürich,\n“x”", "confidence": 0.25, "words": ["zürich"], "log_probs": [-0.5]},
    {"path": "broken.jpg", "error": "broken.jpg is no picture"},
    {"path": "c.jpg", "caption": None, "confidence": 0.125, "words": ["x"], "log_probs": [-1.0]},
    {"path": "d.jpg", "caption": "D", "confidence": 0.5, "words": ["d"], "log_probs": [-2.0], "error": "no room"},
]
PATHS = ['a, "b".jpg', "c.jpg", "d.jpg"]


def test_jsonl(tmp_path: Path) -> None:
    write_table(tmp_path / "t.jsonl", ROWS, words=True, alternatives=False)
    read = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()]
    assert read == [ROWS[0], ROWS[2], {name: value for name, value in ROWS[3].items() if name != "error"}]


def test_csv(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ROWS, words=True, alternatives=False)
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["path"] for row in read] == PATHS
    assert [row["caption"] for row in read] == ["Zürich,\n“x”", "", "D"]
    assert [float(row["confidence"]) for row in read] == [0.25, 0.125, 0.5]
    assert json.loads(read[0]["words"]) == ["zürich"]


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "alternatives": [{"caption": "e", "confidence": 0.5}]} if "caption" in row else row for row in ROWS]
    write_table(tmp_path / "t.parquet", rows, words=True, alternatives=True)
    read = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["path"] for row in read] == PATHS
    assert [row["caption"] for row in read] == ["Zürich,\n“x”", None, "D"]
    assert read[0]["log_probs"] == [-0.5] and read[0]["alternatives"] == [{"caption": "e", "confidence": 0.5}]


def test_parquet_without_any_caption_has_its_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "t.parquet", [ROWS[1]], words=False, alternatives=False)
    assert parquet.read_table(tmp_path / "t.parquet").schema.names == ["path", "caption", "confidence"]


def test_errors(tmp_path: Path) -> None:
    path = tmp_path / "t.errors.jsonl"
    write_errors(path, ROWS)
    read = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert read == [{"path": "broken.jpg", "error": "broken.jpg is no picture"}, {"path": "d.jpg", "error": "no room"}]
    write_errors(path, ROWS[:1])  # those of an earlier job do not stay
    assert not path.exists()


def test_paths_that_are_no_unicode(tmp_path: Path) -> None:
    name = b"\xff.jpg".decode("utf-8", "surrogateescape")
    row = {"path": name, "caption": "x", "confidence": 0.5}
    write_table(tmp_path / "t.csv", [row], words=False, alternatives=False)
    assert b"\n\xff.jpg,x," in (tmp_path / "t.csv").read_bytes()
    pytest.importorskip("pyarrow")
    write_table(tmp_path / "t.parquet", [row], words=False, alternatives=False)


def test_what_cannot_be_written_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeshcapError, match=r"ends in '.xlsx', expected one of .jsonl, .csv, .parquet"):
        write_table(tmp_path / "t.xlsx", ROWS, words=False, alternatives=False)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MeshcapError, match="pip install pyarrow"):
        check_table(Path("t.parquet"))
