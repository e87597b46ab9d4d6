"""What turns pixels into Regions, and how it is kept in a model folder.

A vision is a module: pixels in, one vector with a box for each region out. It holds its own preprocessing, so that
pictures are seen at captioning exactly as they were at training. A model folder keeps it under `vision/`:
`vision.json` (its name and settings) and whatever weights it writes beside.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.shown import shown, window

Geometry = Literal["squash", "crop"]
Numbers = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """From a picture of any size to the pixels a vision reads.

    "squash" shows the whole picture, distorted to a square; "crop" keeps proportions and shows the middle square. With
    `through`, the square is made from one of so many pixels: eyes that learned from small pictures, and are shown them
    enlarged, then see a photo as they learned to, not finer than anything they know. `mean` and `std` are of red,
    green and blue from 0 to 1.
    """

    size: int = 256
    geometry: Geometry = "squash"
    through: int = 0
    mean: Numbers = (0.5, 0.5, 0.5)
    std: Numbers = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):  # lists, as JSON has them
            object.__setattr__(self, name, tuple(float(number) for number in getattr(self, name)))
        if not isinstance(self.size, int) or isinstance(self.size, bool) or not 8 <= self.size <= 4096:
            raise MeshcapError(f"size is {self.size!r}, expected a number of pixels from 8 to 4096")
        if type(self.through) is not int or (self.through and not 8 <= self.through <= 4096):
            raise MeshcapError(f"through is {self.through!r}, expected 0 or a number of pixels from 8 to 4096")
        if self.geometry not in ("squash", "crop"):
            raise MeshcapError(f"geometry is {self.geometry!r}, expected squash or crop")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(number > 0 for number in self.std):
            raise MeshcapError(f"mean {self.mean} and std {self.std}: expected three numbers each, std above 0")

    def window(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a picture of this size that is seen: x1, y1, x2, y2 in its pixels."""
        return window(self.geometry, width, height)

    def pixels(self, image: Image.Image) -> Tensor:
        """(3, size, size) uint8 of an RGB picture."""
        square = shown(image, self.size, self.geometry, self.through)
        content = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        return content.view(self.size, self.size, 3).permute(2, 0, 1).contiguous()

    def normalised(self, pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """uint8 (B, 3, H, W), or floats from 0 to 255 as augmentation leaves them, to what the network reads."""
        mean = torch.tensor(self.mean, device=pixels.device)[:, None, None] * 255
        std = torch.tensor(self.std, device=pixels.device)[:, None, None] * 255
        return ((pixels.float() - mean) / std).to(dtype)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Vision(nn.Module):
    """Base of everything that looks at pixels.

    Subclasses name themselves, set `preprocess` and `width`, and say in `settings` what, beside weights, rebuilds them:
    `type(vision)(**vision.settings())` is the same network with other weights.
    """

    name: ClassVar[str]
    preprocess: Preprocess
    width: int  # numbers of a region

    def forward(self, pixels: Tensor) -> Regions:
        """Regions with boxes of pictures (B, 3, H, W): uint8, or floats from 0 to 255."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def first_stages(self, count: int) -> list[nn.Parameter]:
        """Weights of the stages nearest to the pixels, for who wants to train only what comes after.

        Raises:
            MeshcapError: there are not so many stages, or this vision has none.
        """
        if count:
            raise MeshcapError(f"frozen_stages is {count}, and {self.name} learns as a whole or not at all: expected 0")
        return []

    def fold(self) -> None:
        """Get ready to look and do nothing else, where there is anything to get ready: see `folded`."""

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        return next((t.device for t in (*self.parameters(), *self.buffers())), torch.device("cpu"))


def grid_boxes(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """(rows · columns, 4) boxes of a grid's cells, row by row: x1, y1, x2, y2 from 0 to 1.

    Made where it is used: a copy to a GPU would wait for it, in every batch.
    """
    y = (torch.arange(rows, device=device) / rows)[:, None].expand(rows, columns)
    x = (torch.arange(columns, device=device) / columns).expand(rows, columns)
    return torch.stack((x, y, x + 1 / columns, y + 1 / rows), -1).view(-1, 4)
