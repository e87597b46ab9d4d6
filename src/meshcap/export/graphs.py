"""The two graphs of a captioner, traced by `torch.export`: `see` the picture, `say` one more word.

Any captioner that keeps the protocol (`meshcap.decoding.search`) can be traced: all that changes while it decodes is
a dict of named tensors. What each of them is to a search (does it come from the picture, does a step change it, do
hypotheses take it along?) is found by watching the captioner work, not by knowing its name.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from meshcap.backends.exported import StatePart, first_line
from meshcap.errors import MeshcapError
from meshcap.models import CaptionModel
from meshcap.regions import Regions
from meshcap.vision import Vision
from meshcap.vision.efficientnet import Convolution, FoldedConvolution, padded

State = dict[str, Tensor]


class See(nn.Module):
    """uint8 pixels (B, 3, S, S) -> the parts of the state that come from the picture, for one hypothesis."""

    def __init__(self, vision: Vision, model: CaptionModel, parts: tuple[StatePart, ...]):
        super().__init__()
        self.vision, self.model = vision, model
        self.names = [part.name for part in parts if part.seen]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        state = self.model.start(self.model.encode(self.vision(pixels)), width=1, length=1)
        return tuple(state[name] for name in self.names)


class Say(nn.Module):
    """ids (B, W) and the state -> log-probabilities (B, W, V) and what has changed of the state."""

    def __init__(self, model: CaptionModel, parts: tuple[StatePart, ...]):
        super().__init__()
        self.model = model
        self.names = [part.name for part in parts]
        self.changed = [part.name for part in parts if part.changes]

    def forward(self, ids: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        own = {name: tensor.clone() for name, tensor in zip(self.names, state, strict=True)}
        log_probs = self.model.step(ids, own)  # in place, on tensors of its own
        return (log_probs, *(own[name] for name in self.changed))


@torch.no_grad()
def parts_of(model: CaptionModel, regions: Regions) -> tuple[StatePart, ...]:
    """What a captioner's state is made of, found with the regions of three pictures.

    Raises:
        MeshcapError: a state that begins or is reordered in a way that no search on arrays can repeat.
    """
    three, two = regions[:3], regions[:2]

    def start(seen: Regions, width: int, length: int) -> State:
        return model.start(model.encode(seen), width=width, length=length)

    # Multiples of 8: places may be rounded up to one. The shortest lengths: any captioner can say two words.
    base, fewer, wider, longer = start(three, 8, 1), start(two, 8, 1), start(three, 16, 1), start(three, 8, 2)
    before = {name: tensor._version for name, tensor in base.items()}
    model.step(torch.full((3, 8), model.config.bos), base)
    changes = {name for name, tensor in base.items() if tensor._version != before[name]}
    before = {name: tensor._version for name, tensor in base.items()}
    kept = {name: tensor.clone() for name, tensor in base.items()}
    parents = torch.tensor([[7, 6, 5, 4, 3, 2, 1, 0], [0, 0, 1, 1, 2, 2, 7, 7], [3, 3, 3, 0, 4, 5, 6, 1]])
    model.reorder(base, parents)
    follows = {name for name, tensor in base.items() if tensor._version != before[name]}
    parts = []
    for name, tensor in base.items():
        shape = tuple(
            axis(name, *sizes)
            for sizes in zip(tensor.shape, fewer[name].shape, wider[name].shape, longer[name].shape, strict=True)
        )
        seen = "places" not in shape and any("pictures" in str(one) for one in shape)
        if not seen and bool(longer[name].any()):
            raise refused(model, f"{name} does not begin with zeros")
        if name in follows:
            rows = kept[name][torch.arange(3)[:, None], parents]
            if not torch.equal(rows, tensor):
                raise refused(model, f"{name} is not reordered by taking the parents' rows")
        parts.append(
            StatePart(
                name=name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=shape,
                seen=seen,
                changes=name in changes,
                follows=name in follows,
            )
        )
    return tuple(parts)


def axis(name: str, base: int, fewer: int, wider: int, longer: int) -> int | str:
    """What an axis is, from its sizes with 3 and 2 pictures, 8 and 16 hypotheses, 1 and 2 words."""
    if base == fewer == wider == longer:
        return base
    if (base, wider, longer) == (8, 16, 16) and fewer == base:
        return "places"
    if (base, wider, longer) == (8, 16, 8) and fewer == base:
        return "width"
    if base == wider == longer and base % 3 == 0 and fewer == base // 3 * 2:
        return "pictures" if base == 3 else f"{base // 3}*pictures"
    raise MeshcapError(f"this captioner cannot be exported: {name} has an axis that grows in a way of its own")


def refused(model: CaptionModel, reason: str) -> MeshcapError:
    return MeshcapError(f"a captioner {model.name!r} cannot be exported: {reason}")


def trace(vision: Vision, model: CaptionModel, parts: tuple[StatePart, ...]) -> tuple[ExportedProgram, ExportedProgram]:
    """`See` and `Say` for any number of pictures, hypotheses and words.

    Raises:
        MeshcapError: torch cannot trace this captioner.
    """
    pictures, width, places = (Dim(name, min=1) for name in ("pictures", "width", "places"))
    named = {"pictures": pictures, "width": width, "places": places}

    def dims(part: StatePart) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for number, one in enumerate(part.shape):
            if isinstance(one, str):
                times, _, name = one.rpartition("*")
                found[number] = int(times) * named[name] if times else named[name]
        return found

    def example(part: StatePart) -> Tensor:
        kind = getattr(torch, part.dtype)
        return torch.zeros(part.sizes(pictures=2, width=3, places=24), dtype=kind)

    size = vision.preprocess.size
    try:
        with torch.no_grad():
            see = torch.export.export(
                See(vision, model, parts).eval(),
                (torch.zeros(2, 3, size, size, dtype=torch.uint8),),
                dynamic_shapes=({0: pictures},),
            )
            say = torch.export.export(
                Say(model, parts).eval(),
                (torch.full((2, 3), model.config.bos), tuple(example(part) for part in parts)),
                dynamic_shapes=({0: pictures, 1: width}, tuple(dims(part) for part in parts)),
            )
    except Exception as error:  # torch has many ways of saying that it cannot
        raise refused(model, f"torch cannot trace it ({first_line(error)})") from error
    return see, say


# Normalisations as part of convolutions: the same numbers, nothing left to compute twice. `meshcap.vision.efficientnet`
# does this for torch on a CPU, in a layout that only torch knows; here weights stay plain.


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
