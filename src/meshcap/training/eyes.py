"""How the pictures of a split reach the model: as pixels that a vision looks at in every step, or as Regions kept.

A frozen vision sees the same in a picture every time, so its Regions are computed once; one that learns, or pictures
that are augmented, must be looked at anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from meshcap.data.features import FeatureStore
from meshcap.regions import Regions
from meshcap.training.augment import augment
from meshcap.training.compress import compress_some
from meshcap.training.pixels import Pixels
from meshcap.vision.backbone import Vision

View = Regions | Tensor  # Regions, or pixels that the vision has yet to look at


class Eyes(Protocol):
    """Numbers of pictures (B,), on the CPU, to what the model's step begins with."""

    def __len__(self) -> int: ...

    def ahead(self, pictures: Tensor) -> None:
        """These will be asked for next."""

    def view(self, pictures: Tensor, *, training: bool) -> View: ...


def see(vision: Vision | None, view: View) -> Regions:
    """Regions of a view; pixels need the vision."""
    if isinstance(view, Regions):
        return view
    assert vision is not None
    return vision(view)


class Looking:
    """Pixels, augmented while training."""

    def __init__(
        self,
        pixels: Pixels,
        mirror: Tensor,
        strength: float,
        compress: float = 0.0,
        turn: float = 0.0,
        *,
        compiled: bool = False,
    ):
        self.pixels, self.mirror, self.strength, self.compress, self.turn = pixels, mirror, strength, compress, turn
        self.augment: Any = torch.compile(augment, dynamic=False) if compiled else augment

    def __len__(self) -> int:
        return len(self.pixels.samples)

    def ahead(self, pictures: Tensor) -> None:
        self.pixels.ahead(pictures)

    def view(self, pictures: Tensor, *, training: bool) -> Tensor:
        found = self.pixels[pictures]
        if training and self.strength:
            mirror = self.mirror[pictures].to(found.device, non_blocking=True)
            found = self.augment(found, mirror, self.strength, self.turn)
        if training and self.compress:
            found = compress_some(found.float(), self.compress)
        return found


class Kept:
    """Regions of every picture, computed before. Boxes that are the same for all pictures are kept once."""

    def __init__(self, regions: Regions, device: torch.device, *, count: int):
        self.regions, self.device, self.count = regions, device, count

    def __len__(self) -> int:
        return self.count

    def ahead(self, pictures: Tensor) -> None:
        pass

    def view(self, pictures: Tensor, *, training: bool) -> Regions:
        numbers = pictures.to(self.regions.features.device, non_blocking=True)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[numbers].to(self.device, non_blocking=True)

        return self.regions.each(pick)

    @classmethod
    @torch.no_grad()
    def look(
        cls,
        vision: Vision,
        pixels: Pixels,
        *,
        dtype: torch.dtype,
        place: torch.device | None = None,
        batch: int = 256,
        tell: Callable[[int, int], object] = lambda done, total: None,
    ) -> Kept:
        """Let a frozen vision look at every picture, in the precision `dtype`, and keep what it saw in a place."""
        count = len(pixels.samples)
        place = place or pixels.device
        blocks = torch.arange(count).split(batch)
        pixels.ahead(blocks[0])
        kept: list[Tensor | None] = [None, None, None]
        was_training = vision.training
        vision.eval()
        for start, numbers in zip(range(0, count, batch), blocks, strict=True):
            if start + batch < count:
                pixels.ahead(blocks[start // batch + 1])
            with torch.autocast(pixels.device.type, dtype, enabled=dtype != torch.float32):
                found = vision(pixels[numbers])
            if start == 0:
                kept = [None if part is None else _room(part, count, place, dtype) for part in found.parts()]
            for target, part in zip(kept, found.parts(), strict=True):
                if target is not None and part is not None and not _shared(target):
                    target[start : start + len(part)] = part
            tell(start + len(numbers), count)
        vision.train(was_training)
        assert kept[0] is not None
        return cls(Regions(kept[0], kept[1], kept[2]), pixels.device, count=count)


def _shared(tensor: Tensor) -> bool:
    """Whether all pictures have the very same numbers: the boxes of a grid."""
    return len(tensor) > 1 and tensor.stride(0) == 0


def _room(part: Tensor, count: int, place: torch.device, dtype: torch.dtype) -> Tensor:
    if _shared(part):
        return part[:1].to(place).expand(count, *part.shape[1:])
    kind = dtype if part.dim() == 3 and part.shape[-1] != 4 else part.dtype  # boxes keep their precision
    return torch.empty(count, *part.shape[1:], dtype=kind, device=place)


@torch.no_grad()
def bytes_of_regions(vision: Vision, dtype: torch.dtype) -> int:
    """What the Regions of one picture take to keep."""
    side = vision.preprocess.size
    found = vision(torch.zeros(1, 3, side, side, dtype=torch.uint8, device=vision.device))
    return found.features.numel() * dtype.itemsize + 16 * found.features.shape[1]


class Precomputed:
    """Features that somebody computed before, read from their files in every step."""

    def __init__(self, store: FeatureStore, ids: Sequence[str], device: torch.device):
        store.require(ids)
        self.store, self.ids, self.device = store, ids, device

    def __len__(self) -> int:
        return len(self.ids)

    def ahead(self, pictures: Tensor) -> None:
        pass

    def view(self, pictures: Tensor, *, training: bool) -> Regions:
        return self.store.regions([self.ids[one] for one in pictures.tolist()]).to(self.device)
