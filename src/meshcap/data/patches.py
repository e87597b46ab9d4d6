"""A picture as a grid of cells: the simplest Regions there can be.

The numbers of a cell are its pixels. A trained backbone, which says more in a region's vector, comes with the vision
room; the captioner above does not know the difference.
"""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from meshcap.errors import MeshcapError

SIDE = 8  # pixels of a cell after resizing


def patches(image: Image.Image, cells: int = 8) -> tuple[Tensor, Tensor]:
    """Cut a picture into cells × cells, row by row.

    Returns:
        features (cells², SIDE · SIDE · 3) from -1 to 1, and boxes (cells², 4) as x1, y1, x2, y2 from 0 to 1.
    """
    if cells < 1:
        raise MeshcapError(f"a grid of {cells} cells was asked for, expected at least 1")
    side = cells * SIDE
    small = image.convert("RGB").resize((side, side), Image.Resampling.BOX)
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(cells, SIDE, cells, SIDE, 3)
    features = pixels.transpose(1, 2).reshape(cells * cells, -1).float() / 127.5 - 1
    edges = torch.arange(cells + 1) / cells
    y, x = torch.meshgrid(edges[:-1], edges[:-1], indexing="ij")
    corners = torch.stack((x, y), -1).view(-1, 2)
    return features, torch.cat((corners, corners + 1 / cells), -1)
