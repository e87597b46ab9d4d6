"""Pictures are decoded in processes of their own, each with limits of time and memory.

A picture may be made to keep a decoder busy for minutes, or to crash it. A thread cannot be stopped; a process can be
killed, and the next picture gets a new one. Nothing that such a process answers is trusted more than the picture: it
speaks JSON and pixels, no pickles.

    parent to child: length (8 bytes), content of a file
    child to parent: READY, once it has started; then for each picture
                     length (8 bytes), JSON {"window": …} or {"status": …, "message": …}; then the pixels, if any

A MIDI file is read here as well. Instead of pixels come the numbers of its bars, and its piano roll is in the JSON.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np

from meshcap.errors import MeshcapError, TooLargeError
from meshcap.music.features import Bars
from meshcap.serving.limits import RefusalError
from meshcap.vision.pictures import read_picture
from meshcap.vision.preprocess import to_square, window

Window = tuple[float, float, float, float]  # left, top, right, bottom as shares of the picture's size
MEMORY = 1_000_000_000  # bytes of data in a decoder; the limits of pictures are well below, this is the last one
LONGEST_ANSWER = 1_000_000  # bytes of JSON
LONGEST_BARS = 4_000_000  # bytes of a score's numbers
READY = b"+"
WHOLE: Window = (0.0, 0.0, 1.0, 1.0)
START_SECONDS = 60.0  # for a decoder to come up, on a machine that is busy; no part of a picture's time
STUCK = 3.0  # seconds: with all decoders busy for longer than that, others have to wait


class Decoders:
    """A few decoder processes, started when they are needed. May be called from as many threads as there are."""

    def __init__(self, count: int, *, size: int, geometry: str, pre_resize: int, pixels: int, seconds: float):
        """
        Args:
            size, geometry, pre_resize: of `Preprocess`.
            pixels: larger pictures are refused.
            seconds: after which a decoder is killed.
        """
        self.settings = {"size": size, "geometry": geometry, "pre_resize": pre_resize, "pixels": pixels}
        self.size, self.seconds, self.count = size, seconds, count
        self.free: SimpleQueue[DecoderProcess | None] = SimpleQueue()
        self.busy: dict[int, float] = {}  # since when, by thread
        self.running: set[DecoderProcess] = set()
        self.closing = False
        for _ in range(count):
            self.free.put(None)

    @property
    def stuck(self) -> bool:
        """Whether all are busy, and have been for long."""
        since = list(self.busy.values())
        return len(since) == self.count and time.monotonic() - max(since) > STUCK

    def __call__(self, content: bytes, seconds: float | None = None) -> tuple[np.ndarray, Window]:
        """Pixels (3, size, size) as the model reads them, and the part of the picture that they show.

        Args:
            seconds: another time limit than the usual one.

        Raises:
            RefusalError: 413 too large, 422 no picture, or one that takes too long or crashes the decoder; 503 when no
                decoder comes up.
        """
        decoder = self.free.get()
        self.busy[threading.get_ident()] = time.monotonic()
        try:
            if decoder is None or not decoder.alive:
                if self.closing:
                    raise RefusalError(503, "the server is stopping: try again in a few seconds", retry_after=5)
                decoder = DecoderProcess(self.settings)
                self.running.add(decoder)
                decoder.wait()
            return decoder.decode(content, self.size, self.seconds if seconds is None else seconds)
        finally:
            if decoder is not None and not decoder.alive:
                self.running.discard(decoder)
                decoder = None
            del self.busy[threading.get_ident()]
            self.free.put(decoder)

    def close(self) -> None:
        """End all of them, at once."""
        self.closing = True
        for decoder in list(self.running):
            decoder.kill()


class DecoderProcess:
    """One process."""

    def __init__(self, settings: dict[str, Any]):
        where = os.pathsep.join(path for path in sys.path if path)
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshcap.serving.decoders", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": where},
        )
        self.alive = True

    def wait(self) -> None:
        """Until it has started: a picture is not to blame for a machine that is busy."""
        timer = threading.Timer(START_SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert self.process.stdout is not None
            if self.process.stdout.read(1) != READY:
                self.kill()
                raise RefusalError(503, "no decoder could be started: try again in a few seconds", retry_after=5)
        finally:
            timer.cancel()

    def decode(self, content: bytes, size: int, seconds: float) -> tuple[np.ndarray, Window]:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(max(0.0, seconds), stop)
        timer.daemon = True
        timer.start()
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(len(content).to_bytes(8, "big"))
            stdin.write(content)
            stdin.flush()
            answer = json.loads(_exactly(stdout, int.from_bytes(_exactly(stdout, 8), "big"), LONGEST_ANSWER))
            if "status" in answer:
                raise RefusalError(int(answer["status"]), str(answer["message"]))
            if "bars" in answer:
                numbers = np.frombuffer(_exactly(stdout, int(answer["bytes"]), LONGEST_BARS), np.float32)
                return Bars.unpacked(numbers, answer["bars"], roll=str(answer["roll"])), WHOLE
            pixels = np.frombuffer(_exactly(stdout, size * size * 3), np.uint8).reshape(size, size, 3)
            left, top, right, bottom = map(float, answer["window"])
            return np.ascontiguousarray(pixels.transpose(2, 0, 1)), (left, top, right, bottom)
        except RefusalError:
            raise
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            self.kill()
            if late.is_set():
                message = f"the picture takes more than {seconds:.3g} s to decode: save it anew"
                raise RefusalError(422, message) from None
            raise RefusalError(422, "the picture cannot be decoded: save it anew") from None
        finally:
            timer.cancel()
            if late.is_set():
                self.kill()

    def kill(self) -> None:
        self.alive = False
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _exactly(file: BinaryIO | Any, count: int, most: int | None = None) -> bytes:
    if most is not None and count > most:
        raise ValueError(count)
    content = bytearray()
    while len(content) < count:
        part = file.read(count - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


def main() -> None:
    """The process: decode what comes in until nothing more comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its decoders itself
    warnings.simplefilter("ignore")
    settings = json.loads(sys.argv[1])
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    given, out = sys.stdin.buffer, sys.stdout.buffer
    out.write(READY)
    out.flush()
    while head := given.read(8):
        content = given.read(int.from_bytes(head, "big"))
        answer, pixels = _decoded(content, settings)
        text = json.dumps(answer).encode()
        out.write(len(text).to_bytes(8, "big") + text + pixels)
        out.flush()


