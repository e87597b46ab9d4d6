"""Every way a picture may come, against pixels that are known; and every way it may not."""

import io
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from meshcap.errors import MeshcapError
from meshcap.vision.pictures import is_picture_path, read_picture

# Smooth, so that lossy formats stay near it; different in every direction.
COLOURS = np.stack(np.meshgrid(np.linspace(0, 250, 40), np.linspace(20, 220, 24)), -1)
COLOURS = np.concatenate((COLOURS, 255 - COLOURS[..., :1] / 2), -1).astype(
    np.uint8
)  # (24, 40, 3)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pixels(source: object, **options: object) -> np.ndarray:
    picture = read_picture(source, **options)
    assert picture.mode == "RGB"
    return np.asarray(picture)


def message(source: object, **options: object) -> str:
    with pytest.raises(MeshcapError) as caught:
        read_picture(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def grey(numbers: np.ndarray) -> np.ndarray:
    return np.repeat(numbers[..., None], 3, -1)


@pytest.mark.parametrize(
    ("form", "options", "near"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("PPM", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG2000", {}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 6),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}, 6),
        ("WEBP", {"quality": 95}, 12),
        ("AVIF", {"quality": 95}, 12),
    ],
)
def test_formats(form: str, options: dict[str, object], near: int) -> None:
    if form not in Image.SAVE:
        Image.init()
        if form not in Image.SAVE:
            pytest.skip(f"this Pillow writes no {form}")
    got = pixels(encoded(Image.fromarray(COLOURS), form, **options))
    assert got.shape == COLOURS.shape
    assert np.abs(got.astype(int) - COLOURS).max() <= near


def test_ways_of_giving(tmp_path: Path) -> None:
    content = encoded(Image.fromarray(COLOURS), "PNG")
    path = tmp_path / "a picture.png"
    path.write_bytes(content)

    class Stream(io.RawIOBase):  # a network's: no way back
        rest = content

        def read(self, size: int = -1) -> bytes:
            size = len(self.rest) if size < 0 else size
            part, self.rest = self.rest[:size], self.rest[size:]
            return part

    with open(path, "rb") as file:
        file.read(3)  # somebody looked already
        for source in (path, str(path), content, bytearray(content), io.BytesIO(content), Stream(), file):
            np.testing.assert_array_equal(pixels(source), COLOURS)
    with Image.open(path) as image:
        np.testing.assert_array_equal(pixels(image), COLOURS)


# What EXIF says of a stored picture, and how it is seen, in NumPy's words (the standard's table of corners).
HELD = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "JPEG", "Pillow"])
@pytest.mark.parametrize("orientation", HELD)
def test_cameras_are_held_in_eight_ways(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(COLOURS)
    if form == "Pillow":
        source: object = Image.open(io.BytesIO(encoded(image, "PNG", exif=exif)))
    else:
        options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 98, "subsampling": 0}}.get(form, {})
        source = encoded(image, form, exif=exif, **options)
    expected = HELD[orientation](COLOURS)
    got = pixels(source)
    assert got.shape == expected.shape
    assert np.abs(got.astype(int) - expected).max() <= (5 if form == "JPEG" else 0)


