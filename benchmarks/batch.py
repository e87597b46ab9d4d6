"""How many pictures a second `meshcap batch` captions, and where the time goes: drawn photos of 640 × 480 or another
size, in this process and on a Ray cluster of this machine.

    python benchmarks/batch.py --workers 2
    python benchmarks/batch.py --device cuda --batch-size 256 --pictures 8192 --listed 0
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script


from benchmarks import common
from benchmarks.common import Row, optional_row, report, set_up
from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.job import Blocks, Job, run
from meshcap.batch.local import BatchSettings, Block, caption_in_threads
from meshcap.batch.output import Delivery
from meshcap.batch.ray import WorkerSettings, caption_blocks_with_ray, connect
from meshcap.captioner import Captioner
from meshcap.machine import peak_memory
from meshcap.options import CaptionOptions

SIDES = (640, 480)
DIFFERENT = 512  # pictures that are drawn; more are copies of these


def make_pictures(folder: Path, count: int, *, sides: tuple[int, int] = SIDES, seed: int = 0) -> None:
    """JPEG files that are as large, and as slow to read, as photos: smooth colours with a little noise."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(min(count, DIFFERENT)):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(sides, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + random.integers(-12, 13, (sides[1], sides[0], 1))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:06}.jpg", quality=85)
    for number in range(DIFFERENT, count):
        shutil.copy(folder / f"{number % DIFFERENT:06}.jpg", folder / f"{number:06}.jpg")


