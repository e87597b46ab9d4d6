"""The examples of README and docs are run: Python here, shell commands by bash, in a folder like a reader's.

Every shell block begins with that folder as it was (less what the block itself makes); Python blocks of a page share
their names, from top to bottom.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import prepared, stand_in, warm
from docs.pages import BLOCKS, ROOT, SHELLS, Block
from docs.shell import commands_of, lines_of, meshcap_words
from meshcap import folders
from tiny_data import call

ELSEWHERE = {
    "docs/serve.md": "tests/serving/test_docs.py",
    "docs/attention.md": "tests/attention/test_page.py",
    "examples/README.md": "tests/test_examples.py",
}
EXPORTED = "docs/export.md"  # its Python reads what its commands made
RUN = [block for block in BLOCKS if block.reason is None]
SHELL = [
    block
    for block in RUN
    if block.language in SHELLS
    and block.page != EXPORTED
    and (block.page not in ELSEWHERE or "python benchmarks" in block.text)
]
PAGES = sorted({block.page for block in RUN if block.language == "python"} - {*ELSEWHERE, EXPORTED})
PYTHON = {page: [block for block in RUN if block.page == page and block.language == "python"] for page in PAGES}
LONG = re.compile(
    r"meshcap (train|evaluate|explain|export|serve|data (check|pack|features))\b|python |--spice"
)
# What stands at the top of the file that an example is a part of.
BEFORE = {
    "CONTRIBUTING.md": "from dataclasses import dataclass\nimport torch\n"
    "from meshcap.models.recurrent import Cell, RecurrentCaptioner, RecurrentConfig, for_each, mean_region\n",
}


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader") / "folder"
    folder.mkdir()
    prepared.make(folder)
    return folder


@pytest.fixture(scope="session")
def door(reader: Path) -> Iterator[str]:
    with warm.running(stand_in.environment(reader / prepared.MODELS[0])) as door:
        yield door


@pytest.fixture
def folder(reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder, for the test to spoil."""
    shutil.copytree(reader, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(folders, "PACKAGED", reader / prepared.MODELS[0])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # what the reader remembers, other tests do not
    return tmp_path / "here"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=lambda one: one.place)
def test_python_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("page", PYTHON)
def test_python(page: str, folder: Path) -> None:
    execute(PYTHON[page])


def execute(blocks: list[Block]) -> None:
    names = prepared.names()
    exec(BEFORE.get(blocks[0].page, ""), names)
    for block in blocks:
        padded = "\n" * (block.line - 1) + block.text  # so that a traceback names the line of the page
        exec(compile(padded, ROOT / block.page, "exec"), names)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    "block",
    [pytest.param(one, marks=[pytest.mark.slow] if LONG.search(one.text) else [], id=one.place) for one in SHELL],
)
def test_shell(block: Block, folder: Path, reader: Path, door: str) -> None:
    shell(block, folder, reader, door)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_exporting(folder: Path, reader: Path, door: str) -> None:
    """The page's Python reads what its commands wrote."""
    of_page = [block for block in RUN if block.page == EXPORTED]
    for block in of_page:
        if block.language in SHELLS:
            shell(block, folder, reader, door)
    execute([block for block in of_page if block.language == "python"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    "text", ["meshcap caption none.jpg", "meshcap caption photo.jpg | grep -q nothing", 'pip install "meshcap[what]"']
)
def test_an_example_that_fails_is_noticed(text: str, folder: Path, reader: Path, door: str) -> None:
    with pytest.raises(AssertionError, match=r"here\.md:1"):
        shell(Block("here.md", 1, "sh", text, None), folder, reader, door)


def shell(block: Block, folder: Path, reader: Path, door: str) -> None:
    lines = lines_of(block.text, block.language)
    for words in filter(None, map(meshcap_words, commands_of(lines))):
        for name in made_by(words):
            remove(folder / name)
        if "--resume" in words:
            begin(Path(words[1]), Path(words[words.index("--out") + 1]))
    stand_in.install(folder.parent / "bin", door)
    env = stand_in.environment(reader / prepared.MODELS[0])
    env["PATH"] = f"{folder.parent / 'bin'}{os.pathsep}{env['PATH']}"
    script = "set -euo pipefail\nshopt -s globstar\n" + "\n".join(lines) + "\n"
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{block.place}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr
    if block.language == "console":
        shown = [line for line in block.text.splitlines() if not line.startswith("$ ")]
        assert done.stdout.splitlines() == shown


def made_by(words: list[str]) -> list[str]:
    """What a command writes: not there before, though other pages take it for granted."""
    if "--resume" in words:
        return []
    made = [words[words.index("--out") + 1]] if "--out" in words else []
    return made


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def begin(data: Path, out: Path) -> None:
    """A run to go on with."""
    remove(out)
    assert call(stand_in.quicker(["train", str(data), "--out", str(out)])) == 0


def test_nobody_else_is_trusted_blindly() -> None:
    """Pages that are run elsewhere are, and reasons not to run are few."""
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
    assert len(SHELL) > 30 and len(PYTHON) > 8
