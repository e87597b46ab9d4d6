"""Weights in safetensors files: of 32 bits, or rounded to 16, 8, 6 or 4.

`save_weights` writes the weights of a module, `load_weights` reads them into one that fits. Rounded to 8 bits:

    scale_r = max_k |W_rk| / 127      one for each row r, float32
    Q_rk = round(W_rk / scale_r)      int8, under the matrix's own name; the scales lie beside it as `<name>.scale`

- A row is what makes one output: of a linear map, of a convolution, of a table of words. No number moves by more than
  half its row's scale.
- The largest number of a row is always ±127, so rounding what was read back gives the same integers: a matrix that is
  stored like this and then run in 8 bits (`meshcap.backends.packed`) is rounded once, not twice.
- Small matrices and those with short rows become float16, vectors (biases, norms, statistics) stay as they are: they
  are few, and everything passes through them. Of EfficientNet-Lite2, the stem, the first blocks and the depthwise
  kernels are 6 % of the weights; with these in 8 bits its features move by 17 %, without them by 6 %.
- Scales are float32: in float16 the mean error is the same and files are half a percent smaller, but rows below 1e-5,
  as trained backbones have some, would be lost.
- Clipping a row's largest numbers, where that lowers its squared error, was tried: it lowers it by less than 0.3 %.

Rounded to 6 or 4 bits, each group of 64 numbers of a row has a step and a lowest number of its own, both float16:

    W_k = low + step · Q_k            Q_k from 0 to 2^bits - 1, packed into bytes as `<name>.q6` or `<name>.q4`;
                                      `<name>.step` and `<name>.low` (rows, groups) lie beside it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meshcap.errors import MeshcapError
from meshcap.files import write_file
from meshcap.folders import Bits

Shape = tuple[int, ...]
Module = TypeVar("Module", bound=nn.Module)

SCALE = ".scale"
STEP, LOW = ".step", ".low"
PACKED = {6: ".q6", 4: ".q4"}
GROUP = 64  # numbers of a row that share a step, in 6 and 4 bits
LONGEST = 4096  # words of a caption
LEAST_ROOM = 65_536  # any setting may be as large, whatever the weights
LEAST_ROW, LEAST = 32, 8192  # numbers of a row and of a matrix that are worth 8 bits


def save_weights(path: str | Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors as a safetensors file, whole.

    Raises:
        MeshcapError: no room or no right to write.
    """
    write_file(path, lambda part: write_safetensors(weights, part))


def write_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors under a name; an OSError says that it failed."""
    try:
        save_file(dict(weights), path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, say: an OSError by another name
        raise OSError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as they are stored."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


def stored(module: nn.Module, bits: Bits = 32) -> dict[str, Tensor]:
    """A module's weights as its file keeps them. Buffers (positions, statistics) are never rounded: they are small."""
    buffers = {name for name, _ in module.named_buffers()}
    weights = reduced(module.state_dict(), bits, exact=buffers)
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def load_weights(module: nn.Module, path: Path) -> None:
    """Read weights into a module; a file that does not fit is refused, with its first mismatch, before any is changed.

    Those of 8 bits are restored on the way. Weights are read one by one and the file's pages given back after each:
    beside the module itself, memory holds one weight.

    Raises:
        MeshcapError: no readable file, other names or shapes, numbers that are not finite.
    """
    expected = module.state_dict()
    parts = _expect_shapes(expected, path, _shapes(path))
    for name, tensor in expected.items():
        with _opened(path) as file:
            stored_as = {one: file.get_tensor(one) for one in parts[name]}
            restorable(stored_as, owner=str(path))
            for one, numbers in stored_as.items():
                if numbers.is_floating_point() and not bool(torch.isfinite(numbers).all()):
                    raise MeshcapError(f"{path} has {one} with NaN or infinite numbers: the file is damaged")
            restore(tensor, stored_as, name)


