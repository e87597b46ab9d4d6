"""Many pictures: captions in order, read ahead by threads, whatever is broken among them."""

import copy
import subprocess
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tiny
from meshcap import Caption, Captioner, MeshcapError
from meshcap.captioner import AHEAD
from meshcap.data.scenes import draw_scene
from meshcap.text import Vocabulary
from meshcap.vision import create_vision, readers
from tiny_workers import Crash

OPTIONS = {"max_words": 8}


@cache
def seeing_captioner() -> Captioner:
    vision = create_vision("patches", size=48)
    words = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(30))]
    model = tiny.build("m2", seed=4, d_input=vision.width, vocab_size=len(words), suppressed_ids=(0, 1, 2))
    return Captioner(model, Vocabulary(words), vision)


@pytest.fixture(scope="module")
def seeing() -> Captioner:
    return seeing_captioner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(7):
        draw_scene(number, 64).image.save(folder / f"{number}.png")
    return folder


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Those that are started to read."""
    found = []

    class Watched(readers.Process):
        def __init__(self, *given: Any):
            super().__init__(*given)
            found.append(self.child)

    monkeypatch.setattr(readers, "Process", Watched)
    return found


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("meshcap-stream")]


@pytest.mark.parametrize("batch", [1, 3, 7, 16])
def test_captions_are_those_of_caption_in_order(seeing: Captioner, folder: Path, batch: int) -> None:
    paths = sorted(folder.iterdir())
    expected = [seeing.caption(path, **OPTIONS) for path in paths]
    assert len({caption.text for caption in expected}) > 1  # order could not be told otherwise
    found = list(seeing.stream(iter(paths), batch_size=batch, **OPTIONS))
    assert [source for source, _ in found] == paths
    assert [caption.words for _, caption in found] == [caption.words for caption in expected]
    assert [c.score for _, c in found] == pytest.approx([c.score for c in expected], abs=1e-4)
    assert threads() == []


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_processes_say_what_threads_say(
    seeing: Captioner, folder: Path, tmp_path: Path, batch: int, children: list[subprocess.Popen[bytes]]
) -> None:
    """Also where some cannot be read, and where only this process can read them."""
    paths = sorted(folder.iterdir())
    broken = tmp_path / "broken.png"
    broken.write_bytes(paths[0].read_bytes()[:100])
    image = Image.open(paths[4])
    sources = [*paths, broken, *map(str, paths), "gone.jpg", b"", paths[1].read_bytes(), *paths, image, *paths, broken]
    expected = list(seeing.stream(sources, batch_size=batch, processes=False, tags=True, **OPTIONS))
    assert children == []
    found = list(seeing.stream(iter(sources), batch_size=batch, workers=2, processes=True, tags=True, **OPTIONS))
    assert [source for source, _ in found] == sources
    for (_, told), (_, same) in zip(found, expected, strict=True):
        assert type(told) is type(same) and str(told) == str(same)
        if isinstance(same, Caption):  # tags name colours, which are those of the pixels
            assert (told.words, told.log_probs, told.tags) == (same.words, same.log_probs, same.tags)
    assert len(children) == 2 and all(child.poll() is not None for child in children)


def test_processes_end_with_the_generator(
    seeing: Captioner, folder: Path, children: list[subprocess.Popen[bytes]]
) -> None:
    paths = [*folder.iterdir()] * 10
    captions = seeing.stream(paths, batch_size=2, workers=2, processes=True, **OPTIONS)
    assert children == []
    next(captions)
    assert len(children) == 2 and all(child.poll() is None for child in children)
    captions.close()
    assert all(child.poll() is not None for child in children) and threads() == []
    captions = seeing.stream(paths, batch_size=2, workers=1, processes=True, **OPTIONS)
    next(captions)
    del captions
    assert len(children) == 3 and children[-1].poll() is not None


def test_processes_begin_where_there_are_many_pictures(
    seeing: Captioner, folder: Path, children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a GPU, unless told otherwise."""
    few = sorted(folder.iterdir())
    paths = few * 6  # more than there is room for at once
    expected = [(one.text, one.tags) for _, one in seeing.stream(paths, batch_size=2, tags=True, **OPTIONS)]
    assert children == []
    monkeypatch.setattr(type(seeing.backend), "queues", True)
    monkeypatch.setattr(type(seeing.backend), "see", lambda self, pixels: seen(self.prepared().vision, pixels))
    monkeypatch.setattr(type(seeing.backend), "mark", lambda self: lambda: None)

    def seen(vision: Any, pixels: Any) -> Any:
        return vision(torch.from_numpy(np.ascontiguousarray(np.stack(list(pixels)))))

    monkeypatch.setattr("meshcap.captioner.FEW", 6)
    told = seeing.stream(few[:6], batch_size=2, workers=2, tags=True, **OPTIONS)
    assert [(one.text, one.tags) for _, one in told] == expected[:6]
    assert children == []
    for processes in (None, True):
        told = seeing.stream(paths, batch_size=2, workers=2, processes=processes, tags=True, **OPTIONS)
        assert [(one.text, one.tags) for _, one in told] == expected
    assert len(children) == 4 and all(child.poll() is not None for child in children)


