"""Small files that ask for much: refused from their headers, or read within the memory that is promised."""

import io
import os
import subprocess
import sys
import threading
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PpmImagePlugin

from meshcap.errors import MeshcapError, TooLargeError
from meshcap.vision.picture_limits import MOST_BYTES
from meshcap.vision.pictures import read_picture

PROMISED = 600  # MB above what the process holds already, for any one picture


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def jpeg_of_scans(size: int, copies: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    content = encoded(Image.new("RGB", (size, size), "grey"), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * copies + content[-2:]


class CountingFile(io.BytesIO):
    reads = 0

    def read(self, *args: int) -> bytes:
        self.reads += 1
        return super().read(*args)


def test_scans_are_counted_before_decoding() -> None:
    assert read_picture(jpeg_of_scans(64, 50)).size == (64, 64)
    with pytest.raises(TooLargeError, match=r"5,0\d\d scans, more than the 100 allowed"):
        read_picture(jpeg_of_scans(64, 5000))
    with pytest.raises(TooLargeError, match="more than the 33 allowed"):  # many scans of many pixels
        read_picture(jpeg_of_scans(9500, 60), at_least=64)


def test_scans_are_not_confused_with_notes() -> None:
    content = jpeg_of_scans(64, 0)
    note = b"\xff\xda" * 1000
    content = content[:2] + b"\xff\xe5" + (len(note) + 2).to_bytes(2, "big") + note + content[2:]
    assert read_picture(content).size == (64, 64)


@pytest.mark.parametrize("kind", ["VP8X", "VP8L", "VP8 "])
def test_a_webp_is_refused_by_its_declared_size(kind: str) -> None:
    side = 10_000
    body = {
        "VP8X": bytes(4) + (side - 1).to_bytes(3, "little") * 2,
        "VP8L": b"\x2f" + ((side - 1) | (side - 1) << 14).to_bytes(4, "little") + bytes(9),
        "VP8 ": b"\x10\0\0\x9d\x01\x2a" + side.to_bytes(2, "little") * 2 + bytes(4),
    }[kind]
    content = b"WEBP" + kind.encode() + len(body).to_bytes(4, "little") + body
    content = b"RIFF" + len(content).to_bytes(4, "little") + content
    with pytest.raises(TooLargeError, match="MiB to be decoded, more than the 512 allowed"):
        read_picture(content)


def test_an_icon_may_not_hide_a_large_picture() -> None:
    png = bytearray(encoded(Image.new("L", (1, 1)), "PNG"))
    png[16:24] = (9000).to_bytes(4, "big") * 2
    entry = b"\x10\x10\0\0\1\0\x20\0" + len(png).to_bytes(4, "little") + (22).to_bytes(4, "little")
    with pytest.raises(TooLargeError, match="an icon of 9000 × 9000"):
        read_picture(b"\0\0\1\0\1\0" + entry + bytes(png))


def test_pieces_are_counted_before_parsing() -> None:
    png = encoded(Image.new("L", (8, 8)), "PNG")
    chunk = bytes(4) + b"zzZz" + zlib.crc32(b"zzZz").to_bytes(4, "big")
    jpeg = encoded(Image.new("L", (8, 8)), "JPEG")
    for content in (
        png[:33] + chunk * 30_000 + png[33:],
        jpeg[:2] + b"\xff\xfe\0\2" * 30_000 + jpeg[2:],
        jpeg[:2] + b"\xff" * 30_000 + jpeg[2:],
    ):
        with pytest.raises(TooLargeError, match="more than a picture needs"):
            read_picture(content)
    assert read_picture(png[:33] + chunk * 3000 + png[33:]).size == (8, 8)


def test_ppm_headers_are_not_read_letter_by_letter() -> None:
    file = CountingFile(b"P5\n#" + b"a" * 60_000 + b"\n2 2 255\n\0\1\2\3")
    short = CountingFile(b"P5\n2 2 100\n\0\x32\x64\x64")
    assert np.asarray(read_picture(short))[..., 0].tolist() == [[0, 128], [255, 255]]
    assert short.reads < 20
    with pytest.raises(TooLargeError, match="a header of more than 65,536 bytes"):
        read_picture(b"P5\n#" + b"a" * 100_000 + b"\n2 2 255\n\0\1\2\3")
    assert np.asarray(read_picture(file))[..., 0].tolist() == [[0, 1], [2, 3]]


def test_plain_ppm_is_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Pillow's decoder takes quadratic time for comments")

    monkeypatch.setattr(PpmImagePlugin.PpmPlainDecoder, "decode", refuse)
    monkeypatch.setattr(PpmImagePlugin.PpmDecoder, "decode", refuse)
    comments = b"#\n" * 100_000
    assert np.asarray(read_picture(b"P2\n2 2 255\n" + comments + b"1 2 3 4"))[..., 0].tolist() == [[1, 2], [3, 4]]
    assert np.asarray(read_picture(b"P1 3 1 1\n0" + comments + b"1"))[..., 0].tolist() == [[0, 255, 0]]
    assert np.asarray(read_picture(b"P3 1 1 1000 1000 500 0")).tolist() == [[[255, 128, 0]]]
    long = b"P2 2 2 255 1 2#" + b"x" * 2_500_000 + b"\n3#" + b"y" * 10 + b"\r4 " + comments * 8
    assert np.asarray(read_picture(long))[..., 0].tolist() == [[1, 2], [3, 4]]
    for damaged in (b"P2 2 2 255 1 2 3", b"P2 2 2 255 1 2 3 x", b"P2 1 1 255 99999999999"):
        with pytest.raises(MeshcapError, match="truncated or damaged"):
            read_picture(damaged)


def test_deep_pictures_are_converted_in_strips() -> None:
    content = encoded(Image.new("F", (3000, 3000), 0.5), "TIFF", compression="tiff_lzw")
    tracemalloc.start()
    try:
        picture = read_picture(content)
        assert tracemalloc.get_traced_memory()[1] < 64e6  # twice as a whole in float64 would be 144
    finally:
        tracemalloc.stop()
    assert picture.getpixel((2999, 2999)) == (128, 128, 128)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "I;16", "F"])