def build_for(
    make: Callable[[], Module], settings: Mapping[str, Any], path: Path, *, dtype: torch.dtype = torch.float32
) -> Module:
    """`make()`, whose weights are about to be read from `path`; settings that do not fit the file are refused before
    anything of their sizes is allocated.

    Args:
        settings: what `make` builds from, as its JSON says.

    Raises:
        MeshcapError: sizes far above those in the file, other names or shapes, or settings that make no module.
    """
    shapes = _shapes(path)
    widest = max((size for shape in shapes.values() for size in shape), default=0)
    for name, value in _numbers_of(settings):
        most = len(shapes) if "layers" in name else LONGEST if name == "max_length" else max(LEAST_ROOM, 2 * widest)
        if value > most:
            shown = f"{value:,}" if value < 10**15 else "a number of more than 15 digits"
            what = f"{name} is {shown}, expected at most {most:,}"
            raise MeshcapError(f"{path} does not fit the settings beside it: {what}")
    try:
        with SkipInit():
            with torch.device("meta"):  # names and shapes alone
                expected = make().state_dict()
            _expect_shapes(expected, path, shapes)
            return _of_dtype(make(), dtype)  # before there are weights: they never exist in other numbers
    except MeshcapError:
        raise
    except (RuntimeError, TypeError, ValueError, OverflowError, MemoryError, ZeroDivisionError) as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise MeshcapError(f"the settings beside {path} make no model ({reason})") from error


def _of_dtype(module: Module, dtype: torch.dtype) -> Module:
    """`module.to(dtype)` of a module whose weights are about to be read: they are made anew, because converting them
    would touch each page of what was never written."""
    weights = {id(one) for one in module.parameters() if one.is_floating_point()}
    module._apply(lambda one: torch.empty_like(one, dtype=dtype) if id(one) in weights else one)
    return module.to(dtype)  # buffers


