"""Drawn scenes on disk: true, distinct, the same every time."""

import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image

from meshcap.data import Dataset, read_dataset
from meshcap.data.draw import draw_scene
from meshcap.data.drawn import draw_dataset, facts_of
from meshcap.data.tell import mistakes
from meshcap.errors import MeshcapError

COUNTS = {"train": 120, "val": 20, "test": 30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drawn")
    draw_dataset(out, **COUNTS, size=64, workers=1)
    return out


@pytest.fixture(scope="module")
def drawn(folder: Path) -> Dataset:
    return read_dataset(folder)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_captions_are_true_of_the_facts_and_of_no_other_scenes(drawn: Dataset) -> None:
    assert drawn.counts() == COUNTS
    other = facts_of(drawn.samples[-1].more)
    lies = 0
    for sample in drawn:
        things, background = facts_of(sample.more)
        assert not [wrong for caption in sample.captions for wrong in mistakes(caption, things, background)]
        lies += any(mistakes(caption, *other) for caption in sample.captions)
    assert lies > 160  # a check that everything passes would be none


def test_pictures_are_the_scenes(drawn: Dataset) -> None:
    for sample in [drawn.samples[0], drawn.samples[40], drawn.samples[-1]]:
        scene = draw_scene(int(sample.id.removeprefix("scene-")), 64)
        assert sample.picture is not None
        image = Image.open(io.BytesIO(sample.picture.read())).convert("RGB")
        assert image.tobytes() == scene.image.tobytes()
        assert list(sample.captions) == scene.captions
        assert facts_of(sample.more) == (scene.objects, scene.background)


def test_the_same_every_time_and_by_any_number_of_workers(folder: Path, tmp_path: Path) -> None:
    draw_dataset(tmp_path / "again", **COUNTS, size=64, workers=2)
    assert contents(tmp_path / "again") == contents(folder)
    draw_dataset(tmp_path / "other", **COUNTS, size=64, workers=1, seed=1)
    other = {sample.id for sample in read_dataset(tmp_path / "other")}
    assert not other & {sample.id for sample in read_dataset(folder)}


def test_no_scene_is_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Numbers that repeat after forty: only forty different scenes are to be had.
    def few(number: int, size: int):
        return draw_scene(number % 40, size)

    monkeypatch.setattr("meshcap.data.drawn.draw_scene", few)
    draw_dataset(tmp_path, train=20, val=8, test=12, size=64, workers=1)
    scenes = [
        (tuple(sorted(map(repr, things))), where)
        for things, where in (facts_of(s.more) for s in read_dataset(tmp_path))
    ]
    assert len(set(scenes)) == len(scenes) == 40


def test_val_and_test_do_not_depend_on_train(folder: Path, tmp_path: Path) -> None:
    draw_dataset(tmp_path, train=5, val=COUNTS["val"], test=COUNTS["test"], size=64, workers=1)
    for name in ("val-0.tar", "test-0.tar"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_drawing_goes_on(folder: Path, tmp_path: Path) -> None:
    whole = {}
    for out, stop in ((tmp_path / "whole", None), (tmp_path / "parts", 110)):

        def progress(done: int, stop: int | None = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        try:
            draw_dataset(out, **COUNTS, size=64, shard_mb=0.06, workers=1, progress=progress)
        except KeyboardInterrupt:
            assert 1 < len(list(out.glob("*.tar"))) < len(whole) - 1
            draw_dataset(out, **COUNTS, size=64, shard_mb=0.06, workers=1)
        whole = whole or contents(out)
        assert contents(out) == whole


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="scenes 20 pixels wide were asked for"):
        draw_dataset(tmp_path / "x", size=20)
    with pytest.raises(MeshcapError, match="scenes were asked for"):
        draw_dataset(tmp_path / "x", train=0, val=0, test=0)
    with pytest.raises(MeshcapError, match="scenes were asked for"):
        draw_dataset(tmp_path / "x", train=-1)
    assert not (tmp_path / "x").exists()
    for wrong in (None, {}, {"facts": 3}, {"facts": {"objects": [{}]}}):
        with pytest.raises(MeshcapError, match="no facts, expected a scene"):
            facts_of(wrong)
