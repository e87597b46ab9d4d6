"""benchmarks/batch.py: the work is done and counted; no time is judged."""

import json
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from batch.seeing import captioner
from benchmarks import batch
from benchmarks.batch import Photos, Setting, Step, bench_peer, command, gpu_use, make_pictures
from benchmarks.process import SIDES, read_for_peer
from meshcap.errors import FailedError
from meshcap.vision import read_picture
from tiny_data import bench

CPU = torch.device("cpu")


def test_jobs_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captioner().save_pretrained(tmp_path)
    words = ["--pictures", "64", "--repeat", "1", "--listed", "1000", "--model", str(tmp_path), "--lanes", "1"]
    assert bench(command, *words, "--beams", "1", "--width", "96", "--width", "64", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    threads = Setting(CPU, lanes=1).threads
    decode = f"decode, {threads} thread{'s' * (threads > 1)}"
    apart = f"read and decode, {threads} process{'es' * (threads > 1)}"
    expected = [("listing", "1,000 paths, 16 blocks")]
    for size in ("64 × 48", "96 × 72"):
        jobs = [(f"meshcap from {kind}", size) for kind in ("a folder", "tar shards")]
        names = ("read", decode, apart, "copy", "see", "search", "say", "write")
        steps = [(name, f"{size}, 16 pictures") for name in names]
        expected = [*steps, *jobs, *expected]
    assert [(row["work"], row["setting"]) for row in rows] == expected
    assert all(row["seconds"] > 0 for row in rows)


def test_a_picture_that_cannot_be_read_spoils_the_figure(tmp_path: Path) -> None:
    photos = Photos.draw(tmp_path, 64, (64, 48))
    Path(photos.files[3].path).write_text("no picture")
    settings = batch.BatchSettings(batch.CaptionOptions(beams=1), 16, 1)
    with pytest.raises(FailedError, match="not captioned"):
        batch._measured(captioner(), photos.files, settings, Setting(CPU, lanes=1), tmp_path / "job", [])


def test_pictures_are_as_large_as_photos(tmp_path: Path) -> None:
    make_pictures(tmp_path, 2)
    for path in tmp_path.iterdir():
        assert read_picture(path).size == (640, 480) and 40_000 < path.stat().st_size < 200_000


def test_shards_hold_the_pictures_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are other names of one file."""
    monkeypatch.setattr(batch, "PER_SHARD", 5)
    monkeypatch.setattr(batch, "DIFFERENT", 0)  # then sixteen
    photos = Photos.draw(tmp_path, 18, (64, 48))
    assert len({Path(one.path).read_bytes() for one in photos.files}) == 16
    counts, held = [], []
    for path in sorted((tmp_path / "shards-64").iterdir()):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            counts.append(len(members))
            held += [tar.extractfile(member).read() for member in members]
    assert counts == [5, 5, 5, 3]
    assert held == [Path(one.path).read_bytes() for one in photos.files]
    assert held == [one.source().read() for one in photos.members]


def test_the_use_of_a_gpu_is_watched() -> None:
    numbers = iter(range(100))
    with gpu_use(lambda: float(next(numbers))) as seen:
        until = time.monotonic() + 20
        while len(seen) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    count = len(seen)
    assert seen == [float(number) for number in range(count)] and count >= 3
    with gpu_use(None) as none:
        pass
    assert none == []


def test_the_floor_is_the_slowest_of_those_who_work_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 pictures whose batches of 16 take a GPU 0.3 s and readers 0.5, at least 1 s; a job of 2 s keeps it busy
    for 0.6."""
    steps = [Step("read", 0.1, "readers"), Step("decode", 0.4, "readers"), Step("see", 0.1, "GPU")]
    steps += [Step("search", 0.2, "GPU"), Step("say", 0.05, "main thread"), Step("decode otherwise", 9.0, "")]
    setting = Setting(CPU, batch_size=16, lanes=1, repeat=1)
    monkeypatch.setattr(Setting, "gpu", True)
    monkeypatch.setattr(batch, "_job", lambda *given: (2.0, 3.2))
    settings = batch.BatchSettings(batch.CaptionOptions(), 16, 1)
    row = batch._measured(captioner(), [None] * 32, settings, setting, tmp_path, steps)
    assert row.floor == pytest.approx(1.0)
    assert row.notes == {
        "CPU": "100.0 ms a picture", "GPU busy": "30% by its steps", "limit": "readers", "a million in": "17.36 h",
    }  # fmt: skip
    assert row.rate == "16.0 pictures/s"


class Peer(torch.nn.Linear):
    """Says of each picture how many numbers it was given."""

    dtype = torch.float32

    def generate(self, *, pixel_values: torch.Tensor, num_beams: int, **given: object) -> torch.Tensor:
        assert num_beams == 5 and given["min_new_tokens"] == given["max_new_tokens"] == 7
        assert -1 <= pixel_values.min() < pixel_values.max() <= 1
        return torch.full((len(pixel_values), 1), pixel_values[0].numel())


def test_peers_are_fed_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pictures(tmp_path, 12, sides=(64, 48))
    paths = sorted(map(str, tmp_path.iterdir()))
    said = []
    monkeypatch.setattr(batch, "build", lambda name: Peer(4, 5))
    real = batch.say_by_peer
    monkeypatch.setattr(batch, "say_by_peer", lambda *given: said.append(real(*given)) or said[-1])
    row = bench_peer("blip", paths, Setting(CPU, batch_size=4, repeat=1), 7, ours=100.0)
    assert [one.tolist() for one in said] == [[[3 * 384 * 384]] * 4] * 3
    assert row.work == "BLIP-base (random weights)" and row.notes["weights"] == "0 M" and row.seconds > 0
    monkeypatch.setattr(batch, "build", lambda name: SimpleNamespace())
    with pytest.raises(FailedError, match="AttributeError"):
        bench_peer("blip", paths, Setting(CPU, batch_size=4, repeat=1), 7, ours=100.0)


@pytest.mark.parametrize("name", SIDES)
def test_peers_read_squares(name: str, tmp_path: Path) -> None:
    make_pictures(tmp_path, 1, sides=(2048, 1536))
    assert read_for_peer(name, str(tmp_path / "000000.jpg")).shape == (3, SIDES[name], SIDES[name])
