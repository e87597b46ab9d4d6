"""Convolutions for looking alone: what never changes is worked out once, and weights are laid out for the CPU.

A convolution of `EfficientNetLite` multiplies its weights by the normalisation after it in every forward, as training
needs. Here that is done once. On a CPU the product is also rearranged into oneDNN's own layout, and ReLU6 is applied
while an output is still in the cache; torch's compiler does the same when it freezes a graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError


class FoldedConvolution(nn.Module):
    """A convolution with its normalisation inside. It can neither be trained nor saved."""

    weight: Tensor
    channels_last = True

    def __init__(self, weight: Tensor, bias: Tensor, *, stride: int, groups: int, size: int):
        """weight (C, G, K, K) and bias (C,) in the dtype and on the device to compute with.

        `size` is that of the pictures to come, which the best layout depends on; others are right too, and slower.
        """
        super().__init__()
        self.kernel, self.stride, self.groups = weight.shape[-1], stride, groups
        self.packed = can_pack(weight)
        weight = weight.detach().contiguous(memory_format=torch.channels_last)
        if self.packed:
            x, padding = padded(weight.new_empty(1, weight.shape[1] * groups, size, size), self.kernel, stride)
            weight = torch.ops.mkldnn._reorder_convolution_weight(
                weight, padding, [stride] * 2, [1, 1], groups, list(x.shape)
            )
        self.register_buffer("weight", weight, persistent=False)
        self.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)

    def forward(self, x: Tensor, *, relu6: bool = False) -> Tensor:
        x, padding = padded(x, self.kernel, self.stride)
        asked_why = x.requires_grad and torch.is_grad_enabled()  # oneDNN's own convolution passes no gradient on
        if asked_why or not self.packed:
            weight = self.weight.to_dense() if self.packed else self.weight
            x = F.conv2d(x, weight, self.bias, self.stride, padding, groups=self.groups)
            return F.relu6(x) if relu6 else x
        kind, limits = ("hardtanh", [0.0, 6.0]) if relu6 else ("none", [])
        return torch.ops.mkldnn._convolution_pointwise(
            x, self.weight, self.bias, padding, [self.stride] * 2, [1, 1], self.groups, kind, limits, ""
        )

    def _save_to_state_dict(self, destination: object, prefix: str, keep_vars: bool) -> None:
        raise MeshcapError("a vision that was folded cannot be saved: read it with meshcap.vision.load_vision")


def can_pack(weight: Tensor) -> bool:
    """Whether this machine's torch has the layout for a weight of this kind."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    needed = ("_reorder_convolution_weight", "_convolution_pointwise")
    if not all(hasattr(torch.ops.mkldnn, name) for name in needed):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def padded(x: Tensor, kernel: int, stride: int) -> tuple[Tensor, tuple[int, int]]:
    """Padding as TensorFlow's "same" has it: what a convolution can add itself, down and to the right; else all of it,
    added here."""
    down, right = (same_padding(pixels, kernel, stride) for pixels in x.shape[-2:])
    if down[0] == down[1] and right[0] == right[1]:
        return x, (down[0], right[0])
    return F.pad(x, (*right, *down)), (0, 0)


def same_padding(pixels: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, so that ⌈pixels / stride⌉ windows fit."""
    missing = max((-(-pixels // stride) - 1) * stride + kernel - pixels, 0)
    return missing // 2, missing - missing // 2
