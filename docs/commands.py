"""The page of all commands, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from meshcap import cli

PAGE = "commands.md"
HEAD = """# Commands

Every command and option, as `meshcap COMMAND --help` tells them. Exit codes: 0 fine, 1 failed, 2 misused (one line says
how), 130 interrupted.
"""


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    command_line = typer.main.get_command(cli.build(list(cli.COMMANDS)))
    return HEAD + "".join(told(name, command) for name, command in commands_of(command_line, "meshcap"))


def commands_of(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, below in command.commands.items():
        yield from commands_of(below, f"{name} {part}")


def told(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join([name, *(one.name.upper() + ("…" if one.nargs == -1 else "") for one in arguments)])
    rows = [row(f"`{one.name.upper()}`", one) for one in arguments]
    rows += [row(", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts)), one) for one in options]
    table = "| option | | default |\n|---|---|---|\n" + "".join(rows)
    return f"\n## {name}\n\n{as_code(inspect.cleandoc(command.help or ''))}\n\n    {usage} [OPTIONS]\n\n{table}"


def row(names: str, parameter: Any) -> str:
    cells = [names, plain(parameter.help or ""), standing(parameter)]
    return "| " + " | ".join(cells) + " |\n"


def standing(parameter: Any) -> str:
    """What holds where nothing is said."""
    if parameter.required:
        return "needed"
    if isinstance(parameter.show_default, str):
        return plain(parameter.show_default)
    default = parameter.default
    if default in (None, False, "", (), []) or callable(default):
        return ""
    return f"`{default}`"


def plain(text: str) -> str:
    return as_code(" ".join(text.split()).replace("|", "\\|").replace("<", "&lt;"))


def as_code(text: str) -> str:
    """Options and examples look like what one types; what is between ` already does."""
    text = re.sub(r"^Example: (.+)$", r"Example: `\1`", text, flags=re.MULTILINE)
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)
