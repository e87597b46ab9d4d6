"""The command line: one file for each command, joined here.

Exit codes: 0 fine, 1 failed, 2 misused, 130 interrupted. A `MeshcapError` and a usage error are one line on stderr; any
other exception is a bug and keeps its traceback.

To add a command, write `cli/<name>.py` and add its line to `COMMANDS`. The file imports nothing heavy at its top
(torch, numpy, …: inside the function body), because `meshcap --help` imports every command to show its first line.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

import meshcap
from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import OptionError

# name -> "module:attribute", the attribute being a function, or a typer.Typer for a command with sub-commands.
# In the order of `meshcap --help`.
COMMANDS: dict[str, str] = {
    "caption": "meshcap.cli.caption:caption",
    "batch": "meshcap.cli.batch:batch",
    "explain": "meshcap.cli.explain:explain",
    "serve": "meshcap.cli.serve:serve",
    "remember": "meshcap.cli.memory:remember",
    "recall": "meshcap.cli.memory:recall",
    "forget": "meshcap.cli.memory:forget",
    "train": "meshcap.cli.train:train",
    "evaluate": "meshcap.cli.evaluate:evaluate",
    "data": "meshcap.cli.data:app",
    "import-reference": "meshcap.cli.import_reference:import_reference",
    "export": "meshcap.cli.export:export",
    "score": "meshcap.cli.score:score",
    "tokenize": "meshcap.cli.tokenize:tokenize",
}

HELP = "Captions for pictures, with the Meshed-Memory Transformer (M²) and its relatives."
EXAMPLE = "Example: meshcap caption photo.jpg"
SPINS = "2000"  # turns of a loop in which threads of OpenMP wait for each other before they sleep
VALUES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}  # how help names the value of an option


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code. `arguments` are those after the program's name."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Read when torch is loaded. Its own number keeps waiting threads on the cores that those they wait for need, where
    # other programs are busy too: a caption then takes up to ten times as long. Alone on a machine it is as fast.
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        sys.exit(run(words))
    except MeshcapError as error:
        # Errors of caption options name them as Python does; here they are flags.
        message = error.spelled(options.flag) if isinstance(error, OptionError) else str(error)
        print("error:", " ".join(message.splitlines()), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a closed pager) is gone. Python flushes once more on its way out: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def run(words: Sequence[str]) -> int:
    """Run one command; its exit code."""
    # One command is imported alone; anything else (--help, a typing mistake) needs to know them all.
    names = words[:1] if words and words[0] in COMMANDS else list(COMMANDS)
    try:
        code = typer.main.get_command(build(names)).main(list(words), prog_name="meshcap", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Abort:
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's own, whose module depends on typer's version
            raise
        print(usage_error(error), file=sys.stderr)
        return 2
    finally:
        sys.stdout.flush()  # here, where a reader that went away can still be caught


def usage_error(error: Any) -> str:
    """One line for a wrong option or argument; where none was given, the help."""
    message = error.format_message()
    if "\n" in message.strip():
        return str(message)
    message = message.strip().removesuffix(".").replace("Input should be", "expected")
    where = error.ctx.command_path if getattr(error, "ctx", None) else "meshcap"
    return f"error: {message[:1].lower()}{message[1:]}: see {where} --help"


def build(names: Sequence[str]) -> typer.Typer:
    """The typer application with these of the `COMMANDS`."""
    app = typer.Typer(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(cls=Group, help=HELP, epilog=EXAMPLE)(_root)
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            for info in command.registered_commands:
                info.cls = Command
            app.add_typer(command, name=name, cls=Group)
        else:
            app.command(name, cls=Command)(command)
    return app


class Command(TyperCommand):
    """A command whose help is plain text: sections of options, each with its value and default."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)


class Group(TyperGroup):
    """The same for a command with sub-commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    subcommands = list(command.list_commands(ctx)) if isinstance(command, TyperGroup) else []
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    values = dict(_values(command.callback))
    usage = ["[OPTIONS]", *(_argument(param) for param in arguments), *(["COMMAND ..."] if subcommands else [])]
    formatter.write_usage(ctx.command_path, " ".join(usage))
    command.format_help_text(ctx, formatter)
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [(_argument(one), one.help or "") for one in arguments]}
    for option in command.get_params(ctx):
        if option not in arguments and not option.hidden:
            panel = getattr(option, "rich_help_panel", None) or "Options"
            sections.setdefault(panel, []).append(_option(option, values.get(option.name, "TEXT")))
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    if subcommands:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_command(ctx, name).get_short_help_str(90)) for name in subcommands])
    command.format_epilog(ctx, formatter)


def _argument(param: Any) -> str:
    name = param.metavar or str(param.name).upper().replace("_", "-")
    name = name if param.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if param.required else f"[{name}]"


def _option(param: Any, value: str) -> tuple[str, str]:
    """Spelling and text of an option: `--beams N` and what it does, with its default."""
    names = ", ".join(sorted(param.opts, key=len))
    if param.is_flag:
        names += "".join(f" / {name}" for name in param.secondary_opts)
    else:
        names += f" {param.metavar or value}"
    default = param.default
    if isinstance(param.show_default, str):
        shown = param.show_default
    elif (
        not param.show_default
        or not isinstance(default, str | int | float | Path)
        or (param.is_flag and not param.secondary_opts)
    ):
        shown = ""
    elif param.is_flag:
        shown = (param.opts if default else param.secondary_opts)[0]
    else:
        shown = str(default)
    return names, f"{param.help or ''}{f' (default: {shown})' if shown else ''}"


def _values(function: Any) -> Iterator[tuple[str, str]]:
    """How help names the value of each parameter of a command, by its type: N, X, TEXT, PATH or the choices."""
    if function is None:
        return
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        yield name, " or ".join(dict.fromkeys(_value(parameter.annotation)))


def _value(kind: Any) -> Iterable[str]:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _value(inside[0])
    if origin is Literal:
        return ["|".join(map(str, inside))]
    if origin in (Union, UnionType, list, tuple):
        return [name for one in inside if one not in (type(None), ...) for name in _value(one)]
    return [VALUES.get(kind, "TEXT")]


def _print_version(given: bool) -> None:
    if given:
        typer.echo(f"meshcap {meshcap.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `meshcap` itself."""
