"""What docs/serve.md shows is done: curl and Python against a server, `meshcap serve` up to its socket."""

import inspect
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from meshcap.captioner import Captioner
from meshcap.cli.serve import serve
from meshcap.data.scenes import draw_scene
from meshcap.options import NAMES
from meshcap.serving import app as server
from meshcap.serving.metrics import Metrics
from serving import small
from tiny_data import call

DOCS = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(<!-- no-run: .+ -->\n)?```(\w+)\n(.*?)```", DOCS, re.DOTALL)
LINES = [line for skip, kind, text in BLOCKS if kind == "sh" and not skip for line in text.splitlines()]
KEY = "one-of-the-keys-in-the-file"


@pytest.fixture(scope="module")
def port(eyes: Captioner) -> Iterator[int]:
    with small.listening(eyes, keys=[]) as port:
        yield port


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("photo.jpg", "a.jpg", "b.png"):
        draw_scene(len(name), 64).image.save(name)
    Path("keys.txt").write_text(f"{KEY}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("curl ")])
def test_curl(line: str, port: int, here: Path) -> None:
    words = shlex.split(line.replace(":8000/", f":{port}/"))
    done = subprocess.run([*words, "--silent", "--show-error", "--fail"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and '"results":[{"caption":' in done.stdout, done


def test_python(port: int, here: Path, capsys: pytest.CaptureFixture[str], eyes: Captioner) -> None:
    [code] = [text for _, kind, text in BLOCKS if kind == "python"]
    exec(code.replace(":8000/", f":{port}/"), {})
    with Image.open("photo.jpg") as image:
        assert capsys.readouterr().out == eyes.caption(image).text + "\n"


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("meshcap serve")])
def test_commands(line: str, here: Path, eyes: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(server, "run", lambda app, at, **_: (ran.append(app), at.close()))
    monkeypatch.setattr(Captioner, "from_pretrained", lambda *_, **__: eyes)  # whichever model
    monkeypatch.setattr(server, "listen", lambda host, port, listen=server.listen: listen(host, 0))  # 8000 may be taken
    assert call(shlex.split(line, comments=True)[1:]) == 0
    assert len(ran) == 1


def test_nothing_is_left_out() -> None:
    known = ("curl ", "meshcap serve", "python benchmarks/serve.py", "pip install ")
    assert LINES and all(line.startswith(known) for line in LINES)
    for skip, kind, _ in BLOCKS:
        assert skip or kind in ("sh", "python", "json"), kind


def test_every_option_and_limit_is_told() -> None:
    for name in NAMES:
        assert f"`{name}`" in DOCS
    for name in re.findall(r"# TYPE (\S+)", Metrics(lambda: 0).text()):
        assert f"`{name}" in DOCS
    shared = {"device", "dtype", "threads", *NAMES}  # with other commands
    for name in set(inspect.signature(serve).parameters) - shared:
        assert f"--{name.replace('_', '-')}" in DOCS, name