def test_readers_may_be_kept(seeing: Captioner, folder: Path, children: list[subprocess.Popen[bytes]]) -> None:
    """For several streams, one after the other, also where one was left in the middle."""
    paths = sorted(folder.iterdir())
    expected = [caption.text for _, caption in seeing.stream(paths, batch_size=2, **OPTIONS)]
    kept = seeing.readers(2, 2, True)
    with kept:
        for _ in range(2):
            found = seeing.stream(paths, batch_size=2, processes=kept, **OPTIONS)
            assert [one.text for _, one in found] == expected and len(children) == 2
        left = seeing.stream(paths * 9, batch_size=2, processes=kept, **OPTIONS)
        next(left)
        left.close()
        assert [one.text for _, one in seeing.stream(paths, batch_size=1, processes=kept, **OPTIONS)] == expected
        with pytest.raises(MeshcapError, match="smaller batches"):
            seeing.stream(paths, batch_size=3, processes=kept)
    assert all(child.poll() is not None for child in children)


def test_a_picture_that_crashes_a_process_costs_itself(seeing: Captioner, folder: Path) -> None:
    paths = sorted(folder.iterdir())
    found = list(seeing.stream([*paths, Crash(), *paths], batch_size=4, workers=2, processes=True, **OPTIONS))
    assert [isinstance(told, MeshcapError) for _, told in found] == [False] * 7 + [True] + [False] * 7
    assert "signal 9" in str(found[7][1])
    assert [told.text for _, told in found[:7]] == [told.text for _, told in found[8:]]


def test_sources_of_every_kind(seeing: Captioner, folder: Path) -> None:
    path = folder / "0.png"
    lazy = Image.open(path)  # not decoded yet, and given twice
    with path.open("rb") as file:
        sources = [path, str(path), path.read_bytes(), np.asarray(Image.open(path)), lazy, lazy, file, file]
        found = list(seeing.stream(sources, batch_size=3, workers=4, **OPTIONS))
    assert [id(source) for source, _ in found] == [id(source) for source in sources]
    assert {caption.text for _, caption in found} == {seeing.caption(path, **OPTIONS).text}


@settings(max_examples=10)
@given(broken=st.lists(st.booleans(), max_size=12), batch=st.integers(1, 5))
def test_broken_pictures_stop_nobody(broken: list[bool], batch: int) -> None:
    seeing = seeing_captioner()
    image = draw_scene(1, 48).image.convert("RGB")
    expected = seeing.caption(image, **OPTIONS).words
    sources = [b"nothing" if one else image for one in broken]
    found = list(seeing.stream(sources, batch_size=batch, **OPTIONS))
    assert [isinstance(told, MeshcapError) for _, told in found] == broken
    for _, told in found:
        if isinstance(told, MeshcapError):
            assert "no picture" in str(told)
        else:
            assert told.words == expected


def test_the_error_names_the_file(seeing: Captioner, tmp_path: Path) -> None:
    [(source, told)] = seeing.stream([tmp_path / "gone.jpg"])
    assert source == tmp_path / "gone.jpg"
    assert "gone.jpg" in str(told)


def test_sources_are_taken_as_needed(seeing: Captioner) -> None:
    taken = 0

    def endless() -> Iterator[Image.Image]:
        nonlocal taken
        while True:
            taken += 1
            yield Image.new("RGB", (48, 48), (taken % 256, 0, 0))

    captions = seeing.stream(endless(), batch_size=2, **OPTIONS)
    assert taken == 0
    for told in range(1, 12):
        next(captions)
        blocks = -(-told // 2)
        assert taken == 2 * (blocks + AHEAD)  # those told, and what is being read ahead
    assert threads()
    captions.close()
    assert threads() == []


def test_a_generator_thrown_away_leaves_no_threads(seeing: Captioner, folder: Path) -> None:
    captions = seeing.stream(folder.iterdir(), batch_size=1, **OPTIONS)
    next(captions)
    assert threads()
    del captions
    assert threads() == []


def test_mistakes_of_the_caller_are_raised(seeing: Captioner, folder: Path) -> None:
    with pytest.raises(MeshcapError, match="unicorn"):
        list(seeing.stream(folder.iterdir(), must=["unicorn"]))
    assert threads() == []
    with pytest.raises(TypeError, match="beems"):
        list(seeing.stream(folder.iterdir(), beems=5))
    for wrong in ({"batch_size": 0}, {"workers": 0}):
        with pytest.raises(MeshcapError, match="at least 1"):
            seeing.stream(folder.iterdir(), **wrong)
    blind = Captioner(tiny.build("m2"), Vocabulary(["<unk>", "<pad>", "<bos>", "<eos>", *"abcdef"]))
    with pytest.raises(MeshcapError, match="no vision of its own"):
        blind.stream(folder.iterdir())


def test_what_goes_wrong_in_the_sources_is_raised(seeing: Captioner) -> None:
    def failing() -> Iterator[Image.Image]:
        yield Image.new("RGB", (48, 48))
        raise OSError("the folder went away")

    with pytest.raises(OSError, match="went away"):
        list(seeing.stream(failing()))
    assert threads() == []


def test_no_sources(seeing: Captioner) -> None:
    assert list(seeing.stream([])) == []


def test_how_many_pictures_go_together(seeing: Captioner) -> None:
    assert seeing.batch_size == 4
    assert copy.deepcopy(seeing).to(dtype="int8").batch_size == 4
