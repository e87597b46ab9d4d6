"""Weights laid out for the CPU.

A beam search multiplies every weight matrix by a handful of rows, again and again. oneDNN, which torch carries, is
two to four times faster at that when a matrix has been rearranged into its own blocked layout beforehand; torch's
compiler does the same when it freezes a graph, and this does it without compiling anything.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.models.layers import TiedOutput

Linear = nn.Linear | TiedOutput


class InferenceOnly(nn.Module):
    """It can neither be trained nor saved."""

    def _save_to_state_dict(self, *_: object) -> None:
        raise MeshcapError("weights laid out for the CPU cannot be saved: read the model with meshcap.load_model")


class PackedLinear(InferenceOnly):
    """`nn.Linear` for inference, its weight in oneDNN's layout."""

    def __init__(self, linear: Linear):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class Int8Linear(InferenceOnly):
    """`nn.Linear` for inference with weights of 8 bits, one scale for each output; inputs are rounded as they come.

    A quarter of the bytes to read, and reading weights is most of what decoding on a CPU does.
    """

    def __init__(self, linear: Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(1).clamp_min(1e-8) / 127
        with warnings.catch_warnings():  # torch means to drop this type some day; `can_pack` notices when it has
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(
                weight, scales, torch.zeros_like(scales, dtype=torch.long), 0, torch.qint8
            )
            self.packed = torch.ops.quantized.linear_prepack(
                rounded, None if linear.bias is None else linear.bias.detach()
            )
        # Without VNNI, products of 8 by 8 bits are added in 16 and may overflow: inputs then get 7.
        self.narrow = not getattr(torch.cpu, "_is_vnni_supported", bool)()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed, self.narrow)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this machine's torch has the layout for a dtype."""
    if dtype == torch.int8:
        engines = torch.backends.quantized.supported_engines
        return hasattr(torch, "quantize_per_channel") and ("x86" in engines or "fbgemm" in engines)
    if not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; others can do it too, and take longer than for float32."""
    return can_pack(torch.bfloat16) and bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def pack(model: nn.Module, *, int8: bool = False) -> nn.Module:
    """Replace every linear map of a CPU model by a packed one, in place; where that is not possible, change nothing.

    Args:
        int8: round weights to 8 bits (of a float32 model). Refused where impossible, because it was chosen.

    Raises:
        MeshcapError: int8 is asked for, and this torch has no kernels for it or the model is not on the CPU.
    """
    # Only names and parents are kept: each map is freed when it has been replaced, before the next one is packed.
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear or isinstance(child, TiedOutput)
    ]
    for parent, name in places:
        child: Linear = getattr(parent, name)
        on_cpu = child.weight.device.type == "cpu"
        if int8:
            if not (on_cpu and can_pack(torch.int8)):
                raise MeshcapError("int8 weights need an x86 CPU and a torch with int8 kernels: use bfloat16")
            setattr(parent, name, Int8Linear(child))
        elif on_cpu and can_pack(child.weight.dtype):
            setattr(parent, name, PackedLinear(child))
        del child
    return model.eval()
