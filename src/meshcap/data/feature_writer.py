"""Region features of many pictures: computed by a backbone and written, so that a killed run goes on where it was.

Every picture is written at once, to a file of its own in a folder, under another name first: whatever is there is
whole. For an HDF5 file that folder is `<file>.part`, packed into the file at the end (which for that moment takes the
room of both) and then removed: an HDF5 file that was being written when its program was killed may be unreadable.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy
import torch
from safetensors.torch import save_file
from torch import Tensor

from meshcap.data.dataset import FileSource, Source
from meshcap.data.features import HDF5, SETTINGS, FeatureFile, FeatureFolder, as_name, h5py_module
from meshcap.data.read import dataset_files, read_dataset
from meshcap.errors import MeshcapError
from meshcap.files import remove_unfinished, write_file, write_text
from meshcap.vision.backbone import Vision
from meshcap.vision.pictures import is_picture_path, read_picture
from meshcap.vision.preprocess import Preprocess

Format = Literal["hdf5", "safetensors", "npy"]
Precision = Literal["float16", "float32"]
Item = TypeVar("Item")
Done = TypeVar("Done")


def format_of(path: Path) -> Format:
    """By the suffix: .hdf5 or .h5, else a folder of safetensors.

    Raises:
        MeshcapError: a suffix of a file that features are not written to.
    """
    if path.suffix in HDF5:
        return "hdf5"
    if path.suffix in (".safetensors", ".npy", ".npz") or path.is_file():
        raise MeshcapError(f"{path} is one file: expected .hdf5, or a folder for a file a picture")
    return "safetensors"


class FeatureWriter:
    """Adds pictures one by one; leaving its `with` block without an error completes the file.

    Args:
        settings: how the features are made, kept beside them. A run goes on only with the same.
        precision: of features; boxes are always float32.

    Attributes:
        done: ids that are there already and need not be computed again.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: Format | None = None,
        settings: Mapping[str, Any] | None = None,
        precision: Precision = "float16",
    ):
        self.path = Path(path)
        self.format = format or format_of(self.path)
        self.settings = json.loads(json.dumps({"precision": precision, **(settings or {})}))
        self.precision = getattr(torch, precision)
        packs = self.format == "hdf5"
        if packs:
            h5py_module()  # now, not after hours
        self.folder = self.path.with_name(f"{self.path.name}.part") if packs else self.path
        self.done: set[str] = set()
        if packs and self.path.exists():
            self._check(self.path, _hdf5_settings(self.path))
            self.done |= FeatureFile(self.path).ids
        self._prepare_folder()

    def _prepare_folder(self) -> None:
        """Read what a run before left there, or begin."""
        about = self.folder / SETTINGS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if about.is_file():
                self._check(self.folder, json.loads(about.read_text(encoding="utf-8")))
                remove_unfinished(self.folder)
                for part in self.folder.glob(".tmp*"):  # of safetensors, in a run that was killed
                    part.unlink()
                self.done |= FeatureFolder(self.folder).ids
            elif any(self.folder.iterdir()):
                raise MeshcapError(f"{self.folder} has files, and no {SETTINGS}: expected a new or an empty folder")
            else:
                text = json.dumps(self.settings, indent=2) + "\n"
                write_text(about, text)
        except OSError as error:
            raise MeshcapError(f"{self.folder} cannot be written: {error.strerror or error}") from error
        except ValueError as error:
            if isinstance(error, MeshcapError):
                raise
            raise MeshcapError(f"{about} is not readable JSON ({error})") from error

    def _check(self, path: Path, found: Any) -> None:
        if found == self.settings:
            return
        found = found if isinstance(found, dict) else {}
        name = next((name for name in self.settings if found.get(name) != self.settings[name]), None)
        name = name or next(iter(found.keys() - self.settings.keys()))
        given, there = (_brief(settings.get(name)) for settings in (self.settings, found))
        raise MeshcapError(
            f"{path} has features made with {name} {there}, now it is {given}: remove it or write elsewhere"
        )

    def add(self, id: str, features: Tensor, boxes: Tensor | None = None) -> None:
        """Write a picture: features (N, F), boxes (N, 4) in 0-1 coordinates.

        Raises:
            MeshcapError: numbers that are not finite, or too large for the precision; no room left.
        """
        if features.dim() != 2 or features.shape[0] == 0:
            raise MeshcapError(f"{id} has features of shape {tuple(features.shape)}, expected (regions ≥ 1, width)")
        if boxes is not None and boxes.shape != (features.shape[0], 4):
            raise MeshcapError(f"{id} has boxes of shape {tuple(boxes.shape)}, expected {(features.shape[0], 4)}")
        kept = features.detach().to("cpu", self.precision).contiguous()
        if not bool(torch.isfinite(kept).all()):
            overflow = bool(torch.isfinite(features).all())
            why = "too large for float16: write float32" if overflow else "NaN or infinite, expected finite numbers"
            raise MeshcapError(f"{id} has features that are {why}")
        arrays = {"features": kept}
        if boxes is not None:
            arrays["boxes"] = boxes.detach().to("cpu", torch.float32).contiguous()
        if self.format == "npy":
            suffix = ".npy" if boxes is None else ".npz"
            write_file(self.folder / f"{as_name(id)}{suffix}", lambda path: _save(path, arrays))
        else:
            write_file(self.folder / f"{as_name(id)}.safetensors", lambda path: save_file(arrays, path))
        self.done.add(id)

    def finish(self) -> None:
        """Pack what is in the folder into the HDF5 file; folders are finished at any time."""
        if self.format != "hdf5":
            return
        new = FeatureFolder(self.folder)
        if new.ids:
            write_file(self.path, lambda path: self._pack(path, new))
        for file in self.folder.iterdir():
            if file.name != SETTINGS:  # last, so that a run killed here leaves a folder that is known to be ours
                file.unlink()
        shutil.rmtree(self.folder)

    def _pack(self, path: Path, new: FeatureFolder) -> None:
        h5py = h5py_module()
        with h5py.File(path, "w") as file:
            file.attrs["settings"] = json.dumps(self.settings)
            if self.path.exists():
                with h5py.File(self.path, "r") as before:
                    for key in before:
                        before.copy(key, file)
            for id in sorted(new.ids):
                features, boxes, _ = new.read(id)
                for what, array in (("features", features.to(self.precision)), ("boxes", boxes)):
                    key = f"{as_name(id)}_{what}"
                    if array is not None and key not in file:
                        file.create_dataset(key, data=array.numpy())

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()


