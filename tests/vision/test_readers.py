"""Processes that read: the same pixels and errors as here, whatever crashes, and nobody is left behind."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meshcap.data.scenes import draw_scene
from meshcap.data.shards import TarSource
from meshcap.errors import MeshcapError, TooLargeError
from meshcap.vision import readers as module
from meshcap.vision.preprocess import Preprocess
from meshcap.vision.readers import BATCHES, MOST, PART, Readers, can_read
from tiny_workers import Crash, CrashOnce

pytestmark = pytest.mark.skipif(not can_read(), reason="no memory can be shared here")
PREPROCESS = Preprocess(size=48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(20):
        draw_scene(number, 64).image.save(folder / f"{number:02}.png")
    return folder


def expect_read(readers: Readers, sources: list) -> None:
    """What processes say is what is said here."""
    batch = readers.begin(sources)
    assert batch is not None
    pixels, problems = readers.finish(batch)
    assert pixels.shape == (len(sources), 48, 48, 3)
    for number, source in enumerate(sources):
        try:
            expected = PREPROCESS.read(source)
        except MeshcapError as error:
            problem = problems.pop(number)
            assert (type(problem), str(problem)) == (type(error), str(error))
        else:
            assert (pixels[number].transpose(2, 0, 1) == expected).all()
    assert not problems


def until(done: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return done()


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    except FileNotFoundError:
        return False


def test_pixels_and_errors_are_the_same(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.iterdir())
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        tar.add(paths[1], "one.png")
        offset, size = tar.members[0].offset_data, paths[1].stat().st_size
    turned = Image.new("RGB", (64, 48), "red")
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.paste("blue", (0, 0, 20, 48))
    turned.save(tmp_path / "turned.jpg", exif=exif)
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "turned.jpg").read_bytes()[:400])
    odd = tmp_path / os.fsdecode(b"\xff odd \xe2\x82\xac.jpg")
    odd.write_bytes(b"nothing")
    huge = b"P5 100000 100000 255 "
    member = TarSource(tmp_path / "shard.tar", offset, size, "one.png")
    gone = TarSource(tmp_path / "shard.tar", 10**9, size, "gone.png")
    sources = [
        *map(str, paths), paths[0], paths[1].read_bytes(), bytearray(paths[2].read_bytes()), member, gone, huge, b"",
        tmp_path / "turned.jpg", str(tmp_path / "cut.jpg"), odd, str(tmp_path), "gone.jpg", "null\0.jpg",
    ]  # fmt: skip
    with Readers(PREPROCESS, len(sources), 3) as readers:
        expect_read(readers, sources)
        assert len({one.process for one in readers.begin(sources).parts}) == 3
        problems = readers.finish(readers.begin([huge]))[1]
        assert isinstance(problems[0], TooLargeError)


def test_batches_are_begun_ahead(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    with Readers(PREPROCESS, 5, 2) as readers:
        blocks = [[paths[(start + one) % 20] for one in range(5)] for start in range(3 * BATCHES)]
        begun = []
        for block in blocks:
            begun.append((block, readers.begin(block)))
            if len(begun) == BATCHES:
                block, batch = begun.pop(0)
                pixels, problems = readers.finish(batch)
                assert not problems
                assert (pixels == np.stack([PREPROCESS.rows(path) for path in block])).all()


def test_what_others_have_to_read(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    with Readers(PREPROCESS, 8, 2) as readers:
        own = (np.zeros((4, 4, 3), np.uint8), Image.new("RGB", (4, 4)), io.BytesIO(b""), bytes(3 * 48 * 48 + 1))
        for source in own:
            assert readers.begin([paths[0], source]) is None
        assert readers.processes == []  # nothing was needed
        # A score is not for who reads pictures; neither is what cannot be made in another process.
        midi = folder.parent / "a.mid"
        midi.write_bytes(b"MThd")
        assert readers.finish(readers.begin([str(midi), b"MThd"]))[1] == {0: None, 1: None}
    waiting = Readers(PREPROCESS, 8, 2, after=8)
    with waiting:
        assert waiting.begin(paths[:8]) is None and waiting.processes == []
        assert waiting.begin(paths[:8]) is None and len(waiting.processes) == 2  # which have to start
        assert until(lambda: (batch := waiting.begin(paths[:8])) is not None and not waiting.finish(batch)[1])
    assert Readers(PREPROCESS, 8, 1000).count == MOST


def test_a_process_that_was_killed_is_replaced(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())] * 4
    with Readers(PREPROCESS, len(paths), 2) as readers:
        expect_read(readers, paths[:10])
        before = [process.child for process in readers.processes]
        batch = readers.begin(paths)
        for child in before:
            child.kill()
        pixels, problems = readers.finish(batch)
        assert not problems
        assert (pixels == np.stack([PREPROCESS.rows(path) for path in paths])).all()
        assert all(child.poll() is not None for child in before) and len(readers.processes) == 2
        for process in readers.processes:  # between two batches
            process.child.kill()
            process.child.wait()
        expect_read(readers, paths)


def test_what_a_process_said_before_it_was_killed_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(sorted(folder.iterdir())[0])
    with Readers(PREPROCESS, 2, 1) as readers:
        assert not readers.finish(readers.begin([path]))[1]
        first = readers.begin(["gone.jpg", path])
        (process,) = readers.processes
        assert process.answers(20)
        process.child.kill()
        process.child.wait()
        monkeypatch.setattr(readers, "_are_there", lambda: True)  # which would have noticed
        second = readers.begin([path, "gone.jpg"])
        assert [part.process is process for part in first.parts] == [True] and len(first.parts) == 1
        assert list(readers.finish(first)[1]) == [0] and list(readers.finish(second)[1]) == [1]
        assert readers.processes != [process]


def test_a_picture_that_crashes_costs_itself(folder: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    once = tmp_path / "once.png"
    once.write_bytes(Path(paths[3]).read_bytes())
    content = Path(paths[4]).read_bytes()  # which lies where its pixels were written before the crash
    sources = [*paths[:5], content, Crash(), *paths[5:9], CrashOnce(str(once)), *paths[9:], Crash()]
    with Readers(PREPROCESS, len(sources), 2) as readers:
        pixels, problems = readers.finish(readers.begin(sources))
        assert sorted(problems) == [6, len(sources) - 1]
        for problem in problems.values():
            assert str(problem) == (
                "the picture cannot be decoded: two processes that tried were killed, the last by signal 9"
            )
        for number, source in enumerate(sources):
            if number not in problems:
                read = paths[3] if isinstance(source, CrashOnce) else source
                assert (pixels[number] == PREPROCESS.rows(read)).all()
        expect_read(readers, paths)


def test_processes_that_never_start(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    for program in ("/bin/false", str(tmp_path / "none")):
        monkeypatch.setattr(module.sys, "executable", program)
        with Readers(PREPROCESS, 20, 2, after=1) as readers:
            assert until(lambda readers=readers: readers.begin(paths) is None and not readers.processes)
        with Readers(PREPROCESS, 20, 2) as readers:
            batch = readers.begin(paths)
            assert batch is None or readers.finish(batch)[1] == dict.fromkeys(range(20))  # read them yourself
            assert readers.begin(paths) is None


def test_nobody_waits_for_the_other(folder: Path) -> None:
    """Names and errors that no pipe has room for."""
    long = ["x" * 4000 + f"{number}.jpg" for number in range(BATCHES * 16 * PART)]
    with Readers(PREPROCESS, 16 * PART, 1) as readers:
        begun = [readers.begin(long[start : start + 16 * PART]) for start in range(0, len(long), 16 * PART)]
        for batch in begun:
            assert len(readers.finish(batch)[1]) == 16 * PART


def test_closed_processes_are_gone(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    readers = Readers(PREPROCESS, 20, 3)
    readers.begin(paths)
    children = [process.child for process in readers.processes]
    assert len(children) == 3
    readers.settle()  # something was under way
    assert all(child.poll() is not None for child in children) and readers.processes == []
    expect_read(readers, paths)  # they can be started again
    readers.settle()
    assert len(readers.processes) == 3
    readers.close()
    readers.close()


PARENT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in a shell's background
from meshcap.vision.preprocess import Preprocess
from meshcap.vision.readers import Readers

readers = Readers(Preprocess(size=48), 64, 2)
readers.finish(readers.begin(sys.argv[2:]))
if sys.argv[1] == "forked" and not os.fork():  # a child of another kind, which keeps the pipes open
    time.sleep(10)
    os._exit(0)
print(*(process.child.pid for process in readers.processes), flush=True)
while sys.argv[1] == "busy":
    readers.begin(sys.argv[2:] * 60)
    readers.finish(readers.begin(sys.argv[2:] * 60))
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", ["idle", "busy", "forked"])
def test_processes_end_with_their_parent(folder: Path, how: int, what: str) -> None:
    path = str(sorted(folder.iterdir())[0])
    source = Path(module.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, what, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(source)},
    ) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2 and all(map(is_there, children))
        parent.send_signal(how)
        try:
            parent.wait(20)
        finally:
            parent.kill()
    assert until(lambda: not any(map(is_there, children)))


def test_a_reader_is_light() -> None:
    code = "import meshcap.vision.readers, sys; print({'torch', 'pandas', 'pyarrow'} & set(sys.modules))"
    path = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True).stdout == "set()\n"
