"""What a caption costs on a CPU, from a cold start to a folder of photos, beside captioners of transformers.

Every row is measured in processes of its own: one for the cold start, from the shell's view, and one for the rest.
`--parts` says instead where the time goes, of the start and of a photo, in all numbers and exported as ONNX.

    python benchmarks/caption.py --model my-captioner --no-peers
    python benchmarks/caption.py --parts --repeat 5
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script

from benchmarks import common
from benchmarks.common import optional_row, progress, report, set_up
from benchmarks.process import PEERS
from meshcap.errors import MeshcapError

SIZE = (640, 480)
PROCESS = str(Path(__file__).with_name("process.py"))
EXAMPLES = Path(__file__).parents[1] / "examples"
COLD_STARTS = 3  # of ours; the first may also read files from the disk


@dataclass
class Cost:
    """Of one captioner on this machine."""

    name: str
    cold_start: float = 0.0  # seconds from the shell to the first caption
    photo: float = 0.0  # seconds of each further one
    photo_cpu: float = 0.0  # seconds of CPU for it, all threads together: what remains true on a busy machine
    folder: float | None = None  # photos a second, many at once; None: not measured
    memory: float = 0.0  # bytes at most
    parameters: int = 0
    file: int = 0  # bytes of weights
    missing: str | None = None  # why it could not be measured

    def cells(self) -> list[str]:
        if self.missing:
            return [self.name, self.missing, *[""] * (len(COLUMNS) - 2)]
        return [
            self.name,
            f"{self.cold_start:.2f} s",
            f"{self.photo:.3f} s",
            f"{self.photo_cpu:.3f} s",
            "" if self.folder is None else f"{self.folder:.1f}/s",
            f"{self.memory / 1e6:,.0f} MB",
            f"{self.parameters / 1e6:.1f} M",
            f"{self.file / 1e6:,.1f} MB",
        ]


@dataclass
class Parts:
    """Where the time of one captioner goes, in seconds: of a start, and of a photo."""

    name: str
    torch: float = 0.0  # importing it
    meshcap: float = 0.0  # importing the rest
    weights: float = 0.0  # reading them and laying them out
    first: float = 0.0  # the first caption, which sets up
    cold_start: float = 0.0  # of the whole command, from the shell
    decode: float = 0.0
    vision: float = 0.0
    encoder: float = 0.0  # 0: part of the vision
    decoder: float = 0.0
    text: float = 0.0
    photo: float = 0.0  # all of it
    same: int = 0  # captions like those of the first row, word for word
    photos: int = 0
    missing: str | None = None

    def cells(self) -> list[str]:
        if self.missing:
            return [self.name, self.missing, *[""] * (len(PARTS) - 2)]
        start = (self.torch, self.meshcap, self.weights, self.first, self.cold_start)
        parts = (self.decode, self.vision, self.encoder, self.decoder, self.text, self.photo)
        return [
            self.name,
            *(f"{one:.2f} s" for one in start),
            *(f"{one * 1e3:.1f} ms" if one else "" for one in parts),
            f"{self.same} of {self.photos}",
        ]


PARTS = (
    "captioner", "torch", "meshcap", "weights", "first", "cold start",
    "decode", "vision", "encoder", "decoder", "text", "a photo", "same captions",
)  # fmt: skip
COLUMNS = ("captioner", "cold start", "a photo", "CPU of it", "a folder", "memory", "weights", "file")


def bench_caption(
    model: Path,
    *,
    dtypes: Sequence[str],
    peers: Sequence[str],
    pictures: int,
    beams: int,
    words: int,
    repeat: int,
    threads: int,
    say: Callable[[str], None] = lambda line: None,
) -> list[Cost]:
    """A row for our captioner in each dtype, then one for each peer.

    Args:
        words: tokens of every caption, so that all say equally much.
        say: is called with what is measured next.
    """
    rows: list[Cost] = []
    with tempfile.TemporaryDirectory() as place:
        photos = draw_photos(Path(place), pictures)
        work = {"photos": photos, "beams": beams, "words": words, "threads": threads, "folder": True}

        def ours(dtype: str) -> Cost:
            parameters, size = weights_of(model)
            command = _caption_command(model, photos[0], dtype, beams, words, threads)
            found = _process({"who": "meshcap", "model": str(model), "dtype": dtype, "repeat": repeat, **work})
            cold = statistics.median(_timed(command, threads)[0] for _ in range(min(COLD_STARTS, repeat)))
            return _row(f"meshcap, {dtype}", cold, found, parameters, size)

        def theirs(peer: str, name: str) -> Cost:
            if find_spec("transformers") is None:
                raise MeshcapError('pip install "meshcap[hf]"')
            folder = Path(place, peer)
            _timed([sys.executable, PROCESS, "--write-peer", peer, str(folder)], threads)
            job = {"who": peer, "model": str(folder), **work}
            cold, _ = _timed(_command({**job, "repeat": 0}), threads)
            found = _process({**job, "repeat": repeat})
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            for path in folder.iterdir():  # a gigabyte each
                path.unlink()
            return _row(name, cold, found, int(found["parameters"]), size)

        jobs: list[tuple[str, Callable[[], Cost]]] = [(f"meshcap, {one}", partial(ours, one)) for one in dtypes]
        for peer in peers:
            name = f"{PEERS[peer]} (random weights)"
            jobs.append((name, partial(theirs, peer, name)))
        for name, job in jobs:
            say(name)
            with optional_row(lambda why, name=name: rows.append(Cost(name, missing=why))):  # type: ignore[misc]
                rows.append(job())
    return rows


def bench_parts(
    model: Path,
    photos: Sequence[str],
    *,
    dtypes: Sequence[str],
    beams: int,
    words: int,
    repeat: int,
    threads: int,
    say: Callable[[str], None] = lambda line: None,
) -> list[Parts]:
    """A row for our captioner in each dtype, the first of which captions are compared with, and one for ONNX.

    Args:
        photos: files; none: four drawn ones.
    """
    from benchmarks.runtimes import write_folder
    from meshcap.captioner import Captioner

    rows: list[Parts] = []
    expected: list[list[str]] | None = None
    with tempfile.TemporaryDirectory() as place:
        photos = photos or draw_photos(Path(place), 4)
        size = {"beams": beams, "words": words, "threads": threads, "photos": list(photos), "repeat": repeat}
        for dtype in (*dtypes, "onnx"):
            say(dtype)
            with optional_row(lambda why, dtype=dtype: rows.append(Parts(dtype, missing=why))):  # type: ignore[misc]
                folder, numbers, backend = model, dtype, "torch"
                if dtype == "onnx":
                    loaded = Captioner.from_pretrained(model, device="cpu", dtype="float32")
                    folder, numbers, backend = write_folder(loaded, Path(place, "onnx")), "auto", "onnx"
                command = _caption_command(folder, photos[0], numbers, beams, words, threads)
                cold = statistics.median(_timed(command, threads)[0] for _ in range(min(COLD_STARTS, repeat)))
                found = _process({"parts": True, "model": str(folder), "dtype": numbers, "backend": backend, **size})
                captions = found.pop("captions")
                expected = expected or captions
                same = sum(one == other for one, other in zip(captions, expected, strict=True))
                rows.append(Parts(dtype, cold_start=cold, same=same, photos=len(photos), **found))
    return rows


def _caption_command(model: Path, photo: str, dtype: str, beams: int, words: int, threads: int) -> list[str]:
    """The command line of a caption of so many words, its end counted."""
    command = [sys.executable, "-m", "meshcap", "caption", photo, "--model", str(model)]
    command += ["--dtype", dtype, "--device", "cpu", "--beams", str(beams), "--threads", str(threads)]
    return [*command, "--min-words", str(words - 1), "--max-words", str(words - 1)]


def draw_photos(folder: Path, count: int) -> list[str]:
    """JPEG files of 640 × 480 pixels."""
    from meshcap.data.scenes import draw_scene

    paths = []
    for number in range(count):
        path = folder / f"{number:05}.jpg"
        draw_scene(number, SIZE[0]).image.convert("RGB").crop((0, 0, *SIZE)).save(path, quality=90)
        paths.append(str(path))
    return paths


def weights_of(model: Path) -> tuple[int, int]:
    """How many numbers the files of a model folder hold, and how many bytes they take."""
    from safetensors import SafetensorError, safe_open

    from meshcap.weights import LOW, PACKED, SCALE, STEP

    parameters = size = 0
    for path in sorted(model.rglob("*.safetensors")):
        size += path.stat().st_size
        try:
            with safe_open(path, framework="pt") as file:
                names = set(file.keys())
                for name in names:
                    numbers = math.prod(file.get_slice(name).get_shape())
                    packed = next((bits for bits, suffix in PACKED.items() if name.endswith(suffix)), None)
                    if packed is not None:
                        parameters += numbers * 8 // packed
                    elif not name.endswith((STEP, LOW)) and not (
                        name.endswith(SCALE) and name.removesuffix(SCALE) in names
                    ):
                        parameters += numbers
        except (SafetensorError, OSError) as error:
            raise MeshcapError(f"{path} is not a readable safetensors file ({error})") from error
    return parameters, size


def _row(name: str, cold: float, found: dict[str, Any], parameters: int, file: int) -> Cost:
    return Cost(name, cold, found["seconds"], found["cpu_seconds"], found["folder"], found["memory"], parameters, file)


def _command(job: dict[str, object]) -> list[str]:
    return [sys.executable, PROCESS, json.dumps(job)]


def _process(job: dict[str, object]) -> dict[str, Any]:
    _, out = _timed(_command(job), int(str(job["threads"])))
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _timed(command: list[str], threads: int) -> tuple[float, str]:
    """Seconds that a process took from start to end, and what it printed."""
    # Nothing is asked of the hub, and every library keeps to the same number of threads.
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **quiet, "OMP_NUM_THREADS": str(threads)}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
        raise MeshcapError(f"a measured process ended with {done.returncode}: {reason}")
    return seconds, done.stdout


def command(
    model: common.Model = "default",
    peers: Annotated[
        bool, typer.Option(help="Measure captioners of transformers too (random weights; needs the extra hf).")
    ] = True,
    parts: Annotated[
        bool, typer.Option("--parts", help="Say where the time goes, of the pictures in examples/, and no more.")
    ] = False,
    pictures: Annotated[int, typer.Option(min=1, help="Photos of the folder, 640 × 480 pixels.")] = 64,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    words: Annotated[int, typer.Option(min=2, max=54, help="Words of each caption, its end counted.")] = 12,
    repeat: Annotated[int, typer.Option(min=1, help="Photos timed one by one; the median counts.")] = 3,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32, bfloat16, float16 or int8; may be given several times.", show_default="(by CPU)"),
    ] = None,
    threads: common.Threads = 2,
    json: common.Json = False,
) -> None:
    """Time captions on a CPU, from a cold start to a folder of photos, beside captioners of transformers."""
    import torch

    from meshcap.backends.packed import can_pack
    from meshcap.folders import CONFIG, find_file, folder_of

    folder = folder_of(model)
    if not folder.is_dir():
        raise MeshcapError(f"{model} is no model folder here, and only such can be measured: expected one")
    find_file(folder, CONFIG)  # here, not in each process
    for one in dtype or []:
        if one not in ("float32", "bfloat16", "float16", "int8"):
            raise MeshcapError(f"--dtype is {one!r}, expected float32, bfloat16, float16 or int8")
    usual = [torch.float32, *(kind for kind in (torch.bfloat16, torch.int8) if can_pack(kind))]
    where = set_up("cpu", threads)
    dtypes = dtype or [str(kind).removeprefix("torch.") for kind in usual]
    if parts:
        photos = sorted(map(str, EXAMPLES.glob("*.jpg")))  # not in a copy of the benchmarks alone
        size = {"beams": beams, "words": words, "repeat": repeat, "threads": torch.get_num_threads()}
        found = bench_parts(folder, photos, dtypes=dtypes, **size, say=progress)
        report(f"Where the time goes, beam {beams}, {words} words", found, where, json, PARTS)
        return
    rows = bench_caption(
        folder,
        dtypes=dtypes,
        peers=tuple(PEERS) if peers else (),
        pictures=pictures,
        beams=beams,
        words=words,
        repeat=repeat,
        threads=torch.get_num_threads(),
        say=progress,
    )
    report(f"Captions, beam {beams}, {words} words", rows, where, json, COLUMNS)


if __name__ == "__main__":
    common.main(command)
