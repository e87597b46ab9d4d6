"""Numbers of other kinds become the 8 bits that they mean."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.vision.pictures import read_picture

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
COLOURS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def pixels(source: object) -> np.ndarray:
    picture = read_picture(source)
    assert picture.mode == "RGB"
    return np.asarray(picture)


def encoded(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def grey(numbers: np.ndarray) -> np.ndarray:
    return np.repeat(numbers[..., None], 3, -1)


def test_arrays() -> None:
    for same in (
        COLOURS,
        COLOURS.astype(np.uint16) * 257,
        (COLOURS / 255).astype(np.float32),
        COLOURS / 255,
        torch.from_numpy(COLOURS),
        torch.from_numpy(COLOURS).permute(2, 0, 1),
        (torch.from_numpy(COLOURS) / 255).permute(2, 0, 1).requires_grad_(),
        np.asfortranarray(COLOURS),
    ):
        np.testing.assert_array_equal(pixels(same), COLOURS)
    for same in (RAMP, RAMP[..., None], torch.from_numpy(RAMP)[None], RAMP.astype(np.uint16) * 257, RAMP / 255):
        np.testing.assert_array_equal(pixels(same), grey(RAMP))
    np.testing.assert_array_equal(pixels(RAMP > 99), grey(np.where(RAMP > 99, 255, 0)))
    np.testing.assert_array_equal(pixels(np.array([[1.04, -0.03, 0.5]])), grey(np.array([[255, 0, 128]])))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (np.zeros((2, 3, 5), np.uint8), "shape (2, 3, 5), expected (H, W)"),
        (np.zeros((0, 3, 3), np.uint8), "shape (0, 3, 3)"),
        (np.zeros(7, np.uint8), "shape (7,)"),
        (torch.zeros(2, 3, 8, 8), "shape (2, 3, 8, 8)"),
        (np.full((2, 2), 200.0), "floats from 200 to 200, expected 0 to 1"),
        (np.full((2, 2), np.nan), "floats from nan"),
        (np.zeros((2, 2), np.int64), "int64, expected uint8"),
        (7, "given as int, expected a path"),
    ],
)
def test_numbers_that_are_no_picture(given: object, told: str) -> None:
    with pytest.raises(MeshcapError) as caught:
        read_picture(given)
    assert told in str(caught.value)


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    deep = (RAMP.astype(np.uint16) * 257).astype(np.uint16)
    image = Image.fromarray(deep)
    assert image.mode == "I;16"
    for source in (image, encoded(image, "PNG"), encoded(image, "TIFF"), image.convert("I")):
        np.testing.assert_array_equal(pixels(source), grey(RAMP))
    pgm = b"P5 16 16 65535\n" + deep.astype(">u2").tobytes()
    np.testing.assert_array_equal(pixels(pgm), grey(RAMP))
    np.testing.assert_array_equal(pixels(np.array([[128, 129, 65406, 65407]], np.uint16))[0, :, 0], [0, 1, 254, 255])


def test_deeper_than_that() -> None:
    wide = RAMP.astype(np.int32) * 1_000_000 - 7
    np.testing.assert_array_equal(pixels(Image.fromarray(wide)), grey(RAMP))
    for scale in (1 / 255, 1.0, 300.0):
        image = Image.fromarray(RAMP.astype(np.float32) * np.float32(scale))
        assert image.mode == "F"
        np.testing.assert_array_equal(pixels(encoded(image, "TIFF")), grey(RAMP))
    assert (pixels(Image.fromarray(np.full((2, 2), 0.5, np.float32))) == 128).all()
    assert np.array_equal(pixels(Image.fromarray(np.array([[np.nan, 1.0]], np.float32)))[0, :, 0], [0, 255])
