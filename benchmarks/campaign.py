"""Attacks and faults, seeded: what must not happen does not, or this says where.

    make campaign                                             # all of it: half an hour on two cores
    python benchmarks/campaign.py --tries 500 --seconds 10    # a short form
    python benchmarks/campaign.py --only pictures --only batch
    python benchmarks/campaign.py --results campaign.jsonl    # keeps each finished round; the same call goes on

Each round counts its tries, its failures (a crash, a traceback, a hang of more than 10 seconds, code that ran, a lost,
doubled or different result, more memory than promised), the slowest try, and the most memory of the process under
attack. The captioner is a tiny one that speaks nonsense: what is tested stands around the model.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

TOP = Path(__file__).parents[1]
sys.path[:0] = [str(TOP), str(TOP / "tests")]  # this repository, when run as a script, and its tiny captioners

from benchmarks.common import main, progress
from meshcap import Captioner, MeshcapError
from meshcap.data.scenes import draw_scene
from meshcap.files import read_text, write_text
from meshcap.vision.pictures import read_picture

HANG = 10.0  # seconds
PROMISED = 600  # MB above the model for one picture
ROUNDS = ("pictures", "folders", "archives", "schema", "slow", "load", "stops", "batch", "trainer", "disk", "ray",
          "head")  # fmt: skip
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}


@dataclass
class Round:
    """What one kind of attack came to."""

    name: str
    tries: int = 0
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: float = 0.0  # MB, the most of the process under attack
    kills: int = 0
    note: str = ""

    @contextlib.contextmanager
    def trying(self, what: str, *, hang: float = HANG) -> Iterator[None]:
        """One try: a MeshcapError is a proper answer, any other exception a failure."""
        start = time.monotonic()
        try:
            yield
        except MeshcapError as error:
            if "\n" in str(error):
                self.failures.append(f"{what}: an error of several lines")
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__} {str(error)[:120]}")
        seconds = time.monotonic() - start
        self.tries += 1
        self.slowest = max(self.slowest, seconds)
        if seconds > hang:
            self.failures.append(f"{what}: {seconds:.1f} s")

    def expect(self, condition: bool, what: str) -> None:
        if not condition:
            self.failures.append(what)


def memory(pid: int | str = "self", key: str = "VmHWM") -> float:
    """MB of a process: the most so far, or with VmRSS now."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith(key)).split()[1]) / 1000
    except (OSError, StopIteration):
        return 0.0


# Pictures.


def good_pictures() -> list[bytes]:
    """One of each format and mode that is read."""
    Image.init()
    scene = draw_scene(3, 64).image.convert("RGB")
    found = []
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("RGB", "JPEG", {}), ("RGB", "JPEG", {"progressive": True}), ("L", "JPEG", {}), ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}), ("RGBA", "PNG", {}), ("P", "PNG", {}), ("I;16", "PNG", {}), ("1", "PNG", {}),
        ("RGB", "WEBP", {}), ("RGBA", "WEBP", {"lossless": True}), ("P", "GIF", {}), ("RGB", "BMP", {}),
        ("RGB", "TIFF", {}), ("RGB", "TIFF", {"compression": "tiff_lzw"}), ("F", "TIFF", {}),
        ("RGB", "PPM", {}), ("L", "PPM", {}), ("RGB", "JPEG2000", {}), ("RGB", "AVIF", {}), ("RGBA", "ICO", {}),
    ]  # fmt: skip
    for mode, form, options in wanted:
        if form in Image.SAVE:
            image = scene.convert("L").convert("I;16") if mode == "I;16" else scene.convert(mode)
            file = io.BytesIO()
            image.save(file, form, **options)
            found.append(file.getvalue())
    return [*found, b"P3 2 2 255\n1 2 3 4 5 6 7 8 9 10 11 12\n"]


