"""Checkpoints of the public M² implementation, read into an `M2`.

The file is read with `weights_only=True`: it can hold tensors and plain data, nothing that runs. Sizes are taken from
the tensors themselves. One thing the tensors cannot say is how many regions each picture was filled up to during
training; that implementation uses 50 (see `M2Config.attend_padding`).
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.models.m2 import M2, M2Config

# Buffers of its step-by-step decoding, of no meaning in a file.
IGNORED = re.compile(r"decoder\.running_|decoder\.layers\.\d+\.self_att\.running_")


class Nothing:
    """Stands in for the numpy objects (a random state, scores) that its training script saves beside the weights."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


NUMPY = [
    (Nothing, f"numpy.{name}")
    for name in (
        "ndarray", "dtype", "core.multiarray.scalar", "core.multiarray._reconstruct",
        "_core.multiarray.scalar", "_core.multiarray._reconstruct",
    )
]  # fmt: skip


def read_reference(path: str | Path, *, regions: int = 50, d_head: int | None = None) -> M2:
    """An `M2` with the weights of a public checkpoint.

    Args:
        regions: how many regions pictures were filled up to with zeros when it was trained.
        d_head: numbers per head, where heads are not 64 wide (the tensors do not tell).

    Raises:
        MeshcapError: the file cannot be read, is no such checkpoint, or a tensor is missing or of another shape.
    """
    given = read_state_dict(Path(path))
    config = infer_config(given, regions=regions, d_head=d_head)
    mapped = rename(given, config)
    model = M2(config)
    for name, tensor in model.state_dict().items():
        if mapped[name].shape != tensor.shape:
            raise MeshcapError(
                f"{path}: {name} comes out as {tuple(mapped[name].shape)}, expected {tuple(tensor.shape)}"
            )
        if not bool(torch.isfinite(mapped[name]).all()):
            raise MeshcapError(f"{path}: {name} holds NaN or infinite numbers: corrupted?")
    model.load_state_dict(mapped)
    return model.eval()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise MeshcapError(f"{path} is not a file: expected a checkpoint of the public M² implementation (.pth)")
    _expect_plain_zip(path)
    try:
        with torch.serialization.safe_globals(NUMPY):  # type: ignore[arg-type]
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file raises whatever its bytes happen to lead to
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        reason = f"it asks for {wanted[1]}" if wanted else message
        raise MeshcapError(f"{path} cannot be read as tensors alone and is refused ({reason[:200]})") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if (
        not isinstance(state, dict)
        or not state
        or not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items())
    ):
        raise MeshcapError(f"{path} holds no 'state_dict' of tensors: expected a checkpoint of the public M²")
    total = 0
    for name, tensor in state.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.is_complex():
            raise MeshcapError(f"{path} holds {name} as a sparse, quantised, complex or empty tensor, expected numbers")
        total += tensor.numel() * tensor.element_size()
    if total > 2 * path.stat().st_size:  # views that repeat the same few numbers
        raise MeshcapError(f"{path} holds tensors of {total:,} bytes in a file of {path.stat().st_size:,}: damaged?")
    return {name: tensor for name, tensor in state.items() if not IGNORED.match(name)}


def _expect_plain_zip(path: Path) -> None:
    """torch writes archives without compression; one with it may unpack to any size."""
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                packed = any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist())
        except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise MeshcapError(f"{path} cannot be read: {error}") from error
        if packed:
            raise MeshcapError(f"{path} is a compressed archive, expected a checkpoint as torch.save writes it")


def infer_config(given: dict[str, Tensor], *, regions: int, d_head: int | None) -> M2Config:
    """The settings that the tensors imply."""

    def shape(name: str, dimensions: int = 2) -> torch.Size:
        if name not in given:
            raise MeshcapError(f"the checkpoint lacks {name}: is it one of the public M² implementation?")
        if given[name].dim() != dimensions:
            raise MeshcapError(f"{name} is of shape {tuple(given[name].shape)}, expected {dimensions} dimensions")
        return given[name].shape

    def vector(name: str) -> Tensor:
        if shape(name, 1) != (d_model,):
            raise MeshcapError(f"{name} is of shape {tuple(given[name].shape)}, expected {(d_model,)}")
        return given[name].float()

    d_model, d_input = shape("encoder.fc.weight")
    inner = shape("encoder.layers.0.mhatt.attention.fc_q.weight")[0]
    width = d_head or (64 if inner % 64 == 0 else 0)
    if not width or inner % width:
        raise MeshcapError(
            f"heads together are {inner} wide, and {width or 64} does not divide that: give --head-width"
        )
    # Its mask looks for rows that sum to zero after the layer norm. A filled-up row is relu(bias) normed: with
    # trained weights that sum is not zero and padding is looked at; where it is zero, padding really is hidden.
    norm = vector("encoder.layer_norm.weight"), vector("encoder.layer_norm.bias")
    filled = F.layer_norm(vector("encoder.fc.bias").relu(), (d_model,), *norm)
    return M2Config(
        vocab_size=shape("decoder.fc.weight")[0],
        d_input=d_input,
        d_model=d_model,
        heads=inner // width,
        d_head=width,
        d_ff=shape("encoder.layers.0.pwff.fc1.weight")[0],
        encoder_layers=count(given, "encoder.layers"),
        decoder_layers=count(given, "decoder.layers"),
        slots=shape("encoder.layers.0.mhatt.attention.m_k", 3)[1],
        max_length=shape("decoder.pos_emb.weight")[0] - 1,
        boxes=False,
        attend_padding=regions if float(filled.sum()) != 0 else 0,
        suppressed_ids=(),
    )


