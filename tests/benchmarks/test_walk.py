"""benchmarks/walk.py: what runs for each picture, in order, and nothing else."""

import json
from pathlib import Path

import pytest

from benchmarks.walk import Walk, command
from serving import small
from tiny_data import bench


def test_changes_by_hand() -> None:
    walk = Walk([
        ("cli/a.py", "f"), ("captioner.py", "g"), ("regions.py", "h"), ("models/m2.py", "i"), ("captioner.py", "j"),
        ("captioner.py", "k"),
    ])  # fmt: skip
    assert walk.files == ["cli/a.py", "captioner.py", "regions.py", "models/m2.py"]
    assert [room for room, _ in walk.rooms] == ["cli", "meshcap", "models", "meshcap"]
    assert walk.changes == 3
    assert Walk([]).changes == 0


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("walk")
    small.captioner().save_pretrained(folder / "model")
    (folder / "photo.png").write_bytes(small.picture())
    return folder / "photo.png", folder / "model"


@pytest.mark.parametrize("serve", [False, True])
def test_a_picture_on_its_way(serve: bool, paths: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    photo, model = paths
    assert bench(command, photo, "--model", model, *["--serve"] * serve, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    files = {file for file, _ in found["calls"]}
    assert found["files"] == len(files)
    assert {"captioner.py", "regions.py", "models/m2.py", "attention/multi_head.py", "text/vocabulary.py"} <= files
    assert any(file.startswith("serving/") for file in files) == serve
    assert any(file.startswith("cli/") for file in files) != serve
    assert not files & {"cli/__init__.py", "folders.py", "weights.py", "models/registry.py"}  # once, not for each
    names = [name for _, name in found["calls"]]
    assert names.index("M2.encode") < names.index("M2.step")
    assert len(names) == len({tuple(call) for call in found["calls"]})