def write_features(
    path: str | Path,
    items: Iterable[tuple[str, Tensor, Tensor | None]],
    *,
    format: Format | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: Precision = "float16",
) -> None:
    """Write (id, features, boxes) of many pictures. Those that are there from a run before are not written again."""
    with FeatureWriter(path, format=format, settings=settings, precision=precision) as writer:
        for id, features, boxes in items:
            if id not in writer.done:
                writer.add(id, features, boxes)


def _hdf5_settings(path: Path) -> Any:
    try:
        with h5py_module().File(path, "r") as file:
            text = file.attrs.get("settings")
    except OSError as error:
        raise MeshcapError(f"{path} cannot be read ({error}): truncated or corrupted?") from error
    if text is None:
        raise MeshcapError(f"{path} is there and was not written by meshcap: write elsewhere")
    return json.loads(text)


def _save(path: Path, arrays: dict[str, Tensor]) -> None:
    with open(path, "wb") as file:  # by its name alone, NumPy would add a suffix
        if len(arrays) == 1:
            numpy.save(file, arrays["features"].numpy())
        else:
            numpy.savez(file, features=arrays["features"].numpy(), boxes=arrays["boxes"].numpy())


def _brief(setting: Any) -> str:
    text = json.dumps(setting, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


@dataclass(frozen=True)
class ComputedFeatures:
    """What `compute_features` did."""

    pictures: int  # that have features now
    new: int  # of them, computed by this run
    width: int  # numbers of a region
    broken: list[str]  # one line for each picture that cannot be read


@torch.inference_mode()
def compute_features(
    sources: Mapping[str, Source],
    vision: Vision,
    out: str | Path,
    *,
    format: Format | None = None,
    precision: Precision = "float16",
    batch_size: int = 32,
    skip_broken: bool = False,
    progress: Callable[[int], object] | None = None,
) -> ComputedFeatures:
    """Run a backbone over pictures and write their regions. Pictures that are there from a run before are not read.

    Args:
        sources: id -> picture, as `picture_sources` finds them.
        vision: on the device and in the dtype to compute with.
        skip_broken: leave unreadable pictures out instead of stopping.
        progress: called with the number of pictures done, now and then.

    Raises:
        MeshcapError: a picture that cannot be read, none that can, or a file that was made by another backbone.
    """
    settings = {"vision": vision.name, **vision.settings(), "weights": weights_digest(vision)}
    broken: list[str] = []

    def read(item: tuple[str, Source]) -> tuple[str, Tensor | MeshcapError]:
        try:
            return item[0], read_pixels(item[1], vision.preprocess)
        except MeshcapError as error:
            return item[0], error

    with FeatureWriter(out, format=format, settings=settings, precision=precision) as writer:
        todo = [(id, source) for id, source in sources.items() if id not in writer.done]
        done = len(sources) - len(todo)
        reading = read_ahead(read, todo, 4 * batch_size)
        while batch := list(islice(reading, batch_size)):
            for _, pixels in batch:
                if isinstance(pixels, MeshcapError):
                    if not skip_broken:
                        raise MeshcapError(f"{pixels} (--skip-broken goes on without it)") from pixels
                    broken.append(str(pixels))
            readable = [(id, pixels) for id, pixels in batch if not isinstance(pixels, MeshcapError)]
            if readable:
                regions = vision(torch.stack([pixels for _, pixels in readable]).to(vision.device))
                boxes = [None] * len(readable) if regions.boxes is None else regions.boxes.cpu()
                for (id, _), features, own_boxes in zip(readable, regions.features.cpu(), boxes, strict=True):
                    writer.add(id, features, own_boxes)
            done += len(batch)
            if progress:
                progress(done)
        if len(broken) == len(sources):
            raise MeshcapError(f"none of {len(sources):,} pictures can be read (first: {broken[0]})")
    return ComputedFeatures(len(sources) - len(broken), len(todo) - len(broken), vision.width, broken)


def picture_sources(data: str | Path, pictures: Path | None = None, split: str | None = None) -> dict[str, Source]:
    """id -> picture of a dataset, or of a folder with nothing but pictures (whose ids are their names).

    Raises:
        MeshcapError: there are none, or a sample has none.
    """
    folder = Path(data)
    if folder.is_dir() and pictures is None and split is None:
        files = sorted(path for path in folder.rglob("*") if is_picture_path(path) and not path.name.startswith("."))
        try:
            dataset_files(folder)
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
    without = [sample.id for sample in samples if sample.picture is None]
    if without:
        raise MeshcapError(
            f"{len(without):,} of {len(samples):,} pictures have no file in {data} (first: {without[0]})"
        )
    return {sample.id: sample.picture for sample in samples if sample.picture is not None}


def read_pixels(source: Source, preprocess: Preprocess) -> Tensor:
    """(3, size, size) uint8 of a picture, or a MeshcapError that names it."""
    content = source.read()
    try:
        return preprocess.pixels(read_picture(content, at_least=preprocess.size))
    except MeshcapError as error:
        raise MeshcapError(f"{source}: {error}") from error


def read_ahead(work: Callable[[Item], Done], items: Iterable[Item], most: int) -> Iterator[Done]:
    """`map` by threads, in order, at most `most` results before they are asked for. (Decoding releases the lock.)"""
    with ThreadPoolExecutor() as pool:
        waiting: deque[Future[Done]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def weights_digest(vision: Vision) -> str:
    """A hash of all weights: features of two networks must not mix, and settings do not tell trained ones apart."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in vision.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
