"""`meshcap data features`."""

from __future__ import annotations

import json as json_format
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from meshcap.cli import options
from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from torch import Tensor

    from meshcap.data import Source
    from meshcap.vision import Preprocess, Vision

Item = TypeVar("Item")
Result = TypeVar("Result")

NAMED = 3  # broken pictures that are named


def features(
    data: Annotated[Path, typer.Argument(help="A dataset (see `meshcap data check`), or a folder of pictures.")],
    out: Annotated[Path, typer.Option(help="A .hdf5 file, or a folder for one file a picture.")],
    vision: Annotated[str, typer.Option(help="What looks: efficientnet-lite2, hf:NAME, …, or a model folder.")] = (
        "efficientnet-lite2"
    ),
    pictures: Annotated[Path | None, typer.Option(help="Where the dataset's pictures are, if not beside it.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this one.", show_default="all")] = None,
    format: Annotated[
        Literal["hdf5", "safetensors", "npy"] | None,
        typer.Option(help="Of the files.", show_default="by the suffix of --out; safetensors in folders"),
    ] = None,
    store: Annotated[Literal["float16", "float32"], typer.Option(help="Numbers to store features with.")] = "float16",
    size: Annotated[int | None, typer.Option(help="Pixels of a side to look at.", show_default="its own")] = None,
    keep: Annotated[int | None, typer.Option(help="Of detectors: regions of a picture.", show_default="50")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures to look at together.")] = 32,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave unreadable pictures out instead of stopping.")
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Look at every picture once and keep its regions, for training to read.

    Called again, it goes on where it was stopped.

    Example: meshcap data features dataset_coco.json --pictures coco/ --vision hf:PekingU/rtdetr_r50vd --out coco.hdf5
    """
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from meshcap.data.feature_writer import FeatureWriter

    if dtype == "int8":
        raise MeshcapError("--dtype int8 is for captioning: use float32, bfloat16 or float16 here")
    where, precision = options.apply(device, dtype, threads, None)
    sources = picture_sources(data, pictures, split)
    eyes = _eyes(vision, size, keep)
    settings = {"vision": eyes.name, **eyes.settings(), "weights": fingerprint(eyes)}
    eyes = eyes.to(where, precision).eval().requires_grad_(False)
    broken: list[str] = []

    def read(item: tuple[str, Source]) -> tuple[str, Tensor | MeshcapError]:
        try:
            return item[0], read_pixels(item[1], eyes.preprocess)
        except MeshcapError as error:
            return item[0], error

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=json or not Console(stderr=True).is_terminal,
    )
    with FeatureWriter(out, format=format, settings=settings, precision=store) as writer, bar, torch.inference_mode():
        todo = [(id, source) for id, source in sources.items() if id not in writer.done]
        task = bar.add_task("looking", total=len(sources), completed=len(sources) - len(todo))
        reading = ahead(read, todo, 4 * batch_size)
        while batch := list(islice(reading, batch_size)):
            for _, pixels in batch:
                if isinstance(pixels, MeshcapError):
                    if not skip_broken:
                        raise MeshcapError(f"{pixels} (--skip-broken goes on without it)") from pixels
                    broken.append(str(pixels))
            seen = [(id, pixels) for id, pixels in batch if not isinstance(pixels, MeshcapError)]
            if seen:
                regions = eyes(torch.stack([pixels for _, pixels in seen]).to(where))
                boxes = [None] * len(seen) if regions.boxes is None else regions.boxes.cpu()
                for (id, _), numbers, places in zip(seen, regions.features.cpu(), boxes, strict=True):
                    writer.add(id, numbers, places)
            bar.advance(task, len(batch))
        if len(broken) == len(sources):
            raise MeshcapError(f"none of {len(sources):,} pictures can be read (first: {broken[0]})")
    if broken:
        first = "; ".join(broken[:NAMED]) + ("; …" if len(broken) > NAMED else "")
        typer.echo(f"warning: {len(broken):,} of {len(sources):,} pictures left out: {first}", err=True)
    told: dict[str, Any] = {
        "file": str(out),
        "pictures": len(sources) - len(broken),
        "new": len(todo) - len(broken),
        "width": eyes.width,
        "broken": broken,
    }
    if json:
        typer.echo(json_format.dumps(told, ensure_ascii=False))
    else:
        typer.echo(
            f"{out}: {told['pictures']:,} pictures, {told['new']:,} of them new, {eyes.width:,} numbers a region"
        )


def picture_sources(data: Path, pictures: Path | None, split: str | None) -> dict[str, Source]:
    """id -> picture of a dataset, or of a folder with nothing but pictures (whose ids are their names).

    Raises:
        MeshcapError: there are none, or a sample has none.
    """
    from meshcap.data import read_dataset
    from meshcap.data.dataset import FileSource
    from meshcap.data.read import dataset_files
    from meshcap.vision.pictures import is_picture_path

    if data.is_dir() and pictures is None and split is None:
        files = sorted(path for path in data.rglob("*") if is_picture_path(path) and not path.name.startswith("."))
        try:
            dataset_files(data)
        except MeshcapError:
            if not files:
                raise
            sources: dict[str, Source] = {}
            for file in files:
                if file.stem in sources:
                    raise MeshcapError(
                        f"{sources[file.stem]} and {file} have one name: expected one a picture"
                    ) from None
                sources[file.stem] = FileSource(file)
            return sources
    dataset = read_dataset(data, pictures=pictures)
    samples = list(dataset) if split is None else dataset.split(split)
    bare = [sample.id for sample in samples if sample.picture is None]
    if bare:
        raise MeshcapError(f"{len(bare):,} of {len(samples):,} pictures have no file in {data} (first: {bare[0]})")
    return {sample.id: sample.picture for sample in samples if sample.picture is not None}


def read_pixels(source: Source, preprocess: Preprocess) -> Tensor:
    """(3, size, size) uint8 of a picture, or a MeshcapError that names it."""
    from meshcap.vision import read_picture

    content = source.read()
    try:
        return preprocess.pixels(read_picture(content, at_least=preprocess.size))
    except MeshcapError as error:
        raise MeshcapError(f"{source}: {error}") from error


def ahead(work: Callable[[Item], Result], items: Iterable[Item], most: int) -> Iterator[Result]:
    """`map` by threads, in order, at most so many results before they are asked for. (Decoding waits for no lock.)"""
    with ThreadPoolExecutor() as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def fingerprint(eyes: Vision) -> str:
    """Of all weights: features of two networks must never mix, and settings do not tell trained ones apart."""
    import hashlib

    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in eyes.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _eyes(name: str, size: int | None, keep: int | None) -> Vision:
    from meshcap.vision import create_vision, load_vision

    if not Path(name).is_dir():
        more: dict[str, Any] = {} if keep is None else {"keep": keep}
        return create_vision(name, size=size, **more)
    if size is not None or keep is not None:
        raise MeshcapError(f"{name} is a model, which looks as it was trained to: leave out --size and --keep")
    eyes = load_vision(name)
    if eyes is None:
        raise MeshcapError(f"{name} is a model without vision: expected one that was trained on pictures")
    return eyes
