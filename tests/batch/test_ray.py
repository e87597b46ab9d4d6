"""The same job on a Ray cluster of this machine: the same captions, also where a worker is killed."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from batch.seeing import captioner, draw
from benchmarks import campaign
from meshcap import MeshcapError
from meshcap.batch import ray as ray_workers
from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.local import BatchSettings, caption_blocks
from meshcap.batch.ray import Worker, WorkerSettings, caption_blocks_with_ray, connect, has_gpu
from meshcap.captioner import Captioner
from meshcap.options import CaptionOptions
from tiny_data import call, read_lines

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray: pip install meshcap[scale]"),
]
SETTINGS = BatchSettings(CaptionOptions(max_words=8), batch_size=2)
WORKERS = 3


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, 40 pictures of which one is broken, and a shard with 4 more."""
    folder = tmp_path_factory.mktemp("ray")
    captioner().save_pretrained(folder / "model")
    draw(folder / "photos", 40)[17].write_bytes(b"no picture")
    with tarfile.open(folder / "s.tar", "w") as tar:
        for path in draw(folder / "members", 4, first=40):
            tar.add(path, path.name)
    return folder


@pytest.fixture(scope="module")
def cluster() -> None:
    import ray

    connect("local", cpus=WORKERS)
    yield
    ray.shutdown()


