"""A real browser for tests, driven over Chromium's DevTools protocol through two pipes: no driver, no other package."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions "
    "--disable-background-networking --disable-component-update --disable-sync --disable-quic --hide-scrollbars "
    "--remote-debugging-pipe --use-fake-device-for-media-stream --use-fake-ui-for-media-stream "
    "--force-color-profile=srgb"
).split()
PATIENCE = 60.0  # seconds, on a machine with other things to do


def find() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One window with one page."""

    def __init__(self, program: str, profile: Path):
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # Chromium speaks through the files 3 and 4. A step between puts them there, from numbers out of the way.
        far = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, to_write)]
        script = f"import os, sys; os.dup2({far[0]}, 3); os.dup2({far[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        between = [sys.executable, "-S", "-E", "-c", script]
        words = [*between, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            words, pass_fds=far, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for fd in (to_read, to_write, *far):
            os.close(fd)
        self._received, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []  # what the page wrote as errors: scripts that failed, addresses not allowed
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self.call(f"{part}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._session = ""
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]
        until = time.monotonic() + PATIENCE
        while True:
            told = self._next(until, method)
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                return told["result"]
            self._notice(told)

    def _next(self, until: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            if not ready or not (more := os.read(self._in, 1 << 20)):
                raise TimeoutError(f"no answer to {method}")
            self._received += more
        first, _, self._received = self._received.partition(b"\0")
        return json.loads(first)

    def _notice(self, told: dict[str, Any]) -> None:
        about = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif told.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(about["entry"]["text"])

    def evaluate(self, script: str) -> Any:
        ways = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        found = self.call("Runtime.evaluate", expression=script, **ways)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """Until a script gives something that is true."""
        until = time.monotonic() + PATIENCE
        while not (found := self.evaluate(script)):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {script}")
            time.sleep(0.05)
        return found

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def middle(self, selector: str) -> dict[str, float]:
        found = self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'center'});"
            " const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return dict(zip("xy", found, strict=True))

    def drop(self, paths: list[Path], selector: str) -> None:
        """Files from the desktop, as a person's mouse brings them."""
        files = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, data=files, **self.middle(selector))

    def hover(self, selector: str) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self.middle(selector))

    def click(self, selector: str) -> None:
        place = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot; `whole` of all that can be scrolled to."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
