"""Pictures read by processes, into memory that they share with this one.

Threads that decode wait for each other: for Python's one lock, and for the system, which gives a process its memory one
thread at a time. Processes wait for nobody. A batch is cut into parts of a few pictures, and a part goes to the process
that has the fewest of them; its pixels are written to their places in the batch. This process sends names, waits for
the parts of the batch that is next, and touches no picture.

    parent to child: length (8 bytes), pickles of the first picture's place and their count, and of the sources
    child to parent: length (8 bytes), JSON: of each picture of the part that was not read, by its number, why; or null,
                     where the parent has to look itself. Once after the start: {}

A child ends with its parent, however that ends: there is nothing more to read. A child that crashes is replaced, and
the pictures of its part are read one by one: the one that crashes a second process costs nobody but itself.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Self

import numpy as np

from meshcap.errors import MeshcapError, TooLargeError
from meshcap.music.score import is_score
from meshcap.vision.pictures import Source, Stored, one_thread
from meshcap.vision.preprocess import Preprocess

BATCHES = 6  # whose pixels there is room for: three that are read, three that a GPU is at
PART = 8  # pictures: long enough that sending costs nothing beside decoding, short enough for all to end together
MOST = 32  # processes: more than a GPU can use
LOOK = 2.0  # seconds between two looks, of a process that waits, whether its parent is there
ERRORS = {one.__name__: one for one in (MeshcapError, TooLargeError)}
# Memory of a picture is kept for the next one: given back and asked for again, the system would clear it each time.
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**26)}

Problems = dict[int, MeshcapError | None]  # of pictures that were not read, by number: why; None: look yourself


class Part:
    """Neighbours in a batch, for one process."""

    def __init__(self, batch: Batch, number: int, sources: Sequence[Source], *, again: bool = False):
        """
        Args:
            number: of the first picture in its batch.
            again: the process that was to read it, among others, crashed.
        """
        self.batch, self.number, self.sources, self.again = batch, number, sources, again
        self.process: Process | None = None
        self.problems: Problems | None = None  # once it was read

    @property
    def place(self) -> int:
        return self.batch.place + self.number


class Batch:
    """What is read together, in parts."""

    def __init__(self, place: int, sources: Sequence[Source], size: int):
        """
        Args:
            place: of the first picture's pixels in the shared memory.
            size: of a part.
        """
        self.place, self.count = place, len(sources)
        starts = range(0, self.count, size)
        self.parts = [Part(self, start, sources[start : start + size]) for start in starts]


class Process:
    """One child, and what it was sent and has not answered, in order."""

    def __init__(self, preprocess: Preprocess, memory: int):
        """
        Args:
            memory: the descriptor of the shared memory.
        """
        given = json.dumps({"preprocess": preprocess.to_dict(), "memory": memory, "parent": os.getpid()})
        # What this process imports from, and no more: python -m alone would also look where the pictures are.
        where = os.pathsep.join(path or os.getcwd() for path in sys.path)
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "meshcap.vision.readers", given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, **KEEP, "PYTHONPATH": where},
            pass_fds=(memory,),
        )
        assert self.child.stdin is not None and self.child.stdout is not None
        self.stdin, self.stdout = self.child.stdin, self.child.stdout
        os.set_blocking(self.stdin.fileno(), False)
        self.parts: deque[Part] = deque()
        self.started = self.gone = False

    def answers(self, seconds: float | None = 0.0, *, or_takes: bool = False) -> bool:
        """Whether there is something to receive: now, or within so many seconds.

        Args:
            or_takes: also wait no longer than until something can be sent.
        """
        poll = select.poll()
        poll.register(self.stdout, select.POLLIN)
        if or_takes:
            poll.register(self.stdin, select.POLLOUT)
        found = poll.poll(None if seconds is None else 1000 * seconds)
        return any(place == self.stdout.fileno() for place, _ in found)

    def receive(self) -> dict[str, list[str] | None] | None:
        """Its next answer; None: it is gone."""
        try:
            head = self.stdout.read(8)
            found = json.loads(self.stdout.read(int.from_bytes(head, "big")))
            return found if isinstance(found, dict) else None
        except (OSError, ValueError):
            return None

    def kill(self) -> None:
        self.gone = True
        self.child.kill()
        self.child.wait()
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):
                pipe.close()


class Readers:
    """Processes that read the batches of a stream. For one thread at a time.

    They start when they are needed, end with `close`, and may serve one stream after the other.
    """

    def __init__(self, preprocess: Preprocess, batch_size: int, count: int, *, after: int = 0):
        """
        Args:
            count: processes.
            after: pictures that somebody else reads before: to start is only worth while where many come.
        """
        self.preprocess, self.batch_size, self.count, self.after = preprocess, batch_size, min(count, MOST), after
        self.processes: list[Process] = []
        self.asked = self.begun = 0
        self.memory: int | None = None
        self.pixels = np.empty((0, 0, 0, 3), np.uint8)  # (BATCHES · batch_size, size, size, 3)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, at once. What is asked for later starts new ones."""
        for process in self.processes:
            process.kill()
        self.processes = []
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None  # the memory itself goes with the last who looks at it

    def settle(self) -> None:
        """Give up what was begun and never finished."""
        if any(process.parts for process in self.processes):
            self.close()

    def begin(self, sources: Sequence[Source]) -> Batch | None:
        """Have a batch read; None: somebody else has to.

        There is room for the pixels of `BATCHES` batches: those of one are overwritten when so many more were begun.
        """
        self.asked += len(sources)
        if self.asked <= self.after or not all(map(self._can_send, sources)) or not self._are_there():
            return None
        size = max(1, min(PART, -(-len(sources) // self.count)))
        batch = Batch(self.begun % BATCHES * self.batch_size, sources, size)
        self.begun += 1
        for part in list(batch.parts):
            self._send(part)
        return batch

    def finish(self, batch: Batch) -> tuple[np.ndarray, Problems]:
        """Pixels (B, size, size, 3) of a batch that was begun, and of which pictures there are none."""
        done = 0
        problems: Problems = {}
        while done < len(batch.parts):  # which may become more meanwhile
            part = batch.parts[done]
            if part.problems is None:
                assert part.process is not None
                self._receive(part.process)
            else:
                problems |= part.problems
                done += 1
        return self.pixels[batch.place : batch.place + batch.count], problems

    def _can_send(self, source: Source) -> bool:
        """Whether another process can have it: a name, or content that fits where its pixels will be."""
        if isinstance(source, bytes | bytearray):
            return len(source) <= 3 * self.preprocess.size**2
        return isinstance(source, Stored) or type(source if isinstance(source, str) else _path(source)) is str

    def _are_there(self) -> bool:
        """Start the processes where there are none; where others read meanwhile, until all have started."""
        if self.memory is None:
            self._start()
        for process in list(self.processes):
            while not process.gone and process.answers():
                self._receive(process)
        return bool(self.processes) and (not self.after or all(one.started for one in self.processes))

    def _start(self) -> None:
        shape = (BATCHES * self.batch_size, self.preprocess.size, self.preprocess.size, 3)
        with suppress(OSError):  # fewer, or none
            self.memory = _new_memory(int(np.prod(shape)))
            self.pixels = np.frombuffer(mmap.mmap(self.memory, 0), np.uint8).reshape(shape)
            for _ in range(self.count):
                self.processes.append(Process(self.preprocess, self.memory))

    def _send(self, part: Part) -> None:
        if not self.processes:
            problem = MeshcapError(f"{_name(part.sources[0])} cannot be decoded: no process is left to try")
            part.problems = dict.fromkeys(
                range(part.number, part.number + len(part.sources)), problem if part.again else None
            )
            return
        process = part.process = min(self.processes, key=lambda one: len(one.parts))
        process.parts.append(part)
        records: list[Any] = []
        for place, source in enumerate(part.sources, part.place):
            if isinstance(source, bytes | bytearray):
                self.pixels[place].reshape(-1)[: len(source)] = np.frombuffer(source, np.uint8)
                records.append(len(source))
            else:
                records.append(source if isinstance(source, Stored) else _path(source))
        left = memoryview(_framed(pickle.dumps((part.place, len(records))) + pickle.dumps(records)))
        while left:
            try:
                left = left[os.write(process.stdin.fileno(), left) :]
            except BlockingIOError:  # it takes no more, perhaps because nobody takes what it says
                if process.answers(None, or_takes=True):
                    self._receive(process)
            except OSError:  # it is gone; what it said before counts
                while not process.gone:
                    self._receive(process)
            if process.gone:  # and the part was sent to another
                return

    def _receive(self, process: Process) -> None:
        """Wait for what a process says next."""
        answer = process.receive()
        if answer is None:
            self._lose(process)
        elif not process.started:
            process.started = True
        else:
            part = process.parts.popleft()
            part.problems = {part.number + int(number): _error_of(why) for number, why in answer.items()}

    def _lose(self, process: Process) -> None:
        """Replace a process that crashed, and have others read what it was sent."""
        process.kill()
        self.processes.remove(process)
        lost, process.parts = process.parts, deque()
        if process.started and self.memory is not None:
            with suppress(OSError):
                self.processes.append(Process(self.preprocess, self.memory))
            if lost:
                first = lost.popleft()  # of the others none was begun
                if first.again:
                    why = f"two processes that tried were killed, the last by {_ending(process.child.returncode)}"
                    problem = MeshcapError(f"{_name(first.sources[0])} cannot be decoded: {why}")
                    first.problems = {first.number: problem}
                else:
                    alone = [
                        Part(first.batch, number, [source], again=True)
                        for number, source in enumerate(first.sources, first.number)
                    ]
                    at = first.batch.parts.index(first)
                    first.batch.parts[at : at + 1] = alone
                    lost.extendleft(reversed(alone))
        for part in lost:
            self._send(part)


def can_read() -> bool:
    """Whether this system can share memory with a process of ours."""
    return hasattr(select, "poll") and sys.platform != "win32" and bool(sys.executable)


def _new_memory(size: int) -> int:
    """A descriptor of memory that can be shared and has no name: nothing is left of it, whoever is killed."""
    if hasattr(os, "memfd_create"):
        found = os.memfd_create("meshcap-readers")
    else:
        with tempfile.TemporaryFile() as file:
            found = os.dup(file.fileno())
    os.ftruncate(found, size)
    return found


def _path(source: object) -> object:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None


def _name(source: object) -> object:
    """As `read_picture` calls it."""
    return _path(source) or "the picture"


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"


def _error_of(why: list[str] | None) -> MeshcapError | None:
    return None if why is None or why[0] not in ERRORS else ERRORS[why[0]](why[1])


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(8, "big") + content


# The child.


def main() -> None:
    """Read what comes in until nothing more comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints something must not answer

    def answer(content: bytes) -> None:
        out.write(_framed(content))
        out.flush()

    settings = json.loads(sys.argv[1])
    preprocess = Preprocess(**settings["preprocess"])
    memory = np.frombuffer(mmap.mmap(settings["memory"], 0), np.uint8).reshape(-1, preprocess.size, preprocess.size, 3)
    one_thread()
    with suppress(BrokenPipeError), open(0, "rb", buffering=0, closefd=False) as given:
        answer(b"{}")
        while len(head := _wait(given, settings["parent"])) == 8:
            problems = _read_part(_exactly(given, int.from_bytes(head, "big")), preprocess, memory)
            answer(json.dumps(problems).encode())


def _wait(given: BinaryIO, parent: int) -> bytes:
    """The next length; nothing where the parent is gone, also if a process that it forked keeps the pipe open."""
    while not select.select([given], [], [], LOOK)[0]:
        if os.getppid() != parent:
            return b""
    return _exactly(given, 8)


def _exactly(given: BinaryIO, count: int) -> bytes:
    content = bytearray()
    while len(content) < count and (part := given.read(count - len(content))):
        content += part
    return bytes(content)


def _read_part(content: bytes, preprocess: Preprocess, memory: np.ndarray) -> dict[int, list[str] | None]:
    """Why pictures of a part were not read, by their number in it."""
    file = io.BytesIO(content)
    place, count = pickle.load(file)
    try:
        sources = pickle.load(file)
    except Exception:  # of a kind that cannot be made here
        return dict.fromkeys(range(count))
    problems: dict[int, list[str] | None] = {}
    for number, source in enumerate(sources):
        pixels = memory[place + number]
        try:
            if isinstance(source, Stored):
                source = source.read()
            elif isinstance(source, int):  # so many bytes lie where its pixels will
                source = pixels.reshape(-1)[:source].tobytes()
            pixels[:] = preprocess.rows(source)
        except MeshcapError as error:
            problems[number] = None if is_score(source) else [type(error).__name__, str(error)]
        except Exception:  # no fault of the picture's
            problems[number] = None
    return problems


if __name__ == "__main__":
    main()
