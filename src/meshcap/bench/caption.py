"""What a caption costs on a CPU, from a cold start to a folder of photos, beside captioners of transformers.

Every row is measured in processes of its own: one for the cold start, from the shell's view, and one for the rest.
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
from pathlib import Path

from meshcap.bench.caption_peers import PEERS, have_transformers
from meshcap.errors import MeshcapError

SIZE = (640, 480)
COLD_STARTS = 3  # of ours; the first may also read files from the disk


@dataclass
class Cost:
    """Of one captioner on this machine."""

    name: str
    cold_start: float  # seconds from the shell to the first caption
    photo: float  # seconds of each further one
    photo_cpu: float  # seconds of CPU for it, all threads together: what remains true on a busy machine
    folder: float | None  # photos a second, many at once; None: not measured
    memory: float  # bytes at most
    parameters: int
    file: int  # bytes of weights

    def cells(self) -> list[str]:
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
        say: told what is measured next, and what is left out.

    Raises:
        MeshcapError: the model cannot be read or cannot look at photos.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="meshcap-bench-") as place:
        photos = draw_photos(Path(place), pictures)
        work = {"photos": photos, "beams": beams, "words": words, "threads": threads}
        parameters, size = weights_of(model)
        for dtype in dtypes:
            say(f"meshcap, {dtype}")
            command = [sys.executable, "-m", "meshcap", "caption", photos[0], "--model", str(model)]
            command += ["--dtype", dtype, "--device", "cpu", "--beams", str(beams), "--threads", str(threads)]
            command += ["--min-words", str(words - 1), "--max-words", str(words - 1)]
            told = _process({"who": "meshcap", "model": str(model), "dtype": dtype, "repeat": repeat, **work})
            cold = statistics.median(_timed(command, threads)[0] for _ in range(min(COLD_STARTS, repeat)))
            rows.append(_row(f"meshcap, {dtype}", cold, told, parameters, size))
        if peers and not have_transformers():
            say("BLIP, GIT and ViT-GPT2 are left out: pip install 'meshcap[hf]'")
            peers = ()
        for peer in peers:
            say(PEERS[peer])
            folder = Path(place, peer)
            _timed([sys.executable, "-m", "meshcap.bench.caption_peers", peer, str(folder)], threads)
            job = {"who": peer, "model": str(folder), "dtype": "float32", **work}
            cold, _ = _timed(_command({**job, "repeat": 0}), threads)
            told = _process({**job, "repeat": repeat})
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            for path in folder.iterdir():  # a gigabyte each
                path.unlink()
            rows.append(_row(f"{PEERS[peer]} (random weights)", cold, told, int(told["parameters"]), size))
    return rows


def draw_photos(folder: Path, count: int) -> list[str]:
    """JPEG files of 640 × 480 pixels."""
    from meshcap.data.draw import draw_scene

    paths = []
    for number in range(count):
        path = folder / f"{number:05}.jpg"
        draw_scene(number, SIZE[0]).image.convert("RGB").crop((0, 0, *SIZE)).save(path, quality=90)
        paths.append(str(path))
    return paths


def weights_of(model: Path) -> tuple[int, int]:
    """How many numbers the files of a model folder hold, and how many bytes they take."""
    from safetensors import SafetensorError, safe_open

    from meshcap.weights import SCALE

    parameters = size = 0
    for path in sorted(model.rglob("*.safetensors")):
        size += path.stat().st_size
        try:
            with safe_open(path, framework="pt") as file:
                names = set(file.keys())
                for name in names:
                    if not (name.endswith(SCALE) and name.removesuffix(SCALE) in names):
                        parameters += math.prod(file.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise MeshcapError(f"{path} is not a readable safetensors file ({error})") from error
    return parameters, size


def show(title: str, rows: Sequence[Cost]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "captioner" else "right")
    for row in rows:
        table.add_row(*row.cells())
    Console(width=130).print(table)


def _row(name: str, cold: float, told: dict[str, float], parameters: int, file: int) -> Cost:
    return Cost(
        name, cold, told["seconds"], told["cpu_seconds"], told["folder"], told["memory"], parameters, file
    )


def _command(job: dict[str, object]) -> list[str]:
    return [sys.executable, "-m", "meshcap.bench.caption_run", json.dumps(job)]


def _process(job: dict[str, object]) -> dict[str, float]:
    _, out = _timed(_command(job), int(str(job["threads"])))
    return json.loads(out.splitlines()[-1])


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