def broken(content: bytes, others: list[bytes], dice: random.Random) -> bytes:
    """A picture with something wrong with it."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8))):
        place = dice.randrange(len(changed)) if changed else 0
        kind = dice.randrange(8)
        if kind == 0 and changed:
            changed[place] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del changed[place:]
        elif kind == 2:
            changed[place : place + 4] = struct.pack(">I", dice.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 65_535, 30_000)))
        elif kind == 3:
            changed[place : place + 2] = struct.pack("<H", dice.choice((0, 1, 16_383, 20_000, 65_535)))
        elif kind == 4:
            other = dice.choice(others)
            changed[place:] = other[dice.randrange(len(other)) :]
        elif kind == 5:
            changed[place:place] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 40)))
        elif kind == 6:
            changed[place:place] = changed[place : place + dice.randrange(1, 200)] * dice.randrange(1, 50)
        else:
            del changed[place : place + dice.randrange(1, 60)]
    return bytes(changed)


def bombs() -> dict[str, bytes]:
    """Small files that ask for much."""

    def saved(image: Image.Image, form: str, **options: Any) -> bytes:
        file = io.BytesIO()
        image.save(file, form, **options)
        return file.getvalue()

    jpeg = saved(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    png = saved(Image.new("L", (8, 8)), "PNG")
    chunk = bytes(4) + b"zzZz" + zlib.crc32(b"zzZz").to_bytes(4, "big")
    body = bytes(4) + (11_999).to_bytes(3, "little") * 2
    webp = b"WEBPVP8X" + len(body).to_bytes(4, "little") + body
    huge = bytearray(png)
    huge[16:24] = struct.pack(">II", 60_000, 60_000)
    huge[29:33] = zlib.crc32(huge[12:29]).to_bytes(4, "big")
    return {
        "5,000 scans": jpeg[:-2] + jpeg[last:-2] * 5000 + jpeg[-2:],
        "90 scans": jpeg[:-2] + jpeg[last:-2] * 90 + jpeg[-2:],
        "2.4 million chunks": png[:33] + chunk * 2_400_000 + png[33:],
        "7 million segments": jpeg[:2] + b"\xff\xfe\0\2" * 7_000_000 + jpeg[2:],
        "30 MB of padding": jpeg[:2] + b"\xff" * 30_000_000 + jpeg[2:],
        "declared WebP": b"RIFF" + len(webp).to_bytes(4, "little") + webp,
        "declared PNG": bytes(huge),
        "float TIFF of 8,000²": saved(Image.new("F", (8000, 8000)), "TIFF", compression="tiff_lzw"),
        "RGBA PNG of 9,000²": saved(Image.new("RGBA", (9000, 9000)), "PNG"),
        "16-bit PNG of 9,000²": saved(Image.new("I;16", (9000, 9000)), "PNG"),
        "30 MB of comments": b"P5\n#" + b"a" * 30_000_000 + b"\n2 2 255\n0000",
        "comments in numbers": b"P2\n2 2 255\n" + b"#\n" * 5_000_000 + b"1 2 3 4",
    }


def pictures(found: Round, tries: int, seed: int, here: Path) -> None:
    dice = random.Random(seed)
    kinds = good_pictures()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for content in kinds:
            with found.trying("a good picture"):
                read_picture(content, at_least=48)
        before = memory(key="VmRSS")
        for number in range(tries):
            with found.trying(f"picture {number} of seed {seed}"):
                read_picture(broken(dice.choice(kinds), kinds, dice), at_least=48, most_pixels=64_000_000)
        found.expect(memory(key="VmRSS") - before < PROMISED, f"{memory(key='VmRSS') - before:.0f} MB were kept")
        made = bombs()
        names = list(made)
        for number, name in enumerate(names):
            (here / str(number)).write_bytes(made.pop(name))
        for number, name in enumerate(names):
            Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
            before = memory(key="VmRSS")
            with found.trying(name):
                read_picture(here / str(number), at_least=48)
            above = memory() - before
            found.memory = max(found.memory, above)
            found.expect(above < PROMISED, f"{name}: {above:.0f} MB above the start")


# Model folders and archives.


def hostile_folders(tiny: Path, dice: random.Random, count: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Names, and what is done to a copy of a good folder."""

    def config(name: str, **changes: Any) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            path = folder / name
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

        return change

    def text(name: str, content: bytes) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            (folder / name).write_bytes(content)

        return change

    settings = json.loads((tiny / "config.json").read_text())
    values: list[Any] = [0, -1, 10**6, 10**9, 10**18, 10**4000, 1e308, None, "x", [], {}, True, [10**9] * 10]
    for name in settings:
        for value in values:
            yield f"config.json {name}={str(value)[:12]}", config("config.json", **{name: value})
    for name in json.loads((tiny / "vision/vision.json").read_text()):
        for value in [*values, {"size": 10**9}, {"size": "x"}, {"mean": [1e400] * 3}]:
            yield f"vision.json {name}={str(value)[:12]}", config("vision/vision.json", **{name: value})
    files = [path.relative_to(tiny) for path in tiny.rglob("*") if path.suffix in (".json", ".safetensors")]
    for file in files:
        for content in (b"", b"[" * 100_000, b'{"a":' * 100_000, b'{"x": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"null"):
            yield f"{file} as {content[:8]!r}", text(str(file), content)
    for number in range(count):
        file = dice.choice(files)
        content = (tiny / file).read_bytes()
        yield f"{file} broken {number}", text(str(file), broken(content, [content], dice))


def folders(found: Round, tries: int, seed: int, here: Path) -> None:
    tiny = make_model(here)
    grey = np.full((50, 50, 3), 128, np.uint8)
    for name, change in hostile_folders(tiny, random.Random(seed), max(20, tries // 60)):
        folder = here / "hostile"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny, folder)
        change(folder)
        with found.trying(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            caption = Captioner.from_pretrained(folder, device="cpu").caption(grey)
            found.expect(caption.confidence == caption.confidence and bool(json.dumps(caption.to_dict())), name)
    found.memory = memory()


def archives(found: Round, tries: int, seed: int, here: Path) -> None:
    """Archives of torch.export that would run code, hostile checkpoints, tar shards and lists."""
    import tarfile

    from meshcap.data.shards import members

    mark = here / "ran"
    try:
        exported = importlib.import_module("exported")
        attacks = importlib.import_module("backends.test_export_backend")
    except BaseException as error:  # pytest's own kind of skipping is no Exception
        found.note = f"torch.export archives are left out: {error}"
    else:
        for attack in attacks.HOSTILE:
            folder = here / "exported"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(exported.folder("torch"), folder)
            parts = attacks.read(folder / "see.pt2")
            attack(parts, mark)
            attacks.write(folder / "see.pt2", parts)
            with found.trying(attack.__name__):
                Captioner.from_pretrained(folder)
                found.failures.append(f"{attack.__name__} was loaded")
            found.expect(not mark.exists(), f"{attack.__name__} ran code")
    dice = random.Random(seed)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(4):
            info = tarfile.TarInfo(f"{'long/' * 30}{number}.jpg")
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes(100)))
    content = file.getvalue()
    for number in range(max(200, tries // 10)):
        with found.trying(f"tar {number}"):
            list(members(Path("a.tar"), broken(content, [content], dice)))
    found.memory = memory()


# A server.


def make_model(here: Path) -> Path:
    folder = here / "tiny"
    if not folder.exists():
        importlib.import_module("tiny_captioner").saved(folder)
    return folder


@contextlib.contextmanager
def server(here: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    words = ["serve", "--model", str(make_model(here)), "--port", "0", "--device", "cpu", "--threads", "2", *more]
    with open(here / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "meshcap", *words], stdout=subprocess.PIPE, stderr=log, env=environment()
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        yield process, int(line.split(":")[2].split("/")[0])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join([str(TOP / "src"), *sys.path])}


def ask(port: int, content: bytes | None, *, path: str = "/v1/caption", timeout: float = 120) -> tuple[int, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        line.request("GET" if content is None else "POST", path, content, {"Content-Type": "image/jpeg"})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def memory_of_all(process: subprocess.Popen[bytes]) -> float:
    """The server and its decoders, now."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    pids = [process.pid]
    for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, task.read_text().split())
    return sum(memory(pid, "VmRSS") for pid in set(pids)) if children.exists() else 0.0


def schema(found: Round, tries: int, seed: int, here: Path) -> None:
    """schemathesis against what /openapi.json declares."""
    tool = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")
    if tool is None:
        found.note = "schemathesis is not installed: a venv with it, and SCHEMATHESIS=path/to/schemathesis"
        return
    examples = max(20, min(100, tries // 60))
    with server(here) as (process, port):
        address = f"http://127.0.0.1:{port}"
        words = [tool, "run", f"{address}/openapi.json", "--url", address, "-n", str(examples), "--seed", str(seed)]
        start = time.monotonic()
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        done = subprocess.run([*words, "--checks", checks], capture_output=True, text=True, cwd=here)
        generated = re.search(r"([\d,]+) generated", done.stdout)
        found.tries = int(generated[1].replace(",", "")) if generated else examples
        found.memory = memory_of_all(process)
        text = ask(port, None, path="/metrics")[1].decode()
        counts = re.findall(r"requests_total\{path=./v1/caption.,status=.(\d+).\} (\d+)", text)
        found.note = f"{time.monotonic() - start:.0f} s in all; captions: " + ", ".join(f"{n} × {s}" for s, n in counts)
        found.expect(sum(int(n) for _, n in counts) > 50, f"hardly anything was asked: {found.note}")
        if done.returncode:
            (here / "schemathesis.txt").write_text(done.stdout)
            found.failures.append(f"schemathesis: {' '.join(done.stdout.split())[-400:]}")
        found.expect(process.poll() is None and ask(port, None, path="/health")[0] == 200, "the server is gone")


def slow(found: Round, tries: int, seed: int, here: Path) -> None:
    """Unfinished headers, slow bodies, half-closed and broken connections; others are answered meanwhile."""
    good = good_pictures()[0]
    head = b"POST /v1/caption HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\nContent-Length: 5000\r\n\r\n"
    log = here / "server.log"
    before = log.stat().st_size if log.exists() else 0
    lines: list[socket.socket] = []
    with server(here, "--max-seconds", "20") as (process, port):
        for count, start in ((500, b"GET / HTTP/1.1\r\nHost: 127."), (260, head + b"x"), (100, b"")):
            for _ in range(count):
                with contextlib.suppress(OSError):
                    line = socket.create_connection(("127.0.0.1", port), 5)
                    line.sendall(start)
                    lines.append(line)
            for _ in range(3):
                with found.trying(f"a good picture beside {len(lines)} slow ones"):
                    found.expect(ask(port, good)[0] == 200, "a good picture was not captioned")
            found.tries += count
        for line in lines[::3]:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)
        time.sleep(12)  # headers have their time
        for _ in range(300):  # above the number of connections
            with contextlib.suppress(OSError):
                lines.append(socket.create_connection(("127.0.0.1", port), 5))
        with found.trying("a good picture at the end"):
            found.expect(ask(port, good)[0] == 200, "a good picture was not captioned at the end")
        for line in lines:
            line.close()
        found.memory = memory_of_all(process)
    found.expect(log.stat().st_size - before < 100_000, "the log was flooded")


def load(found: Round, seconds: float, clients: int, seed: int, here: Path) -> None:
    """Many clients at once with good, broken and hostile pictures."""
    kinds = good_pictures()
    hostile = [content for name, content in bombs().items() if len(content) < 2_000_000]
    until = time.monotonic() + seconds
    lock = threading.Lock()
    peak = [0.0]
    statuses: Counter[int] = Counter()

    with server(here) as (process, port):
        idle = memory_of_all(process)

        def client(number: int) -> None:
            dice = random.Random(seed * 1000 + number)
            while time.monotonic() < until:
                kind = dice.random()
                good = kind < 0.5
                content = dice.choice(kinds[:8]) if good else broken(dice.choice(kinds), kinds, dice)
                if kind > 0.97:
                    content = dice.choice(hostile)
                start, status = time.monotonic(), 0
                try:
                    status, body = ask(port, content)
                    json.loads(body)
                    proper = (200, 503) if good else (200, 413, 422, 503, 504)
                    wrong = None if status in proper else f"status {status}"
                except Exception as error:
                    wrong = f"{type(error).__name__} {error}"
                with lock:
                    found.tries += 1
                    found.slowest = max(found.slowest, time.monotonic() - start)
                    statuses[status] += 1
                    if wrong:
                        found.failures.append(wrong)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak[0] = max(peak[0], memory_of_all(process))
            time.sleep(0.2)
        found.expect(process.poll() is None and ask(port, None, path="/ready")[0] == 200, "not ready afterwards")
    found.memory = peak[0]
    found.note = ", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items()))
    found.expect(statuses[200] > found.tries // 4 and statuses[422] > 0, f"mostly refused: {found.note}")
    decoders = min(4, os.cpu_count() or 1)
    found.expect(peak[0] - idle < decoders * PROMISED, f"{peak[0] - idle:.0f} MB above the idle server")


def stops(found: Round, count: int, seed: int, here: Path) -> None:
    """SIGTERM and SIGKILL with clients inside: a whole answer or none, and an end in time."""
    dice = random.Random(seed)
    good = good_pictures()[0]
    for number in range(count):
        kill = number % 3 == 2
        name = "SIGKILL" if kill else "SIGTERM"
        with found.trying(name, hang=60), server(here, "--max-seconds", "10") as (process, port):
            answers: list[str] = []

            def client(port: int = port, answers: list[str] = answers) -> None:
                while True:
                    try:
                        status, body = ask(port, good, timeout=30)
                    except (OSError, http.client.HTTPException):
                        return
                    answers.append("" if status == 503 or json.loads(body)["results"] else "empty")

            threads = [threading.Thread(target=client) for _ in range(8)]
            for thread in threads:
                thread.start()
            time.sleep(dice.uniform(0.3, 1.5))
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            found.kills += 1
            code = process.wait(30)
            for thread in threads:
                thread.join(40)
            found.expect(code == (-signal.SIGKILL if kill else 0), f"the server left with {code}")
            found.expect(not any(answers) and not any(thread.is_alive() for thread in threads), "half an answer")


# Killed and going on.


def run_and_kill(words: list[str], seconds: float, cwd: Path) -> bool:
    """Start the command, kill it after so long. Whether it was still at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshcap", *words], cwd=cwd, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meshcap", *words], cwd=cwd, env=environment(), capture_output=True, text=True
    )


def batch(found: Round, count: int, seed: int, here: Path) -> None:
    dice = random.Random(seed)
    photos = here / "photos"
    photos.mkdir(exist_ok=True)
    for number in range(300):
        draw_scene(number, 64).image.convert("RGB").save(photos / f"{number:03}.jpg")
    (photos / "100.jpg").write_bytes(b"no picture")
    common = ["batch", "photos", "--model", str(make_model(here)), "--batch-size", "2", "--device", "cpu", "--sidecar"]
    start = time.monotonic()
    straight = run([*common, "--out", "straight.jsonl"], here)
    usual = time.monotonic() - start
    found.expect(straight.returncode == 1, f"batch left with {straight.returncode}: {straight.stderr[-200:]}")
    for _ in range(count):
        with found.trying("batch killed", hang=600):
            (here / "killed.jsonl").unlink(missing_ok=True)
            for _ in range(3):
                blocks = set((here / "killed.jsonl.parts").rglob("0*.jsonl"))
                killed = run_and_kill([*common, "--out", "killed.jsonl"], dice.uniform(0.5, 1) * usual, here)
                found.kills += killed and set((here / "killed.jsonl.parts").rglob("0*.jsonl")) > blocks
            done = run([*common, "--out", "killed.jsonl"], here)
            found.expect(done.returncode == 1 and "Traceback" not in done.stderr, f"batch: {done.stderr[-200:]}")
            same = (here / "killed.jsonl").read_bytes() == (here / "straight.jsonl").read_bytes()
            found.expect(same, "another table after kills")
            found.expect(not list(here.rglob("*.part*")), "something unfinished stayed")
            (here / ".killed.jsonl.job.json").unlink()
    found.expect(found.kills > 0, "nothing was killed")


def trainer(found: Round, count: int, seed: int, here: Path) -> None:
    tiny_data = importlib.import_module("tiny_data")
    dice = random.Random(seed)
    data = tiny_data.scenes(here / "scenes")
    options = {"xe": 12, "scst": 6, "checkpoint_every": 3}
    start = time.monotonic()
    whole = run(tiny_data.train_words(data, here / "straight", **options), here)
    usual = time.monotonic() - start
    found.expect(whole.returncode == 0, f"train left with {whole.returncode}: {whole.stderr[-300:]}")
    if whole.returncode:
        return
    for number in range(count):
        folder = here / f"killed{number}"
        with found.trying("train killed", hang=900):
            words = tiny_data.train_words(data, folder, **options)
            killed = run_and_kill(words, dice.uniform(0.3 * usual, usual), here)
            for _ in range(8):
                found.kills += killed and (folder / "log.jsonl").exists()
                if not killed:
                    break
                again = [*words, "--resume"] if (folder / "log.jsonl").exists() else words
                killed = run_and_kill(again, dice.uniform(0.4 * usual, 3 * usual), here)
            if killed:
                run([*words, "--resume"], here)
            same = (folder / "model.safetensors").read_bytes() == (here / "straight/model.safetensors").read_bytes()
            found.expect(same, "other weights after kills")
        shutil.rmtree(folder, ignore_errors=True)
    found.expect(found.kills > 0, "nothing was killed")


def disk(found: Round, count: int, seed: int, here: Path) -> None:
    """A disk that is really full, in the middle of a job: one line, nothing half, and the same call goes on."""
    place, met = here / "full", 0
    place.mkdir()
    if os.name != "posix" or os.geteuid() or subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True
    ).returncode:  # fmt: skip
        found.note = "a small disk needs the right to mount one (root)"
        return
    try:
        photos = here / "few"
        photos.mkdir()
        for number in range(40):
            draw_scene(number, 64).image.convert("RGB").save(photos / f"{number:03}.jpg")
        words = ["batch", str(photos), "--model", str(make_model(here)), "--batch-size", "4", "--device", "cpu",
                 "--out", str(place / "captions.jsonl")]  # fmt: skip
        whole = run([*words[:-1], str(here / "expected.jsonl")], here)
        found.expect(whole.returncode == 0, f"batch left with {whole.returncode}")
        for left in (0, 2_000, 6_000, 12_000, 20_000, 40_000)[: max(2, count)]:
            with found.trying(f"{left} bytes left", hang=120):
                for file in place.iterdir():
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
                filler = place / "filler"
                with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file_:
                    while True:
                        file_.write(bytes(4096))
                os.truncate(filler, max(0, filler.stat().st_size - left))
                done = run(words, here)
                lines = [line for line in done.stderr.splitlines() if "error" in line]
                met += done.returncode != 0
                tidy = done.returncode in (0, 1, 2) and "Traceback" not in done.stderr and len(lines) <= 1
                found.expect(tidy, f"with {left} bytes left: {done.returncode} {done.stderr[-200:]}")
                filler.unlink()
                again = run(words, here)
                found.expect(again.returncode == 0, f"after room was made: {again.stderr[-200:]}")
                same = (place / "captions.jsonl").read_bytes() == (here / "expected.jsonl").read_bytes()
                found.expect(same, "another table after a full disk")
        found.note = f"{met} of {found.tries} jobs met the full disk"
        found.expect(met > 0, "no job met the full disk")
    finally:
        subprocess.run(["umount", str(place)], capture_output=True)


def ray(found: Round, count: int, seed: int, here: Path) -> None:
    """Workers of a Ray cluster of this machine, killed while they caption."""
    common = ray_job(found, here)
    dice = random.Random(seed)
    for number in range(count if common else 0):
        with found.trying("ray workers killed", hang=600):
            words = [*common, "--out", f"ray{number}.jsonl", "--ray", "local", "--workers", "2", "--threads", "1"]
            process = begun(words, here, f"ray{number}.jsonl")
            time.sleep(dice.uniform(0, 0.3))
            for pid, name in descendants(process.pid):
                if name.startswith("ray::") and "IDLE" not in name:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                        found.kills += 1
                    break
            process.communicate()
            if process.returncode:
                found.expect(run(words, here).returncode == 0, "the same call did not go on")
            same = (here / f"ray{number}.jsonl").read_bytes() == (here / "alone.jsonl").read_bytes()
            found.expect(same, "another table with Ray")
    found.expect(found.kills > 0 or not common, "no worker was killed")


def head(found: Round, count: int, seed: int, here: Path) -> None:
    """The head of a Ray cluster, killed in the middle of a job: one line, and the same call goes on when it is back."""
    common = ray_job(found, here)
    dice = random.Random(seed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    for number in range(max(2, count // 4) if common else 0):
        gone = (("gcs_server", "raylet"), ("gcs_server",), ("raylet",))[number % 3]
        out = f"head{number}.jsonl"
        words = [*common, "--out", out, "--ray", address, "--workers", "1", "--threads", "1"]
        with found.trying(f"ray {' and '.join(gone)} killed", hang=900):
            with ray_head(port, here) as cluster:
                process = begun(words, here, out)
                time.sleep(dice.uniform(0, 0.3))
                for pid, name in descendants(cluster.pid):
                    if any(one in name.split(" ")[0] for one in gone):
                        os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                errors = process.communicate()[1]
            seconds = time.monotonic() - killed
            rows = [path.read_text() for path in sorted((here / f"{out}.parts").rglob("0*.jsonl"))]
            if process.returncode:  # else the job was faster
                found.kills += 1
                lines = [line for line in errors.splitlines() if "error" in line]
                found.expect(len(lines) == 1 and "Traceback" not in errors, f"not one line: {errors[-300:]}")
                found.expect(bool(rows), "nothing was kept")
                found.expect(seconds < 60, f"{seconds:.0f} s until the job saw that the head was gone")
                found.note = f"{found.kills} kills at work; {seconds:.0f} s until the last was seen"
                with ray_head(port, here):
                    again = run(words, here)
                    found.expect(again.returncode == 0, f"the same call did not go on: {again.stderr[-200:]}")
            same = (here / out).read_bytes() == (here / "alone.jsonl").read_bytes()
            found.expect(same, "another table after the head was killed")
    found.expect(found.kills > 0 or not common, "no head was killed")


def ray_job(found: Round, here: Path) -> list[str]:
    """The words of a job on 200 pictures, which has been done once without Ray; none where Ray is not installed."""
    try:
        import ray as _  # noqa: F401
    except ImportError:
        found.note = "ray is not installed: pip install 'meshcap[scale]'"
        return []
    photos = here / "ray"
    photos.mkdir()
    for number in range(200):
        draw_scene(number, 64).image.convert("RGB").save(photos / f"{number:03}.jpg")
    common = ["batch", "ray", "--model", str(make_model(here)), "--batch-size", "4", "--device", "cpu"]
    found.expect(run([*common, "--out", "alone.jsonl"], here).returncode == 0, "batch failed without Ray")
    return common


def begun(words: list[str], here: Path, out: str) -> subprocess.Popen[str]:
    """A job whose first rows are there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshcap", *words], cwd=here, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < until and not list((here / f"{out}.parts").rglob("0*.jsonl")):
        time.sleep(0.02)
    return process


@contextlib.contextmanager
def ray_head(port: int, here: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A cluster of this machine that lives apart from the job; all of it is killed at the end."""
    words = ["start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port), "--num-cpus", "2",
             "--include-dashboard", "false", "--disable-usage-stats"]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # names of sockets are short
        with open(here / "head.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", *words, "--temp-dir", folder], env=environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            until = time.monotonic() + 180
            while time.monotonic() < until and not any("raylet" in name for _, name in descendants(process.pid)):
                time.sleep(0.2)
            time.sleep(3)  # until it has told the cluster of itself
            yield process
        finally:
            for pid in [*(pid for pid, _ in descendants(process.pid)), process.pid]:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def descendants(pid: int) -> list[tuple[int, str]]:
    """The processes below one, and their command lines."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        for child in below.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found.append((child, name))
    return found


def campaign(
    tries: Annotated[int, typer.Option(min=1, help="Broken pictures; other rounds follow it.")] = 24_000,
    seconds: Annotated[float, typer.Option(min=1, help="Of the round with many clients.")] = 180.0,
    clients: Annotated[int, typer.Option(min=1, help="Of that round.")] = 64,
    kills: Annotated[int, typer.Option(min=1, help="Of batch, of the trainer and of the server, each.")] = 20,
    only: Annotated[list[str] | None, typer.Option(help=f"Rounds: {', '.join(ROUNDS)}.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    kept: Annotated[
        Path | None, typer.Option("--results", help="Keep finished rounds here; only failed ones are run again.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Attack pictures, folders, archives and the server; kill the server, batch and the trainer; fill a disk."""
    unknown = set(only or ()) - set(ROUNDS)
    if unknown:
        raise MeshcapError(f"no round is called {sorted(unknown)[0]!r}: expected {', '.join(ROUNDS)}")
    rounds: dict[str, Callable[[Round, Path], None]] = {
        "pictures": lambda one, here: pictures(one, tries, seed, here),
        "folders": lambda one, here: folders(one, tries, seed, here),
        "archives": lambda one, here: archives(one, tries, seed, here),
        "schema": lambda one, here: schema(one, tries, seed, here),
        "slow": lambda one, here: slow(one, tries, seed, here),
        "load": lambda one, here: load(one, seconds, clients, seed, here),
        "stops": lambda one, here: stops(one, kills, seed, here),
        "batch": lambda one, here: batch(one, kills, seed, here),
        "trainer": lambda one, here: trainer(one, kills, seed, here),
        "disk": lambda one, here: disk(one, kills, seed, here),
        "ray": lambda one, here: ray(one, kills, seed, here),
        "head": lambda one, here: head(one, kills, seed, here),
    }
    settings = {"tries": tries, "seconds": seconds, "clients": clients, "kills": kills, "seed": seed}
    before = read_results(kept, settings)
    results = []
    with tempfile.TemporaryDirectory(prefix="meshcap-campaign-") as folder:
        for name in ROUNDS:
            if name in before and not before[name].failures:
                results.append(before[name])
                continue
            if only and name not in only:
                continue
            progress(f"{name} …")
            found = Round(name)
            here = Path(folder) / name
            here.mkdir()
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
            rounds[name](found, here)
            for failure in found.failures[:20]:
                progress(f"  failed: {failure}")
            results.append(found)
            if kept is not None:
                add_result(kept, found, settings)
    report(results, json_)
    if any(one.failures for one in results):
        raise typer.Exit(1)


def read_results(path: Path | None, settings: dict[str, Any]) -> dict[str, Round]:
    """The rounds that a file holds; the last of a name counts, since failed ones are run again.

    Raises:
        MeshcapError: they were run with other settings.
    """
    found = {}
    for line in read_text(path).splitlines() if path is not None and path.exists() else ():
        row = json.loads(line)
        row.pop("code")
        if row.pop("settings") != settings:
            raise MeshcapError(f"{path} holds rounds with other settings: give another file to --results")
        found[row["name"]] = Round(**row)
    return found


def add_result(path: Path, one: Round, settings: dict[str, Any]) -> None:
    code = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=TOP, capture_output=True, text=True).stdout
    before = read_text(path) if path.exists() else ""
    row = json.dumps(vars(one) | {"code": code.strip(), "settings": settings}, ensure_ascii=False)
    write_text(path, before + row + "\n")


def report(results: list[Round], json_: bool) -> None:
    if json_:
        rows = [vars(one) for one in results]
        print(json.dumps(rows, ensure_ascii=False))
        return
    table = Table("round", "tries", "failures", "slowest", "most memory", "")
    for one in results:
        shown = [f"{one.slowest:.1f} s", f"{one.memory:,.0f} MB" if one.memory else ""]
        note = escape(one.note or (f"{one.kills} kills at work" if one.kills else ""))
        table.add_row(one.name, f"{one.tries:,}", str(len(one.failures)), *shown, note)
    Console().print(table)


if __name__ == "__main__":
    main(campaign)
