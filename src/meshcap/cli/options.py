"""Options that mean the same in every command, and those of captions, made from `CaptionOptions`.

@options.caption_options()
def caption(paths: list[Path], device: options.Device = "auto", **given: object) -> None:
    wanted = CaptionOptions.parse(given)
"""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from meshcap.errors import MeshcapError
from meshcap.options import DEFAULTS, HELP, NAMES, REAL, STRATEGIES, WHOLE, CaptionOptions

if TYPE_CHECKING:
    import torch

    from meshcap.captioner import Captioner

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
        help="Numbers to compute with; auto is bfloat16 where it is fast, else float32; int8 (CPU) rounds weights.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads to use.", show_default="torch's choice"),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, for programs."),
]

BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Pictures captioned together.", show_default="by device"),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", help="What meshcap remember made; none: leave it out.", show_default="your own"),
]
NamedMemory = Annotated[
    str | None,
    typer.Option("--memory", help="What meshcap remember made; default: your own.", show_default="none"),
]
Function = TypeVar("Function", bound=Callable[..., Any])


def flag(name: str) -> str:
    """An option as the command line spells it: `--max-words`."""
    return "--" + name.replace("_", "-")


def caption_options(*, only: tuple[str, ...] = NAMES, without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Give a command options for fields of `CaptionOptions`, in the place of its `**` parameter.

    Values arrive as they were written and None where they were not given: `CaptionOptions.parse` reads them, with the
    same messages as everywhere.
    """

    def decorate(function: Function) -> Function:
        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(function, eval_str=True).parameters.values():
            if one.kind is inspect.Parameter.VAR_KEYWORD:
                names = [name for name in only if name not in without]
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters += [inspect.Parameter(name, kind, default=None, annotation=_flag(name)) for name in names]
            else:
                parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {one.name: one.annotation for one in parameters}
        return function

    return decorate


def _flag(name: str) -> Any:
    """The annotation of an option of captions."""
    names = ["--n", "-n"] if name == "n" else [flag(name)]
    kind: Any = str | None
    metavar: str | None = "N" if name in WHOLE else "X" if name in REAL else None
    default = getattr(CaptionOptions, name)
    shown: Any = DEFAULTS.get(name, str(default) if isinstance(default, int | float | str) else False)
    if isinstance(default, bool):
        kind, shown = bool | None, flag(name) if default else False
        names = [f"{names[0]}/--no-{names[0][2:]}"] if default else names
    elif name in ("must", "must_not"):
        kind, metavar = list[str] | None, "WORDS"
    elif name == "strategy":
        metavar = "|".join(STRATEGIES)
    panel = "Caption options"
    return Annotated[
        kind, typer.Option(*names, help=HELP[name], metavar=metavar, show_default=shown, rich_help_panel=panel)
    ]


def load_captioner(model: str, device: DeviceName, dtype: DtypeName, threads: int | None = None) -> Captioner:
    """A captioner for inference alone, on so many CPU threads."""
    gc.disable()  # nothing of what is imported and read becomes garbage: looking for it takes a tenth of the start
    try:
        from meshcap.captioner import Captioner

        captioner = Captioner.from_pretrained(model, device=device, dtype=dtype, threads=threads)
        if threads is not None and captioner.backend.name != "onnx":
            import torch

            torch.set_num_threads(threads)
        return captioner.optimize()
    finally:
        gc.enable()


def attach_memory(captioner: Captioner, memory: str | None, *, own: bool = False, unread: bool = False) -> None:
    """Let a captioner read a memory: the one named, or the user's own, where there is one and the model can.

    Args:
        own: take the user's own where none is named.
        unread: a model that reads none may recall from it.

    Raises:
        MeshcapError: the one named is not there, of another vision, or this model reads none.
    """
    from meshcap.memory import default_place, is_store

    if memory == "none" or (memory is None and not (own and is_store(default_place()))):
        return
    named = memory is not None
    try:
        captioner.memory = default_place() if memory in (None, "default") else memory
        if unread:
            _recalls_only(captioner)
        elif len(captioner.memory):
            captioner.expect_reader()
    except MeshcapError as error:
        captioner.memory = None
        if named:
            raise
        typer.echo(f"warning: captioned without your memory: {error}", err=True)
        return
    for line in captioner.memory.warnings:
        typer.echo(f"warning: {line}", err=True)


def _recalls_only(captioner: Captioner) -> None:
    """Say once, and not with every caption, that a model does not read a memory."""
    from meshcap.captioner import UNREAD

    try:
        captioner.expect_reader()
    except MeshcapError:
        typer.echo(f"warning: {UNREAD}", err=True)
        warnings.filterwarnings("ignore", UNREAD)


def apply(
    device: DeviceName, dtype: DtypeName, threads: int | None, seed: int | None
) -> tuple[torch.device, torch.dtype]:
    """Set threads and seeds for this process, and say where to compute and with which numbers.

    Raises:
        MeshcapError: the device asked for is not there.
    """
    import torch

    from meshcap.backends.torch_backend import device_of, dtype_of

    if threads is not None:
        torch.set_num_threads(threads)
    if seed is not None:
        _seed(seed)
    where = device_of(device)
    return where, dtype_of(dtype, where)


def _seed(seed: int) -> None:
    import random

    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
