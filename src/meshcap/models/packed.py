"""Weights laid out for the CPU.

A beam search multiplies every weight matrix by a handful of rows, again and again. oneDNN, which torch carries, is
two to four times faster at that when a matrix has been rearranged into its own blocked layout beforehand; torch's
compiler does the same when it freezes a graph, and this does it without compiling anything.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """`nn.Linear` for inference, its weight in oneDNN's layout. It can neither be trained nor saved."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this machine's torch has the layout for a dtype."""
    if not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack(model: nn.Module) -> nn.Module:
    """Replace every linear map of a CPU model by a packed one, in place; where that is not possible, change nothing."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.device.type == "cpu" and can_pack(child.weight.dtype):
                setattr(parent, name, PackedLinear(child))
    return model.eval()
