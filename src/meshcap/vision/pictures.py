"""Reading a picture, whatever it is kept in: upright, RGB, 8 bits; or one line that says why not.

Formats are opened one by one from a list of our own, and not by `Image.open`: that one warns about large pictures
(warnings can only be silenced for all threads at once), and knows formats that run other programs. Nothing of Pillow
is changed for the rest of the process, and pictures may be read in threads.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, cast

import numpy as np
from PIL import Image

from meshcap.errors import MeshcapError
from meshcap.vision.arrays import grey_of_deep, is_tensor, picture_of_array

if TYPE_CHECKING:
    from torch import Tensor

# In quotes: pictures are also read where there is no torch.
Source: TypeAlias = "str | os.PathLike[str] | Image.Image | np.ndarray | Tensor | bytes | bytearray | IO[bytes]"

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO")
SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .gif .bmp .dib .tif .tiff .avif .heic .heif .hif .jp2 .j2k "
    ".ppm .pgm .pbm .pnm .ico".split()
)
EXPECTED = "expected JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC, JPEG 2000, PPM or ICO"
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1", b"heif")

ORIENTATION = 0x0112  # of EXIF: how the camera was held
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

MOST_PIXELS = 178_956_970  # half a gigabyte once decoded; where Pillow itself refuses
WARNED_PIXELS = 89_478_485  # where Pillow begins to warn


def is_picture_path(path: str | os.PathLike[str]) -> bool:
    """By its name alone."""
    return Path(path).suffix.lower() in SUFFIXES


def read_picture(source: Source, *, at_least: int = 0, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """An upright RGB picture. Of an animation the first frame; what is transparent lies on white.

    Args:
        source: a path, the content of a file, an open file, a Pillow image, or numbers (see `picture_of_array`).
        at_least: where above 0, a large JPEG is decoded at a half, a quarter or an eighth of its size, which is
            faster, as long as its short side keeps this many pixels.
        most_pixels: larger pictures are refused before they are decoded.

    Raises:
        MeshcapError: no such file, no picture, a damaged or too large one.
    """
    if isinstance(source, np.ndarray) or is_tensor(source):
        return _rgb(picture_of_array(source))
    if isinstance(source, Image.Image):
        name = str(getattr(source, "filename", "") or "the picture")
        return _decoded(source, name, 0, most_pixels)
    if isinstance(source, bytes | bytearray):
        return _read(io.BytesIO(source), "the picture", at_least, most_pixels)
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if os.path.isdir(path):
            raise MeshcapError(f"{path} is a folder, expected a picture")
        try:
            with open(path, "rb") as file:
                return _read(file, path, at_least, most_pixels)
        except MeshcapError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            raise MeshcapError(f"{path} cannot be read: {_reason(error)}") from error
    if hasattr(source, "read"):
        named = getattr(source, "name", None)  # a number where the file was opened by its descriptor
        name = named if isinstance(named, str) else "the picture"
        try:
            if not (hasattr(source, "seekable") and source.seekable()):
                source = io.BytesIO(source.read())
            return _read(cast("IO[bytes]", source), name, at_least, most_pixels)
        except MeshcapError:
            raise
        except (OSError, ValueError, TypeError) as error:
            raise MeshcapError(f"{name} cannot be read: {_reason(error)}") from error
    raise MeshcapError(f"a picture was given as {type(source).__name__}, expected a path, bytes, a file or an array")


def _read(file: IO[bytes], name: str, at_least: int, most_pixels: int) -> Image.Image:
    return _decoded(_open(file, name), name, at_least, most_pixels)


def _open(file: IO[bytes], name: str) -> Image.Image:
    """The header of a picture; its pixels are not decoded yet."""
    file.seek(0)
    start = file.read(16)
    if not isinstance(start, bytes):
        raise MeshcapError(f"{name} is open for text, expected a file opened with mode 'rb'")
    if not start:
        raise MeshcapError(f"{name} is empty, expected a picture")
    reason = ""
    for factory in _factories(start):
        file.seek(0)
        try:
            return factory(file, "")
        except Exception as error:  # damaged bytes may raise anything; another format may still know them
            _let_through(error)
            reason = _reason(error)
    if reason:
        raise MeshcapError(f"{name} is truncated or damaged ({reason}): expected a whole picture")
    if _is_heif(start) and _heif_factory() is None:
        raise MeshcapError(f"{name} is a HEIC picture, which needs another package: pip install pillow-heif")
    raise MeshcapError(f"{name} is no picture: {EXPECTED}")


def _factories(start: bytes) -> list[Callable[[IO[bytes], str], Image.Image]]:
    """What may open a file that starts like this."""
    Image.init()
    found: list[Callable[[IO[bytes], str], Image.Image]] = []
    for form in FORMATS:
        factory, accepts = Image.OPEN.get(form, (None, None))
        # A text instead of True says that this Pillow was built without the format.
        if factory is not None and accepts is not None and accepts(start) is True:
            found.append(factory)
    if _is_heif(start) and (heif := _heif_factory()) is not None:
        found.append(heif)
    return found


def _is_heif(start: bytes) -> bool:
    return start[4:8] == b"ftyp" and start[8:12] in HEIF_BRANDS


def _heif_factory() -> Callable[[IO[bytes], str], Image.Image] | None:
    """Used directly, so that it need not be registered with Pillow for the whole process."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        return None
    return HeifImageFile


def _decoded(image: Image.Image, name: str, at_least: int, most_pixels: int) -> Image.Image:
    width, height = image.size
    if not width * height:
        raise MeshcapError(f"{name} is {width} × {height} pixels, expected at least one")
    if width * height > most_pixels:
        raise MeshcapError(
            f"{name} has {width} × {height} = {width * height:,} pixels, more than the {most_pixels:,} allowed: "
            "make it smaller first"
        )
    try:
        with _no_warning() if width * height > WARNED_PIXELS and image.format == "TIFF" else nullcontext():
            if at_least > 0 and image.format in ("JPEG", "MPO"):
                image.draft(image.mode, (at_least, at_least))
            image.load()
        return _rgb(_upright(image))
    except Exception as error:  # damaged bytes may raise anything
        _let_through(error)
        raise MeshcapError(f"{name} is truncated or damaged ({_reason(error)}): expected a whole picture") from error


@contextmanager
def _no_warning() -> Iterator[None]:
    """Only for very large TIFFs, which Pillow looks at once more while it decodes: silence is not thread-safe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _upright(image: Image.Image) -> Image.Image:
    """Asked after decoding: some formats turn the picture themselves, and then no longer say that it lies."""
    try:
        turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged notes beside the picture do not damage the picture
        return image
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return grey_of_deep(image).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(seen, mask=seen.getchannel("A"))
        return white
    return image.convert("RGB")


def _let_through(error: Exception) -> None:
    """What is not the picture's fault: no memory, or a disk or network that fails (Pillow's own have no number)."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
        raise error


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.split()) or type(error).__name__
