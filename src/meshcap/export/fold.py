"""A vision whose normalisations are part of its convolutions: the same numbers, nothing left to compute twice.

`meshcap.vision.efficientnet` does this for torch on a CPU, in a layout that only torch knows; here weights stay plain.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.vision import Vision
from meshcap.vision.efficientnet import Convolution, FoldedConvolution, padded


class PlainConvolution(nn.Module):
    """`Convolution` with the scaling of its channels done once, to its weights."""

    channels_last = False

    def __init__(self, given: Convolution):
        super().__init__()
        self.kernel, self.stride, self.groups = given.kernel, given.stride, given.groups
        with torch.no_grad():
            weight, bias = given.folded()
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor, *, relu6: bool = False) -> Tensor:
        x, padding = padded(x, self.kernel, self.stride)
        x = F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return F.relu6(x) if relu6 else x


def folded(vision: Vision) -> Vision:
    """A copy of a vision, folded where it has something to fold.

    Raises:
        MeshcapError: its weights are laid out for the CPU already.
    """
    if any(isinstance(module, FoldedConvolution) for module in vision.modules()):
        raise MeshcapError("weights laid out for the CPU cannot be exported: read them with meshcap.vision.load_vision")
    vision = copy.deepcopy(vision).float().cpu().eval().requires_grad_(False)
    # Other runtimes have layouts of their own.
    vision.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    for parent in list(vision.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Convolution):
                setattr(parent, name, PlainConvolution(child))
    return vision