def _numbers_of(settings: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """All whole numbers, and how long lists are, with the setting that they belong to."""
    waiting = [(name, settings)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(key), one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            yield name, len(value)
            waiting += [(name, one) for one in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value


def _shapes(path: Path) -> dict[str, Shape]:
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict


def _expect_shapes(expected: Mapping[str, Tensor], path: Path, shapes: Mapping[str, Shape]) -> dict[str, list[str]]:
    """The tensors of a file that make each weight.

    Raises:
        MeshcapError: other names or shapes.
    """
    parts: dict[str, list[str]] = {}
    for name in shapes:
        parts.setdefault(_owner(name, shapes), []).append(name)
    for name, tensor in expected.items():
        if name not in parts:
            raise MeshcapError(f"{path} lacks {name} {tuple(tensor.shape)}, which the settings beside it call for")
        given = _shape(name, tuple(tensor.shape), parts[name], shapes)
        if given != tuple(tensor.shape):
            raise MeshcapError(f"{path} has {name} of shape {given}, expected {tuple(tensor.shape)}")
    for name in parts:
        if name not in expected:
            raise MeshcapError(f"{path} has {name}, which the settings beside it do not call for")
    return parts


def _owner(name: str, among: Collection[str]) -> str:
    """The weight that a tensor of a file belongs to: itself, or the one whose integers or scales it holds."""
    for suffix in (*PACKED.values(), SCALE, STEP, LOW):
        base = name.removesuffix(suffix)
        if base != name and (base in among or any(base + packed in among for packed in PACKED.values())):
            return base
    return name


def _shape(name: str, expected: Shape, parts: Sequence[str], shapes: Mapping[str, Shape]) -> Shape:
    """Of a weight in a file. Packed ones say how many rows and groups they have: if these fit, `expected` it is."""
    for bits, suffix in PACKED.items():
        if name + suffix in parts:
            rows, columns = (expected[0], math.prod(expected[1:])) if expected else (0, 0)
            groups = -(-columns // GROUP)
            wanted = {suffix: (rows, groups * GROUP * bits // 8), STEP: (rows, groups), LOW: (rows, groups)}
            fits = all(shapes.get(name + one) == shape for one, shape in wanted.items())
            return expected if fits else shapes[name + suffix]
    return shapes.get(name, ())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise MeshcapError(f"{path} is not a readable safetensors file ({error}): truncated or corrupted?") from error


def reduced(weights: Mapping[str, Tensor], bits: Bits, *, exact: Collection[str] = ()) -> dict[str, Tensor]:
    """Weights as a file of so many bits keeps them; 32 leaves them as they are.

    Args:
        exact: names of what is never rounded.

    Raises:
        MeshcapError: another number of bits.
    """
    if bits == 32:
        return dict(weights)
    if bits == 16:
        return {name: tensor if name in exact else _halved(tensor) for name, tensor in weights.items()}
    if bits in (8, *PACKED):
        return quantise(weights, bits=bits, exact=exact)
    raise MeshcapError(f"bits is {bits!r}, expected 4, 6, 8, 16 or 32")


def quantise(weights: Mapping[str, Tensor], *, bits: int = 8, exact: Collection[str] = ()) -> dict[str, Tensor]:
    """Every large matrix as integers with their scales beside, small ones as float16, the rest as it is."""
    found = {}
    for name, tensor in weights.items():
        if name in exact:
            found[name] = tensor
        elif _worth_it(tensor) and bits == 8:
            found[name], found[name + SCALE] = rounded(tensor)
        elif _worth_it(tensor):
            found[name + PACKED[bits]], found[name + STEP], found[name + LOW] = rounded_in_groups(tensor, bits)
        else:
            found[name] = _halved(tensor)
    return found


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (rows, …) as int8 of its shape, and a scale for each row."""
    rows = weight.detach().float().flatten(1)
    scale = rows.abs().amax(1) / 127
    scale = scale.where(scale >= torch.finfo(torch.float32).tiny, 1.0)  # rows of nothing but zeros
    # Rounding of the scale itself may bring the largest number past 127 by a hair: `round` takes it back.
    return (rows / scale[:, None]).round().clamp(-127, 127).to(torch.int8).view_as(weight), scale


def rounded_in_groups(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix (rows, …) as packed integers (rows, bytes), and the step and lowest number (rows, groups) of each group.

    The last group of a row is filled up with its own last number.
    """
    rows = weight.detach().float().flatten(1)
    missing = -rows.shape[1] % GROUP
    if missing:
        rows = torch.cat((rows, rows[:, -1:].expand(-1, missing)), 1)
    groups = rows.view(len(rows), -1, GROUP)
    most = 2**bits - 1
    low, high = groups.amin(-1).half(), groups.amax(-1)
    # The step must reach from the rounded lowest number to the highest; a group of equal numbers has step 0.
    step = ((high - low.float()) / most).clamp_min(0).half()
    safe = step.float().where(step > 0, 1.0)
    integers = ((groups - low.float()[..., None]) / safe[..., None]).round().clamp(0, most).to(torch.uint8)
    return _packed(integers.flatten(1), bits), step, low


def _packed(integers: Tensor, bits: int) -> Tensor:
    """(rows, n) of so many bits in bytes: two in one for 4 bits, four in three for 6."""
    if bits == 4:
        a, b = integers.unflatten(1, (-1, 2)).unbind(-1)
        return a | (b << 4)
    a, b, c, d = integers.unflatten(1, (-1, 4)).unbind(-1)
    return torch.stack((a | (b << 6), (b >> 2) | (c << 4), (c >> 4) | (d << 2)), -1).flatten(1)


def unpacked(content: Tensor, bits: int) -> Tensor:
    """The reverse of `_packed`: uint8 (rows, n)."""
    if bits == 4:
        return torch.stack((content & 15, content >> 4), -1).flatten(1)
    x, y, z = content.unflatten(1, (-1, 3)).unbind(-1)
    return torch.stack((x & 63, (x >> 6) | ((y & 15) << 2), (y >> 4) | ((z & 3) << 4), z >> 2), -1).flatten(1)


def ungrouped(content: Tensor, step: Tensor, low: Tensor, bits: int, shape: Shape) -> Tensor:
    """What `rounded_in_groups` was given, but for rounding, in float32."""
    integers = unpacked(content, bits)
    groups = integers.view(len(integers), -1, GROUP).float()
    groups.mul_(step.float()[..., None]).add_(low.float()[..., None])
    return groups.flatten(1)[:, : math.prod(shape[1:])].reshape(shape)


def dequantise(weights: Mapping[str, Tensor], *, owner: str = "the file") -> dict[str, Tensor]:
    """What `quantise` made 8 bits of, but for rounding, in float32; weights that are not of 8 bits come back untouched.

    Raises:
        MeshcapError: 8 bits without scales, or scales that do not belong to them.
    """
    return {name: _restored(weights, name) for name in restorable(weights, owner=owner)}


def restorable(weights: Mapping[str, Tensor], *, owner: str = "the file") -> list[str]:
    """The names that `dequantise` gives back, in order: all but scales. The shapes are those of the integers.

    Raises:
        MeshcapError: as `dequantise`.
    """
    found = []
    for name, tensor in weights.items():
        base = name.removesuffix(SCALE)
        if base != name and base in weights:
            if weights[base].dtype != torch.int8:
                kind = str(weights[base].dtype).removeprefix("torch.")
                raise MeshcapError(f"{owner} has {name} beside a {base} of {kind}, expected one of int8")
            continue
        if tensor.dtype == torch.int8:
            _check_scale(tensor, weights.get(name + SCALE), name, owner)
        found.append(name)
    return found


def restore(target: Tensor, weights: Mapping[str, Tensor], name: str) -> None:
    """Write one of the `restorable` into its place."""
    for bits, suffix in PACKED.items():
        if name + suffix in weights:
            content, step, low = (weights[name + one] for one in (suffix, STEP, LOW))
            target.copy_(ungrouped(content, step, low, bits, tuple(target.shape)))
            return
    given = weights[name].to(target.device)
    if given.dtype == torch.int8:
        torch.mul(given, _column(weights[name + SCALE].to(target.device), given), out=target)
    else:
        target.copy_(given)


def _restored(weights: Mapping[str, Tensor], name: str) -> Tensor:
    given = weights[name]
    return given * _column(weights[name + SCALE], given) if given.dtype == torch.int8 else given


def _column(scale: Tensor, rows: Tensor) -> Tensor:
    return scale.float().view(-1, *[1] * (rows.dim() - 1))


def _check_scale(rows: Tensor, scale: Tensor | None, name: str, owner: str) -> None:
    if scale is None:
        raise MeshcapError(f"{owner} has {name} in 8 bits without {name}{SCALE}")
    if rows.dim() < 2 or scale.shape != rows.shape[:1] or not scale.is_floating_point():
        raise MeshcapError(
            f"{owner} has {name}{SCALE} of shape {tuple(scale.shape)} and {str(scale.dtype).removeprefix('torch.')}, "
            f"expected a float for each row of {name} {tuple(rows.shape)}"
        )


def _worth_it(tensor: Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.dim() >= 2
        and tensor.numel() >= LEAST
        and tensor[0].numel() >= LEAST_ROW
        and bool(torch.isfinite(tensor).all())
    )


def _halved(tensor: Tensor) -> Tensor:
    """float16 of a matrix that float16 can hold; anything else as it is."""
    if tensor.dtype not in (torch.float32, torch.float64) or tensor.dim() < 2:
        return tensor
    half = tensor.half()
    return half if bool(torch.isfinite(half).all()) else tensor


# Where everything in torch.nn.init ends. (Kaiming's are handed over whole, and what they call is not seen here.)
RANDOM_INIT = ("normal_", "uniform_", "kaiming_normal_", "kaiming_uniform_")


class SkipInit(TorchFunctionMode):
    """Inside this context random initialisation does nothing: weights are about to be read from a file.

    For some 25 million weights, drawing random numbers takes longer than reading the file.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in RANDOM_INIT:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
