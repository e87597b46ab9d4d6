"""What `check` finds: planted faults and nothing else."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from meshcap.data import Dataset, Sample, read_dataset
from meshcap.data import fingerprints as prints
from meshcap.data.check import DatasetReport, check
from meshcap.data.dataset import FileSource
from meshcap.data.fingerprints import close_hashes, differing_bits, fingerprint, near_duplicates
from meshcap.data.shapes import BACKGROUNDS, draw_gradient, draw_shape
from meshcap.data.workers import parallel_map
from meshcap.errors import MeshcapError


def scenery(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Something with the many soft details of a photograph: random colours at several scales."""
    rng = np.random.default_rng(seed)
    whole = np.zeros((size[1], size[0], 3))
    for cells in (3, 6, 12, 24, 48):
        spots = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        whole += np.asarray(spots.resize(size, Image.Resampling.BICUBIC), float) / cells**0.7
    whole -= whole.min()
    return Image.fromarray((whole * 255 / whole.max()).astype(np.uint8))


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


# Hashes


def planted(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random hashes, and copies of some with 0 to 10 bits changed."""
    hashes = rng.integers(0, 2**64, count, dtype=np.uint64)
    for place in range(count // 2, count):
        bits = rng.choice(64, rng.integers(0, 11), replace=False)
        flips = np.bitwise_or.reduce(np.uint64(1) << bits.astype(np.uint64), initial=np.uint64(0))
        hashes[place] = hashes[rng.integers(0, count // 2)] ^ flips
    return hashes


@given(st.integers(0, 2**32 - 1), st.integers(2, 150))
def test_close_hashes_are_all_of_them(seed: int, count: int) -> None:
    hashes = planted(np.random.default_rng(seed), count)
    words = [int(one) for one in hashes]
    expected = {(i, j) for j in range(count) for i in range(j) if (words[i] ^ words[j]).bit_count() <= prints.BITS}
    found = [pair for i, j in close_hashes(hashes) for pair in zip(i.tolist(), j.tolist(), strict=True)]
    assert sorted(found) == sorted(expected)  # each once


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = planted(np.random.default_rng(1), 400)
    whole = {pair for i, j in close_hashes(hashes) for pair in zip(i.tolist(), j.tolist(), strict=True)}
    monkeypatch.setattr(prints, "BATCH", 7)
    assert whole == {pair for i, j in close_hashes(hashes) for pair in zip(i.tolist(), j.tolist(), strict=True)}
    assert len(whole) > 100


def test_bits_are_counted_alike_by_old_and_new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(0).integers(0, 2**64, (2, 100), dtype=np.uint64)
    expected = [(int(x) ^ int(y)).bit_count() for x, y in zip(a, b, strict=True)]
    assert differing_bits(a, b).tolist() == expected
    if hasattr(np, "bitwise_count"):
        monkeypatch.delattr(np, "bitwise_count")
    assert differing_bits(a, b).tolist() == expected


def test_search_is_not_quadratic() -> None:
    # All pairs of so many would be two billion, and minutes even in numpy.
    hashes = planted(np.random.default_rng(2), 60_000)
    begin = time.process_time()
    pairs = sum(len(i) for i, _ in close_hashes(hashes))
    assert pairs > 15_000
    assert time.process_time() - begin < 10


# Pictures

COPIES = {
    "webp 45": lambda image: saved(image, "WEBP", quality=45),
    "jpeg 30": lambda image: saved(image, "JPEG", quality=30),
    "half": lambda image: saved(image.resize((160, 120), Image.Resampling.BICUBIC), "PNG"),
    "squashed": lambda image: saved(image.resize((256, 256), Image.Resampling.LANCZOS), "JPEG", quality=60),
    "small": lambda image: saved(image.resize((96, 96)), "JPEG", quality=50),
    "enlarged": lambda image: saved(image.resize((640, 480), Image.Resampling.BILINEAR), "WEBP", quality=80),
}
OTHERS = {
    "mirrored": ImageOps.mirror,
    "middle": lambda image: image.crop((80, 60, 240, 180)),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "turned": lambda image: image.rotate(90, expand=True),
    "with a ball": lambda image: with_ball(image),
}


def with_ball(image: Image.Image) -> Image.Image:
    image = image.copy()
    draw_shape(image, "ball", "white", (150, 100, 176, 126))
    return image


def reopened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


@pytest.fixture(scope="module")
def originals() -> list[Image.Image]:
    return [scenery(seed) for seed in range(30)]


@pytest.mark.parametrize("copy", COPIES)
def test_copies_are_found_and_nothing_else(copy: str, originals: list[Image.Image]) -> None:
    again = [reopened(COPIES[copy](image)) for image in originals]
    found = near_duplicates([fingerprint(image) for image in originals + again])
    assert found == [(n, n + 30) for n in range(30)]


@pytest.mark.parametrize("other", OTHERS)
def test_changed_pictures_are_other_pictures(other: str, originals: list[Image.Image]) -> None:
    images = originals[:10]
    assert not near_duplicates([fingerprint(image) for image in images + [OTHERS[other](one) for one in images]])


@pytest.mark.parametrize("other", ["ball", "star"])
def test_pale_pictures_are_compared_by_what_is_in_them(other: str) -> None:
    # Small white things before a pale wall: their numbers hardly differ.
    images = [Image.new("RGB", (96, 96)) for _ in range(2)]
    for image, kind in zip(images, ("square", other), strict=True):
        draw_gradient(image, BACKGROUNDS["wall"].sky, 0, 96)
        draw_shape(image, kind, "white", (50, 34, 78, 62))
    assert differing_bits(*(np.array([fingerprint(image).hash], np.uint64) for image in images))[0] <= prints.BITS
    assert not near_duplicates([fingerprint(image) for image in images])


def test_a_slightly_brighter_copy_is_a_copy() -> None:
    image = scenery(3)
    brighter = image.point([min(255, value + 12) for value in range(256)] * 3)
    assert near_duplicates([fingerprint(image), fingerprint(brighter)]) == [(0, 1)]


def test_many_copies_are_told_once_for_each_split() -> None:
    image = scenery(5)
    copies = [fingerprint(reopened(saved(image, "JPEG", quality=quality))) for quality in range(50, 90)]
    assert near_duplicates(copies) == [(0, n) for n in range(1, 40)]
    splits = ["train"] * 20 + ["val"] * 20
    found = near_duplicates(copies, splits)
    assert found == [(0, n) for n in range(1, 40)] + [(20, n) for n in range(21, 40)]


def test_flat_pictures_are_not_compared() -> None:
    flat = [fingerprint(Image.new("RGB", (32, 32), (200, 200, 200 + n))) for n in range(4)]
    assert all(one.flat for one in flat)
    assert not near_duplicates(flat)
    assert not fingerprint(scenery(0)).flat


# The report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixty pictures that differ, and one of each fault."""
    records = []

    def add(name: str, split: str, content: bytes | None, captions: list[str] | None = None) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        records.append({"image": name, "split": split, "captions": captions or [f"picture {name}"]})

    for n in range(60):
        add(f"{n}.jpg", ("train", "val", "test")[n % 3], saved(scenery(n, (160, 120)), "JPEG", quality=90))
    add("same.png", "train", saved(reopened((tmp_path / "3.jpg").read_bytes()), "PNG"))  # 3.jpg: train
    small = reopened((tmp_path / "1.jpg").read_bytes()).resize((100, 75))  # 1.jpg: val
    add("leak.webp", "train", saved(small, "WEBP", quality=45))
    add("missing.jpg", "test", None)
    add("cut.jpg", "test", saved(scenery(99), "JPEG")[:3000])
    add("flat.png", "train", saved(Image.new("RGB", (300, 300), "teal"), "PNG"))
    add("silent.png", "train", saved(scenery(98), "PNG"), [" "])
    add("twice.png", "val", saved(scenery(97), "PNG"), ["it is there", "it is there", "", "Picture 0.jpg, a long one!"])
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def test_planted_faults_are_found_and_no_others(folder: Path) -> None:
    seen: list[int] = []
    report = check(read_dataset(folder), workers=1, progress=seen.append)
    assert report.splits == {"train": 23, "val": 21, "test": 22}
    assert [one.id for one in report.missing] == ["missing.jpg"]
    assert [one.id for one in report.unreadable] == ["cut.jpg"]
    assert str(folder / "cut.jpg") in report.unreadable[0].why and "truncated" in report.unreadable[0].why
    assert [(p.first, p.second, p.across) for p in report.same or []] == [("3.jpg", "same.png", False)]
    assert [(p.first, p.second, p.across) for p in report.near or []] == [("1.jpg", "leak.webp", True)]
    assert report.leaks == report.near
    assert report.flat == 1
    assert (report.smallest, report.largest) == ((100, 75, "leak.webp"), (300, 300, "flat.png"))
    assert (report.left_out.empty_captions, report.left_out.without_captions) == (2, ("silent.png",))
    assert report.captions.repeated_of_picture == 1
    assert seen == list(range(1, 66))
    must = [line.text for line in report.advice() if line.must]
    assert [line.split(":")[0] for line in must] == ["missing pictures", "unreadable pictures", "pairs in two splits"]
    assert json.loads(json.dumps(report.to_dict()))["leaks"][0]["second"] == "leak.webp"


def test_fast_opens_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = read_dataset(folder)
    monkeypatch.setattr(FileSource, "read", lambda self: pytest.fail("opened"))
    report = check(dataset, fast=True)
    assert [one.id for one in report.missing] == ["missing.jpg"]
    assert (report.opened, report.same, report.near, report.flat) == (0, None, None, None)
    assert report.must_fix


def test_a_clean_dataset_has_nothing_to_fix(folder: Path) -> None:
    dataset = read_dataset(folder)
    clean = [sample for sample in dataset if sample.id.split(".")[0].isdecimal()]
    report = check(Dataset("clean", clean), workers=1)
    assert not report.must_fix and not report.advice()


def test_a_copy_in_each_split_leaks_wherever_the_first_is(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(saved(scenery(0), "PNG"))
    source = FileSource(tmp_path / "a.png")
    splits = ["val", "val", "train", "train", "test"]
    report = check(Dataset("x", [Sample(str(n), ("a",), s, source) for n, s in enumerate(splits)]), workers=1)
    assert [(p.first, p.second) for p in report.leaks] == [("0", "2"), ("0", "3"), ("0", "4")]
    assert report.near == []  # copies are told once
    assert report.to_leave_out == ["2", "3"]
    first_in_train = ["train", "train", "test", "val", "train"]
    report = check(Dataset("x", [Sample(str(n), ("a",), s, source) for n, s in enumerate(first_in_train)]), workers=1)
    assert report.to_leave_out == ["0", "1", "4"]  # also copies that are told with another training picture


def test_captions_are_counted() -> None:
    # By hand: lengths without punctuation 4, 2, 5, 1; "a" 5 times in train, "dog" twice, the others once.
    samples = [
        Sample("1", ("A dog, a cat.", "A dog!"), "train", None),
        Sample("2", ("a bird with a worm", "Nothing"), "train", None),
        Sample("3", ("seen elsewhere only .",), "val", None),
        Sample("4", ("Nothing",), "val", None),
    ]
    counts = check(Dataset("x", samples), fast=True).captions
    assert (counts.captions, counts.fewest, counts.mean, counts.most) == (6, 1, 1.5, 2)
    assert (counts.words_mean, counts.words_95, counts.words_most, counts.longest) == (16 / 6, 5, 5, "2")
    assert (counts.vocabulary_of, counts.distinct_words) == ("train", 7)
    assert (counts.frequent_words, counts.frequent_share) == (1, 5 / 12)
    assert (counts.repeated, counts.repeated_of_picture) == (1, 0)


def test_workers_find_the_same(folder: Path) -> None:
    dataset = read_dataset(folder)
    assert check(dataset, workers=2) == check(dataset, workers=1)


def test_report_says_what_split_is_missing() -> None:
    report: DatasetReport = check(Dataset("x", [Sample("1", ("a",), "test", None)]), fast=True)
    assert [line.text for line in report.advice() if "training needs" in line.text] == [
        "no pictures in train - training needs some",
        "no pictures in val - training needs some",
    ]


# The pool


def test_results_come_in_order_and_only_as_fast_as_they_are_taken() -> None:
    asked = []

    def numbers() -> Iterator[int]:
        for number in range(10**9):
            asked.append(number)
            yield number

    results = parallel_map(str, numbers(), workers=2)
    assert [next(results) for _ in range(200)] == [str(n) for n in range(200)]
    assert len(asked) < 2000
    results.close()


def test_no_workers_is_a_mistake() -> None:
    with pytest.raises(MeshcapError, match="0 workers were asked for"):
        list(parallel_map(str, [1], workers=0))


def test_a_killed_worker_is_told() -> None:
    with pytest.raises(MeshcapError, match="a worker was killed"):
        list(parallel_map(os._exit, [1], workers=2))


ENDLESS = """
import time
from meshcap.data.workers import parallel_map
if __name__ == "__main__":
    list(parallel_map(time.sleep, [0.01] * 100_000, workers=2))
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks /proc who is running")
def test_workers_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / f"endless_{os.getpid()}.py"
    script.write_text(ENDLESS)
    parent = subprocess.Popen([sys.executable, script], start_new_session=True)

    def running() -> list[int]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == parent.pid and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def wait(until) -> bool:
        end = time.monotonic() + 60
        while not until() and time.monotonic() < end:
            time.sleep(0.05)
        return until()

    assert wait(lambda: len(running()) >= 4)  # itself, a tracker of resources, a server of forks, two workers
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert wait(lambda: not running()), running()
