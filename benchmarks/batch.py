"""From files to sentences: how many photos a second `meshcap batch` captions, where the time goes, and what peers do.

Drawn photos, of 640 × 480 pixels and on a GPU also of 12 megapixels, as files of a folder and as members of tar shards;
in this process and, with `--workers`, on a Ray cluster of this machine. Peers are captioners of transformers of the
published sizes, with random weights and captions as long as ours, in the same numbers and fed by as many threads.

    python benchmarks/batch.py --workers 2
    python benchmarks/batch.py --device cuda
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # this repository, when run as a script


from benchmarks import common
from benchmarks.common import Row, optional_row, progress, report, set_up
from benchmarks.process import PEERS, build, read_for_peer, say_by_peer
from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.job import Blocks, Job, run
from meshcap.batch.local import BatchSettings, Block, caption_in_threads, row_of
from meshcap.batch.output import Delivery, json_lines
from meshcap.batch.ray import WorkerSettings, caption_blocks_with_ray, connect
from meshcap.captioner import Captioner
from meshcap.cli.batch import BATCHES, LANES
from meshcap.errors import FailedError
from meshcap.files import write_text
from meshcap.machine import peak_memory
from meshcap.options import CaptionOptions
from meshcap.vision.readers import can_read

DIFFERENT = 512  # pictures of 640 × 480 that are drawn, fewer of larger ones; more are other names of these
PER_SHARD = 1000
FEW = 4  # photos of 12 megapixels for 16 of 640 × 480: one takes several times the work
AHEAD = 2  # batches that are read, also for a peer, while one is captioned
MOST_OF_A_PEER = 64  # pictures that a peer captions together
BETWEEN_LOOKS = 0.1  # seconds between two looks at the GPU


@dataclass(frozen=True)
class Photos:
    """Drawn photos of one size: files of a folder, and the same as members of shards."""

    name: str
    files: Sequence[Picture]
    members: Sequence[Picture]

    @classmethod
    def draw(cls, place: Path, count: int, sides: tuple[int, int]) -> Photos:
        name = f"{sides[0]} × {sides[1]}"
        folder, shards = place / f"photos-{sides[0]}", place / f"shards-{sides[0]}"
        make_pictures(folder, count, sides=sides)
        shards.mkdir()
        paths = sorted(folder.iterdir())
        for start in range(0, count, PER_SHARD):
            with tarfile.open(shards / f"{start // PER_SHARD:05}.tar", "w") as tar:
                for path in paths[start : start + PER_SHARD]:
                    member = tarfile.TarInfo(path.name)  # whole: of a file's second name, `add` would keep the name
                    member.size = path.stat().st_size
                    with path.open("rb") as file:
                        tar.addfile(member, file)
        return cls(name, list_pictures([str(folder)]), list_pictures([str(shards)]))


def make_pictures(folder: Path, count: int, *, sides: tuple[int, int] = (640, 480), seed: int = 0) -> None:
    """JPEG files that are as large, and as slow to read, as photos: smooth colours with a little noise."""
    folder.mkdir(parents=True, exist_ok=True)
    different = min(count, max(16, DIFFERENT * 640 * 480 // (sides[0] * sides[1])))

    def draw(number: int) -> None:
        random = np.random.default_rng((seed, number))
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(sides, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + random.integers(-12, 13, (sides[1], sides[0], 1), dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:06}.jpg", quality=85)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(draw, range(different)))
    for number in range(different, count):
        original, copy = folder / f"{number % different:06}.jpg", folder / f"{number:06}.jpg"
        try:
            os.link(original, copy)
        except OSError:  # a file system without second names
            shutil.copy(original, copy)


@dataclass(frozen=True)
class Setting:
    """How jobs are carried out; `None` is what the command would choose."""

    device: torch.device
    beams: int = 5
    batch_size: int | None = None
    lanes: int | None = None
    repeat: int = 3

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def size(self) -> int:
        return self.batch_size or (128 if self.gpu else 16)

    @property
    def block(self) -> int:
        return self.size * (BATCHES if self.gpu else 1)

    @property
    def side_by_side(self) -> int:
        return self.lanes or (1 if self.gpu else min(os.cpu_count() or 1, LANES))

    @property
    def by_processes(self) -> bool:
        """Whether processes read, as they do for many pictures: from the first one on, so that their start is over."""
        return self.gpu and can_read()

    @property
    def threads(self) -> int:
        """Of a lane: those that compute on a CPU, and those (or the processes) that read."""
        return max(1, (os.cpu_count() or 1) // self.side_by_side)


def bench_batch(
    model: str,
    setting: Setting,
    *,
    pictures: int,
    widths: Sequence[int],
    workers: int = 0,
    peers: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Rows of each size of photos: the steps of a batch, each alone; whole jobs from a folder and from shards; peers.

    Args:
        pictures: of 640 × 480 in a job; a quarter as many of larger ones.
        workers: of a Ray cluster of this machine; 0: no cluster.
        model: a folder or a name.
        say: is called with what is measured next.
    """
    captioner = Captioner.from_pretrained(model, device=setting.device).optimize()
    # Every caption as long as it may be: the slowest case.
    words = min(19, captioner.model.config.max_length - 1)
    options = CaptionOptions(beams=setting.beams, max_words=words, min_words=words)
    settings = BatchSettings(options, setting.size, setting.threads, setting.by_processes)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        place, best = Path(temporary), 0.0
        for width in widths:
            sides = (width, width * 3 // 4)
            count = pictures if sides[0] * sides[1] < 2_000_000 else pictures * FEW // 16
            count = max(4 * setting.block * setting.side_by_side, count // setting.block * setting.block)
            say(f"drawing {count:,} photos of {sides[0]} × {sides[1]}")
            photos = Photos.draw(place, count, sides)
            say(f"steps, {photos.name}")
            steps = measure_steps(captioner, photos, settings, setting, place)
            rows += [step.row(photos.name, setting.size) for step in steps]
            for kind, listed in (("a folder", photos.files), ("tar shards", photos.members)):
                say(f"{kind}, {photos.name}")
                row = _measured(captioner, listed, settings, setting, place / f"{kind}-{width}", steps)
                row.work, row.setting = f"meshcap from {kind}", photos.name
                rows.append(row)
                if width == widths[0] and row.seconds:
                    best = max(best, len(listed) / row.seconds)
            if width == widths[0] and workers:
                rows.append(_with_ray(model, photos, settings, setting, workers, place))
        del captioner
        drawn = [picture.path for picture in list_pictures([str(place / f"photos-{widths[0]}")])]
        for peer in peers:
            name = f"{PEERS[peer]} (random weights)"
            say(name)
            with optional_row(lambda why, name=name: rows.append(Row(name, "", None, missing=why))):  # type: ignore[misc]
                rows.append(bench_peer(peer, drawn, setting, words + 1, best))
    return rows


@dataclass
class Step:
    """One step of a batch, with all others waiting."""

    name: str
    seconds: float  # of a batch
    # "readers", "GPU", "main thread" or "writer": steps of different ones go on at the same time; "": no step of a job,
    # which reads otherwise.
    where: str
    cpu: float = 0.0  # seconds of all threads

    def row(self, photos: str, pictures: int) -> Row:
        notes = {"CPU": f"{self.cpu * 1e3 / pictures:.2f} ms a picture"} if self.cpu else {}
        rate = f"{pictures / self.seconds:,.0f} pictures/s"
        return Row(self.name, f"{photos}, {pictures} pictures", self.seconds, rate, notes=notes)


def measure_steps(
    captioner: Captioner, photos: Photos, settings: BatchSettings, setting: Setting, place: Path
) -> list[Step]:
    """What a batch takes, step by step: the medians of some batches."""
    found: dict[str, Step] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    vision = captioner.backend.prepared().vision  # type: ignore[attr-defined]
    device = "GPU" if setting.gpu else "main thread"
    decode = f"decode, {setting.threads} thread{'s' * (setting.threads > 1)}"
    read_apart = f"read and decode, {setting.threads} process{'es' * (setting.threads > 1)}"
    by_threads, by_processes = ("", "readers") if setting.by_processes else ("readers", "")

    def timed(name: str, where: str, work: Callable[..., Any], *given: Any, batches: int = 1) -> Any:
        before, started = time.process_time(), time.perf_counter()
        result = work(*given)
        if setting.gpu:
            torch.cuda.synchronize(setting.device)
        cpu = 0.0 if name == read_apart else time.process_time() - before  # which is others', who still live
        times.setdefault(name, []).append(((time.perf_counter() - started) / batches, cpu))
        seconds, cpu = (statistics.median(one[part] for one in times[name][1:] or times[name]) for part in (0, 1))
        found[name] = Step(name, seconds, where, cpu)
        return result

    def copied(pixels: list[np.ndarray] | np.ndarray) -> torch.Tensor:
        stacked: torch.Tensor = torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else vision.stack(pixels)
        if not setting.gpu:
            return stacked
        pinned = torch.empty_like(stacked, pin_memory=True)
        np.copyto(pinned.numpy(), stacked.numpy())
        return pinned.to(setting.device, non_blocking=True)

    @torch.no_grad()
    def seen(pixels: torch.Tensor) -> Any:
        return vision(pixels.contiguous())

    def written(rows: list[dict[str, Any]]) -> None:
        write_text(place / "rows.jsonl", json_lines(rows))

    def read(batch: Sequence[Picture]) -> list[bytes]:
        return [Path(one.path).read_bytes() for one in batch]

    def decoded(content: list[bytes]) -> list[np.ndarray]:
        return list(threads.map(captioner.read, content))

    def decoded_apart(batch: Sequence[Picture]) -> np.ndarray:
        """As many times as a job has batches read ahead: whose process is done with one begins the next."""
        assert readers is not None
        rows = np.empty(0, np.uint8)
        for begun in [readers.begin([one.path for one in batch]) for _ in range(AHEAD + 1)]:
            if begun is None:
                raise FailedError("no process could be started")
            rows, problems = readers.finish(begun)
            if problems:
                raise FailedError(f"a picture was not read: {next(iter(problems.values()))}")
        return rows.transpose(0, 3, 1, 2)

    batches = [photos.files[start : start + setting.size] for start in range(0, len(photos.files), setting.size)]
    readers = captioner.readers(setting.size, setting.threads, True)
    with ThreadPoolExecutor(setting.threads) as threads, readers or nullcontext():
        for number in range(1 + setting.repeat):  # the first sets up
            batch = batches[number % len(batches)]
            pixels = timed(decode, by_threads, decoded, timed("read", by_threads, read, batch))
            if readers is not None:
                together = timed(read_apart, by_processes, decoded_apart, batch, batches=AHEAD + 1)
                pixels = together if setting.by_processes else pixels
            regions = timed("see", device, seen, timed("copy", device, copied, pixels))
            hypotheses = timed("search", device, captioner.search, regions, settings.options)
            captions = timed("say", "main thread", captioner.say, hypotheses, settings.options)
            rows = [row_of(one, caption, settings) for one, caption in zip(batch, captions, strict=True)]
            timed("write", "writer", written, rows)
    return list(found.values())


def _measured(
    captioner: Captioner,
    listed: Sequence[Picture],
    settings: BatchSettings,
    setting: Setting,
    folder: Path,
    steps: Sequence[Step],
) -> Row:
    """Whole jobs, as the command runs them: read, captioned, written in blocks. Starting up does not count.

    With a GPU, the floor is the slowest of those who work side by side, each by its steps.
    """
    lanes = setting.side_by_side

    def here(blocks: list[Block]) -> Blocks:
        threads = 1 if setting.gpu else setting.threads
        return caption_in_threads(captioner, blocks, settings, lanes=lanes, threads=threads)

    runs, busy, driver = [], [], driver_of(setting.device)
    for number in range(setting.repeat):
        with gpu_use(driver) as seen:
            runs.append(_job(folder / str(number), listed, here, lanes, setting.block))
        busy += seen
    seconds, cpu = (statistics.median(one[part] for one in runs) for part in (0, 1))
    notes = {"CPU": f"{cpu * 1e3 / len(listed):.1f} ms a picture"}
    floor = None
    if setting.gpu:
        of = {one.where: 0.0 for one in steps if one.where}
        for one in steps:
            if one.where:
                of[one.where] += one.seconds
        floor = max(of.values()) / setting.size * len(listed)
        notes["GPU busy"] = f"{of['GPU'] / setting.size * len(listed) / seconds:.0%} by its steps"
        if busy:
            notes["GPU busy"] += f" and {statistics.mean(busy):.0f}% by its driver"
        notes["limit"] = max(of, key=lambda where: of[where])
    notes["a million in"] = f"{1e6 / len(listed) * seconds / 3600:.2f} h"
    memory = peak_memory(setting.device)
    return Row("", "", seconds, f"{len(listed) / seconds:,.1f} pictures/s", memory, floor=floor, notes=notes)


@contextmanager
def gpu_use(look: Callable[[], float] | None) -> Iterator[list[float]]:
    """In how many percent of the time a GPU was at work while the block ran, looked at ten times a second."""
    found: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while look is not None and not stop.wait(BETWEEN_LOOKS):
            found.append(look())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield found
    finally:
        stop.set()
        watching.join()


def driver_of(device: torch.device) -> Callable[[], float] | None:
    """What asks the driver (NVML) for the use of a GPU, in percent; None where it cannot be asked."""
    if device.type != "cuda":
        return None
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, numbers = ctypes.c_void_p(), (ctypes.c_uint * 2)()  # of the GPU, and of its memory
    name = f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}".encode()
    if library.nvmlInit_v2() or (
        library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
        and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    ):
        return None

    def look() -> float:
        library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(numbers))
        return float(numbers[0])

    return look


