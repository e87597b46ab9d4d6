"""From a picture of any size to the pixels that a backbone reads: squares of 8-bit RGB.

Nothing here imports torch by itself: exported captioners run without it, and worker processes start faster.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.vision.pictures import Source, read_picture

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Geometry = Literal["squash", "crop"]
RGB = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """The settings of preprocessing, kept with each backbone.

    "squash" shows the whole picture, distorted to a square; "crop" keeps proportions and shows the middle square. With
    `pre_resize`, the picture is first resized to so many pixels and then to `size`: a backbone that was trained on
    small pictures, enlarged, then sees a photo as it saw those. `mean` and `std` are of red, green and blue from 0
    to 1.
    """

    size: int = 256
    geometry: Geometry = "squash"
    pre_resize: int = 0
    words: ClassVar[int | None] = None  # of a caption at most, unless told otherwise; None: the usual number
    mean: RGB = (0.5, 0.5, 0.5)
    std: RGB = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):  # lists, as JSON has them
            object.__setattr__(self, name, tuple(float(number) for number in getattr(self, name)))
        if not isinstance(self.size, int) or isinstance(self.size, bool) or not 8 <= self.size <= 4096:
            raise MeshcapError(f"size is {self.size!r}, expected a number of pixels from 8 to 4096")
        if type(self.pre_resize) is not int or (self.pre_resize and not 8 <= self.pre_resize <= 4096):
            raise MeshcapError(f"pre_resize is {self.pre_resize!r}, expected 0 or a number of pixels from 8 to 4096")
        if self.geometry not in ("squash", "crop"):
            raise MeshcapError(f"geometry is {self.geometry!r}, expected squash or crop")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(number > 0 for number in self.std):
            raise MeshcapError(f"mean {self.mean} and std {self.std}: expected three numbers each, std above 0")

    def read(self, source: Source) -> np.ndarray:
        """(3, size, size) uint8 of a source: what `Vision.stack` takes."""
        return np.ascontiguousarray(self.rows(source).transpose(2, 0, 1))

    def rows(self, source: Source) -> np.ndarray:
        """(size, size, 3) uint8 of a source."""
        return np.asarray(self.square(read_picture(source, at_least=self.size)))

    def example(self) -> bytes:
        """The content of a file that `read` can read, to try something with."""
        content = io.BytesIO()
        Image.new("RGB", (64, 64), "grey").save(content, "PNG")
        return content.getvalue()

    def __str__(self) -> str:
        return f"{self.size} pixels, {self.geometry}"

    def window(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a picture of this size that is seen: x1, y1, x2, y2 in its pixels."""
        return window(self.geometry, width, height)

    def square(self, image: Image.Image) -> Image.Image:
        """An RGB picture as a square of `size` pixels."""
        return to_square(image, self.size, self.geometry, self.pre_resize)

    def pixels(self, image: Image.Image) -> Tensor:
        """(3, size, size) uint8 of an RGB picture."""
        import torch

        content = torch.frombuffer(bytearray(self.square(image).tobytes()), dtype=torch.uint8)
        return content.view(self.size, self.size, 3).permute(2, 0, 1).contiguous()

    def normalised(self, pixels: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """uint8 (B, 3, H, W), or floats from 0 to 255 as augmentation leaves them, to what the network reads.

        Args:
            dtype: of the result, float32 if None.
        """
        import torch

        if pixels.is_cuda and not torch.compiler.is_compiling():
            mean, std = _on_device(self.mean, self.std, pixels.device)
        else:
            mean, std = (_colour(one, pixels.device) for one in (self.mean, self.std))
        return ((pixels.float() - mean) / std).to(dtype or torch.float32)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _colour(given: RGB, device: torch.device) -> Tensor:
    """(3, 1, 1), from 0 to 255."""
    import torch

    return torch.tensor(given, device=device)[:, None, None] * 255


@lru_cache(maxsize=64)
def _on_device(mean: RGB, std: RGB, device: torch.device) -> tuple[Tensor, Tensor]:
    """Kept on a GPU: making them there anew would wait for all that it has yet to do."""
    import torch

    with torch.inference_mode(False):
        return _colour(mean, device), _colour(std, device)


def preprocess_of(given: Mapping[str, Any] | None, **defaults: Any) -> Preprocess:
    """A backbone's default settings, with those put over them that are given, as `vision.json` keeps them.

    Raises:
        MeshcapError: an unknown setting, or a value that cannot work.
    """
    if given is not None and not isinstance(given, Mapping):
        raise MeshcapError(f"preprocess is {given!r}, expected an object with size, geometry, mean or std")
    known = [field.name for field in fields(Preprocess)]
    for name in given or {}:
        if name not in known:
            raise MeshcapError(f"preprocess has an unknown setting {name!r}, expected {', '.join(known)}")
    try:
        return Preprocess(**{**defaults, **(given or {})})
    except MeshcapError:
        raise
    except (TypeError, ValueError) as error:
        raise MeshcapError(f"preprocess is {dict(given or {})}, which cannot be read: {error}") from error


def window(geometry: str, width: int, height: int) -> tuple[float, float, float, float]:
    """The part of a picture of this size that is seen: x1, y1, x2, y2 in its pixels."""
    if geometry == "squash":
        return 0.0, 0.0, float(width), float(height)
    side = min(width, height)
    x, y = (width - side) / 2, (height - side) / 2
    return x, y, x + side, y + side


def to_square(image: Image.Image, size: int, geometry: str, pre_resize: int = 0) -> Image.Image:
    """An RGB picture as a square of `size` pixels, by way of one of `pre_resize` pixels where that is not 0."""
    if pre_resize:
        image, geometry = to_square(image, pre_resize, geometry), "squash"
    if image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BICUBIC, box=window(geometry, *image.size), reducing_gap=3.0)
