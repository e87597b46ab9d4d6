"""What every command may rely on: exit codes, one-line errors, registration."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
import typer

import meshcap
from meshcap import cli
from meshcap.cli import options
from meshcap.errors import MeshcapError
from meshcap.options import HELP


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of commands made for these tests; what is set on it as x is the command x once registered."""
    module = ModuleType("commands_for_tests")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", {name: f"{module.__name__}:{name}" for name in ("one", "two")})
    return module


def leave(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    return int(left.value.code or 0)


def test_command_runs(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def one(count: int) -> None:
        """Count."""
        print(count + 1)

    commands.one = one  # `two` does not exist: only the command that is asked for is looked up
    assert leave("one", "41") == 0
    assert capsys.readouterr() == ("42\n", "")


def test_command_with_sub_commands(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    commands.two = typer.Typer(help="A group.")
    commands.two.command("first")(lambda: print("first"))
    commands.two.command("second")(lambda: print("second"))
    assert leave("two", "second") == 0
    assert capsys.readouterr().out == "second\n"


def test_help_lists_every_command(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def one() -> None:
        """Count the spoons."""

    commands.one, commands.two = one, typer.Typer(help="Count the forks.")
    commands.two.command("now")(one)
    assert leave("--help") == 0
    shown = capsys.readouterr().out
    assert "Count the spoons." in shown
    assert "Count the forks." in shown
    assert cli.EXAMPLE in shown


def test_mistake_is_one_line_and_code_2(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def one() -> None:
        raise MeshcapError("no file 'a [b].jpg'\nexpected a picture")

    commands.one = one
    assert leave("one") == 2
    assert capsys.readouterr() == ("", "error: no file 'a [b].jpg' expected a picture\n")


@pytest.mark.parametrize("words", [("nonesuch",), ("--nonesuch",), ("one", "--nonesuch"), ("one", "word"), ()])
def test_misuse_is_code_2(commands: ModuleType, words: tuple[str, ...]) -> None:
    def one(count: int) -> None:
        """Count."""

    commands.one, commands.two = one, one
    assert leave(*words) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("one", "--nonesuch"), "error: no such option: --nonesuch: see meshcap one --help"),
        (("nonesuch",), "error: no such command 'nonesuch': see meshcap --help"),
        (("one", "--count", "0"), "expected"),
    ],
)
def test_misuse_is_one_line(
    commands: ModuleType, words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(count: Annotated[int, typer.Option(min=1)] = 3) -> None:
        """Count."""

    commands.one, commands.two = one, one
    assert leave(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: ") and line in err


def test_help_is_plain_text_of_80_columns(
    commands: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(
        names: Annotated[list[Path], typer.Argument(help="What to count.")],
        count: Annotated[int, typer.Option("--count", "-c", min=1, help="How many.")] = 3,
        out: Annotated[Path | None, typer.Option(help="Where to.", show_default="nowhere")] = None,
        kind: Annotated[Literal["spoon", "fork"], typer.Option(help="Of what.")] = "fork",
        fast: Annotated[bool, typer.Option("--fast", help="In a hurry.")] = False,
    ) -> None:
        """Count the spoons.

        Example: meshcap one drawer
        """

    commands.one = one
    monkeypatch.setenv("COLUMNS", "80")
    assert leave("one", "--help") == 0
    assert (
        capsys.readouterr().out
        == """Usage: meshcap one [OPTIONS] NAMES...

  Count the spoons.

  Example: meshcap one drawer

Arguments:
  NAMES...  What to count.

Options:
  -c, --count N      How many. (default: 3)
  --out PATH         Where to. (default: nowhere)
  --kind spoon|fork  Of what. (default: fork)
  --fast             In a hurry.
  --help             Show this message and exit.
"""
    )


def test_python_m_meshcap_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "meshcap", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"meshcap {meshcap.__version__}\n")


def test_waiting_threads_sleep_soon(commands: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody chose for how long they turn."""
    commands.one = lambda: None
    for given, expected in ((None, cli.SPINS), ("7", "7")):
        monkeypatch.setenv("GOMP_SPINCOUNT", "")
        monkeypatch.delenv("GOMP_SPINCOUNT")
        if given is not None:
            monkeypatch.setenv("GOMP_SPINCOUNT", given)
        leave("one")
        assert os.environ["GOMP_SPINCOUNT"] == expected


def test_interrupt_is_code_130(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def one() -> None:
        raise KeyboardInterrupt

    commands.one = one
    assert leave("one") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_bug_keeps_its_traceback() -> None:
    script = (
        "import sys, types; from meshcap import cli\n"
        "def one(): return 1 / 0\n"
        "sys.modules['bug'] = types.SimpleNamespace(one=one); cli.COMMANDS['one'] = 'bug:one'; cli.main(['one'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["found out when leaving", "found out when printing"])
def test_reader_that_went_away_is_no_error(unbuffered: str) -> None:
    script = (
        "import sys, types; from meshcap import cli\n"
        "def one(): print('x')\n"
        "sys.modules['pipe'] = types.SimpleNamespace(one=one); cli.COMMANDS['one'] = 'pipe:one'; cli.main(['one'])"
    )
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdout=pipe, stderr=pipe, text=True, env=env) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == ""
    assert command.returncode == 1


def test_registered_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        assert leave(name, "--help") == 0
        assert "xample" in capsys.readouterr().out, f"meshcap {name} --help shows no example"


def options_of(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, f"{path} {name}".strip())
    if not hasattr(command, "commands"):
        yield from ((path, option) for option in command.params if option.param_type_name == "option")


def test_every_flag_has_one_spelling_and_caption_options_one_meaning() -> None:
    found = list(options_of(typer.main.get_command(cli.build(list(cli.COMMANDS)))))
    assert len(found) > 100
    for path, option in found:
        assert sum(name.startswith("--") for name in option.opts) == 1, f"{path} {option.opts}"
        assert option.help, f"{path} {option.opts} says nothing"
    shared = {path for path, option in found if option.name == "must_not"}
    assert shared == {"caption", "batch", "serve", "explain"}
    for path, option in found:
        if (path in shared and option.name in HELP) or option.name in ("beams", "max_words"):
            assert option.help == HELP[option.name] and option.opts[0] == options.flag(option.name), path