def test_damaged_exif_does_not_damage_the_picture() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow tells of it
        got = pixels(
            encoded(Image.fromarray(COLOURS), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12broken")
        )
    assert got.shape == COLOURS.shape


def test_cmyk() -> None:
    inks = np.zeros((8, 16, 4), np.uint8)
    inks[:, :8, 0] = 255  # cyan, and black by black ink
    inks[:, 8:, 3] = 255
    image = Image.fromarray(inks, "CMYK")
    assert Image.open(io.BytesIO(encoded(image, "JPEG"))).info.get("adobe") is not None  # the kind that is inverted
    for form in ("JPEG", "TIFF"):
        got = pixels(encoded(image, form)).astype(int)
        assert np.abs(got[4, 2] - (0, 255, 255)).max() < 12
        assert np.abs(got[4, 13]).max() < 12


def test_palettes() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([250, 10, 20, 30, 240, 50, 0, 0, 90])
    image.putdata([0, 1, 2])
    seen = [[250, 10, 20], [30, 240, 50], [0, 0, 90]]
    assert pixels(encoded(image, "PNG"))[0].tolist() == seen
    assert pixels(encoded(image, "GIF"))[0].tolist() == seen
    seen[1] = [255, 255, 255]
    assert pixels(encoded(image, "PNG", transparency=1))[0].tolist() == seen
    assert pixels(encoded(image, "GIF", transparency=1))[0].tolist() == seen
    got = pixels(encoded(image, "PNG", transparency=bytes([255, 0, 51])))[0].tolist()
    assert got == [seen[0], seen[1], [204, 204, 222]]  # a fifth of the ink on four fifths of white


def test_transparency_lies_on_white() -> None:
    rgba = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    expected = [[200, 100, 0], [255, 255, 255], [244, 224, 204]]
    assert pixels(rgba)[0].tolist() == expected
    assert pixels(encoded(Image.fromarray(rgba), "PNG"))[0].tolist() == expected
    assert pixels(Image.fromarray(rgba).convert("RGBa"))[0].tolist() == pytest.approx(np.array(expected), abs=3)
    grey_alpha = Image.merge("LA", [Image.fromarray(rgba[..., 0]), Image.fromarray(rgba[..., 3])])
    for source in (grey_alpha, encoded(grey_alpha, "PNG")):
        assert pixels(source)[0].tolist() == [[200] * 3, [255] * 3, [244] * 3]
    assert np.abs(pixels(grey_alpha.convert("La")).astype(int)[0, :, 0] - (200, 255, 244)).max() <= 3
    keyed = encoded(Image.fromarray(rgba[..., :3].copy()), "PNG", transparency=(200, 100, 0))
    assert (pixels(keyed) == 255).all()


def test_one_bit() -> None:
    board = np.indices((9, 13)).sum(0) % 2 * 255
    image = Image.fromarray(board.astype(np.uint8)).convert("1")
    for form in ("PNG", "TIFF", "BMP", "PPM"):
        np.testing.assert_array_equal(pixels(encoded(image, form)), grey(board))


@pytest.mark.parametrize(("mode", "near"), [("YCbCr", 3), ("HSV", 8), ("LAB", 6)])
def test_other_colour_spaces(mode: str, near: int) -> None:
    image = Image.fromarray(COLOURS)
    if mode == "LAB":
        from PIL import ImageCms

        profiles = [ImageCms.createProfile(space) for space in ("sRGB", "LAB")]
        other = ImageCms.profileToProfile(image, *profiles, outputMode="LAB")
        source: object = encoded(other, "TIFF")
    else:
        source = image.convert(mode)
    assert np.abs(pixels(source).astype(int) - COLOURS).mean() <= near


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animations_show_their_first_frame(form: str) -> None:
    frames = [Image.new("RGB", (20, 12), colour) for colour in ("red", "lime", "blue")]
    options = {"WEBP": {"lossless": True}}.get(form, {})
    content = encoded(frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert Image.open(io.BytesIO(content)).n_frames == 3
    assert (pixels(content) == (255, 0, 0)).all()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "JPEG2000", "AVIF"])
def test_truncated_files(tmp_path: Path, form: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.init()
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {form}")
    content = encoded(Image.fromarray(noise), form)
    path = tmp_path / f"cut.{form.lower()}"
    for kept in (len(content) // 2, 24):
        path.write_bytes(content[:kept])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow tells of TIFFs before it gives up
            assert message(path).startswith(f"{path} is truncated or damaged (")


def test_flipped_bytes_are_read_or_refused_in_one_line() -> None:
    generator = np.random.default_rng(1)
    for form in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"):
        content = encoded(Image.fromarray(COLOURS), form)
        for _ in range(30):
            broken = np.frombuffer(content, np.uint8).copy()
            broken[generator.integers(0, len(broken), 4)] = generator.integers(0, 256, 4)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    picture = read_picture(broken.tobytes(), most_pixels=10_000_000)
                assert picture.mode == "RGB"
            except MeshcapError as error:
                assert "\n" not in str(error)


def test_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("no picture at all, " * 9)
    assert message(path).startswith(f"{path} is no picture: expected JPEG, PNG")
    path.write_bytes(b"")
    assert message(path) == f"{path} is empty, expected a picture"
    assert message(b"") == "the picture is empty, expected a picture"
    assert message(tmp_path) == f"{tmp_path} is a folder, expected a picture"
    assert message(tmp_path / "none.png") == f"{tmp_path / 'none.png'} cannot be read: No such file or directory"
    assert "cannot be read" in message("null\0byte.png")
    assert "0 × 5 pixels" in message(Image.new("RGB", (0, 5)))
    assert "open for text" in message(io.StringIO("text"))


def test_formats_that_run_other_programs_are_not_read() -> None:
    postscript = encoded(Image.fromarray(COLOURS), "EPS")
    assert Image.open(io.BytesIO(postscript)).format == "EPS"
    assert "is no picture" in message(postscript)


def test_no_right_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(encoded(Image.fromarray(COLOURS), "PNG"))

    def refuse(*_: object, **__: object) -> None:  # chmod would not: tests may run as root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert message(path) == f"{path} cannot be read: Permission denied"


def test_a_failing_disk_is_not_blamed_on_the_picture() -> None:
    content = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)), "PNG")

    class Disk(io.BytesIO):
        name = "far/away.png"

        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1000:
                raise OSError(5, "Input/output error")
            return super().read(size)

    assert message(Disk(content)) == "far/away.png cannot be read: Input/output error"