def _decoded(content: bytes, settings: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    try:
        if content.startswith(b"MThd"):  # not ABC: its reader runs another program
            return _score(content)
        picture = read_picture(content, at_least=settings["size"], most_pixels=settings["pixels"])
        width, height = picture.size
        left, top, right, bottom = window(settings["geometry"], width, height)
        square = to_square(picture, settings["size"], settings["geometry"], settings["pre_resize"])
        return {"window": [left / width, top / height, right / width, bottom / height]}, square.tobytes()
    except TooLargeError as error:
        return {"status": 413, "message": str(error)}, b""
    except MemoryError:
        return {"status": 413, "message": "the picture does not fit into memory: make it smaller first"}, b""
    except MeshcapError as error:
        return {"status": 422, "message": str(error)}, b""


def _score(content: bytes) -> tuple[dict[str, Any], bytes]:
    from meshcap.music.roll import draw_roll
    from meshcap.music.score import read_score

    score = read_score(content)
    numbers, known = Bars.measured(score).packed()
    drawn = io.BytesIO()
    draw_roll(score).quantize(16).save(drawn, "PNG", optimize=True)
    roll = base64.b64encode(drawn.getvalue()).decode("ascii")
    return {"bars": known, "bytes": numbers.nbytes, "roll": f"data:image/png;base64,{roll}"}, numbers.tobytes()


if __name__ == "__main__":
    main()