def count(given: dict[str, Tensor], prefix: str) -> int:
    """Layers from 0 on without a gap."""
    found = 0
    while any(name.startswith(f"{prefix}.{found}.") for name in given):
        found += 1
    if not found:
        raise MeshcapError(f"the checkpoint lacks {prefix}.0: is it one of the public M² implementation?")
    return found


def rename(given: dict[str, Tensor], config: M2Config) -> dict[str, Tensor]:
    """Their names and shapes to ours: q, k, v joined, gates cut into the halves that read words and context."""
    rest = dict(given)
    ours: dict[str, Tensor] = {}

    def take(name: str, *last: int) -> Tensor:
        """A tensor that has at least one dimension and whose last ones are as given."""
        if name not in rest:
            raise MeshcapError(f"the checkpoint lacks {name}, which its other tensors call for")
        shape = tuple(rest[name].shape)
        if not shape or shape[len(shape) - len(last) :] != last:
            raise MeshcapError(f"{name} is of shape {shape}, expected (…, {', '.join(map(str, last)) or 'n'})")
        return rest.pop(name).float()

    def both(new: str, *old: str) -> None:
        for part in ("weight", "bias"):
            first = take(f"{old[0]}.{part}")
            others = [take(f"{name}.{part}", *first.shape) for name in old[1:]]  # joined are only maps of one shape
            ours[f"{new}.{part}"] = torch.cat((first, *others))

    def feed_forward(new: str, old: str) -> None:
        both(f"{new}.expand", f"{old}.fc1")
        both(f"{new}.contract", f"{old}.fc2")
        both(f"{new}.norm", f"{old}.layer_norm")

    slots = (1, config.slots, config.heads * config.head_width)
    both("encoder.project", "encoder.fc")
    both("encoder.norm", "encoder.layer_norm")
    for i in range(config.encoder_layers):
        new, old = f"encoder.layers.{i}", f"encoder.layers.{i}.mhatt"
        both(f"{new}.attention.qkv", *(f"{old}.attention.fc_{letter}" for letter in "qkv"))
        both(f"{new}.attention.output", f"{old}.attention.fc_o")
        both(f"{new}.norm", f"{old}.layer_norm")
        ours[f"{new}.attention.memory.keys"] = take(f"{old}.attention.m_k", *slots)[0]
        ours[f"{new}.attention.memory.values"] = take(f"{old}.attention.m_v", *slots)[0]
        feed_forward(f"{new}.feed_forward", f"encoder.layers.{i}.pwff")

    ours["decoder.words.weight"] = take("decoder.word_emb.weight")
    ours["decoder.positions"] = take("decoder.pos_emb.weight")
    ours["decoder.output.words.weight"] = take("decoder.fc.weight")
    for i in range(config.decoder_layers):
        layer = f"decoder.layers.{i}"
        both(f"{layer}.attention.qkv", *(f"{layer}.self_att.attention.fc_{letter}" for letter in "qkv"))
        both(f"{layer}.attention.output", f"{layer}.self_att.attention.fc_o")
        both(f"{layer}.norm", f"{layer}.self_att.layer_norm")
        cross = f"{layer}.enc_att.attention"
        both(f"{layer}.mesh.cross.query", f"{cross}.fc_q")
        both(f"{layer}.mesh.cross.key_value", f"{cross}.fc_k", f"{cross}.fc_v")
        both(f"{layer}.mesh.cross.output", f"{cross}.fc_o")
        both(f"{layer}.mesh.norm", f"{layer}.enc_att.layer_norm")
        both_halves = (config.d_model, 2 * config.d_model)
        gates = [take(f"{layer}.fc_alpha{level + 1}.weight", *both_halves) for level in range(config.encoder_layers)]
        for level, gate in enumerate(gates):  # (D, 2D): the left half reads the word, the right half the context
            ours[f"{layer}.mesh.gates.context.{level}.weight"] = gate[:, config.d_model :]
        ours[f"{layer}.mesh.gates.query.weight"] = torch.cat([gate[:, : config.d_model] for gate in gates])
        ours[f"{layer}.mesh.gates.query.bias"] = torch.cat(
            [take(f"{layer}.fc_alpha{level + 1}.bias", config.d_model) for level in range(config.encoder_layers)]
        )
        feed_forward(f"{layer}.feed_forward", f"{layer}.pwff")
    if rest:
        raise MeshcapError(f"the checkpoint has {next(iter(rest))}, which the public M² does not: another model?")
    return ours