def header_of(width: int, height: int) -> bytes:
    """A PNG that says it is large, with no pixels behind: decoding it would fail, and with another message."""
    content = bytearray(encoded(Image.new("L", (1, 1)), "PNG"))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def test_huge_pictures_are_refused_before_they_are_decoded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = message(header_of(30_000, 20_000))
        assert told.startswith("the picture has 30000 × 20000 = 600,000,000 pixels, more than the 178,956,970 allowed")
        # Between where Pillow warns and where it refuses: nobody hears of it.
        assert "truncated or damaged" in message(header_of(12_000, 10_000))
    assert "8 × 8 = 64 pixels, more than the 63" in message(encoded(Image.new("L", (8, 8)), "PNG"), most_pixels=63)
    assert pixels(encoded(Image.new("L", (8, 8)), "PNG"), most_pixels=64).shape == (8, 8, 3)


def test_a_large_tiff_is_read_without_a_warning() -> None:
    content = encoded(Image.new("1", (10_000, 9_000)), "TIFF", compression="group4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_picture(content).size == (10_000, 9_000)


@pytest.mark.parametrize(
    ("size", "at_least", "expected"),
    [
        ((1600, 1200), 0, (1600, 1200)),
        ((1600, 1200), 1200, (1600, 1200)),
        ((1600, 1200), 601, (1600, 1200)),
        ((1600, 1200), 600, (800, 600)),
        ((1600, 1200), 256, (400, 300)),
        ((1601, 1203), 256, (401, 301)),
        ((1600, 1200), 150, (200, 150)),
        ((1600, 1200), 10, (200, 150)),
        ((40, 30), 256, (40, 30)),
    ],
)
def test_large_jpegs_are_decoded_no_larger_than_needed(
    size: tuple[int, int], at_least: int, expected: tuple[int, int]
) -> None:
    whole = Image.fromarray(COLOURS).resize(size)
    got = read_picture(encoded(whole, "JPEG", quality=95), at_least=at_least)
    assert got.size == expected
    small = np.asarray(whole.resize(expected, Image.Resampling.BOX)).astype(int)
    assert np.abs(np.asarray(got) - small).mean() < 3
    assert read_picture(encoded(whole, "PNG"), at_least=at_least).size == size


def test_reduced_and_turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(Image.fromarray(COLOURS).resize((800, 480)), "JPEG", exif=exif)
    assert read_picture(content, at_least=100).size == (120, 200)


def test_two_pictures_in_a_jpeg() -> None:
    """As phones keep a portrait with its depth: the first one is the photograph."""
    whole = Image.fromarray(COLOURS).resize((800, 480))
    content = encoded(whole, "MPO", save_all=True, append_images=[Image.new("RGB", (800, 480))], quality=95)
    assert Image.open(io.BytesIO(content)).format == "MPO"
    for at_least, size in ((0, (800, 480)), (100, (200, 120))):
        got = pixels(content, at_least=at_least)
        assert got.shape == (size[1], size[0], 3)
        assert np.abs(got.astype(int) - np.asarray(whole.resize(size))).mean() < 3


def test_heic() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(COLOURS).resize((128, 96))).save(file, quality=95)
    openers = set(Image.OPEN)
    got = pixels(file.getvalue())
    assert got.shape == (96, 128, 3)
    expected = np.asarray(Image.fromarray(COLOURS).resize((128, 96))).astype(int)
    assert np.abs(got - expected).mean() < 4
    assert "HEIF" not in set(Image.OPEN) - openers  # nothing is changed for others
    assert "truncated or damaged" in message(file.getvalue()[:200])


