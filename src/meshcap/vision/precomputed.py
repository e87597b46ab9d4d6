"""Region features that were computed before, by `meshcap data features` or by others.

    store = open_features("coco_detections.hdf5")
    store.require(sample.id for sample in dataset)
    regions = store.regions(["391895", "522418"])

A picture without features is an error that names it: numbers made up for it would train a model on nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.feature_layouts import Layout, find_layout

IN_PIXELS = 1.5  # a box that reaches further is not in 0-1 coordinates, even by a detector that overshoots
COCO_NAME = re.compile(r"(?:COCO_(?:train|val|test)\d{4}_)?(\d{12})")
SUFFIX = re.compile(r"\.(?:jpe?g|png|webp)$", re.IGNORECASE)
NAMED = 3  # missing pictures that an error names


def open_features(path: str | Path) -> FeatureStore:
    """Features of many pictures: an HDF5 or safetensors file, or a folder (see `feature_layouts`).

    Boxes may be in 0-1 coordinates, or in pixels if the file has each picture's `<id>_size` (width, height). The
    public features of COCO have pixels and no sizes: their boxes are left out with a warning.

    Raises:
        MeshcapError: nothing there, a file of another kind or a broken one, or no features in it.
    """
    return FeatureStore(find_layout(path))


class FeatureStore:
    """Features by picture. Small to hand to other processes: each opens the file for itself."""

    width: int  # numbers of a region
    boxes: bool  # whether regions come with boxes

    def __init__(self, layout: Layout):
        self._layout = layout
        if not layout.ids:
            raise MeshcapError(
                f"{layout.path} holds no features, expected <id>_features in a file or files in a folder"
            )
        features, boxes, _ = layout.read(min(layout.ids))
        self.width = features.shape[1]
        self.boxes = layout.with_boxes
        if boxes is not None and _in_pixels(boxes) and not layout.with_sizes:
            self.boxes = False
            warnings.warn(
                f"{layout.path} has boxes in pixels and no sizes of pictures (<id>_size): boxes are left out",
                stacklevel=3,
            )

    @property
    def path(self) -> Path:
        return self._layout.path

    @property
    def ids(self) -> frozenset[str]:
        return self._layout.ids

    def __len__(self) -> int:
        return len(self._layout.ids)

    def __contains__(self, id: str | int) -> bool:
        return self._known_as(str(id)) is not None

    def __getitem__(self, id: str | int) -> tuple[Tensor, Tensor | None]:
        """Features (N, F) and boxes (N, 4) or None, float32.

        Raises:
            MeshcapError: there are none for this picture, or they cannot be used.
        """
        known = self._known_as(str(id))
        if known is None:
            raise MeshcapError(f"{self.path} has no features of picture {id}")
        features, boxes, size = self._layout.read(known)
        if features.shape[1] != self.width:
            raise MeshcapError(
                f"{self.path} has {features.shape[1]} numbers a region for {id}, and {self.width} before"
            )
        if not self.boxes or boxes is None:
            return features, None
        if _in_pixels(boxes):
            if size is None:
                raise MeshcapError(
                    f"{self.path} has boxes in pixels for {id}, and from 0 to 1 before: expected one kind"
                )
            if size.shape != (2,) or not bool((size > 0).all()):
                raise MeshcapError(f"{self.path} has size {size.tolist()} for {id}, expected width and height")
            boxes = boxes / size.repeat(2)
        return features, boxes.clamp(0, 1)

    def require(self, ids: Iterable[str | int]) -> None:
        """Make sure that every picture has features, before hours of work begin.

        Raises:
            MeshcapError: says how many have none, and names the first.
        """
        asked = [str(id) for id in ids]
        missing = [id for id in asked if self._known_as(id) is None]
        if missing:
            first = ", ".join(missing[:NAMED]) + (", …" if len(missing) > NAMED else "")
            raise MeshcapError(
                f"{len(missing):,} of {len(asked):,} pictures have no features in {self.path} (first: {first})"
            )

    def regions(self, ids: Sequence[str | int], dtype: torch.dtype = torch.float32) -> Regions:
        """A padded batch; with a mask only where pictures have different numbers of regions.

        Raises:
            MeshcapError: a picture has no features, or they cannot be used.
        """
        pairs = [self[id] for id in ids]
        boxes = [boxes for _, boxes in pairs if boxes is not None]
        return Regions.collate([features.to(dtype) for features, _ in pairs], boxes if self.boxes else None)

    def close(self) -> None:
        self._layout.close()

    def _known_as(self, id: str) -> str | None:
        """The id in the file. COCO's pictures are known by number in some files and by file name in others."""
        if id in self._layout.ids:
            return id
        stem = SUFFIX.sub("", id)
        coco = COCO_NAME.fullmatch(stem)
        for other in (stem, str(int(coco[1])) if coco else stem):
            if other in self._layout.ids:
                return other
        return None


def _in_pixels(boxes: Tensor) -> bool:
    return bool((boxes > IN_PIXELS).any())
