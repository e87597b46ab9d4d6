"""The command line: one thin file a command, joined here.

Exit codes: 0 fine, 1 failed, 2 misused, 130 interrupted. A `MeshcapError` is told in one line; any other exception is
a bug of ours and keeps its traceback.

To add a command, write `cli/<name>.py` and add its line to `COMMANDS`. The file imports nothing heavy at its top
(torch, numpy, …: inside the function body), because `meshcap --help` imports every command to show its first line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

import meshcap
from meshcap.errors import MeshcapError

# name -> "module:attribute", the attribute being a function, or a typer.Typer for a command with sub-commands.
# In the order of `meshcap --help`.
COMMANDS: dict[str, str] = {
    "caption": "meshcap.cli.caption:caption",
    "batch": "meshcap.cli.batch:batch",
    "explain": "meshcap.cli.explain:explain",
    "serve": "meshcap.cli.serve:serve",
    "train": "meshcap.cli.train:train",
    "evaluate": "meshcap.cli.evaluate:evaluate",
    "blend": "meshcap.cli.blend:blend",
    "sizes": "meshcap.cli.sizes:sizes",
    "data": "meshcap.cli.data:app",
    "import-reference": "meshcap.cli.import_reference:import_reference",
    "quantise": "meshcap.cli.quantise:quantise",
    "export": "meshcap.cli.export:export",
    "score": "meshcap.cli.score:score",
    "tokenize": "meshcap.cli.tokenize:tokenize",
    "ntm": "meshcap.cli.ntm:ntm",
    "bench": "meshcap.cli.bench:app",
}

HELP = "Captions for pictures, with the Meshed-Memory Transformer (M²) and its relatives."
EXAMPLE = "Example: meshcap caption photo.jpg"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code. `arguments` are those after the program's name."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            # One command is imported alone; anything else (--help, a typing mistake) needs to know them all.
            names = words[:1] if words and words[0] in COMMANDS else list(COMMANDS)
            build(names)(args=words, prog_name="meshcap")
        finally:
            sys.stdout.flush()  # here, where a reader that went away can still be caught
    except MeshcapError as mistake:
        print("error:", " ".join(str(mistake).splitlines()), file=sys.stderr)
        sys.exit(mistake.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a closed pager) has had enough. Python flushes once more on its way out: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def build(names: Sequence[str]) -> typer.Typer:
    """The typer application with these of the `COMMANDS`."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help=HELP, epilog=EXAMPLE)(_root)
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"meshcap {meshcap.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options of `meshcap` itself."""
