"""Rows of blocks: those that the captioner itself would say, whoever does them and in whatever order."""

import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from batch.seeing import captioner, draw
from meshcap import Captioner, MeshcapError
from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.job import Job, run
from meshcap.batch.local import BatchSettings, caption_blocks, caption_in_threads, row_of
from meshcap.batch.output import Delivery
from meshcap.options import CaptionOptions

OPTIONS = CaptionOptions(max_words=8)


@pytest.fixture(scope="module")
def seeing() -> Captioner:
    return captioner()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Picture]:
    """13: files, members of a shard, and broken ones of both kinds."""
    folder = tmp_path_factory.mktemp("pictures")
    files = draw(folder / "files", 6)
    files[2].write_bytes(b"no picture")
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for path in draw(folder / "members", 6, first=6):
            tar.add(path, path.name)
        tar.add(files[2], "broken.png")
    found = list_pictures([str(folder / "files"), str(folder / "shard.tar")])
    gone = found[8]._replace(offset=10**9)  # a shard that was cut off meanwhile
    return [*found[:8], gone, *found[9:]]


def blocks(pictures: list[Picture], size: int) -> list[tuple[int, list[Picture]]]:
    return [(start // size, pictures[start : start + size]) for start in range(0, len(pictures), size)]


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("meshcap")]


@pytest.mark.parametrize(("batch", "block"), [(1, 1), (2, 4), (4, 4), (16, 16)])
def test_rows_are_what_the_captioner_says(seeing: Captioner, pictures: list[Picture], batch: int, block: int) -> None:
    found = dict(caption_blocks(seeing, blocks(pictures, block), BatchSettings(OPTIONS, batch_size=batch)))
    rows = [row for number in sorted(found) for row in found[number]]
    assert [row["path"] for row in rows] == [picture.path for picture in pictures]
    for picture, row in zip(pictures, rows, strict=True):
        if picture is pictures[2] or picture is pictures[8] or picture.path.endswith("broken.png"):
            assert row["error"].startswith(picture.path) and "caption" not in row
            continue
        said = seeing.caption(picture.path if picture.tar is None else picture.source().read(), OPTIONS)
        assert row["caption"] == said.text
        assert row["confidence"] == pytest.approx(said.confidence, abs=1e-5)
    assert len({row.get("caption") for row in rows}) > 3  # a mixed-up order would show
    assert threads() == []


@pytest.mark.parametrize("block", [4, 3, 13])
def test_processes_make_the_same_rows(seeing: Captioner, pictures: list[Picture], block: int) -> None:
    """Files, members of a shard and broken ones, also where streams end inside a job."""
    settings = BatchSettings(OPTIONS, batch_size=2, readers=2, log_probs=True)
    expected = list(caption_blocks(seeing, blocks(pictures, block), settings))
    by_processes = replace(settings, processes=True)
    assert list(caption_blocks(seeing, blocks(pictures, block), by_processes)) == expected
    found = dict(caption_in_threads(seeing, iter(blocks(pictures, block)), by_processes, lanes=2))
    assert found == dict(expected)
    assert threads() == []


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_lanes_say_the_same_to_the_last_digit(seeing: Captioner, pictures: list[Picture], lanes: int) -> None:
    settings = BatchSettings(OPTIONS, batch_size=2, log_probs=True)
    expected = dict(caption_blocks(seeing, blocks(pictures, 2), settings))
    for todo in (blocks(pictures, 2), blocks(pictures, 2)[3:]):  # from the start, and after some were done
        found = dict(caption_in_threads(seeing, iter(todo), settings, lanes=lanes))
        assert found == {number: expected[number] for number, _ in todo}
    assert threads() == []


def test_lanes_end_when_nobody_listens(seeing: Captioner, pictures: list[Picture]) -> None:
    taken = []

    def endless():
        for number in range(10_000):
            taken.append(number)
            yield number, pictures[:2]

    rows = caption_in_threads(seeing, endless(), BatchSettings(OPTIONS, batch_size=2), lanes=2)
    next(rows)
    rows.close()
    assert threads() == [] and len(taken) < 100


def test_lanes_end_when_a_job_is_interrupted(seeing: Captioner, pictures: list[Picture], tmp_path: Path) -> None:
    """Else the process would wait for threads that wait for it."""

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    def caption(todo):
        return caption_in_threads(seeing, todo, BatchSettings(OPTIONS, batch_size=2), lanes=2)

    with Job(tmp_path / "job", pictures, {}, block=2) as parts:
        with pytest.raises(KeyboardInterrupt) as kept:  # and with it its traceback, where the generator is
            run(parts, caption, Delivery(), interrupt)
        assert threads() == [] and kept
        assert 0 < len(parts.to_do()) < parts.blocks


def test_mistakes_in_a_lane_reach_the_caller(seeing: Captioner, pictures: list[Picture]) -> None:
    settings = BatchSettings(CaptionOptions(max_words=1000), batch_size=2)
    with pytest.raises(MeshcapError, match="max_words is 1000, and this model can say at most"):
        list(caption_in_threads(seeing, blocks(pictures, 2), settings, lanes=2))
    assert threads() == []


def test_withheld_captions_give_nothing_away(seeing: Captioner, pictures: list[Picture]) -> None:
    settings = BatchSettings(log_probs=True)
    said = seeing.caption(pictures[0].path, n=3, max_words=8)
    whole = row_of(pictures[0], said, settings)
    assert whole["words"] == said.words and len(whole["log_probs"]) == len(said.log_probs)
    assert [one["caption"] for one in whole["alternatives"]] == [one.text for one in said.alternatives]
    hidden = seeing.caption(pictures[0].path, n=3, max_words=8, min_confidence=1.0)
    row = row_of(pictures[0], hidden, settings)
    assert row == {"path": pictures[0].path, "caption": None, "confidence": pytest.approx(said.confidence, abs=1e-6)}
    least = sorted(one.confidence for one in (said, *said.alternatives))[1]
    some = seeing.caption(pictures[0].path, n=3, max_words=8, min_confidence=min(least, said.confidence))
    found = row_of(pictures[0], some, settings)
    assert found["caption"] and all(one["confidence"] >= least - 1e-6 for one in found.get("alternatives", []))
