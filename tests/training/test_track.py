"""Trackers get what the trainer tells. Nothing here connects anywhere."""

import builtins
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.training.track import open_trackers

SAMPLES = [
    (Image.new("RGB", (600, 300), "red"), "a red | square", ["something red", "a square"]),
    (None, "no picture", []),
]


def feed(names: list[str] | None, folder: Path, **more: Any) -> None:
    tracker = open_trackers(names, folder, {"lr": 3e-4, "path": Path("data")}, run_name="first", **more)
    tracker.scalars(10, {"train/loss": 2.5, "val/CIDEr": 0.61})
    tracker.scalars(20, {"train/loss": 1.5})
    tracker.samples(20, SAMPLES)
    tracker.close()


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("tensorboard")

    def read(self, folder: Path) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
        return found.Reload()

    def test_numbers_pictures_and_captions_come_back(self, tmp_path: Path) -> None:
        feed(["tensorboard"], tmp_path)
        found = self.read(tmp_path)
        assert [(one.step, one.value) for one in found.Scalars("train/loss")] == [(10, 2.5), (20, 1.5)]
        assert [(one.step, pytest.approx(0.61)) for one in found.Scalars("val/CIDEr")] == [(10, 0.61)]
        [picture] = found.Images("samples/0")
        image = Image.open(io.BytesIO(picture.encoded_image_string))
        assert (picture.step, image.size) == (20, (256, 128))
        assert numpy.asarray(image)[0, 0].tolist() == [255, 0, 0]
        assert "samples/1" not in found.Tags()["images"]
        [captions] = found.Tensors("samples/text_summary")
        text = captions.tensor_proto.string_val[0].decode()
        assert "| 0 | a red \\| square | something red · a square |" in text and "| 1 | no picture |  |" in text
        [settings] = found.Tensors("settings/text_summary")
        assert '"lr": 0.0003' in settings.tensor_proto.string_val[0].decode()

    def test_a_resumed_run_shows_no_step_twice(self, tmp_path: Path) -> None:
        feed(["tensorboard"], tmp_path)
        tracker = open_trackers(["tensorboard"], tmp_path, {}, run_name="first", resumed_at=10)
        tracker.scalars(20, {"train/loss": 1.25})
        tracker.close()
        found = self.read(tmp_path)
        assert [(one.step, one.value) for one in found.Scalars("train/loss")] == [(10, 2.5), (20, 1.25)]

    def test_is_what_nobody_asked_for(self, tmp_path: Path) -> None:
        feed(None, tmp_path)
        assert list((tmp_path / "tensorboard").glob("events.*"))


