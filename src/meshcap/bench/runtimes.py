"""The same captioner by every runtime: torch, onnxruntime and archives of torch.export, in 32 and 8 bits."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from meshcap.bench.decode import random_model
from meshcap.captioner import Captioner
from meshcap.data.draw import draw_scene
from meshcap.errors import FailedError
from meshcap.export import as_saved, export_captioner
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

# name -> the folder it reads, in `folders_of`
RUNTIMES = {
    "torch float32": "model",
    "torch int8": "model",
    "torch.export": "torch",
    "onnx float32": "onnx",
    "onnx int8": "onnx-int8",
}


@dataclass(frozen=True)
class Row:
    """One runtime. Seconds are of the CPU: what the work took, whatever else the machine was busy with."""

    runtime: str
    seconds: float  # of a picture, from its file to its caption
    start: float  # of a new process, from nothing to its first caption
    memory: float  # bytes at most
    files: int  # bytes
    same: int  # captions like those of torch float32, word for word
    pictures: int

    def cells(self) -> list[str]:
        return [
            self.runtime,
            f"{self.seconds:.3f} s",
            f"{self.start:.1f} s",
            f"{self.memory / 2**20:,.0f} MiB",
            f"{self.files / 1e6:.1f} MB",
            f"{self.same} of {self.pictures}",
        ]


def bench_runtimes(
    model: str | None,
    pictures: Sequence[Path],
    *,
    beams: int,
    repeat: int,
    threads: int,
    seed: int = 0,
    say: Callable[[str], object] = lambda line: None,
) -> list[Row]:
    """A row for each runtime.

    Args:
        model: a model folder or name; None: random weights of the size of the model that comes with meshcap.
        pictures: files; none: sixteen drawn scenes.
        say: is told what is being done.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="meshcap-bench-") as temporary:
        place = Path(temporary)
        say("exporting")
        folders = folders_of(place, model, seed)
        photos = [str(path.resolve()) for path in pictures] or drawn(place / "scenes", seed)
        reference: list[list[str]] | None = None
        for name, which in RUNTIMES.items():
            say(name)
            asked = {
                "folder": str(folders[which]), "runtime": name, "photos": photos,
                "beams": beams, "repeat": repeat, "threads": threads,
            }  # fmt: skip
            told = in_a_process(asked)
            reference = reference or told["captions"]
            rows.append(
                Row(
                    runtime=name,
                    seconds=told["seconds"],
                    start=told["start"],
                    memory=told["memory"],
                    files=sum(path.stat().st_size for path in folders[which].rglob("*") if path.is_file()),
                    same=sum(a == b for a, b in zip(reference, told["captions"], strict=True)),
                    pictures=len(photos),
                )
            )
    return rows


def in_a_process(asked: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "meshcap.bench.runtimes_run", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FailedError(f"{asked['runtime']} could not be measured: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def folders_of(place: Path, model: str | None, seed: int) -> dict[str, Path]:
    """The model itself, saved as float32, and its exports."""
    captioner = as_saved(model) if model else random_captioner(seed)
    captioner.save_pretrained(place / "model")
    export_captioner(captioner, place / "torch", format="torch")
    export_captioner(captioner, place / "onnx")
    export_captioner(captioner, place / "onnx-int8", bits=8)
    return {name: place / name for name in ("model", "torch", "onnx", "onnx-int8")}


def random_captioner(seed: int) -> Captioner:
    """What comes with meshcap, in size: M² of width 448 and EfficientNet-Lite2; all but the eyes know nothing."""
    vision = create_vision("efficientnet-lite2")
    model = random_model(
        seed, vocab_size=10_000, d_input=vision.width, d_model=448, heads=7, d_ff=1792, max_length=24
    )
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"word{number}" for number in range(9_996))]
    return Captioner(model, Vocabulary(words), vision)


def drawn(folder: Path, seed: int, count: int = 16) -> list[str]:
    folder.mkdir()
    paths = [folder / f"{number:02}.png" for number in range(count)]
    for number, path in enumerate(paths):
        draw_scene(seed * count + number, size=256).image.save(path)
    return [str(path) for path in paths]


def show(title: str, rows: Sequence[Row], console: Console | None = None) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("runtime", "a picture", "cold start", "memory", "files", "same captions"):
        table.add_column(name, justify="left" if name == "runtime" else "right")
    for row in rows:
        table.add_row(*row.cells())
    (console or Console(width=110)).print(table)