def test_strips_are_what_the_whole_would_be(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (90, 70, 4), dtype=np.uint8)
    image = Image.fromarray(noise)
    if mode in ("I;16", "F"):
        numbers = noise[..., 0].astype(np.uint16) * 257 if mode == "I;16" else noise[..., 0].astype(np.float32)
        image = Image.fromarray(numbers)
    else:
        image = image.convert("RGB").convert(mode) if mode == "P" else image.convert(mode)
    content = encoded(image, "TIFF" if mode == "F" else "PNG")
    whole = np.asarray(read_picture(content))
    monkeypatch.setattr("meshcap.vision.pictures.LARGE", 1000)
    monkeypatch.setattr("meshcap.vision.pictures.STRIP", 500)
    np.testing.assert_array_equal(np.asarray(read_picture(content)), whole)
    small = read_picture(content, at_least=10)
    assert small.size == (24, 30)
    np.testing.assert_array_equal(np.asarray(small), np.asarray(Image.fromarray(whole).reduce(3)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        errors: list[BaseException] = []

        def read(path: Path = path, errors: list[BaseException] = errors) -> None:
            try:
                read_picture(path)
            except MeshcapError as error:
                errors.append(error)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert "expected a regular file" in str(errors[0])


MEASURE = """
import sys
from meshcap.vision.pictures import read_picture
from PIL import Image
def memory(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) / 1000
Image.init()
before = memory("VmRSS")
print(read_picture(sys.argv[1], at_least=260).size)
print(memory("VmHWM") - before)
"""


def side(bytes_each: int) -> int:
    """Of the largest square that the limits allow."""
    return min(13_300, int((MOST_BYTES / bytes_each) ** 0.5) - 16)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured with /proc")
@pytest.mark.parametrize(
    ("mode", "bytes_each", "form", "options"),
    [
        ("RGB", 4, "PNG", {"compress_level": 1}),
        ("RGBA", 4, "PNG", {"compress_level": 1}),
        ("LA", 4, "PNG", {"compress_level": 1}),
        ("I;16", 2, "PNG", {"compress_level": 1}),
        ("P", 1, "GIF", {}),
        ("F", 8, "TIFF", {"compression": "tiff_lzw"}),
        ("RGB", 16, "WEBP", {"quality": 1, "method": 0}),
        ("RGBA", 16, "WEBP", {"lossless": True, "quality": 0, "method": 0}),
        ("RGB", 20, "JPEG2000", {}),
        ("RGB", 7, "JPEG", {"progressive": True, "subsampling": 0}),
    ],
)
def test_memory_of_the_largest_pictures(
    mode: str, bytes_each: int, form: str, options: dict[str, object], tmp_path: Path
) -> None:
    Image.new(mode, (side(bytes_each), side(bytes_each))).save(tmp_path / "large", form, **options)
    done = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / "large"], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert float(done.stdout.split()[-1]) < PROMISED
