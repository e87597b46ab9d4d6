"""Numbers that came from elsewhere (NumPy, torch, 16-bit and float files), as pictures of 8 bits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from PIL import Image

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    from torch import Tensor

EXPECTED = "(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
# Bicubic resizing overshoots and sums of floats miss by an ulp: both are clipped, larger numbers are a mistake.
SLACK = 0.1


def picture_of_array(given: np.ndarray | Tensor) -> Image.Image:
    """A grey, RGB or RGBA picture of uint8, uint16, bool, or floats from 0 to 1.

    Arrays have their channels last; tensors may have them first, as torch has them.

    Raises:
        MeshcapError: another shape, another kind of number, or floats that are not from 0 to 1.
    """
    what = "an array"
    if is_tensor(given):
        what, given = "a tensor", _channels_last(given.detach().cpu())
    assert isinstance(given, np.ndarray)
    shape = given.shape
    if given.ndim not in (2, 3) or 0 in shape or (given.ndim == 3 and shape[2] not in (1, 3, 4)):
        raise MeshcapError(f"a picture was given as {what} of shape {tuple(shape)}, expected {EXPECTED}")
    if given.dtype == np.uint8:
        numbers = given
    elif given.dtype == np.uint16:
        numbers = from_16_bits(given)
    elif given.dtype == np.bool_:
        numbers = given * np.uint8(255)
    elif np.issubdtype(given.dtype, np.floating):
        least, most = float(given.min()), float(given.max())
        if not (least >= -SLACK and most <= 1 + SLACK):  # so that NaN is refused too
            raise MeshcapError(f"a picture was given as {what} of floats from {least:g} to {most:g}, expected 0 to 1")
        numbers = _from_unit(given)
    else:
        raise MeshcapError(
            f"a picture was given as {what} of {given.dtype}, expected uint8, uint16 or floats from 0 to 1"
        )
    if numbers.ndim == 3 and numbers.shape[2] == 1:
        numbers = numbers[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(numbers))


def is_tensor(given: Any) -> TypeGuard[Tensor]:
    """Where torch was never imported nothing is a tensor, and it need not be imported to find that out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def grey_of_deep(image: Image.Image) -> Image.Image:
    """Pillow's own conversion of pictures with 16 bits, 32 bits or floats clips them to white; this one scales.

    Sixteen bits have a known range. The others do not say theirs: it is taken to be the usual one (16 bits for
    integers, 0-1 or 0-255 for floats) where all numbers are within, and else the one that they fill.
    """
    numbers = np.asarray(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray(from_16_bits(numbers))
    numbers = np.nan_to_num(numbers.astype(np.float64), posinf=0.0, neginf=0.0)
    least, most = float(numbers.min()), float(numbers.max())
    usual = (65535.0,) if image.mode == "I" else (1.0, 255.0)
    bottom, top = next(((0.0, full) for full in usual if least >= 0 and most <= full), (least, most))
    return Image.fromarray(_from_unit((numbers - bottom) / max(top - bottom, 1e-30)))


def from_16_bits(numbers: np.ndarray) -> np.ndarray:
    """0-65535 to 0-255, rounded: 65535 is 255 · 257."""
    return ((numbers.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _from_unit(numbers: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(numbers.astype(np.float64), 0, 1) * 255).astype(np.uint8)


def _channels_last(tensor: Tensor) -> np.ndarray:
    import torch

    if tensor.dtype in (torch.bfloat16, torch.float16):  # NumPy has no bfloat16
        tensor = tensor.float()
    if tensor.dim() == 3 and tensor.shape[0] in (1, 3, 4):
        tensor = tensor.permute(1, 2, 0)
    return tensor.numpy()
