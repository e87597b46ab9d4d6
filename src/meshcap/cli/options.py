"""Options that mean the same in every command.

def caption(paths: list[Path], device: options.Device = "auto", seed: options.Seed = None) -> None:
    where, precision = options.apply(device, "auto", None, seed)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshcap.errors import MeshcapError

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16", "int8"]

Model = Annotated[
    str,
    typer.Option("--model", help="A model folder, a name on the Hugging Face hub, or the one that comes with meshcap."),
]
Device = Annotated[
    DeviceName,
    typer.Option("--device", help="Where to compute; auto takes a GPU where there is one."),
]
Dtype = Annotated[
    DtypeName,
    typer.Option(
        "--dtype",
        help="Numbers to compute with; auto is bfloat16 on GPUs made for it, else float32; int8 (CPU) rounds weights.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads to use.", show_default="torch's choice"),
]
Seed = Annotated[
    int | None,
    # numpy takes no larger one
    typer.Option("--seed", min=0, max=2**32 - 1, help="Repeat the same random choices.", show_default="new each time"),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, for programs."),
]


def apply(
    device: DeviceName, dtype: DtypeName, threads: int | None, seed: int | None
) -> tuple[torch.device, torch.dtype]:
    """Set threads and seeds for this process, and say where to compute and with which numbers.

    Raises:
        MeshcapError: the device asked for is not there.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if seed is not None:
        _seed(seed)
    where = torch.device(_choose(device))
    if dtype == "auto":
        fits = where.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return where, torch.bfloat16 if fits else torch.float32
    return where, {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}[
        dtype
    ]


def _choose(device: DeviceName) -> str:
    import torch

    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    if device == "cuda" and not cuda:
        raise MeshcapError("cuda was asked for, and torch sees no CUDA device: use --device cpu")
    if device == "mps" and not mps:
        raise MeshcapError("mps was asked for, and torch sees no Apple GPU: use --device cpu")
    return device


def _seed(seed: int) -> None:
    import random

    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
