"""Reading a picture, whatever it is kept in: upright, RGB, 8 bits; or one line that says why not.

Formats are opened one by one from a list of our own, and not by `Image.open`: that one warns about large pictures
(warnings can only be silenced for all threads at once), and knows formats that run other programs. Nothing of Pillow
is changed for the rest of the process, and pictures may be read in threads.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import numpy as np
from PIL import Image, ImageFile, ImageOps

from meshcap.errors import MeshcapError
from meshcap.files import open_regular
from meshcap.music.score import SUFFIXES as SCORES
from meshcap.vision.picture_limits import MOST_PIXELS, check_decoding, check_file, check_size, read_ppm

if TYPE_CHECKING:
    from torch import Tensor


class Stored(ABC):
    """A picture in a place of its own kind, such as a member of a tar: small, and can be pickled for a process."""

    @abstractmethod
    def read(self) -> bytes:
        """The content of its file.

        Raises:
            MeshcapError: it is not there, or cannot be read.
        """


# In quotes: pictures are also read where there is no torch.
Source: TypeAlias = (
    "str | os.PathLike[str] | Image.Image | np.ndarray | Tensor | bytes | bytearray | IO[bytes] | Stored"
)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "ICO")
SUFFIXES = tuple(  # in the order to try where a name has none
    ".jpg .jpeg .png .webp .avif .gif .bmp .tif .tiff .jpe .jfif .mpo .apng .dib .heic .heif .hif .jp2 .j2k "
    ".ppm .pgm .pbm .pnm .ico".split()
)
SOURCES = (*SUFFIXES, *SCORES)  # what captioners read
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

THUMBNAIL, THUMBNAIL_QUALITY = 256, 70  # pixels of the longer side; of JPEG: some 12 kB for a photograph

WARNED_PIXELS = 89_478_485  # where Pillow begins to warn
LARGE, STRIP = 16_000_000, 1_000_000  # pixels: above the first, pictures are converted in strips of the second
WHOLE = 32 * 2**20  # bytes of a file that is read at once: smaller pieces are a call of the system each


def is_picture_path(path: str | os.PathLike[str]) -> bool:
    """By its name alone."""
    return Path(path).suffix.lower() in SUFFIXES


def read_picture(source: Source, *, at_least: int = 0, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """An upright RGB picture. Of an animation the first frame; what is transparent lies on white.

    Args:
        source: a path, the content of a file, an open file, what is `Stored`, a Pillow image, or numbers (see
            `picture_of_array`).
        at_least: where above 0, a large JPEG is decoded at a half, a quarter or an eighth of its size, which is
            faster, as long as its short side keeps this many pixels. Of other formats, pictures above 16 megapixels are
            made smaller before they are converted, which saves memory, as long as it keeps twice as many.
        most_pixels: larger pictures are refused before they are decoded.

    Raises:
        TooLargeError: more pixels than allowed, or more memory or work to decode.
        MeshcapError: no such file, no picture, a damaged one.
    """
    if isinstance(source, np.ndarray) or is_tensor(source):
        return _rgb(picture_of_array(source))
    if isinstance(source, Image.Image):
        name = str(getattr(source, "filename", "") or "the picture")
        return _decoded(source, None, name, 0, most_pixels)
    if isinstance(source, Stored):
        source = source.read()
    if isinstance(source, bytes | bytearray):
        return _read(io.BytesIO(source), "the picture", at_least, most_pixels)
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if os.path.isdir(path):
            raise MeshcapError(f"{path} is a folder, expected a picture")
        try:
            with open_regular(path) as file:
                whole = os.fstat(file.fileno()).st_size <= WHOLE
                return _read(io.BytesIO(file.read()) if whole else file, path, at_least, most_pixels)
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
    return _decoded(_open(file, name, most_pixels), file, name, at_least, most_pixels)


def _open(file: IO[bytes], name: str, most_pixels: int) -> Image.Image:
    """The header of a picture; its pixels are not decoded yet."""
    file.seek(0)
    start = file.read(32)
    if not isinstance(start, bytes):
        raise MeshcapError(f"{name} is open for text, expected a file opened with mode 'rb'")
    if not start:
        raise MeshcapError(f"{name} is empty, expected a picture")
    check_file(file, start, name, most_pixels)
    if start[:1] == b"P" and (picture := read_ppm(file, name, most_pixels)) is not None:
        return picture
    reason = ""
    for factory in _factories(start[:16]):
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


def one_thread() -> None:
    """For processes that share the cores: AVIF's decoder would start a thread for each of them."""
    try:
        from PIL import AvifImagePlugin
    except ImportError:
        return
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


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


