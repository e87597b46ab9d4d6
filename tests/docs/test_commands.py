"""Every command of README, docs and recipes is one that the command line knows, with options that it has.

This holds for blocks that are not run as well; `test_blocks.py` runs the others.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.pages import BLOCKS, PAGES, ROOT, SHELLS, Block, name_of, prose_of
from docs.shell import commands_of, lines_of, meshcap_words
from meshcap import cli

RECIPES = sorted((ROOT / "recipes").glob("*.sh"))
SHELL_BLOCKS = [block for block in BLOCKS if block.language in SHELLS]
PAST = ("CHANGELOG.md", "LOG.md")  # tell of options that are gone
DATA = ("json", "bibtex", "ini", "dockerfile", "nginx", "text", "yaml", "toml")  # shown, not run


@pytest.fixture(scope="module")
def command_line() -> Any:
    return typer.main.get_command(cli.build(list(cli.COMMANDS)))


def parse(command_line: Any, words: list[str]) -> None:
    """Parse as the real command would, up to the point where it would begin to work."""
    command, name, rest = command_line, "meshcap", words
    context = None
    while hasattr(command, "commands"):
        own = [rest.pop(0) for _ in range(len(rest)) if rest and rest[0].startswith("-")]
        if own in (["--version"], ["--help"]):
            return
        assert not own, f"meshcap has no option {own[0]}"
        assert rest, f"{name} needs a command"
        name, rest = rest[0], rest[1:]
        assert name in command.commands, f"meshcap has no command {name}"
        command = command.commands[name]
    if rest == ["--help"]:
        return
    try:
        context = command.make_context(name, list(rest))
    except Exception as error:
        told = error.format_message() if hasattr(error, "format_message") else repr(error)
        pytest.fail(f"{name}: {told}")
    assert context is not None


def check(command_line: Any, commands: list[list[str]], place: str) -> int:
    checked = 0
    for command in commands:
        words = meshcap_words(command)
        if words is not None:
            try:
                parse(command_line, list(words))
            except (AssertionError, pytest.fail.Exception) as error:
                pytest.fail(f"{place}: meshcap {' '.join(words)}\n{error}")
            checked += 1
        elif command[0] in ("python", "python3") and command[1:2] == ["-m"] and command[2].startswith("meshcap"):
            assert importlib.util.find_spec(command[2]), f"{place}: no module {command[2]}"
            checked += 1
        elif command[0] in ("python", "python3") and command[1:2] and command[1].endswith(".py"):
            script = Path(command[1])
            assert (ROOT / script).is_file(), f"{place}: no script {script}"
            if script.parent.name == "benchmarks":
                app = typer.Typer()
                app.command()(import_module(f"benchmarks.{script.stem}").command)
                parse(typer.main.get_command(app), command[2:])
            checked += 1
    return checked


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=lambda block: block.place)
def test_commands_are_known(block: Block, command_line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where nothing that they name exists
    check(command_line, list(commands_of(lines_of(block.text, block.language))), block.place)


@pytest.mark.parametrize("path", [path for path in PAGES if path.name not in PAST], ids=name_of)
def test_options_in_prose_are_known(path: Path, command_line: Any) -> None:
    """`meshcap train --resume` in a sentence is no whole command, but its options must be there."""
    for code in re.findall(r"`(meshcap [^`]+)`", prose_of(path.read_text(encoding="utf-8"))):
        for one in re.split(r" && |\| ", code):
            words = one.split()[1:]
            command = command_line
            while hasattr(command, "commands") and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
                assert words[0] in command.commands, f"{name_of(path)}: {one}"
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            used = {word.rstrip(",.").partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            assert used <= known | {"--help", "--version"}, f"{name_of(path)}: {one}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_blocks_say_what_they_are(block: Block) -> None:
    """A command without a language would be run by nobody, and one that is not run has a reason."""
    assert block.reason != "", f"{block.place}: no-run without a reason"
    if not block.language:
        for line in block.text.splitlines():
            assert not re.match(r"(\$ )?(meshcap|make|pip|python3?) ", line), f"{block.place}: write ```sh"
    else:
        assert block.language in (*SHELLS, "python", *DATA), f"{block.place}: {block.language}?"


def test_make_has_the_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in SHELL_BLOCKS:
        for command in commands_of(lines_of(block.text, block.language)):
            if command[0] == "make":
                for target in command[1:]:
                    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"{block.place}: {target}"


def test_extras_exist() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for path in PAGES:
        for names in re.findall(r"meshcap\[([\w,-]+)\]", path.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= set(project["optional-dependencies"]), f"{name_of(path)}: [{names}]"


@pytest.mark.skipif(not RECIPES, reason="recipes/ holds no script")
@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_recipes(path: Path, command_line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("bash"):
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    commands = list(commands_of(lines_of(path.read_text(encoding="utf-8"))))
    assert check(command_line, commands, name_of(path)) > 0, "a recipe without a command of ours"


@pytest.mark.parametrize(
    "wrong",
    ["meshcap captoin a.jpg", "meshcap caption a.jpg --bems 3", "meshcap data features a b --vision c",
     "meshcap caption a.jpg --beam many", "python -m meshcap.nothing",
     "python benchmarks/nothing.py", "python benchmarks/decode.py --nothing"],
)  # fmt: skip
def test_a_wrong_command_is_noticed(wrong: str, command_line: Any) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(command_line, list(commands_of([wrong])), "here")
