"""How many pictures a second `meshcap batch` captions: a captioner of the shipped size with random weights, drawn
photos of 640 × 480, in this process and on a Ray cluster of this machine.

Random weights never say the end of their own accord, so every caption is as long as it may be: the slowest case.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.job import Blocks, Job, run
from meshcap.batch.local import BatchSettings, Block, caption_in_threads
from meshcap.batch.output import Delivery
from meshcap.batch.ray import WorkerSettings, caption_blocks_with_ray, connect
from meshcap.bench.measure import Row, peak_memory
from meshcap.captioner import Captioner
from meshcap.decoding import Beam
from meshcap.models import M2, M2Config
from meshcap.stream import Reader
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

WORDS = 10_000
SIDES = (640, 480)
BLOCK = 16  # a batch: small, so that few pictures do for a measurement


def make_model(folder: Path, *, seed: int = 0) -> None:
    """A model folder of the shipped size."""
    torch.manual_seed(seed)
    vision = create_vision("efficientnet-lite2", size=260)
    config = M2Config(
        vocab_size=WORDS, d_input=vision.width, d_model=448, heads=7, encoder_layers=3, decoder_layers=3, slots=40,
        tied_words=True,
    )  # fmt: skip
    specials = ["<unk>", "<pad>", "<bos>", "<eos>"]
    words = Vocabulary([*specials, *(f"word{number}" for number in range(WORDS - len(specials)))])
    Captioner(M2(config), words, vision).save_pretrained(folder)


def make_pictures(folder: Path, count: int, *, seed: int = 0) -> None:
    """JPEG files that are as large, and as slow to read, as photos: smooth colours with a little noise."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(SIDES, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + random.integers(-12, 13, (SIDES[1], SIDES[0], 1))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:06}.jpg", quality=85)


def bench_batch(*, pictures: int, beams: int, lanes: int, workers: int, model: str | None, repeat: int) -> list[Row]:
    """Whole jobs, as the command runs them: read, captioned, written in blocks. Starting up does not count.

    Args:
        lanes: batches captioned side by side in this process, on a thread each.
        workers: of a Ray cluster of this machine; 0: no cluster.
        model: a folder; None: random weights of the shipped size.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if model is None:
            make_model(folder / "model")
        make_pictures(folder / "photos", pictures)
        listed = list_pictures([str(folder / "photos")])
        place_of = model or str(folder / "model")
        captioner = Captioner.from_pretrained(place_of)
        settings = BatchSettings(readers=1)
        strategy = Beam(beams)
        long = min(20, captioner.model.config.max_length)

        def here(blocks: list[Block]) -> Blocks:
            return caption_in_threads(
                captioner, blocks, settings, lanes=lanes, strategy=strategy, max_length=long, min_length=2
            )

        works: list[tuple[str, int, str, Callable[[list[Block]], Blocks]]] = [("this process", lanes, "lane", here)]
        if workers:
            connect(None, cpus=workers)
            recipe = WorkerSettings(
                place_of, "cpu", "float32", {"readers": 1}, {"max_length": long, "min_length": 2}, beams
            )
            works.append(
                ("Ray", workers, "worker", lambda blocks: caption_blocks_with_ray(recipe, blocks, workers=workers))
            )
        rows = [_reading(captioner, listed)]
        for work, side, name, caption in works:
            setting = f"{side} {name}{'s' * (side > 1)}"
            runs = [_job(folder / f"{work}-{number}", listed, caption, side) for number in range(repeat)]
            seconds, cpu = (statistics.median(one[part] for one in runs) for part in (0, 1))
            notes = {"CPU": f"{cpu * 1e3 / pictures:.0f} ms a picture"} if work == "this process" else {}
            rate = f"{pictures / seconds:.1f} pictures/s"
            rows.append(Row(work, setting, seconds, rate, peak_memory(torch.device("cpu")), notes=notes))
        return rows


def _reading(captioner: Captioner, pictures: list[Picture]) -> Row:
    """From files to pixels, on one thread: what a GPU waits for."""
    assert captioner.vision is not None
    reader = Reader(captioner.vision.preprocess)
    start = time.process_time()
    for picture in pictures:
        reader.read(picture.path)
    seconds = time.process_time() - start
    rate = f"{len(pictures) / seconds:.0f} pictures/s"
    notes = {"CPU": f"{seconds * 1e3 / len(pictures):.1f} ms a picture"}
    return Row("reading alone", "1 thread", seconds, rate, peak_memory(torch.device("cpu")), notes=notes)


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
    folder: Path, pictures: list[Picture], caption: Callable[[list[Block]], Blocks], side: int
) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process. The start of threads and actors does not count: time runs from when
    each of those that work side by side may have done its first block."""
    times: list[tuple[float, float, int]] = []

    def tell(count: int, _: int) -> None:
        times.append((time.perf_counter(), time.process_time(), count))

    with Job(folder, pictures, {}, block=BLOCK) as parts:
        run(parts, caption, Delivery(), tell)
    first, last = times[side - 1], times[-1]
    scale = len(pictures) / sum(count for _, _, count in times[side:])
    return (last[0] - first[0]) * scale, (last[1] - first[1]) * scale