def test_heic_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    path = tmp_path / "phone.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    assert message(path) == f"{path} is a HEIC picture, which needs another package: pip install pillow-heif"


def test_nothing_of_pillow_is_changed() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    pixels(encoded(Image.fromarray(COLOURS), "JPEG"), at_least=8)
    message(header_of(30_000, 20_000))
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)) == before


def test_in_threads() -> None:
    contents = [encoded(Image.new("RGB", (90, 60), (shade, 0, 0)), "PNG") for shade in range(40)]
    with ThreadPoolExecutor(4) as pool:
        shades = [picture.getpixel((5, 5))[0] for picture in pool.map(read_picture, contents)]
    assert shades == list(range(40))


def test_names() -> None:
    assert all(is_picture_path(name) for name in ("a.jpg", "B.JPEG", Path("c/d.webp"), "e.heic", "f.tif"))
    assert not any(is_picture_path(name) for name in ("a.txt", "jpg", ".jpg", "b.jpg.part", "c.svg"))


# Numbers of other kinds become the 8 bits that they mean.

RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16)
SMALL_COLOURS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def arrays_pixels(source: object) -> np.ndarray:
    picture = read_picture(source)
    assert picture.mode == "RGB"
    return np.asarray(picture)


def arrays_encoded(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def test_arrays() -> None:
    for same in (
        SMALL_COLOURS,
        SMALL_COLOURS.astype(np.uint16) * 257,
        (SMALL_COLOURS / 255).astype(np.float32),
        SMALL_COLOURS / 255,
        torch.from_numpy(SMALL_COLOURS),
        torch.from_numpy(SMALL_COLOURS).permute(2, 0, 1),
        (torch.from_numpy(SMALL_COLOURS) / 255).permute(2, 0, 1).requires_grad_(),
        np.asfortranarray(SMALL_COLOURS),
    ):
        np.testing.assert_array_equal(arrays_pixels(same), SMALL_COLOURS)
    for same in (RAMP, RAMP[..., None], torch.from_numpy(RAMP)[None], RAMP.astype(np.uint16) * 257, RAMP / 255):
        np.testing.assert_array_equal(arrays_pixels(same), grey(RAMP))
    np.testing.assert_array_equal(arrays_pixels(RAMP > 99), grey(np.where(RAMP > 99, 255, 0)))
    np.testing.assert_array_equal(arrays_pixels(np.array([[1.04, -0.03, 0.5]])), grey(np.array([[255, 0, 128]])))


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
    for source in (image, arrays_encoded(image, "PNG"), arrays_encoded(image, "TIFF"), image.convert("I")):
        np.testing.assert_array_equal(arrays_pixels(source), grey(RAMP))
    pgm = b"P5 16 16 65535\n" + deep.astype(">u2").tobytes()
    np.testing.assert_array_equal(arrays_pixels(pgm), grey(RAMP))
    np.testing.assert_array_equal(
        arrays_pixels(np.array([[128, 129, 65406, 65407]], np.uint16))[0, :, 0], [0, 1, 254, 255]
    )


def test_deeper_than_that() -> None:
    wide = RAMP.astype(np.int32) * 1_000_000 - 7
    np.testing.assert_array_equal(arrays_pixels(Image.fromarray(wide)), grey(RAMP))
    for scale in (1 / 255, 1.0, 300.0):
        image = Image.fromarray(RAMP.astype(np.float32) * np.float32(scale))
        assert image.mode == "F"
        np.testing.assert_array_equal(arrays_pixels(arrays_encoded(image, "TIFF")), grey(RAMP))
    assert (arrays_pixels(Image.fromarray(np.full((2, 2), 0.5, np.float32))) == 128).all()
    assert np.array_equal(arrays_pixels(Image.fromarray(np.array([[np.nan, 1.0]], np.float32)))[0, :, 0], [0, 255])
