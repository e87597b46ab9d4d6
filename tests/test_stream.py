"""Many pictures: captions in order, read ahead by threads, whatever is broken among them."""

import copy
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tiny
from meshcap import Captioner, MeshcapError
from meshcap.captioner import AHEAD
from meshcap.data.scenes import draw_scene
from meshcap.text import Vocabulary
from meshcap.vision import create_vision

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
