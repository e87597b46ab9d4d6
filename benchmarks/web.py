"""The page of `meshcap export --format web` in Chromium: first load, seconds a photo, memory; and whether it says what
Python says with the same weights as ONNX.

meshcap export default --bits 8 --out default-onnx
meshcap export default --format web --runtime onnxruntime-web-1.30.0.tgz --out default-web
python benchmarks/web.py default-web --onnx default-onnx examples/*.jpg

The folder is served to this machine alone, by a server that knows nothing of headers. Needs Linux and Chromium.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from serving.browser import Browser, find  # type: ignore[import-not-found]

READY = "document.body?.dataset.ready"
DONE = "document.querySelector('.card') && !document.querySelector('.card[aria-busy=true]')"
FOUND = "({ text: cards[0].found?.caption, error: cards[0].part('.problem').textContent, ...cards[0].found })"


@dataclass(frozen=True)
class Measured:
    first: float  # seconds until the model is ready, and when the page is opened again
    again: float
    load_cpu: float  # CPU seconds of the first
    ready: dict[str, Any]
    captions: list[str]  # or what went wrong
    seconds: list[float]  # of each picture
    cpu: list[float]
    peak: int  # bytes of the page's process
    complaints: list[str]


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Its address, as a plain web host."""
    handler = functools.partial(Silent, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def measure(folder: Path, pictures: list[Path], *, patience: float = 600) -> Measured:
    program = find()
    if program is None:
        sys.exit("no Chromium on this machine")
    with (
        tempfile.TemporaryDirectory() as profile,
        Browser(program, Path(profile)) as browser,
        served(folder) as address,
    ):
        first = opened(browser, address, patience)
        page = page_process(profile)
        load_cpu = cpu_seconds(page)
        captions, seconds, cpu = [], [], []
        for picture in pictures:
            before, began = cpu_seconds(page), time.monotonic()
            browser.drop([picture.resolve()], "#drop")
            waited(browser, DONE, patience)
            found = browser.evaluate(FOUND)
            seconds.append(time.monotonic() - began)
            cpu.append(cpu_seconds(page) - before)
            captions.append(found.get("text") or found["error"])
        peak = status(page, "VmHWM")
        ready = json.loads(browser.evaluate(READY))
        browser.open("about:blank")
        again = opened(browser, address, patience)
        return Measured(first, again, load_cpu, ready, captions, seconds, cpu, peak, browser.complaints)


def opened(browser: Browser, address: str, patience: float) -> float:
    began = time.monotonic()
    browser.open(address)
    waited(browser, READY, patience)
    return time.monotonic() - began


def waited(browser: Browser, script: str, patience: float) -> None:
    until = time.monotonic() + patience
    while not browser.evaluate(script):
        if time.monotonic() > until:
            raise TimeoutError(browser.evaluate("document.getElementById('about').textContent"))
        time.sleep(0.1)


def page_process(profile: str) -> Path:
    """Of the processes of this browser that show pages, the largest."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
            if b"--type=renderer" in words and descends(place, profile):
                found.append((status(place, "VmHWM"), place))
        except OSError:  # it has ended
            continue
    return max(found)[1]


def descends(place: Path, profile: str) -> bool:
    """Whether a process is of the browser with this profile."""
    while place.name not in ("0", "1"):
        if f"--user-data-dir={profile}".encode() in (place / "cmdline").read_bytes():
            return True
        place = Path("/proc", (place / "stat").read_text().rpartition(")")[2].split()[1])
    return False


def status(place: Path, name: str) -> int:
    [line] = [line for line in (place / "status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


def cpu_seconds(place: Path) -> float:
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pictures", type=Path, nargs="+")
    parser.add_argument("--onnx", type=Path, help="the same captioner as `meshcap export --bits 8` writes it")
    given = parser.parse_args()
    found = measure(given.folder, given.pictures)
    by = "the graphics card" if found.ready["gpu"] else f"{found.ready['threads']} threads"
    print(f"first load {found.first:.1f} s ({found.load_cpu:.1f} s of CPU time), again {found.again:.1f} s")
    print(f"{by}; memory {found.peak / 2**20:.0f} MiB")
    rest = slice(1, None) if len(found.seconds) > 1 else slice(None)  # the first picture is slower
    print(f"a photo {median(found.seconds[rest]):.2f} s, {median(found.cpu[rest]):.2f} s of CPU time")
    for complaint in found.complaints:
        print(f"the page complains: {complaint}")
    if given.onnx:
        from meshcap import Captioner

        captioner = Captioner.from_pretrained(given.onnx, threads=1)
        theirs = [captioner.caption(picture).text for picture in given.pictures]
        pairs = list(zip(given.pictures, theirs, found.captions, strict=True))
        print(f"{sum(a == b for _, a, b in pairs)} of {len(pairs)} captions are Python's")
        for picture, a, b in pairs:
            if a != b:
                print(f"{picture.name}\n  - {a}\n  + {b}")


if __name__ == "__main__":
    main()
