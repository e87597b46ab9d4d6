"""Checkpoints: everything a run needs to go on exactly where it was.

A checkpoint is a folder `checkpoints/<step>` with `state.safetensors` (weights, their averages, the optimizer's
moments) and `state.json` (where the run was, and the checksum of the other file). It is written under another name
and renamed when it is whole. The last two are kept: where the newest is damaged, the one before serves. There are no
random states and no data position in it, because both are functions of the seed and the step.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from meshcap.errors import MeshcapError
from meshcap.training.optimizer import Average
from meshcap.weights import write_safetensors

FOLDER, TENSORS, STATE = "checkpoints", "state.safetensors", "state.json"
KEPT = 2


@dataclass
class Position:
    """Where a run is. Steps count over all stages."""

    stage: str
    step: int = 0  # done so far
    stage_start: int = 0
    best: float | None = None  # the highest validation CIDEr so far
    best_step: int = 0
    kept: float | None = None  # validation CIDEr of the model in the run's folder
    kept_step: int = 0
    validations_since: int = 0  # without a new best
    done: bool = False
    events: list[str] = field(default_factory=list)


def optimizer_tensors(optimizer: torch.optim.Optimizer, weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's moments by the weights' names."""
    found = {}
    for name, weight in weights.items():
        for kind, tensor in optimizer.state.get(weight, {}).items():
            found[f"optimizer.{kind}.{name}"] = torch.as_tensor(tensor)
    return found


def restore_optimizer(
    optimizer: torch.optim.Optimizer, weights: dict[str, nn.Parameter], tensors: dict[str, Tensor]
) -> None:
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for name, weight in weights.items():
        for kind in ("step", "exp_avg", "exp_avg_sq"):
            tensor = tensors.get(f"optimizer.{kind}.{name}")
            if tensor is not None:
                place = weight.device if kind != "step" or fused else torch.device("cpu")
                optimizer.state[weight][kind] = tensor.to(place, copy=True)


def save_checkpoint(
    run: Path,
    position: Position,
    weights: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    average: Average,
    others: dict[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint; earlier ones beyond the last `KEPT` go when it is in place.

    Args:
        others: what changes without being learned, such as a running mean.

    Raises:
        MeshcapError: no room or no right to write; earlier checkpoints are untouched.
    """
    tensors = {name: weight.detach() for name, weight in weights.items()} | (others or {})
    tensors |= {f"average.{name}": tensor for name, tensor in average.mean.items()}
    tensors |= optimizer_tensors(optimizer, weights)
    folder = run / FOLDER
    target = folder / f"{position.step:09d}"
    part = folder / f".{target.name}.part"
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < 1.1 * needed:
            raise MeshcapError(
                f"{folder} has {free / 2**20:,.0f} MiB left and a checkpoint takes {needed / 2**20:,.0f}: make room, "
                "then go on with --resume (earlier checkpoints are whole)"
            )
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        write_safetensors({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, part / TENSORS)
        state = {**asdict(position), "average_steps": average.steps, "blake2b": checksum(part / TENSORS)}
        (part / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        for name in (TENSORS, STATE):
            with open(part / name, "rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    except OSError as error:
        raise MeshcapError(f"a checkpoint cannot be written to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for old in checkpoints(run)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoints(run: Path) -> list[Path]:
    """Oldest first."""
    folder = run / FOLDER
    return sorted(path for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def read_checkpoint(path: Path) -> tuple[Position, int, dict[str, Tensor]]:
    """Position, steps of the average, and tensors.

    Raises:
        MeshcapError: the checkpoint is damaged.
    """
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
        if checksum(path / TENSORS) != state.pop("blake2b"):
            raise MeshcapError(f"{path} is damaged: its checksum is another")
        steps = int(state.pop("average_steps"))
        return Position(**state), steps, load_file(path / TENSORS)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise MeshcapError(f"{path} is damaged ({error})") from error


def latest(run: Path) -> tuple[Position, int, dict[str, Tensor], list[str]] | None:
    """The newest checkpoint that is whole, and a line about each newer one that is not. None: there is none yet.

    Raises:
        MeshcapError: there are checkpoints, and all are damaged.
    """
    complaints: list[str] = []
    for path in reversed(checkpoints(run)):
        try:
            position, steps, tensors = read_checkpoint(path)
        except MeshcapError as error:
            complaints.append(str(error))
            continue
        return position, steps, tensors, complaints
    if complaints:
        raise MeshcapError(f"no checkpoint of {run} can be used: {'; '.join(complaints)}")
    return None


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def fill_weights(
    weights: dict[str, nn.Parameter],
    average: Average,
    tensors: dict[str, Tensor],
    others: dict[str, Tensor] | None = None,
) -> None:
    """Put a checkpoint's weights into the model.

    Raises:
        MeshcapError: it is of another model.
    """
    for name, weight in weights.items():
        given = tensors.get(name)
        if given is None or given.shape != weight.shape:
            found = "nothing" if given is None else f"shape {tuple(given.shape)}"
            raise MeshcapError(f"the checkpoint has {found} for {name} {tuple(weight.shape)}: a run of another model?")
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])
        for name, mean in average.mean.items():
            mean.copy_(tensors.get(f"average.{name}", tensors[name]))
        for name, other in (others or {}).items():
            if name in tensors:
                other.copy_(tensors[name])
