"""The same captioner by every backend: torch, onnxruntime and archives of torch.export, in 32 and 8 bits.

python benchmarks/runtimes.py --model my-captioner --picture photo.jpg
"""

from __future__ import annotations

import json as json_format
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import optional_row, progress, report, set_up
from meshcap.captioner import Captioner
from meshcap.data.scenes import draw_scene
from meshcap.errors import FailedError
from meshcap.export import export_captioner

PROCESS = str(Path(__file__).with_name("process.py"))
# name -> (backend, dtype, the folder it reads); a folder is written by `write_folder`
BACKENDS = {
    "torch float32": ("torch", "float32", "model"),
    "torch bfloat16": ("torch", "bfloat16", "model"),
    "torch int8": ("torch", "int8", "model"),
    "torch.export": ("torch-export", "float32", "torch"),
    "onnx float32": ("onnx", "float32", "onnx"),
    "onnx int8": ("onnx", "float32", "onnx-int8"),
}
COLUMNS = ("backend", "a picture", "waited", "cold start", "memory", "files", "same captions")


@dataclass(frozen=True)
class Row:
    """One backend. Seconds are of the CPU (what the work took, whatever else the machine was busy with) but for one."""

    backend: str
    seconds: float = 0.0  # of a picture, from its file to its caption
    waited: float = 0.0  # seconds of the clock for it
    start: float = 0.0  # of a new process, from nothing to its first caption
    memory: float = 0.0  # bytes at most
    files: int = 0  # bytes
    same: int = 0  # captions like those of torch float32, word for word
    pictures: int = 0
    missing: str | None = None  # why it could not be measured

    def cells(self) -> list[str]:
        if self.missing:
            return [self.backend, self.missing, *[""] * (len(COLUMNS) - 2)]
        return [
            self.backend,
            f"{self.seconds:.3f} s",
            f"{self.waited:.3f} s",
            f"{self.start:.1f} s",
            f"{self.memory / 2**20:,.0f} MiB",
            f"{self.files / 1e6:.1f} MB",
            f"{self.same} of {self.pictures}",
        ]


def bench_runtimes(
    model: str,
    pictures: Sequence[Path],
    *,
    beams: int,
    repeat: int,
    threads: int,
    seed: int = 0,
    say: Callable[[str], object] = lambda line: None,
) -> list[Row]:
    """A row for each backend.

    Args:
        model: a model folder or name.
        pictures: files; none: sixteen drawn scenes.
        say: is called with what is measured next.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="meshcap-bench-") as temporary:
        place = Path(temporary)
        photos = [str(path.resolve()) for path in pictures] or drawn(place / "scenes", seed)
        captioner = Captioner.from_pretrained(model, device="cpu", dtype="float32")
        reference: list[list[str]] | None = None
        for name, (backend, dtype, which) in BACKENDS.items():
            say(name)
            with optional_row(lambda why, name=name: rows.append(Row(name, missing=why))):  # type: ignore[misc]
                folder = write_folder(captioner, place / which)
                job = {
                    "who": "meshcap", "model": str(folder), "backend": backend, "dtype": dtype, "photos": photos,
                    "beams": beams, "repeat": repeat, "threads": threads,
                }  # fmt: skip
                found = in_a_process(name, job)
                reference = reference or found["captions"]
                rows.append(
                    Row(
                        backend=name,
                        seconds=found["cpu_seconds"],
                        waited=found["seconds"],
                        start=found["start"],
                        memory=found["memory"],
                        files=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
                        same=sum(a == b for a, b in zip(reference, found["captions"], strict=True)),
                        pictures=len(photos),
                    )
                )
    return rows


def in_a_process(name: str, job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, PROCESS, json_format.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FailedError(f"{name} could not be measured: {last}")
    found: dict[str, Any] = json_format.loads(done.stdout.splitlines()[-1])
    return found


def write_folder(captioner: Captioner, folder: Path) -> Path:
    """The model saved as float32, or one of its exports, by the folder's name; once."""
    if not folder.exists():
        if folder.name == "model":
            captioner.save_pretrained(folder)
        elif folder.name == "torch":
            export_captioner(captioner, folder, format="torch")
        else:
            export_captioner(captioner, folder, bits=8 if folder.name == "onnx-int8" else 32)
    return folder


def drawn(folder: Path, seed: int, count: int = 16) -> list[str]:
    folder.mkdir()
    paths = [folder / f"{number:02}.png" for number in range(count)]
    for number, path in enumerate(paths):
        draw_scene(seed * count + number, size=256).image.save(path)
    return [str(path) for path in paths]


def command(
    model: common.Model = "default",
    pictures: Annotated[
        list[Path] | None,
        typer.Option("--picture", help="A picture; may be given several times.", show_default="sixteen drawn scenes"),
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    repeat: Annotated[int, typer.Option(min=1, help="Captions of each picture; the median counts.")] = 3,
    threads: common.Threads = 1,
    seed: common.Seed = 0,
    json: common.Json = False,
) -> None:
    """Caption with torch, onnxruntime and torch.export, in 32 and 8 bits, each in a process of its own."""
    where = set_up("cpu", threads, seed)
    rows = bench_runtimes(
        model, pictures or [], beams=beams, repeat=repeat, threads=threads or 1, seed=seed, say=progress
    )
    report(f"Backends, beam {beams}", rows, where, json, COLUMNS)


if __name__ == "__main__":
    common.main(command)
