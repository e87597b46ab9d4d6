"""The pictures in examples/: free, small, named with their sources, and captioned as they were when last read."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from batch import seeing
from meshcap.data.scenes import draw_scene
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
    assert others <= {"README.md", "captions.py", "captions.json", "gradio_demo.py", "comfyui_node.py"}


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


@pytest.mark.skipif(not (PACKAGED / CONFIG).is_file(), reason="src/meshcap/default holds no model")
def test_what_is_explained_is_the_caption() -> None:
    from meshcap import Captioner
    from meshcap.explain import explain

    captioner = Captioner.from_pretrained()
    named = {}
    for path in PICTURES:
        caption, found = captioner.caption(path), explain(captioner, path)
        assert (found.text, found.confidence, found.shortened) == (caption.text, caption.confidence, caption.shortened)
        assert [one.word for one in found.words if not one.is_end] == caption.words
        named |= {path.stem: [one.word for one in found.names]} if found.names else {}
    assert named == {"raccoon": ["raccoon"], "rocket": ["rocket"]}


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


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_node_for_comfyui(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded("comfyui_node")
    own = seeing.captioner()
    monkeypatch.setattr(module.Captioner, "from_pretrained", lambda model: own)
    node = module.NODE_CLASS_MAPPINGS["MeshcapCaption"]()
    inputs = node.INPUT_TYPES()
    defaults = {name: kind[1]["default"] for name, kind in inputs["optional"].items()}
    pictures = [draw_scene(number, 64).image.convert("RGB") for number in range(3)]
    batch = torch.stack([torch.from_numpy(np.array(one)).float() / 255 for one in pictures])
    texts, confidences = getattr(node, node.FUNCTION)(batch, **defaults)
    assert texts == [own.caption(one).text for one in pictures] and len(set(texts)) > 1
    assert len(confidences) == len(node.OUTPUT_IS_LIST) + 1
    [text], _ = node.describe(batch[:1], **defaults | {"must": "w9", "max_words": 4, "prefix": "photo: "})
    assert text.startswith("photo: ") and "w9" in text.lower() and len(text.split()) <= 5


def test_the_demo_in_gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    gradio = pytest.importorskip("gradio")
    module = loaded("gradio_demo")
    own = seeing.captioner()
    monkeypatch.setattr(module.Captioner, "from_pretrained", lambda: own)
    module.captioner.cache_clear()
    picture = draw_scene(1, 64).image.convert("RGB")
    caption, others, tags = module.describe(picture, 3, 5, "w9")
    assert (
        caption.startswith(own.caption(picture, n=3, max_words=5, must_not="w9").text) and len(others.splitlines()) == 2
    )
    assert "w9" not in caption.lower() and isinstance(tags, dict)
    with pytest.raises(gradio.Error, match="picture first"):
        module.describe(None, 1, 0, "")
    with pytest.raises(gradio.Error, match="nobody"):
        module.describe(picture, 1, 0, "nobody, \x00")
    assert module.build().fn is module.describe