def _decoded(image: Image.Image, file: IO[bytes] | None, name: str, at_least: int, most_pixels: int) -> Image.Image:
    width, height = image.size
    if not width * height:
        raise MeshcapError(f"{name} is {width} × {height} pixels, expected at least one")
    check_size(width, height, name, most_pixels)
    if getattr(image, "tile", None):  # not decoded yet
        check_decoding(image, file, name, reduced=at_least > 0)
    try:
        with _no_warning() if width * height > WARNED_PIXELS and image.format == "TIFF" else nullcontext():
            if at_least > 0 and image.format in ("JPEG", "MPO"):
                image.draft(image.mode, (at_least, at_least))
                cast("ImageFile.ImageFile", image).decodermaxblock = WHOLE  # one call: after each, threads wait
            image.load()
        return _upright(_reduced_rgb(image, 2 * at_least), image)
    except Exception as error:  # damaged bytes may raise anything
        _let_through(error)
        raise MeshcapError(f"{name} is truncated or damaged ({_reason(error)}): expected a whole picture") from error


@contextmanager
def _no_warning() -> Iterator[None]:
    """Only for very large TIFFs, which Pillow looks at once more while it decodes: silence is not thread-safe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _upright(image: Image.Image, decoded: Image.Image) -> Image.Image:
    """Asked after decoding: some formats turn the picture themselves, and then no longer say that it lies."""
    try:
        turn = UPRIGHT.get(decoded.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged notes beside the picture do not damage the picture
        return image
    return image if turn is None else image.transpose(turn)


def _reduced_rgb(image: Image.Image, at_least: int) -> Image.Image:
    """RGB; a large picture in strips, so that it is never in memory twice, and smaller where that is allowed."""
    width, height = image.size
    if width * height <= LARGE:
        return _rgb(image)
    if image.mode.startswith("I") or image.mode == "F":  # whose range is that of the whole
        image = grey_of_deep(image)
    factor = max(1, min(width, height) // at_least) if at_least > 0 else 1
    if factor == 1 and _is_rgb(image):
        return image
    small = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    rows = max(1, STRIP // width // factor) * factor
    for top in range(0, height, rows):
        strip = _rgb(image.crop((0, top, width, min(top + rows, height))))
        small.paste(strip.reduce(factor) if factor > 1 else strip, (0, top // factor))
    return small


def _is_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def _rgb(image: Image.Image) -> Image.Image:
    if _is_rgb(image):
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


# Numbers that came from elsewhere (NumPy, torch, 16-bit and float files), as pictures of 8 bits.

ARRAY_SHAPES = "(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
# Bicubic resizing overshoots and sums of floats miss by an ulp: both are clipped, larger numbers are a mistake.
SLACK = 0.1


def picture_of_array(given: np.ndarray | Tensor) -> Image.Image:
    """A grey, RGB or RGBA picture of uint8, uint16, bool, or floats from 0 to 1.

    Arrays have their channels last; tensors may have them first, as torch has them.

    Raises:
        MeshcapError: another shape, another kind of number, or floats that are not from 0 to 1.
    """
    what = "an array"
    if is_tensor(given):
        what, given = "a tensor", _channels_last(given.detach().cpu())
    assert isinstance(given, np.ndarray)
    shape = given.shape
    if given.ndim not in (2, 3) or 0 in shape or (given.ndim == 3 and shape[2] not in (1, 3, 4)):
        raise MeshcapError(f"a picture was given as {what} of shape {tuple(shape)}, expected {ARRAY_SHAPES}")
    if given.dtype == np.uint8:
        numbers = given
    elif given.dtype == np.uint16:
        numbers = from_16_bits(given)
    elif given.dtype == np.bool_:
        numbers = given * np.uint8(255)
    elif np.issubdtype(given.dtype, np.floating):
        least, most = float(given.min()), float(given.max())
        if not (least >= -SLACK and most <= 1 + SLACK):  # so that NaN is refused too
            raise MeshcapError(f"a picture was given as {what} of floats from {least:g} to {most:g}, expected 0 to 1")
        numbers = _from_unit(given)
    else:
        raise MeshcapError(
            f"a picture was given as {what} of {given.dtype}, expected uint8, uint16 or floats from 0 to 1"
        )
    if numbers.ndim == 3 and numbers.shape[2] == 1:
        numbers = numbers[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(numbers))


def is_tensor(given: Any) -> TypeGuard[Tensor]:
    """Where torch was never imported nothing is a tensor, and it need not be imported to find that out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def grey_of_deep(image: Image.Image) -> Image.Image:
    """Pillow's own conversion of pictures with 16 bits, 32 bits or floats clips them to white; this one scales.

    Sixteen bits have a known range. The others do not say theirs: it is taken to be the usual one (16 bits for
    integers, 0-1 or 0-255 for floats) where all numbers are within, and else the one that they fill.
    """
    rows = max(1, STRIP // image.width)
    tops = range(0, image.height, rows)

    def strip(top: int) -> np.ndarray:
        numbers = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
        if image.mode.startswith("I;16"):
            return numbers
        return np.nan_to_num(numbers.astype(np.float64), posinf=0.0, neginf=0.0)

    bottom, top_value = 0.0, 65535.0
    if not image.mode.startswith("I;16"):
        ranges = [(float(part.min()), float(part.max())) for part in map(strip, tops)]
        least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
        usual = (65535.0,) if image.mode == "I" else (1.0, 255.0)
        bottom, top_value = next(((0.0, full) for full in usual if least >= 0 and most <= full), (least, most))
    grey = np.empty((image.height, image.width), np.uint8)
    for top in tops:
        part = strip(top)
        if image.mode.startswith("I;16"):
            grey[top : top + rows] = from_16_bits(part)
        else:
            grey[top : top + rows] = _from_unit((part - bottom) / max(top_value - bottom, 1e-30))
    return Image.fromarray(grey)


def from_16_bits(numbers: np.ndarray) -> np.ndarray:
    """0-65535 to 0-255, rounded: 65535 is 255 · 257."""
    return ((numbers.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _from_unit(numbers: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(numbers.astype(np.float64), 0, 1) * 255).astype(np.uint8)


def _channels_last(tensor: Tensor) -> np.ndarray:
    import torch

    if tensor.dtype in (torch.bfloat16, torch.float16):  # NumPy has no bfloat16
        tensor = tensor.float()
    if tensor.dim() == 3 and tensor.shape[0] in (1, 3, 4):
        tensor = tensor.permute(1, 2, 0)
    return tensor.numpy()


def thumbnail(image: Image.Image, side: int = THUMBNAIL) -> Image.Image:
    """A copy in RGB, upright, no side longer than `side`. What is transparent becomes white."""
    palette = image.mode in ("1", "P")  # whose colours cannot be mixed
    small = image.convert("RGBA" if image.has_transparency_data else "RGB") if palette else image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    small = ImageOps.exif_transpose(small)
    if small.has_transparency_data:
        small = small.convert("RGBA")
        small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small)
    return small.convert("RGB")


def data_url(image: Image.Image, side: int = THUMBNAIL) -> tuple[str, int, int]:
    """The thumbnail as a JPEG inside a URL, with its width and height."""
    small = thumbnail(image, side)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"), *small.size
