"""The model that comes with the package: by no name, by "default", and from the wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import meshcap
import tiny_captioner
from meshcap import Captioner, MeshcapError, folders, load_model
from meshcap.calibration import Calibration
from meshcap.vision import load_vision

ROOT = Path(__file__).parents[2]
CALIBRATION = Calibration({"mean": 1.0}, (-3.0, 0.0), (0.2, 0.9))
PICTURE = Image.linear_gradient("L")


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tiny_captioner.saved(tmp_path / "packaged", CALIBRATION)
    monkeypatch.setattr(folders, "PACKAGED", folder)
    return folder


def test_it_lies_in_the_package() -> None:
    assert Path(meshcap.__file__).parent / "default" == folders.PACKAGED


def test_by_no_name_and_by_its_name(packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of that name where somebody happens to stand is another thing, and is named ./default.
    (tmp_path / "default").mkdir()
    monkeypatch.chdir(tmp_path)
    expected = Captioner.from_pretrained(packaged).caption(PICTURE)
    for found in (Captioner.from_pretrained(), Captioner.from_pretrained("default")):
        caption = found.caption(PICTURE)
        assert (caption.text, caption.confidence) == (expected.text, expected.confidence)
        assert found.calibration == CALIBRATION
    assert load_model("default").config == load_model(packaged).config
    assert load_vision("default") is not None
    for own in ("./default", Path("default")):
        with pytest.raises(MeshcapError, match=r"default has no config\.json"):
            Captioner.from_pretrained(own)


def test_an_installation_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PACKAGED", tmp_path)
    for read in (Captioner.from_pretrained, lambda: load_model("default"), lambda: load_vision("default")):
        with pytest.raises(MeshcapError, match=r"^this installation carries no model of its own: name a .*hub$"):
            read()


def test_calibration_comes_and_goes_with_its_model(tmp_path: Path) -> None:
    folder = tiny_captioner.saved(tmp_path / "model", CALIBRATION)
    again = Captioner.from_pretrained(folder)
    assert again.calibration == CALIBRATION
    caption = again.caption(PICTURE, shorten=False)
    assert caption.confidence == pytest.approx(CALIBRATION.apply(caption.log_probs))
    assert caption.probability != pytest.approx(caption.confidence)
    tiny_captioner.saved(folder)  # another one in its place, which nobody has measured
    fresh = Captioner.from_pretrained(folder)
    assert fresh.calibration is None
    caption = fresh.caption(PICTURE)
    assert caption.confidence == caption.probability


@pytest.mark.slow
def test_the_wheel_carries_it(tmp_path: Path) -> None:
    """Built from a copy of the sources, whose .gitignore hatchling obeys, with a model where ours will lie."""
    copy, out = tmp_path / "copy", tmp_path / "dist"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "default"))
    model = tiny_captioner.saved(copy / "src" / "meshcap" / "default", CALIBRATION)
    expected = {path.relative_to(copy / "src").as_posix() for path in model.rglob("*") if path.is_file()}
    assert {f"meshcap/default/{name}" for name in ("config.json", "model.safetensors", "calibration.json")} <= expected
    # An sdist, and of it a wheel.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("meshcap/default/")} == expected
        archive.extractall(tmp_path / "installed")
    code = "import meshcap; from PIL import Image; c = meshcap.Captioner.from_pretrained(); print(meshcap.__file__);"
    code += "print(c.caption(Image.linear_gradient('L')).text)"
    env = {"PYTHONPATH": str(tmp_path / "installed")}
    home, text = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=env, text=True).splitlines()
    assert Path(home).is_relative_to(tmp_path / "installed")
    assert text == Captioner.from_pretrained(model).caption(PICTURE).text
