"""Regions: what every captioner reads. A picture is a *set* of vectors, each with the box it came from.

Shapes: `features` (B, N, F); `boxes` (B, N, 4) as x1, y1, x2, y2 in 0-1 picture coordinates, or None;
`mask` (B, N) bool, True where a region is real, or None when every region is (so that attention may take its
fastest path without looking at the data).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshcap.errors import MeshcapError


@dataclass(frozen=True)
class Regions:
    """A batch of pictures as sets of region vectors."""

    features: Tensor
    boxes: Tensor | None = None
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.features.dim() != 3:
            raise MeshcapError(f"features have shape {tuple(self.features.shape)}, expected (pictures, regions, width)")
        pictures, regions = self.features.shape[:2]
        if regions == 0:
            raise MeshcapError("zero regions: a picture needs at least one region to be described")
        if self.boxes is not None and self.boxes.shape != (pictures, regions, 4):
            raise MeshcapError(f"boxes have shape {tuple(self.boxes.shape)}, expected {(pictures, regions, 4)}")
        if self.mask is not None:
            if self.mask.shape != (pictures, regions):
                raise MeshcapError(f"mask has shape {tuple(self.mask.shape)}, expected {(pictures, regions)}")
            if self.mask.dtype != torch.bool:
                raise MeshcapError(f"mask is {self.mask.dtype}, expected torch.bool with True for real regions")

    @classmethod
    def collate(cls, features: Sequence[Tensor], boxes: Sequence[Tensor] | None = None) -> Regions:
        """Join pictures with different numbers of regions, (N_i, F) each, into one padded batch."""
        if not features:
            raise MeshcapError("no pictures given: expected a list with at least one (regions, width) tensor")
        for index, one in enumerate(features):
            if one.dim() != 2 or one.shape[0] == 0:
                raise MeshcapError(
                    f"picture {index} has features of shape {tuple(one.shape)}, expected (regions ≥ 1, width)"
                )
        widths = {f.shape[-1] for f in features}
        if len(widths) > 1:
            raise MeshcapError(f"pictures have features of different widths {sorted(widths)}, expected one width")
        counts = [f.shape[0] for f in features]
        if boxes is not None:
            if len(boxes) != len(features):
                raise MeshcapError(f"{len(boxes)} sets of boxes for {len(features)} pictures, expected one each")
            for index, (one, count) in enumerate(zip(boxes, counts, strict=True)):
                if one.shape != (count, 4):
                    raise MeshcapError(f"picture {index} has boxes of shape {tuple(one.shape)}, expected {(count, 4)}")
        pad = torch.nn.utils.rnn.pad_sequence
        if len(set(counts)) == 1:
            mask = None
        else:
            mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
            mask = mask.to(features[0].device)
        return cls(pad(list(features), True), None if boxes is None else pad(list(boxes), True), mask)

    def expect_numbers(self) -> None:
        """Reads the data once (a GPU is waited for).

        Raises:
            MeshcapError: numbers that are not finite, an empty picture.
        """
        for name, tensor in (("features", self.features), ("boxes", self.boxes)):
            if tensor is not None and not bool(torch.isfinite(tensor).all()):
                bad = int((~torch.isfinite(tensor).flatten(1).all(1)).nonzero()[0])
                raise MeshcapError(f"picture {bad} has {name} with NaN or infinite numbers, expected finite ones")
        if self.mask is not None and not bool(self.mask.any(1).all()):
            bad = int((~self.mask.any(1)).nonzero()[0])
            raise MeshcapError(f"picture {bad} has zero regions: a picture needs at least one to be described")

    def __len__(self) -> int:
        return self.features.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Regions:
        return self.each(lambda t: t[index])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Regions:
        """Move to a device; `dtype` applies to features and boxes."""

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        return self.each(move)

    def padded_to(self, count: int) -> Regions:
        """Zero regions appended up to `count`, *looked at like real ones* (see `M2Config.attend_padding`)."""
        features = self.features
        if self.mask is not None:
            features = features.masked_fill(~self.mask[..., None], 0)
        missing = max(0, count - features.shape[1])
        return Regions(torch.nn.functional.pad(features, (0, 0, 0, missing)))

    def parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return self.features, self.boxes, self.mask

    def each(self, change: Callable[[Tensor], Tensor]) -> Regions:
        """The same regions with every tensor changed by a function."""
        return Regions(change(self.features), *(None if t is None else change(t) for t in (self.boxes, self.mask)))