class Recorder:
    """Stands in for a package: notes every call, and answers with itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []

    def note(self, name: str) -> Any:
        return lambda *args, **named: self.calls.append((name, args, named)) or self.run

    @property
    def run(self) -> Any:
        return SimpleNamespace(**{name: self.note(name) for name in ("log", "define_metric", "finish")})

    def named(self, name: str) -> list[tuple[tuple, dict]]:
        return [(args, named) for called, args, named in self.calls if called == name]


class Table:
    def __init__(self, columns: list[str]):
        self.columns, self.rows = columns, []

    def add_data(self, *row: Any) -> None:
        self.rows.append(row)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    seen = Recorder()
    for name in ("wandb", "trackio"):
        module = ModuleType(name)
        module.init = seen.note(f"{name}.init")
        module.finish = seen.note("finish")
        module.Image = lambda image, caption: (image.size, caption)
        module.Table = Table
        module.errors = SimpleNamespace(Error=type("Error", (Exception,), {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return seen


def test_what_wandb_is_told(fakes: Recorder, tmp_path: Path) -> None:
    feed(["wandb"], tmp_path)
    [(_, opened)] = fakes.named("wandb.init")
    assert (opened["project"], opened["name"], opened["dir"]) == ("meshcap", "first", str(tmp_path))
    assert opened["config"]["lr"] == 3e-4 and opened["resume"] is None
    logged = [args[0] for args, named in fakes.named("log")]
    assert logged[:2] == [{"train/loss": 2.5, "val/CIDEr": 0.61, "step": 10}, {"train/loss": 1.5, "step": 20}]
    assert logged[2]["captions"].rows == [("a red | square", "something red\na square"), ("no picture", "")]
    assert logged[2]["pictures"] == [((256, 128), "a red | square")]
    assert logged[2]["step"] == 20
    assert len(fakes.named("finish")) == 1


def test_wandb_knows_a_resumed_run_again(fakes: Recorder, tmp_path: Path) -> None:
    feed(["wandb"], tmp_path)
    feed(["wandb"], tmp_path, resumed_at=10)
    feed(["wandb"], tmp_path)  # begun anew in the same folder
    first, resumed, new = (opened for _, opened in fakes.named("wandb.init"))
    assert resumed["id"] == first["id"] != new["id"]
    assert resumed["resume"] == "allow"


def test_a_refusing_wandb_is_one_line(fakes: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise sys.modules["wandb"].errors.Error("no API key")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(MeshcapError, match=r"no API key.*WANDB_MODE=offline"):
        feed(["wandb"], tmp_path)


def test_what_trackio_is_told(fakes: Recorder, tmp_path: Path) -> None:
    feed(["trackio"], tmp_path)
    [(_, opened)] = fakes.named("trackio.init")
    assert opened == {
        "project": "meshcap",
        "name": "first",
        "config": {"lr": 3e-4, "path": "data"},
        "resume": "never",
    }
    assert fakes.named("log") == [
        (({"train/loss": 2.5, "val/CIDEr": 0.61},), {"step": 10}),
        (({"train/loss": 1.5},), {"step": 20}),
        (
            (
                {
                    "samples/0": ((256, 128), "a red | square · something red · a square"),
                    "samples/1": "no picture",
                },
            ),
            {"step": 20},
        ),
    ]


def test_several_at_once(fakes: Recorder, tmp_path: Path) -> None:
    feed(["wandb", "trackio", "wandb"], tmp_path)
    assert len(fakes.named("wandb.init")) == len(fakes.named("trackio.init")) == 1
    assert len(fakes.named("finish")) == 2


def test_one_that_fails_is_left_and_the_others_go_on(fakes: Recorder, tmp_path: Path) -> None:
    lines: list[str] = []
    tracker = open_trackers(["wandb", "trackio"], tmp_path, {}, run_name="first", report=lines.append)

    def broken(*_: Any) -> None:
        raise ConnectionError("the line is dead")

    tracker.each["wandb"].scalars = broken
    for step in (10, 20):
        tracker.scalars(step, {"loss": 1.0})
    tracker.close()
    assert lines == ["wandb failed and is left out from now on: the line is dead"]
    assert [named["step"] for _, named in fakes.named("log")] == [10, 20]  # trackio's


@pytest.mark.parametrize("names", [["none"], []])
def test_none_takes_everything_and_keeps_nothing(names: list[str], tmp_path: Path) -> None:
    feed(names, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["mlflow"], "there is no tracker 'mlflow', expected some of tensorboard"),
        (["none", "wandb"], "leave 'none' out"),
    ],
)
def test_names_that_make_no_sense(names: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=told):
        feed(names, tmp_path)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **named: Any) -> Any:
        if name.split(".")[0] in ("wandb", "trackio", "tensorboard") or name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "train"), ("wandb", "track"), ("trackio", "track")])
def test_a_missing_package_says_how_to_install_it(name: str, extra: str, tmp_path: Path) -> None:
    with pytest.raises(MeshcapError) as caught:
        feed([name], tmp_path)
    assert str(caught.value) == f'{name} is not installed: pip install "meshcap[{extra}]"'


@pytest.mark.usefixtures("nothing_installed")
def test_without_tensorboard_the_default_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feed(None, tmp_path)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and 'pip install "meshcap[train]"' in err


# The real ones, each in a process of its own: they keep threads, servers and folders for as long as they live.
REAL = """
import sys
from pathlib import Path
from PIL import Image
from meshcap.training.track import open_trackers
tracker = open_trackers([sys.argv[1]], Path(sys.argv[2]), {"lr": 3e-4}, run_name="first", report=sys.exit)
tracker.scalars(10, {"loss": 2.5})
tracker.samples(10, [(Image.new("RGB", (60, 30), "red"), "a caption", ["a reference"]), (None, "another", [])])
tracker.close()
"""


def real(name: str, folder: Path) -> str:
    offline = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(folder / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", REAL, name, str(folder)],
        env=os.environ | offline,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_real_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    real("wandb", tmp_path)
    [kept] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert kept.stat().st_size > 0
    [table] = tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    assert json.loads(table.read_text())["data"] == [["a caption", "a reference"], ["another", ""]]
    [picture] = tmp_path.glob("wandb/offline-run-*/files/media/images/*.png")
    with Image.open(picture) as image:
        assert image.size == (60, 30)


def test_the_real_trackio(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    import sqlite3

    assert real("trackio", tmp_path) == ""
    with sqlite3.connect(tmp_path / "trackio" / "meshcap.db") as base:
        rows = base.execute("select step, metrics from metrics order by id").fetchall()
    told = [(step, json.loads(numbers)) for step, numbers in rows]
    assert (10, 2.5) in [(step, numbers.get("loss")) for step, numbers in told]
    assert any("samples/0" in numbers for _, numbers in told)
