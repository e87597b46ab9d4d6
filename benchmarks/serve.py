"""What a server answers: clients that ask one picture after another, over HTTP, against a server in its own process.

Each setting has a server of its own: "batched" captions the pictures of all clients together, "one at a time" never
two.

    python benchmarks/serve.py --clients 8 --soak 0
    python benchmarks/serve.py --device cuda --requests 4000
"""

from __future__ import annotations

import http.client
import io
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import Row, progress, report, set_up
from meshcap.data.scenes import draw_scene
from meshcap.errors import FailedError, MeshcapError

SETTINGS: dict[str, tuple[str, ...]] = {
    "batched": (),
    "one at a time": ("--batch-size", "1", "--wait-ms", "0"),
}
CLIENTS = (1, 8, 64)  # of a CPU, whose answers to 256 would take a minute
PICTURES = 64  # different ones, sent over and over
SIZE = 480  # pixels of a side
OPTIONS = ("", "?attention=true&n=3", "?strategy=greedy", "?strategy=sample&temperature=0.8")  # of a long run
READINGS = 10  # of memory, over a long run
FEW = (1, 2, 4, 8, 16, 32)  # clients that come first, so that batches of all sizes have been there: a GPU captures each
PATIENCE = 120  # seconds for one answer


def bench_serve(
    model: str,
    options: Sequence[str] = (),
    *,
    clients: Sequence[int] = CLIENTS,
    requests: int = 400,
    before: Sequence[int] = (),
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """A row for each setting and number of clients: the median answer, answers a second, tails and failures.

    Args:
        before: numbers of clients that ask before time is taken, beside as many as will.
    """
    pictures = scenes()
    rows = []
    for count in clients:
        for setting, own in SETTINGS.items():
            work = f"{count} client{'s' * (count > 1)}"
            say(f"{work}, {setting} …")
            room = ("--queue", str(max(256, 2 * count)))  # a client asks again before its place is free
            with running(model, (*options, *own, *room)) as port:
                for some in (*(few for few in before if few < count), count):
                    drive(port, pictures, some, max(8, 2 * some))  # libraries set themselves up on first use
                start = time.perf_counter()
                run = drive(port, pictures, count, max(requests, 4 * count))
                rows.append(_row(work, setting, run, time.perf_counter() - start, memory(port)))
    return rows


def bench_soak(
    model: str,
    options: Sequence[str] = (),
    *,
    requests: int = 2000,
    clients: int = 8,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """One server, many requests of all kinds, and its memory after each tenth of them."""
    pictures = scenes()
    with running(model, tuple(options)) as port:
        drive(port, pictures, clients, 200, OPTIONS)  # shapes of batches, each seen once, leave their buffers
        runs, readings, start = [], [memory(port)], time.perf_counter()
        for part in range(READINGS):
            runs.append(drive(port, pictures, clients, requests // READINGS, OPTIONS))
            readings.append(memory(port))
            say(f"{(part + 1) * (requests // READINGS):,} requests, {readings[-1] / 2**20:,.0f} MiB")
        run = Run([s for one in runs for s in one.seconds], [f for one in runs for f in one.failures])
        took = time.perf_counter() - start
        row = _row(f"{requests:,} requests", f"{clients} clients, batched", run, took, readings[-1])
        row.notes["MiB over time"] = " ".join(f"{one / 2**20:.0f}" for one in readings)
        return [row]


@dataclass(frozen=True)
class Run:
    seconds: list[float]  # of each answer that was a caption
    failures: list[str]


def drive(port: int, pictures: Sequence[bytes], clients: int, requests: int, options: Sequence[str] = ("",)) -> Run:
    """So many clients, each of which asks again as soon as it was answered, until all requests are through."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(requests):
        left.put(number)
    seconds: list[float] = []
    failures: list[str] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        while True:
            try:
                number = left.get_nowait()
            except queue.Empty:
                break
            path = f"/v1/caption{options[number % len(options)]}"
            start = time.perf_counter()
            try:
                connection.request("POST", path, pictures[number % len(pictures)], {"Content-Type": "image/jpeg"})
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    seconds.append(time.perf_counter() - start)
                else:
                    failures.append(f"status {answer.status}: {content[:200]!r}")
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{type(error).__name__}: {error}")
                connection.close()  # the next request opens it again
        connection.close()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Run(seconds, failures)


@contextmanager
def running(model: str, options: Sequence[str]) -> Iterator[int]:
    """The port of a server that runs as long as the block.

    Raises:
        MeshcapError: what the server said when it did not start.
    """
    words = [sys.executable, "-m", "meshcap", "serve", "--model", model, "--port", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    at_hand = threading.current_thread() is threading.main_thread()  # no other thread may say what a signal does
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) if at_hand else None  # the server goes first
    assert process.stdout is not None and process.stderr is not None
    told: list[str] = []
    reader = threading.Thread(target=_follow, args=(process.stderr, told), daemon=True)  # a full pipe would stop it
    reader.start()
    try:
        line = process.stdout.readline()
        if "listens at" not in line:
            process.wait()
            reader.join()
            raise MeshcapError((told or ["the server did not start"])[-1].removeprefix("error: ").strip())
        yield int(line.rpartition("://")[2].split("/")[0].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
        if at_hand:
            signal.signal(signal.SIGTERM, before)


def _follow(lines: IO[str], into: list[str]) -> None:
    with lines:
        into.extend(lines)


def memory(port: int) -> float:
    """Bytes of the server's process."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_resident_memory_bytes"))


def scenes() -> list[bytes]:
    found = []
    for number in range(PICTURES):
        content = io.BytesIO()
        draw_scene(number, SIZE).image.save(content, "JPEG", quality=90)
        found.append(content.getvalue())
    return found


def failed(rows: Sequence[Row]) -> None:
    """
    Raises:
        FailedError: a request had no caption for an answer.
    """
    for row in rows:
        if row.notes["failed"] != "0":
            raise FailedError(f"{row.notes['failed']} requests of {row.work}, {row.setting} failed: {row.notes['why']}")


def _row(work: str, setting: str, run: Run, took: float, resident: float) -> Row:
    if not run.seconds:
        raise FailedError(f"no request was answered: {run.failures[0]}")
    parts = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    notes = {name: f"{percentile(run.seconds, part) * 1e3:,.0f} ms" for name, part in parts}
    notes["failed"] = str(len(run.failures))
    if run.failures:
        notes["why"] = run.failures[0]
    rate = f"{len(run.seconds) / took:,.1f} pictures/s"
    return Row(work, setting, statistics.median(run.seconds), rate, resident, notes=notes)


def percentile(numbers: Sequence[float], part: float) -> float:
    """The smallest number that so great a part of them does not exceed."""
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, max(0, -int(-part * len(ordered) // 1) - 1))]


def command(
    model: common.Model = "default",
    clients: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Clients at once; may be given several times.", show_default="1, 8, 64, with a GPU also 256"
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each row.")] = 400,
    soak: Annotated[int, typer.Option(min=0, help="Requests of a long run that watches memory; 0: none.")] = 2000,
    device: common.Device = "auto",
    dtype: Annotated[str, typer.Option(help="As of `meshcap serve`.")] = "auto",
    threads: common.Threads = None,
    json: common.Json = False,
) -> None:
    """Time `meshcap serve`: clients at once, with and without captioning their pictures together; then a long run."""
    where = set_up(device, threads)
    options = ["--device", where.type, "--dtype", dtype, *([] if threads is None else ["--threads", str(threads)])]
    many, before = ((*CLIENTS, 256), FEW) if where.type == "cuda" else (CLIENTS, ())
    rows = bench_serve(model, options, clients=clients or many, requests=requests, before=before, say=progress)
    if soak:
        rows += bench_soak(model, options, requests=max(soak, 10), say=progress)
    report("Serving (time: the median answer)", rows, where, json)
    failed(rows)


if __name__ == "__main__":
    common.main(command)