def bench_batch(
    *,
    pictures: int,
    beams: int,
    lanes: int,
    workers: int,
    model: str,
    repeat: int,
    device: str = "cpu",
    batch_size: int = 16,
    sides: tuple[int, int] = SIDES,
) -> list[Row]:
    """Whole jobs, as the command runs them: read, captioned, written in blocks. Starting up does not count.

    Args:
        batch_size: pictures captioned together, and those of a block: few of them do for a measurement on a CPU.
        lanes: batches captioned side by side in this process, on a thread each.
        workers: of a Ray cluster of this machine; 0: no cluster.
        model: a folder or a name.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_pictures(folder / "photos", pictures, sides=sides)
        listed = list_pictures([str(folder / "photos")])
        numbers: Literal["auto", "float32"] = "float32" if device == "cpu" else "auto"
        captioner = Captioner.from_pretrained(model, device=device, dtype=numbers).optimize()
        # Every caption as long as it may be: the slowest case.
        words = min(19, captioner.model.config.max_length - 1)
        options = CaptionOptions(beams=beams, max_words=words, min_words=words)
        readers = 1 if device == "cpu" else os.cpu_count()
        settings = BatchSettings(options, batch_size=batch_size, readers=readers)

        def here(blocks: list[Block]) -> Blocks:
            return caption_in_threads(captioner, blocks, settings, lanes=lanes)

        def with_ray(blocks: list[Block]) -> Blocks:
            worker = WorkerSettings(model, device, numbers, settings)
            return caption_blocks_with_ray(worker, blocks, workers=workers)

        def measured(work: str, setting: str, side: int, caption: Callable[[list[Block]], Blocks]) -> Row:
            runs = [_job(folder / f"{work}-{number}", listed, caption, side, batch_size) for number in range(repeat)]
            seconds, cpu = (statistics.median(one[part] for one in runs) for part in (0, 1))
            notes = {"CPU": f"{cpu * 1e3 / pictures:.0f} ms a picture"} if caption is here else {}
            rate = f"{pictures / seconds:.1f} pictures/s"
            return Row(work, setting, seconds, rate, peak_memory(torch.device("cpu")), notes=notes)

        rows = [_reading(captioner, listed[:DIFFERENT]), *_steps(captioner, listed, options, batch_size)]
        rows.append(measured("this process", f"{lanes} lane{'s' * (lanes > 1)}", lanes, here))
        if workers:
            setting = f"{workers} worker{'s' * (workers > 1)}"
            with optional_row(lambda why: rows.append(Row("Ray", setting, None, missing=why))):
                connect("local", cpus=workers)
                rows.append(measured("Ray", setting, workers, with_ray))
        return rows


def _reading(captioner: Captioner, pictures: list[Picture]) -> Row:
    """From files to pixels, on one thread: what a GPU waits for."""
    start = time.process_time()
    for picture in pictures:
        captioner.read(picture.path)
    seconds = time.process_time() - start
    rate = f"{len(pictures) / seconds:.0f} pictures/s"
    notes = {"CPU": f"{seconds * 1e3 / len(pictures):.1f} ms a picture"}
    return Row("reading alone", "1 thread", seconds, rate, peak_memory(torch.device("cpu")), notes=notes)


def _steps(captioner: Captioner, pictures: list[Picture], options: CaptionOptions, batch_size: int) -> list[Row]:
    """Where the time of a batch goes: each step alone, the others waiting."""
    paths = [one.path for one in pictures[:batch_size]]
    taken: dict[str, float] = {}

    def timed(step: str, work: Callable[..., Any], *given: Any) -> Any:
        start = time.perf_counter()
        result = work(*given)
        if isinstance(captioner.device, torch.device) and captioner.device.type == "cuda":
            torch.cuda.synchronize()
        taken[step] = time.perf_counter() - start
        return result

    def read(threads: ThreadPoolExecutor) -> list[np.ndarray]:
        return list(threads.map(captioner.read, paths))

    for _ in range(2):  # the first sets up
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            pixels = timed(f"read, {os.cpu_count()} threads", read, threads)
        found = timed("search", captioner.search, timed("see", captioner.see, pixels), options)
        timed("say", captioner.say, found, options)
    return [
        Row(step, f"{len(paths)} pictures", seconds, f"{len(paths) / seconds:,.0f} pictures/s", 0.0)
        for step, seconds in taken.items()
    ]


def bench_listing(count: int) -> Row:
    """Naming pictures by a list of paths, remembering the job, and seeing what is to do."""
    with tempfile.TemporaryDirectory() as place:
        paths = Path(place, "list.txt")
        paths.write_text("".join(f"photos/{number // 1000:06}/{number:09}.jpg\n" for number in range(count)))
        start = time.process_time()
        pictures = list_pictures([str(paths)])
        with Job(Path(place, "job"), pictures, {}, block=64) as parts:
            blocks = len(parts.to_do())
        seconds = time.process_time() - start
    rate = f"{count / seconds:,.0f} pictures/s"
    return Row("listing", f"{count:,} paths, {blocks:,} blocks", seconds, rate, peak_memory(torch.device("cpu")))


def _job(
    folder: Path, pictures: list[Picture], caption: Callable[[list[Block]], Blocks], side: int, block: int
) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process. The start of threads and actors does not count: time runs from when
    each of those that work side by side may have done its first block."""
    times: list[tuple[float, float, int]] = []

    def tell(count: int, _: int) -> None:
        times.append((time.perf_counter(), time.process_time(), count))

    with Job(folder, pictures, {}, block=block) as parts:
        run(parts, caption, Delivery(), tell)
    first, last = times[side - 1], times[-1]
    scale = len(pictures) / sum(count for _, _, count in times[side:])
    return (last[0] - first[0]) * scale, (last[1] - first[1]) * scale


def command(
    pictures: Annotated[int, typer.Option(min=64, help="Pictures of a job.")] = 256,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    lanes: Annotated[int, typer.Option(min=1, help="Batches captioned side by side in this process.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Of a Ray cluster of this machine; 0: none.")] = 0,
    listed: Annotated[int, typer.Option(min=0, help="Also list so many paths; 0: none.")] = 1_000_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures captioned together.")] = 16,
    width: Annotated[int, typer.Option(min=64, help="Pixels of a photo's width; its height is three quarters.")] = 640,
    model: common.Model = "default",
    device: common.Device = "cpu",
    repeat: common.Repeat = 3,
    json: common.Json = False,
) -> None:
    """Time whole jobs of `meshcap batch` and their steps: drawn photos, in this process and with Ray."""
    where = set_up(device, 1 if device == "cpu" else None)
    rows = bench_batch(
        pictures=pictures,
        beams=beams,
        lanes=lanes,
        workers=workers,
        model=model,
        repeat=repeat,
        device=where.type,
        batch_size=batch_size,
        sides=(width, width * 3 // 4),
    )
    rows += [bench_listing(listed)] if listed else []
    report("Batch", rows, where, json)


if __name__ == "__main__":
    common.main(command)
