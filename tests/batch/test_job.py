"""What a job remembers: blocks whole or not at all, one job at a time, and never those of another job."""

from pathlib import Path

import pytest

from meshcap import MeshcapError
from meshcap.batch.inputs import Picture
from meshcap.batch.job import Job, forget, run
from meshcap.batch.output import Delivery
from meshcap.errors import FailedError

PICTURES = [Picture(f"{number}.jpg") for number in range(10)]


def rows(pictures) -> list[dict]:
    return [{"path": picture.path, "caption": picture.path[0]} for picture in pictures]


def parts(folder: Path, pictures=PICTURES, block: int = 4, **options) -> Job:
    return Job(folder, pictures, options, block=block)


def test_blocks_come_in_any_order_and_are_read_in_theirs(tmp_path: Path) -> None:
    with parts(tmp_path / "job") as job:
        assert job.to_do() == [0, 1, 2]
        for block in (2, 0):
            job.write(block, rows(job.pictures_of(block)))
        assert job.to_do() == [1]
    with parts(tmp_path / "job") as job:
        assert job.to_do() == [1] and job.done is None
        job.write(1, rows(job.pictures_of(1)))
        assert list(job.rows()) == rows(PICTURES)
        job.finish({"captions": 10})
    with parts(tmp_path / "job") as job:
        assert job.done == {"captions": 10}
    assert sorted(one.name for one in (tmp_path / "job").iterdir()) == ["job.json", "lock"]


def test_many_blocks(tmp_path: Path) -> None:
    pictures = [Picture(f"{number}.jpg") for number in range(2500)]
    with parts(tmp_path / "job", pictures, block=1) as job:
        for block in (0, 999, 1000, 2499):
            job.write(block, rows(job.pictures_of(block)))
        assert len(job.to_do()) == 2496 and not {0, 999, 1000, 2499} & set(job.to_do())


def test_rows_of_other_pictures_are_refused(tmp_path: Path) -> None:
    with parts(tmp_path / "job") as job:
        for wrong in (rows(PICTURES[:3]), rows(PICTURES[1:5]), rows(PICTURES[3::-1])):
            with pytest.raises(FailedError, match="not those of its pictures"):
                job.write(0, wrong)
        assert job.to_do() == [0, 1, 2]


def test_one_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with parts(tmp_path / "job"):
        with pytest.raises(MeshcapError, match="in use: another meshcap"), parts(tmp_path / "job"):
            pass
        with pytest.raises(MeshcapError, match="in use: another meshcap"):
            forget(tmp_path / "job")
    with parts(tmp_path / "job"):
        pass


def test_other_jobs_are_refused(tmp_path: Path) -> None:
    with parts(tmp_path / "job", beams=5) as job:
        job.write(0, rows(PICTURES[:4]))
    for other, told in (
        (parts(tmp_path / "job", PICTURES[:9], beams=5), "started with 10 pictures, and these 9 are others"),
        (parts(tmp_path / "job", PICTURES[::-1], beams=5), "started with 10 pictures"),
        (parts(tmp_path / "job", beams=3), "beams was 5 and is 3"),
        (parts(tmp_path / "job", beams=5, block=8), "block was 4 and is 8"),
    ):
        with pytest.raises(MeshcapError, match=told), other:
            pass
    (tmp_path / "job" / "job.json").write_text("{}")
    with pytest.raises(MeshcapError, match="--restart"), parts(tmp_path / "job", beams=5):
        pass
    forget(tmp_path / "job")
    with parts(tmp_path / "job", beams=3) as job:
        assert job.to_do() == [0, 1, 2]
    with parts(tmp_path / "two", must=(), tags=True):  # only what differs is told, however it was written
        pass
    with pytest.raises(MeshcapError, match=r"otherwise \(tags was True and is False\):"):
        parts(tmp_path / "two", must=(), tags=False).__enter__()


def test_restart_leaves_other_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "0001").mkdir()
    forget(tmp_path)
    assert (tmp_path / "0001").exists()


def test_work_that_comes_back_twice_counts_once(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def caption(blocks):
        for number, pictures in [*blocks, *blocks[:1], *blocks]:
            yield number, rows(pictures)

    with parts(tmp_path / "job") as job:
        run(job, caption, Delivery(), lambda *counts: told.append(counts))
        assert list(job.rows()) == rows(PICTURES)
    assert sum(count for count, _ in told) == 10


def test_work_that_never_comes_back_is_told(tmp_path: Path) -> None:
    with parts(tmp_path / "job") as job, pytest.raises(FailedError, match="1 blocks never came back"):
        run(job, lambda blocks: [(n, rows(p)) for n, p in blocks[:-1]], Delivery(), lambda *_: None)


def test_a_lost_block_is_told(tmp_path: Path) -> None:
    with parts(tmp_path / "job") as job, pytest.raises(FailedError, match="cannot be read: remove it"):
        list(job.rows())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    with pytest.raises(MeshcapError, match="cannot be written"), parts(tmp_path / "job"):
        pass
