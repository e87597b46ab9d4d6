"""One captioner in a process of its own, timed: what `meshcap bench caption` starts for each row of its table.

It is given a JSON object as its only argument and prints one. Nothing heavy is imported that the captioner itself does
not import: memory and the start are measured too.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class Told:
    """What one process found out about itself."""

    seconds: float  # of a photo, wall time
    cpu_seconds: float  # of a photo, all threads
    folder: float | None  # photos a second of a folder
    memory: float  # bytes at most
    parameters: int


def run(
    *, who: str, model: str, dtype: str, photos: list[str], beams: int, words: int, repeat: int, threads: int
) -> Told:
    """Caption the first photo `repeat` times after a warm-up, then (of ours) all of them as a folder.

    `repeat` of 0 captions the first photo once and measures nothing: a cold start.
    """
    import torch

    torch.set_num_threads(threads)
    one: Callable[[str], object]
    many: Callable[[], object] | None = None
    if who == "meshcap":
        one, many, parameters = _ours(model, dtype, photos, beams, words)
    else:
        from meshcap.bench.caption_peers import load_peer

        one, parameters = load_peer(who, Path(model), beams, words)
    one(photos[0])
    wall, cpu = [], []
    for _ in range(repeat):
        before, started = time.process_time(), time.perf_counter()
        one(photos[0])
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - before)
    folder = None
    if many is not None and repeat:
        started = time.perf_counter()
        many()
        folder = len(photos) / (time.perf_counter() - started)
    return Told(
        statistics.median(wall or [0.0]), statistics.median(cpu or [0.0]), folder, peak_of_this_process(), parameters
    )


def _ours(
    model: str, dtype: str, photos: list[str], beams: int, words: int
) -> tuple[Callable[[str], object], Callable[[], object], int]:
    import torch

    from meshcap.captioner import Captioner
    from meshcap.decoding import Beam
    from meshcap.stream import stream, together

    kind = getattr(torch, dtype)
    captioner = Captioner.from_pretrained(model, dtype=kind)
    if captioner.vision is None:
        from meshcap.errors import MeshcapError

        raise MeshcapError(f"{model} reads region features and cannot look at photos: expected a model with a vision")
    options: dict[str, Any] = {"strategy": Beam(beams), "max_length": words, "min_length": words}
    return (
        lambda photo: captioner.caption(photo, **options),
        lambda: list(stream(captioner, photos, batch=together(torch.device("cpu"), kind), **options)),
        0,  # packed weights no longer say how many they are: the file does
    )


def peak_of_this_process() -> float:
    """Bytes. `ru_maxrss` also remembers the process that started this one, so Linux is asked for its own count."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) if sys.platform == "darwin" else most * 1024.0


if __name__ == "__main__":
    from meshcap.errors import MeshcapError

    try:
        found = run(**json.loads(sys.argv[1]))
    except MeshcapError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(asdict(found)))
