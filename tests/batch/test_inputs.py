"""Which pictures a job is about: named in every way, each once, shared out without overlap."""

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap import MeshcapError
from meshcap.batch.inputs import Picture, Share, list_pictures


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/{a.jpg,b.PNG,deep/c.webp}, a text and hidden files beside; s-0.tar and s-1.tar with two pictures each."""
    for name in ("a.jpg", "b.PNG", "deep/c.webp", "note.txt", ".hidden.jpg", ".git/d.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(name.encode())
    for shard in range(2):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as tar:
            for name in ("photos/a.jpg", "photos/note.txt", "photos/deep/c.webp"):
                tar.add(tmp_path / name, f"{shard}/{name}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*inputs: str, **options) -> list[str]:
    return [picture.path for picture in list_pictures(inputs, **options)]


ALL = ["photos/a.jpg", "photos/b.PNG", "photos/deep/c.webp"]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["photos"], ALL),
        (["photos/"], ALL),
        (["photos/deep/c.webp", "photos"], [ALL[2], ALL[0], ALL[1]]),
        (["photos", "./photos/../photos/a.jpg"], ALL),
        (["photos/*.jpg"], ALL[:1]),
        (["photos/*"], ALL),  # a text beside pictures is no list of them
        (["photos/**/*.webp"], ALL[2:]),
        (["photos/{a,b}.{jpg,PNG}"], ALL[:2]),
        (["photos/note.weird"], None),
        (["photos/*.gif"], None),
    ],
)
def test_names_folders_and_patterns(here: Path, inputs: list[str], expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(MeshcapError, match="is not there, expected pictures"):
            paths(*inputs)
    else:
        assert paths(*inputs) == expected


def test_members_of_shards_are_found_where_they_are(here: Path) -> None:
    found = list_pictures(["s-{0..1}.tar"])
    names = ["s-0.tar:0/photos/a.jpg", "s-0.tar:0/photos/deep/c.webp", "s-1.tar:1/photos/a.jpg"]
    assert [picture.path for picture in found] == [*names, "s-1.tar:1/photos/deep/c.webp"]
    assert [picture.source().read() for picture in found] == [b"a.jpg", b"deep/c.webp"] * 2  # their content above


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.csv", "id,path\n1,photos/a.jpg\n2,photos/deep/c.webp\n\n"),
        ("list.csv", '\ufeffcaption,file_name\n"a, b",photos/a.jpg\nno,photos/deep/c.webp\n'),
        ("list.tsv", "image\tmore\nphotos/a.jpg\tx\nphotos/deep/c.webp\ty\n"),
        ("list.txt", "photos/a.jpg\n\nphotos/deep/c.webp\n"),
    ],
)
def test_lists_of_paths(here: Path, name: str, content: str) -> None:
    (here / name).write_text(content, encoding="utf-8")
    assert paths(name) == [ALL[0], ALL[2]]
    os.chdir("photos")  # paths start from the list, not from here
    assert [os.path.abspath(one) for one in paths(f"../{name}")] == [str(here / ALL[0]), str(here / ALL[2])]


def test_parquet_of_paths(here: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"n": [1, 2, 3], "where": [ALL[0], None, str(here / ALL[2])]}), "list.parquet")
    assert paths("list.parquet", column="where") == [ALL[0], str(here / ALL[2])]
    with pytest.raises(MeshcapError, match=r"list.parquet has the columns n, where: expected one of path, image"):
        paths("list.parquet")
    with pytest.raises(MeshcapError, match="n has int values, expected paths"):
        paths("list.parquet", column="n")
    (here / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(MeshcapError, match=r"bad.parquet cannot be read: "):
        paths("bad.parquet")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("list.csv", b"a,b\n1,2\n", "has the columns a, b: expected one of path, image"),
        ("list.csv", b"a,path\n1\n", "line 2 has 1 fields, expected a path in each"),
        ("list.csv", b"", "has the columns none"),
        ("list.txt", b"\n", "holds no pictures"),
        ("list.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("empty.tar", b"", "is empty, expected a tar shard"),
        ("no.tar", b"x" * 2000, "no.tar"),
    ],
)
def test_lists_that_are_none(here: Path, name: str, content: bytes, told: str) -> None:
    (here / name).write_bytes(content)
    with pytest.raises(MeshcapError, match=told):
        paths(name)


def test_copies_are_not_pictures_of_the_job(here: Path) -> None:
    copy = here / "photos" / "out" / "photos" / "a.jpg"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"")
    assert "photos/out/photos/a.jpg" in paths("photos")
    assert paths("photos", copies=Path("photos/out")) == ALL
    assert paths("photos/**/*.*", copies=Path("photos/out")) == ALL
    with pytest.raises(MeshcapError, match="photos is inside --out, where copies go"):
        paths("photos", copies=Path("."))


@given(st.integers(1, 9), st.sets(st.text(min_size=1, max_size=9), max_size=40))
def test_shares_hold_everything_once(of: int, keys: set[str]) -> None:
    shares = [Share(number, of) for number in range(1, of + 1)]
    for key in keys:
        assert [share.has(key) for share in shares].count(True) == 1
    for count in range(20):
        assert [share.has_tar(count) for share in shares].count(True) == 1


def test_shares_are_about_equal(here: Path) -> None:
    keys = [f"/photos/{number:06}.jpg" for number in range(8000)]
    counts = [sum(Share(number, 8).has(key) for key in keys) for number in range(1, 9)]
    assert sum(counts) == 8000
    assert max(abs(count - 1000) for count in counts) < 5 * (1000 * 7 / 8) ** 0.5  # five standard deviations
    everything = paths("photos", "s-0.tar", "s-1.tar")
    shares = [paths("photos", "s-0.tar", "s-1.tar", share=Share(number, 3)) for number in (1, 2, 3)]
    assert sorted(one for share in shares for one in share) == sorted(everything)
    assert not any("s-0" in one for one in shares[1]) and not any("s-1" in one for one in shares[0])  # whole tars


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "-1/3", "1/0"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(MeshcapError, match="as in 3/8"):
        Share.parse(text)


@given(st.lists(st.sampled_from(["..", ".", "a", "b.jpg", ""]), min_size=1, max_size=6).map("/".join))
def test_results_stay_inside_their_folder(name: str) -> None:
    for picture in (Picture(f"{name}/x.jpg"), Picture(f"s.tar:{name}/x.jpg", "s.tar")):
        place = os.path.normpath(picture.path_in(Path("/out")))
        assert place.startswith("/out/") and place.endswith("x.jpg")


def test_results_of_two_pictures_never_meet() -> None:
    pictures = [Picture("a/x.jpg"), Picture("b/x.jpg"), Picture("s.tar:a/x.jpg", "s.tar"), Picture("/a/b/x.jpg")]
    assert len({picture.path_in(Path("out")) for picture in pictures}) == 4