@pytest.fixture
def blocks(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[Picture]]]:
    """Of 4 pictures each, by relative paths: workers have to find them from where this process is."""
    monkeypatch.chdir(here)
    pictures = list_pictures(["photos", "s.tar"])
    return [(start // 4, pictures[start : start + 4]) for start in range(0, len(pictures), 4)]


@pytest.fixture
def recipe(here: Path) -> WorkerSettings:
    return WorkerSettings(str(here / "model"), "cpu", "auto", SETTINGS, folder=str(here))


@pytest.fixture
def expected(here: Path, blocks: list[tuple[int, list[Picture]]]) -> dict[int, list[dict]]:
    local = Captioner.from_pretrained(here / "model")
    return dict(caption_blocks(local, blocks, SETTINGS))


def same(found: list[tuple[int, list[dict]]], expected: dict[int, list[dict]]) -> None:
    """Every block, with the captions that are said here."""
    rows = dict(found)
    assert rows.keys() == expected.keys()
    for number, block in expected.items():
        for row, wanted in zip(rows[number], block, strict=True):
            assert row.keys() == wanted.keys()
            assert [row["path"], row.get("caption"), row.get("error")] == [
                wanted["path"], wanted.get("caption"), wanted.get("error")
            ]  # fmt: skip
            assert row.get("confidence", 0) == pytest.approx(wanted.get("confidence", 0), abs=1e-4)


def test_the_same_captions(cluster: None, recipe: WorkerSettings, blocks: list, expected: dict) -> None:
    found = list(caption_blocks_with_ray(recipe, blocks, workers=WORKERS))
    assert len(found) == len(blocks)
    same(found, expected)
    assert has_gpu() is False


def test_a_worker_is_killed(
    cluster: None, recipe: WorkerSettings, blocks: list, expected: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker that is the first to reach a block of the list dies there, in the middle of what it was given."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this file
    deaths = str(tmp_path)

    class Mortal(Worker):
        def __init__(self, recipe):
            super().__init__(recipe)
            with open(os.path.join(deaths, f"born-{os.getpid()}"), "w"):
                pass

        def __call__(self, batch):
            for out in super().__call__(batch):
                if out["block"][0] in (2, 7):
                    try:
                        os.close(os.open(os.path.join(deaths, f"died-{out['block'][0]}"), os.O_CREAT | os.O_EXCL))
                        os.kill(os.getpid(), 9)
                    except FileExistsError:  # it was killed here before
                        pass
                yield out

    monkeypatch.setattr(ray_workers, "Worker", Mortal)
    found = list(caption_blocks_with_ray(recipe, blocks, workers=WORKERS))
    same(found, expected)
    marks = sorted(os.listdir(deaths))
    assert [mark for mark in marks if mark.startswith("died")] == ["died-2", "died-7"]
    assert len([mark for mark in marks if mark.startswith("born")]) >= WORKERS + 1


def test_a_cluster_of_this_machine_is_reached_from_nowhere_else(cluster: None) -> None:
    """Whoever reaches the ports of Ray can run code, and not every version asks for a token."""
    import ray

    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    mine = {os.getpid()}
    for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        with contextlib.suppress(OSError):  # gone since
            if int(path.read_text().rpartition(")")[2].split()[1]) in mine:
                mine.add(int(path.parent.name))
    sockets = set()
    for pid in mine:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    listening = []
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                listening.append(local.partition(":")[0])
    # 127.0.0.1 as the kernel writes it, alone and inside IPv6
    assert listening and set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_what_a_worker_cannot_do_is_told_in_one_line(cluster: None, recipe: WorkerSettings, blocks: list) -> None:
    nowhere = WorkerSettings(**{**recipe.__dict__, "folder": "/nowhere"})
    with pytest.raises(MeshcapError, match="/nowhere is not there on a machine of the cluster") as told:
        list(caption_blocks_with_ray(nowhere, blocks[:2], workers=1))
    assert len(str(told.value).splitlines()) == 1


def test_the_command(cluster: None, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was begun here goes on there, and the table is the one of a job that was done here."""
    monkeypatch.chdir(here)
    words = ["batch", "photos", "s.tar", "--model", "model", "--device", "cpu", "--threads", "1", "--batch-size", "2"]
    assert call([*words, "--out", "here.jsonl"]) == 1  # one picture is broken
    assert call([*words, "--out", "there.jsonl", "--ray", "local", "--workers", str(WORKERS)]) == 1
    mine, theirs = read_lines(here / "here.jsonl"), read_lines(here / "there.jsonl")
    assert len(mine) == 43
    assert [(row["path"], row["caption"]) for row in mine] == [(row["path"], row["caption"]) for row in theirs]
    assert [row["confidence"] for row in mine] == pytest.approx([row["confidence"] for row in theirs], abs=1e-4)
    assert (here / "here.errors.jsonl").read_bytes() == (here / "there.errors.jsonl").read_bytes()
    jobs = [json.loads((here / f".{name}.jsonl.job.json").read_text()) for name in ("here", "there")]
    assert jobs[0] == jobs[1]  # so one may go on with what the other began


def test_captions_beside_shards(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole shards go through one cluster, and their files are those of this process."""
    monkeypatch.chdir(here)
    words = ["batch", "s.tar", "photos", "--per-shard", "--model", "model", "--device", "cpu", "--threads", "1"]
    words += ["--batch-size", "3", "--max-words", "6"]  # 4 and 40 pictures: both end with a smaller batch
    assert call([*words, "--out", "mine"]) == 1  # one picture is broken
    assert call([*words, "--out", "theirs", "--ray", "local", "--workers", "2"]) == 1
    mine, theirs = ({path.name: path.read_bytes() for path in (here / name).iterdir()} for name in ("mine", "theirs"))
    assert sorted(mine) == ["photos.captions.errors.jsonl", "photos.captions.parquet", "s.captions.parquet"]
    assert mine == theirs


def test_a_cluster_that_takes_connections_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "START_SECONDS", 5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        waiting = ray_workers.Cluster(address)
        with pytest.raises(MeshcapError, match=f"no Ray cluster answers at {address} within 5 s"):
            waiting.wait()
        assert not waiting.child.is_alive()


def test_the_child_ends_with_its_parent_also_while_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        script = f"import time; from meshcap.batch.ray import Cluster; one = Cluster('{address}')"
        script += "; print(one.child.pid, flush=True); time.sleep(600)"
        words, own = [sys.executable, "-c", script], {**os.environ, **campaign.QUIET}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=own) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            lines = [silent.accept()[0] for _ in range(2)]  # who looks whether it is there, and Ray itself
            assert alive(child)
            parent.kill()
        until = time.monotonic() + 60
        while alive(child) and time.monotonic() < until:
            time.sleep(0.1)
        assert not alive(child)
        for line in lines:
            line.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_node_dies_and_the_head_does_not(here: Path) -> None:
    """One that hangs is dead for the head; who speaks to it is not told, and waits for ever."""
    words = ["batch", "photos", "--model", "model", "--device", "cpu", "--batch-size", "1", "--out", "gone.jsonl"]
    process = campaign.begun([*words, "--ray", "local", "--workers", "1"], here, "gone.jsonl")
    below = campaign.descendants(process.pid)
    (raylet,) = [pid for pid, name in below if "/raylet/raylet" in name.split(" ")[0]]
    os.kill(raylet, signal.SIGSTOP)
    try:
        errors = process.communicate(timeout=150)[1]
    finally:
        for pid, _ in [*below, *campaign.descendants(process.pid)]:
            with contextlib.suppress(OSError):  # gone
                os.kill(pid, signal.SIGKILL)
        process.kill()
    assert process.returncode == 1 and "error: the Ray cluster at local is gone" in errors and "Traceback" not in errors


def test_a_cluster_that_asks_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray's `start` makes one where a local cluster ran before, whose token it finds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for name, value in campaign.QUIET.items():
        monkeypatch.setenv(name, value)
    with campaign.ray_head(int(address.partition(":")[2]), tmp_path):
        knowing = ray_workers.Cluster(address)
        assert knowing.wait() is False
        knowing.close()
        monkeypatch.delenv("RAY_AUTH_MODE")
        stranger = ray_workers.Cluster(address)
        with pytest.raises(MeshcapError, match=f"the Ray cluster at {address} asks for a token: set RAY_AUTH_MODE"):
            stranger.wait()
        stranger.close()


def test_nobody_answers() -> None:
    import ray

    ray.shutdown()
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"):
        with pytest.raises(MeshcapError, match=f"no Ray cluster answers at {address}: "):
            connect(address)
