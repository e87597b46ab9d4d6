"""One runtime in a process of its own, timed: what `meshcap bench runtimes` starts for each row of its table.

It is given a JSON object as its only argument and prints one. Nothing is imported that the runtime itself does not
import: memory and the start are measured too.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from meshcap.bench.caption_run import peak_of_this_process


def run(*, folder: str, runtime: str, photos: list[str], beams: int, repeat: int, threads: int) -> dict[str, Any]:
    """Caption every photo, after the first one `repeat` more times each. Times are of the CPU, of all threads."""
    one: Any
    strategy: Any
    if runtime.startswith("torch ") or runtime == "torch.export":
        import torch

        torch.set_num_threads(threads)
    if runtime.startswith("torch "):
        from meshcap.captioner import Captioner as Ours
        from meshcap.decoding import Beam as OurBeam

        one, strategy = Ours.from_pretrained(folder, dtype=getattr(torch, runtime.split()[1])), OurBeam(beams)
    else:
        from meshcap.runtime import Beam, Captioner

        kind = "onnx" if runtime.startswith("onnx") else "torch-export"
        one, strategy = Captioner.from_pretrained(folder, runtime=kind, threads=threads), Beam(beams)
    one.caption(photos[0], strategy=strategy)
    start = time.process_time()  # of this process, since it began
    one.caption(photos[0], strategy=strategy)
    captions, seconds = [], []
    for photo in photos:
        for _ in range(repeat):
            before = time.process_time()
            said = one.caption(photo, strategy=strategy)
            seconds.append(time.process_time() - before)
        captions.append(said.words)
    return {
        "seconds": statistics.median(seconds),
        "start": start,
        "memory": peak_of_this_process(),
        "captions": captions,
        "torch": "torch" in sys.modules,
    }


if __name__ == "__main__":
    from meshcap.errors import MeshcapError

    try:
        found = run(**json.loads(sys.argv[1]))
    except MeshcapError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(found))
