"""Captions where torch is not installed: the documented way, and a quicker one that only pretends."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from PIL import Image

import exported

pytest.importorskip("onnxscript")
ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("numpy", "pillow", "tokenizers", "onnxruntime")  # as docs/export.md says

# What the package depends on and this runtime does not. None in sys.modules makes `import` fail as if it were missing.
BLOCK = """
import sys
from importlib.abc import MetaPathFinder
MISSING = {"torch", "safetensors", "huggingface_hub", "typer", "rich", "transformers", "onnx", "onnxscript", "skimage"}
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in MISSING else find(name, *rest)
"""

CAPTION = """
import json, sys
from meshcap import Captioner
captioner = Captioner.from_pretrained(sys.argv[1])
found = [captioner.caption(path, n=2) for path in sys.argv[2:]]
assert captioner.caption(sys.argv[2], must="ball").missing == 0
assert captioner.score(sys.argv[2], found[0].text).words == found[0].words
assert "torch" not in sys.modules
print(json.dumps([[one.words, one.score, one.alternatives[0].words] for one in found]))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    paths = [folder / f"{number}.png" for number in range(3)]
    for path, picture in zip(paths, exported.pictures(), strict=False):
        Image.fromarray(picture).save(path)
    return [str(path) for path in paths]


def expect_our_captions(printed: str, photos: list[str]) -> None:
    for (words, score, second), ours in zip(
        json.loads(printed), exported.captioner().caption(photos, n=2), strict=True
    ):
        assert words == ours.words
        assert second == ours.alternatives[0].words
        assert score == pytest.approx(ours.score, abs=1e-4)


def test_nothing_of_torch_is_imported(photos: list[str]) -> None:
    command = [sys.executable, "-c", BLOCK + CAPTION, str(exported.folder("onnx")), *photos]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expect_our_captions(done.stdout, photos)


def test_what_needs_torch_says_so(tmp_path: Path) -> None:
    """`import meshcap` itself works, and so does its error."""
    asks = "import meshcap\ntry:\n    meshcap.Captioner.from_pretrained(sys.argv[1], backend='torch-export')\n"
    asks += "except meshcap.MeshcapError as error:\n    print(error)"
    for name in ("see.pt2", "say.pt2"):
        (tmp_path / name).touch()
    for name in ("runtime.json", "vocabulary.json"):
        (tmp_path / name).write_bytes((exported.folder("onnx") / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + asks, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "the backend torch-export needs torch: pip install torch", done.stderr


@pytest.mark.slow
def test_an_environment_without_torch(photos: list[str], tmp_path: Path) -> None:
    """The documented install: the package without its dependencies, and four others."""
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for install in (["--no-deps", str(ROOT)], ["-c", str(ROOT / "constraints.txt"), *NEEDED]):
        done = subprocess.run([*pip, *install], capture_output=True, text=True, check=False)
        if done.returncode and "No matching distribution" in done.stderr + done.stdout:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
    there = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout.lower()
    assert "onnxruntime" in there
    assert "torch" not in there
    assert "safetensors" not in there
    command = [python, "-I", "-c", CAPTION, str(exported.folder("onnx")), *photos]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expect_our_captions(done.stdout, photos)
