"""Tar shards, written by tarfile and read by place."""

import io
import json
import pickle
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from meshcap.data import read_dataset, shards
from meshcap.data.shards import TarSource, members
from meshcap.errors import MeshcapError


def picture(number: int, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256, 0, 0)).save(buffer, form)
    return buffer.getvalue()


def tar(path: Path, files: dict[str, bytes | dict], format: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as out:
        for name, content in files.items():
            raw = json.dumps(content).encode() if isinstance(content, dict) else content
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            out.addfile(info, io.BytesIO(raw))
    return path


def test_samples_of_shards(tmp_path: Path) -> None:
    first = {
        "1.jpg": picture(1),
        "1.json": {"captions": ["one", "a one"], "split": "validation", "id": 10, "filename": "x.jpg", "facts": [1]},
        "folder/2.webp": picture(2),
        "folder/2.json": {"caption": "two", "url": None},
        "3.png": picture(3),
        "3.txt": b"three\nthe three\n",
        "._3.png": b"what a Macintosh leaves",
        "README": b"nothing",
        "v1.0/LICENSE": b"nothing",
        "4.jpeg": picture(4),
    }
    tar(tmp_path / "train-0.tar", first)
    tar(tmp_path / "test-0.tar", {"./5.avif": b"5", "./5.json": {"caption": "five"}})
    (tmp_path / "dataset_x.json").write_text("{}")  # shards win
    dataset = read_dataset(tmp_path)
    assert [(s.id, s.split, s.captions, s.filename, s.more) for s in dataset] == [
        ("5", "test", ("five",), "5.avif", None),
        ("10", "val", ("one", "a one"), "x.jpg", {"facts": [1]}),
        ("folder/2", "train", ("two",), "2.webp", {"url": None}),
        ("3", "train", ("three", "the three"), "3.png", None),
    ]
    assert dataset.left_out.without_captions == ("4",)
    contents = [sample.picture.read() for sample in dataset if sample.picture]
    assert contents == [b"5", picture(1), picture(2), picture(3)]
    assert str(dataset.samples[1].picture) == f"{tmp_path / 'train-0.tar'}:1.jpg"


def test_one_shard_and_several(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for number in range(3):
            key = f"{split}{number}"
            tar(tmp_path / f"{split}-{number}.tar", {f"{key}.png": picture(number), f"{key}.json": {"caption": key}})

    def ids(pattern: str) -> list[str]:
        return [sample.id for sample in read_dataset(tmp_path / pattern)]

    tar(tmp_path / "train-10.tar", {"train10.png": picture(10), "train10.json": {"caption": "ten"}})
    assert ids("val-1.tar") == ["val1"]
    assert ids("train-*.tar") == ["train0", "train1", "train2", "train10"]  # by number
    assert ids("") == [*ids("train-*.tar"), *ids("val-*.tar")]
    assert ids("train-{0..1}.tar") == ["train0", "train1"]
    assert ids("*-2.tar") == ["train2", "val2"]
    with pytest.raises(MeshcapError, match=r"train-3.tar, which is one of .* is not there"):
        ids("train-{1..3}.tar")
    with pytest.raises(MeshcapError, match="expected no folder of pictures beside shards"):
        read_dataset(tmp_path, pictures=tmp_path)


def test_shards_that_name_no_split_are_hashed(tmp_path: Path) -> None:
    files = {f"{n}.{kind}": content for n in range(200) for kind, content in (("png", b"x"), ("txt", b"a"))}
    counts = read_dataset(tar(tmp_path / "000.tar", files), val=0.2, test=0.1).counts()
    assert 20 <= counts["val"] <= 60 and 8 <= counts["test"] <= 35 and sum(counts.values()) == 200


NAMES = st.text("abcdefg/._-é漢", min_size=1, max_size=180).filter(
    lambda name: "//" not in name and name.strip("/.") == name and len(name.encode()) < 400
)


@given(st.dictionaries(NAMES, st.binary(max_size=1500), max_size=6), st.sampled_from([0, 1, 2]))
def test_members_are_those_that_tarfile_wrote(files: dict[str, bytes], format: int) -> None:
    assert (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT) == (0, 1, 2)
    buffer = io.BytesIO()
    written = {}
    with tarfile.open(fileobj=buffer, mode="w", format=format) as out:
        folder = tarfile.TarInfo("a folder")
        folder.type = tarfile.DIRTYPE
        out.addfile(folder)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            try:
                out.addfile(info, io.BytesIO(content))
            except ValueError:  # ustar has no room for the longest
                continue
            written[name] = content
    raw = buffer.getvalue()
    assert {m.name: raw[m.offset : m.offset + m.size] for m in members(Path("x.tar"), raw)} == written


def test_a_size_in_pax_or_binary_counts() -> None:
    # What tars of files over 8 GB do; here with a small one, written by hand.
    info = tarfile.TarInfo("big.jpg")
    info.size = 3
    info.pax_headers = {"size": "3"}
    raw = info.tobuf(tarfile.PAX_FORMAT).ljust(1) + b"abc".ljust(512, b"\0") + bytes(1024)
    assert [(m.name, m.size) for m in members(Path("x.tar"), raw)] == [("big.jpg", 3)]
    header = bytearray(tarfile.TarInfo("big.jpg").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = b"\x80" + (3).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    raw = bytes(header) + b"abc".ljust(512, b"\0") + bytes(1024)
    assert [(m.name, m.size) for m in members(Path("x.tar"), raw)] == [("big.jpg", 3)]


def test_a_shard_cut_off_anywhere_is_named(tmp_path: Path) -> None:
    files = {f"{n}.{kind}": content for n in range(3) for kind, content in (("png", picture(n)), ("txt", b"a"))}
    whole = tar(tmp_path / "whole.tar", files).read_bytes()
    end = 6 * 1024  # six members with a header and a block each, then zeros
    assert not any(whole[end:]) and any(whole[end - 1024 : end])
    cut = tmp_path / "train-1.tar"
    for size in [*range(1, end, 97), *range(512, end + 1, 512)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(MeshcapError, match=r"train-1.tar ends at byte .*truncated\?"):
            read_dataset(cut)
    cut.write_bytes(whole[: end + 512])
    assert len(read_dataset(cut)) == 3


def test_damage_is_told(tmp_path: Path) -> None:
    whole = tar(tmp_path / "a.tar", {"1.png": picture(1), "1.txt": b"a"}).read_bytes()
    rng = random.Random(0)
    for place in rng.sample(range(1024, 1024 + 500), 20):  # in the second header
        broken = bytearray(whole)
        broken[place] ^= 0x55
        (tmp_path / "a.tar").write_bytes(broken)
        with pytest.raises(MeshcapError, match=r"a.tar is damaged at byte 1,024"):
            read_dataset(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(MeshcapError, match=r"a.tar is not a tar"):
        read_dataset(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(b"")
    with pytest.raises(MeshcapError, match=r"a.tar is empty"):
        read_dataset(tmp_path / "a.tar")


MISTAKES = {
    "captions": ({"1.png": b"", "1.json": {"captions": [1]}}, r"0.tar:1.json has the captions \[1\], expected"),
    "id": ({"1.png": b"", "1.json": {"caption": "a", "id": []}}, r"0.tar:1.json has the id \[\]"),
    "json": ({"1.png": b"", "1.json": b"{"}, r"0.tar:1.json is not JSON"),
    "list": ({"1.png": b"", "1.json": b"[]"}, r"0.tar:1.json is \[\], expected an object"),
    "text": ({"1.png": b"", "1.txt": b"\xff"}, r"0.tar:1.txt is not UTF-8"),
    "two pictures": ({"1.png": b"", "1.jpg": b"", "1.txt": b"a"}, r"1.png and 1.jpg are the same sample's"),
    "twice": (
        {"1.png": b"", "1.json": {"id": 2, "caption": "a"}, "2.png": b"", "2.txt": b"b"},
        "picture '2' is there twice",
    ),
    "nothing": ({"README": b"a"}, "holds no pictures"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(mistake: str, tmp_path: Path) -> None:
    files, expected = MISTAKES[mistake]
    with pytest.raises(MeshcapError, match=expected):
        read_dataset(tar(tmp_path / "0.tar", files))


def test_a_source_travels_and_knows_when_its_shard_changed(tmp_path: Path) -> None:
    path = tar(tmp_path / "0.tar", {"1.png": picture(1), "1.txt": b"a"})
    source = pickle.loads(pickle.dumps(read_dataset(path).samples[0].picture))
    assert source == TarSource(path, 512, len(picture(1)), "1.png")
    assert source.read() == picture(1)
    path.write_bytes(path.read_bytes()[:520])
    with pytest.raises(MeshcapError, match="has become shorter"):
        source.read()
    path.unlink()
    with pytest.raises(MeshcapError, match=r"0.tar:1.png cannot be read: No such file"):
        source.read()


def pax_tar(records: bytes) -> bytes:
    """A tar of one member with pax records before it."""
    before, own = tarfile.TarInfo("pax"), tarfile.TarInfo("a.jpg")
    before.type, before.size, own.size = tarfile.XHDTYPE, len(records), 3
    pieces = [before.tobuf(tarfile.USTAR_FORMAT), records, bytes(-len(records) % 512)]
    return b"".join([*pieces, own.tobuf(tarfile.USTAR_FORMAT), b"abc", bytes(509), bytes(1024)])


class CountedBytes(bytes):
    """Bytes that count what is copied out of them."""

    copied = 0

    def __getitem__(self, key: object) -> object:
        found = super().__getitem__(key)
        CountedBytes.copied += len(found) if isinstance(found, bytes) else 0
        return CountedBytes(found) if isinstance(found, bytes) else found

    def partition(self, mark: bytes) -> tuple[bytes, bytes, bytes]:
        CountedBytes.copied += len(self)
        return super().partition(mark)


def test_pax_records_are_read_in_one_pass() -> None:
    records = CountedBytes(b"".join(b"13 k%05d=ab\n" % number for number in range(10_000)))
    CountedBytes.copied = 0
    found = shards._pax(records)
    assert found["k09999"] == "ab" and len(found) == 10_000
    assert CountedBytes.copied < 4 * len(records)


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1e3"])
def test_pax_numbers_without_sense_are_one_line(number: str) -> None:
    record = f" size={number}\n"
    length = next(n for n in range(len(record), len(record) + 9) if n == len(record) + len(str(n)))
    with pytest.raises(MeshcapError, match=r"a member of size .* expected a number of bytes"):
        list(shards.members(Path("a.tar"), pax_tar(f"{length}{record}".encode())))
    huge = ("1" * 5000 + " path=x\n").encode()  # of a record
    assert [one.name for one in shards.members(Path("a.tar"), pax_tar(huge))] == ["a.jpg"]
