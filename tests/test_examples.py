"""The pictures in examples/: free, small, named with their sources, and captioned as they were when last read."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from meshcap.folders import CONFIG, PACKAGED

EXAMPLES = Path(__file__).parents[1] / "examples"
PICTURES = sorted(path for path in EXAMPLES.iterdir() if path.suffix == ".jpg")
FREE = {"CC0", "public domain"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """examples/captions.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("examples_captions", EXAMPLES / "captions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_some_and_nothing_else() -> None:
    assert 6 <= len(PICTURES) <= 10
    others = {path.name for path in EXAMPLES.iterdir() if path not in PICTURES and path.name != "__pycache__"}
    assert others <= {"README.md", "captions.py", "captions.json"}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_pictures_are_small(path: Path) -> None:
    assert path.stat().st_size <= 60_000
    with Image.open(path) as picture:
        assert picture.format == "JPEG"
        assert max(picture.size) <= 640
        assert not picture.getexif()  # nobody's place or time


def test_each_has_an_author_a_free_licence_and_a_source() -> None:
    rows = re.findall(r"^\| `(.+\.jpg)` \|(.+)\|$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == [path.name for path in PICTURES]
    for _, row in rows:
        _, author, licence, source = (cell.strip() for cell in row.split("|"))
        assert author and source
        assert licence in FREE


@pytest.mark.skipif(not (PACKAGED / CONFIG).is_file(), reason="src/meshcap/default holds no model")
def test_captions_are_as_they_were(script: ModuleType) -> None:
    from meshcap import Captioner

    said = script.captions(Captioner.from_pretrained(dtype="float32"))
    assert script.CAPTIONS.is_file(), "write it with: python examples/captions.py"
    assert said == json.loads(script.CAPTIONS.read_text(encoding="utf-8"))


def test_captions_are_written_and_are_those_of_the_command(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tiny_captioner
    from meshcap import Captioner, cli

    model = tiny_captioner.saved(tmp_path / "model")
    for path in PICTURES[:3]:
        shutil.copy(path, tmp_path)
    script.write(Captioner.from_pretrained(model), tmp_path / "captions.json")
    written = json.loads((tmp_path / "captions.json").read_text(encoding="utf-8"))
    assert list(written) == [path.name for path in PICTURES[:3]]
    assert len(set(written.values())) == 3
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        cli.main(["caption", str(tmp_path), "--model", str(model), "--device", "cpu"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {Path(name).name: caption for name, caption in lines} == written
