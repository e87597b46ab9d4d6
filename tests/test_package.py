"""The package as its users get it: built, installed into an environment of its own, and used from elsewhere."""

import ast
import importlib
import os
import re
import site
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import meshcap

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meshcap"
MIB = 2**20
HEAVY = {"torch", "numpy", "transformers", "ray", "fastapi"}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run to success, without the variables that would lead Python back into the clone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} left with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder: Path, *options: str) -> None:
        run(sys.executable, "-m", "venv", *options, folder, cwd=folder.parent)
        self.folder = folder
        self.scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.scripts / "python"
        asked = run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder.parent)
        self.site_packages = Path(asked.stdout.strip())

    def check(self, outside: Path) -> None:
        """`meshcap` answers in this environment, from a folder that is not the clone, and is the installed one."""
        version = run(self.scripts / "meshcap", "--version", cwd=outside).stdout
        assert version == f"meshcap {meshcap.__version__}\n"
        assert "Usage: meshcap" in run(self.scripts / "meshcap", "--help", cwd=outside).stdout
        home = run(self.python, "-c", "import meshcap; print(meshcap.__file__)", cwd=outside).stdout.strip()
        assert Path(home).resolve().is_relative_to(self.folder.resolve())


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
    info = f"meshcap-{meshcap.__version__}.dist-info/"
    strangers = [name for name in files if not name.startswith(("meshcap/", info))]
    assert strangers == []
    assert f"{info}licenses/LICENSE" in files
    assert "meshcap/py.typed" in files
    assert sum(files.values()) <= 93 * MIB
    # Nothing was lost either: an ignore pattern such as `data/` would silently drop a whole room.
    code = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == code


def test_sdist_is_small(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {member.name.split("/", 1)[1]: member.size for member in archive if member.isfile()}
    assert {"pyproject.toml", "LICENSE", "src/meshcap/__init__.py"} <= set(files)
    assert not [name for name in files if name.startswith(("tests/", "docs/", "examples/", ".venv/"))]
    assert sum(files.values()) <= 93 * MIB


def test_wheel_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    fresh = Environment(tmp_path / "fresh", "--without-pip")
    pip = [sys.executable, "-m", "pip", "--python", fresh.python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=tmp_path)
    # Dependencies are borrowed from the environment of this test: no download, and the clone stays unseen because a
    # .pth file in a borrowed folder is not read.
    lenders = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (fresh.site_packages / "borrowed.pth").write_text("\n".join(sorted(lenders)) + "\n", encoding="utf-8")
    fresh.check(outside=tmp_path)


@pytest.mark.slow
def test_wheel_installs_with_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    fresh = Environment(tmp_path / "fresh")
    run(fresh.python, "-m", "pip", "install", "--quiet", wheel, "-c", ROOT / "constraints.txt", cwd=tmp_path)
    fresh.check(outside=tmp_path)
    # The dependencies are the declared ones, so the whole package must import with them alone.
    names = ", ".join(repr(name) for name in meshcap.__all__)
    run(fresh.python, "-c", f"import meshcap; [getattr(meshcap, name) for name in ({names})]", cwd=tmp_path)


def imported(*arguments: str, cwd: Path) -> set[str]:
    """Top-level names of everything that `python <arguments>` imports."""
    log = run(sys.executable, "-X", "importtime", *arguments, cwd=cwd).stderr
    return set(re.findall(r"^import time:.*\| +(\w+)", log, re.MULTILINE))


@pytest.mark.parametrize(
    "arguments",
    [("-c", "import meshcap"), ("-c", "import meshcap.cli"), ("-m", "meshcap", "--help")],
    ids=["import meshcap", "import meshcap.cli", "meshcap --help"],
)
def test_starts_without_heavy_imports(arguments: tuple[str, ...], tmp_path: Path) -> None:
    names = imported(*arguments, cwd=tmp_path)
    assert "meshcap" in names
    assert names & HEAVY == set()


def test_import_log_shows_torch_where_it_is_used(tmp_path: Path) -> None:
    """The test above can fail."""
    assert "torch" in imported("-c", "import meshcap; meshcap.Regions", cwd=tmp_path)


@pytest.mark.parametrize("name", meshcap.__all__)
def test_public_names_resolve(name: str) -> None:
    assert name in dir(meshcap)
    value = getattr(meshcap, name)
    if name in meshcap._MODULES:
        assert value is getattr(importlib.import_module(meshcap._MODULES[name]), name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = meshcap.nonesuch


def test_type_checkers_see_the_names_that_run_time_gives() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == meshcap._MODULES


def test_version_has_one_source() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not re.search(r"^version\s*=", text, re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", meshcap.__version__)
    # Those who repeat it are held to it.
    assert f"\nversion: {meshcap.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{meshcap.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