def _with_ray(model: str, photos: Photos, settings: BatchSettings, setting: Setting, workers: int, place: Path) -> Row:
    name = f"{photos.name}, {workers} worker{'s' * (workers > 1)}"
    missing: list[str] = []
    with optional_row(missing.append):
        connect("local", cpus=workers)

        def with_ray(blocks: list[Block]) -> Blocks:
            worker = WorkerSettings(model, setting.device.type, "auto", settings)
            return caption_blocks_with_ray(worker, blocks, workers=workers)

        runs = [
            _job(place / f"ray-{number}", photos.files, with_ray, workers, setting.block)
            for number in range(setting.repeat)
        ]
        seconds = statistics.median(one for one, _ in runs)
        return Row("meshcap with Ray", name, seconds, f"{len(photos.files) / seconds:,.1f} pictures/s")
    return Row("meshcap with Ray", name, None, missing=missing[0])


def bench_peer(name: str, paths: Sequence[str], setting: Setting, words: int, ours: float) -> Row:
    """Photos of a folder to tokens: threads read ahead while the model speaks. The first batch sets up.

    Args:
        words: tokens of every caption.
        ours: photos a second of meshcap.

    Raises:
        FailedError: this transformers has no such model, or it fails.
    """
    kind = torch.bfloat16 if setting.gpu else torch.float32
    size = min(setting.size, MOST_OF_A_PEER)
    batches = [paths[start : start + size] for start in range(0, len(paths), size)][: 1 + 2 * setting.repeat]
    batches = [batch for batch in batches if len(batch) == size]
    try:
        torch.manual_seed(0)
        model = build(name).to(kind).to(setting.device).eval()
        ends: list[float] = []
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            reading: deque[list[Future[Any]]] = deque()
            rest = iter(batches)
            for _ in batches:
                while len(reading) <= AHEAD and (batch := next(rest, None)) is not None:
                    reading.append([threads.submit(read_for_peer, name, path) for path in batch])
                pixels = torch.from_numpy(np.stack([one.result() for one in reading.popleft()]))
                if setting.gpu:
                    pixels = pixels.pin_memory().to(setting.device, non_blocking=True)
                say_by_peer(name, model, pixels, setting.beams, words).tolist()  # which waits for the GPU
                ends.append(time.perf_counter())
        parameters = sum(weight.numel() for weight in model.parameters())
        del model
    except Exception as error:  # a peer that fails costs its own row
        raise FailedError(f"{type(error).__name__}: {error}") from error
    finally:
        if setting.gpu:
            torch.cuda.empty_cache()
    rate = size * (len(ends) - 1) / (ends[-1] - ends[0])
    notes = {"weights": f"{parameters / 1e6:.0f} M", "meshcap": f"×{ours / rate:.1f}"}
    row = Row(f"{PEERS[name]} (random weights)", f"{size} pictures together", len(paths) / rate, notes=notes)
    row.rate = f"{rate:,.1f} pictures/s"
    return row


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
    folder: Path, pictures: Sequence[Picture], caption: Callable[[list[Block]], Blocks], side: int, block: int
) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process and of those that read for it. The start of threads and actors does not
    count: time runs from when each of those that work side by side may have done its first block, to when all is
    written. Of processes that read, only the whole CPU time is known, and only when they are over."""
    times: list[tuple[float, float, int]] = []

    def watched(blocks: list[Block]) -> Blocks:
        for number, rows in caption(blocks):
            times.append((time.perf_counter(), time.process_time(), len(rows)))
            if wrong := next((row["error"] for row in rows if "error" in row), None):
                raise FailedError(f"a picture was not captioned: {wrong}")
            yield number, rows

    before = os.times()
    with Job(folder, pictures, {}, block=block) as parts:
        run(parts, watched, Delivery(), lambda done, failed: None)
    after = os.times()
    others = after.children_user + after.children_system - before.children_user - before.children_system
    first, last = times[side - 1], (time.perf_counter(), time.process_time())
    scale = len(pictures) / sum(count for _, _, count in times[side:])
    return (last[0] - first[0]) * scale, (last[1] - first[1]) * scale + others


def command(
    pictures: Annotated[
        int | None, typer.Option(min=64, help="Pictures of a job.", show_default="256, with a GPU 8192")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 5,
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Batches captioned side by side in this process.", show_default="auto")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Of a Ray cluster of this machine; 0: none.")] = 0,
    listed: Annotated[
        int | None, typer.Option(min=0, help="Also list so many paths; 0: none.", show_default="1000000, with a GPU 0")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Pictures captioned together.", show_default="16, with a GPU 128")
    ] = None,
    width: Annotated[
        list[int] | None,
        typer.Option(
            min=64,
            help="Pixels of a photo's width, its height is three quarters; may be given several times.",
            show_default="640, with a GPU also 4032",
        ),
    ] = None,
    peers: Annotated[
        bool | None,
        typer.Option(help="Also BLIP-base, GIT-base and Florence-2-base of transformers.", show_default="with a GPU"),
    ] = None,
    model: common.Model = "default",
    device: common.Device = "cpu",
    repeat: common.Repeat = 3,
    json: common.Json = False,
) -> None:
    """Time whole jobs of `meshcap batch` and their steps: drawn photos from a folder and from shards, beside peers."""
    where = set_up(device)
    gpu = where.type == "cuda"
    setting = Setting(where, beams, batch_size, lanes, repeat)
    if not gpu:
        torch.set_num_threads(setting.threads)  # steps are measured as a lane does them
    rows = bench_batch(
        model,
        setting,
        pictures=pictures or (8192 if gpu else 256),
        widths=width or ([640, 4032] if gpu else [640]),
        workers=workers,
        peers=[name for name in PEERS if name != "vit-gpt2"] if (gpu if peers is None else peers) else (),
        say=progress,
    )
    listed = (0 if gpu else 1_000_000) if listed is None else listed
    rows += [bench_listing(listed)] if listed else []
    report("From files to sentences", rows, where, json)


if __name__ == "__main__":
    common.main(command)
