"""The way of a picture through the code: which files it passes, and how often it changes rooms.

    python benchmarks/walk.py                  # `meshcap caption photo.jpg`
    python benchmarks/walk.py --serve          # a request to the app of `meshcap serve`

Counted are functions of src/meshcap that run for each picture: what happens once (imports, loading, options) is left
out. A function stands where it is called first for the picture, and a change of room is a function in another room than
the one before it. Files that lie directly in src/meshcap are one room. What Python calls by itself (`len(regions)`, the
checks of a record) is no place that a reader goes to. Everything runs in float32 on a CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json as json_format
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

import meshcap
from benchmarks import common
from benchmarks.common import set_up
from meshcap.errors import FailedError

SOURCE = str(Path(str(meshcap.__file__)).parent) + "/"
PHOTO = Path(__file__).parents[1] / "examples" / "dog.jpg"
ONCE = ("<module>", "from_pretrained", "optimize")
UNSEEN = ("__len__", "__post_init__", "__enter__", "__exit__", "__iter__", "__getitem__", "__eq__", "__hash__")
MANY = 4  # photos of the longer run, each a batch of its own

Call = tuple[str, str]  # a file below src/meshcap, and a function in it


@dataclass(frozen=True)
class Walk:
    """The functions that run for a picture, in the order of their first calls."""

    calls: list[Call]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def rooms(self) -> list[tuple[str, list[str]]]:
        """Rooms in order with the files passed in each; as many changes as there are entries, less one."""
        found: list[tuple[str, list[str]]] = []
        for file, _ in self.calls:
            room = room_of(file)
            if not found or found[-1][0] != room:
                found.append((room, []))
            if file not in found[-1][1]:
                found[-1][1].append(file)
        return found

    @property
    def changes(self) -> int:
        return max(0, len(self.rooms) - 1)


def room_of(file: str) -> str:
    return file.split("/")[0] if "/" in file else "meshcap"


class Recorder:
    """Calls of functions of src/meshcap in all threads that are started after it, while `recording`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.active = False

    def __enter__(self) -> Recorder:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Call]]:
        self.calls = []
        self.active = True
        try:
            yield self.calls
        finally:
            self.active = False

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self.active or event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name in UNSEEN:
            return
        outer: FrameType | None = frame
        while outer is not None:
            # Imports run class bodies and decorators; loading builds a model and lays out its weights.
            if outer.f_code.co_name in ONCE and outer.f_code.co_filename.startswith(SOURCE):
                return
            outer = outer.f_back
        self.calls.append((code.co_filename[len(SOURCE) :], code.co_qualname))


def walk_caption(photo: Path, model: str = "default") -> Walk:
    """`meshcap caption`: functions that are called more often for many photos than for one."""
    from meshcap import cli

    def run(photos: list[str]) -> list[Call]:
        with recorder.recording() as calls, contextlib.redirect_stdout(io.StringIO()):
            try:
                cli.main(["caption", *photos, "--model", model, "--device", "cpu", "--batch-size", "1"])
            except SystemExit as left:
                if left.code:
                    raise FailedError(f"meshcap caption left with {left.code}") from None
        return calls

    with tempfile.TemporaryDirectory() as folder, Recorder() as recorder:
        copies = [str(shutil.copy(photo, Path(folder, f"{number:03}{photo.suffix}"))) for number in range(MANY)]
        run(copies[:1])  # what is imported or built on first use
        one = run(copies[:1])
        more = Counter(run(copies))
    return Walk(for_each(one, more))


def for_each(one: list[Call], more: Counter[Call]) -> list[Call]:
    """The functions that a photo needs, in order: those of which MANY photos need more calls than one does.

    The way begins with the first that nothing but photos needs: checks of options, say, have been made by then.
    """
    once = Counter(one)
    needed = {call for call, count in once.items() if more[call] > count}
    photos_alone = {call for call in needed if more[call] == MANY * once[call]}
    begin = next((place for place, call in enumerate(one) if call in photos_alone), 0)
    return [call for call in dict.fromkeys(one[begin:]) if call in needed]


def walk_serve(photo: Path, model: str = "default") -> Walk:
    """One request to the app of `meshcap serve`, sent within this process after a first one has warmed it up."""
    from meshcap.captioner import Captioner
    from meshcap.serving.app import create_app
    from meshcap.serving.limits import Limits
    from meshcap.serving.service import Service

    content = photo.read_bytes()

    async def ask(app: Any) -> int:
        sent: list[dict[str, Any]] = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/caption", "raw_path": b"/v1/caption", "root_path": "", "query_string": b"",
            "headers": [(b"content-type", b"image/jpeg"), (b"content-length", str(len(content)).encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        messages = iter([{"type": "http.request", "body": content, "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in messages:
                return message
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return int(sent[0]["status"])

    async def served(app: Any) -> list[Call]:
        async with app.router.lifespan_context(app):
            await ask(app)
            with recorder.recording() as calls:
                status = await ask(app)
        if status != 200:
            raise FailedError(f"the request was answered with {status}")
        return calls

    with Recorder() as recorder:
        service = Service(Captioner.from_pretrained(model, device="cpu"), model, Limits())
        calls = asyncio.run(served(create_app(service)))
    return Walk(list(dict.fromkeys(calls)))


def command(
    photo: Annotated[Path, typer.Argument(help="A picture.")] = PHOTO,
    model: common.Model = "default",
    serve: Annotated[bool, typer.Option("--serve", help="One request to the app of `meshcap serve` instead.")] = False,
    functions: Annotated[bool, typer.Option("--functions", help="Print every function too.")] = False,
    json: common.Json = False,
) -> None:
    """Trace a photo through `meshcap caption`, and print the files that it passes and the changes of room."""
    set_up("cpu", None)
    walk = walk_serve(photo, model) if serve else walk_caption(photo, model)
    if json:
        totals = {"files": len(walk.files), "changes": walk.changes}
        typer.echo(json_format.dumps({**totals, "rooms": walk.rooms, **asdict(walk)}))
        return
    for room, files in walk.rooms:
        typer.echo(f"{room:12} {', '.join(file.removeprefix(room + '/') for file in files)}")
    if functions:
        for file, name in walk.calls:
            typer.echo(f"  {file}: {name}")
    typer.echo(f"{len(walk.files)} files, {walk.changes} changes of room")


if __name__ == "__main__":
    common.main(command)
