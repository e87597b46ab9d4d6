"""What a picture file would cost, read from its own headers before anything is decoded.

A few kilobytes can ask for gigabytes or minutes: a size that is only declared, thousands of passes over the same
pixels, millions of empty pieces. Each is counted here in one pass over the file, and refused above a limit that no
real picture comes near.
"""

from __future__ import annotations

import re
from typing import IO

import numpy as np
from PIL import Image

from meshcap.errors import MeshcapError, TooLargeError

MOST_PIXELS = 178_956_970  # where Pillow itself refuses
MOST_BYTES = 512 * 2**20  # of memory that a decoder holds at once
SCANS = 100  # of a JPEG: cameras write 1, web tools about 10
LEAST_SCANS, SCANNED_PIXELS = 16, 3_000_000_000  # scans × pixels of a JPEG, where that is more than 16 scans
PIECES, PIECE = 10_000, 1024  # chunks or segments of any file, and one more for each so many bytes
PPM_HEADER, PPM_NUMBERS = 65_536, 64_000_000  # bytes of a header, and of pixels written as text

# Bytes a pixel that decoders hold beside the picture itself: frames, planes, the result before it is copied. Measured.
HELD = {"WEBP": 12, "AVIF": 12, "JPEG2000": 16, "HEIF": 12}
MODE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # all others: 4


def check_file(file: IO[bytes], start: bytes, name: str, most_pixels: int) -> None:
    """Refuse what Pillow's parsers would take minutes or gigabytes for while they open a file.

    Args:
        start: the first bytes of the file, 32 or all.

    Raises:
        TooLargeError: more pixels, scans or pieces than allowed.
    """
    if start.startswith(b"\xff\xd8"):
        _check_pieces(_jpeg_segments(file), file, name, "segments")
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        _check_pieces(_png_chunks(file), file, name, "chunks")
    elif start[:4] == b"RIFF" and start[8:12] == b"WEBP" and (size := _webp_size(start)):
        check_size(*size, name, most_pixels)
        _check_bytes(size[0] * size[1] * (HELD["WEBP"] + 4), name)
    elif start.startswith(b"\0\0\1\0"):
        _check_icons(file, name)


def check_size(width: int, height: int, name: str, most_pixels: int) -> None:
    """
    Raises:
        TooLargeError: more pixels than allowed.
    """
    if width * height > most_pixels:
        raise TooLargeError(
            f"{name} has {width} × {height} = {width * height:,} pixels, more than the {most_pixels:,} allowed: "
            "make it smaller first"
        )


def check_decoding(image: Image.Image, file: IO[bytes] | None, name: str, *, reduced: bool) -> None:
    """Refuse a picture that was opened and not decoded yet, if decoding it takes too many scans or too much memory.

    Args:
        file: where its bytes are; None: it was opened by somebody else.
        reduced: whether a smaller picture will do: then a JPEG is decoded at a fraction of its size.

    Raises:
        TooLargeError: so it is.
    """
    pixels = image.size[0] * image.size[1]
    bytes_each = HELD.get(image.format or "", 0.0) + MODE_BYTES.get(image.mode, 4)
    if image.format in ("JPEG", "MPO"):
        scans = 1 if file is None else _jpeg_scans(file, name)
        most = min(SCANS, max(LEAST_SCANS, SCANNED_PIXELS // pixels))
        if scans > most:
            raise TooLargeError(
                f"{name} is a JPEG of {image.size[0]} × {image.size[1]} pixels in {scans:,} scans, "
                f"more than the {most} allowed: save it anew"
            )
        if scans > 1 or image.info.get("progressive"):  # all coefficients are kept, 2 bytes each
            layers = getattr(image, "layer", None) or [(0, 1, 1)] * 3
            widest, highest = max(one[1] for one in layers), max(one[2] for one in layers)
            bytes_each += 2 * sum(one[1] * one[2] for one in layers) / (widest * highest)
        if reduced:
            bytes_each -= 3  # an eighth is decoded where so much is large
    elif image.format == "TIFF":  # libtiff unpacks a strip at a time, and all may be one strip
        bits = getattr(image, "tag_v2", {}).get(258, (8,))
        bytes_each += (sum(bits) if isinstance(bits, tuple) else 8) / 8
    _check_bytes(int(pixels * bytes_each), name)


def _check_bytes(count: int, name: str) -> None:
    if count > MOST_BYTES:
        raise TooLargeError(
            f"{name} needs {count / 2**20:,.0f} MiB to be decoded, more than the {MOST_BYTES // 2**20} allowed: "
            "make it smaller first"
        )


def _check_pieces(pieces: int, file: IO[bytes], name: str, what: str) -> None:
    if pieces > _most_pieces(file):
        raise TooLargeError(f"{name} has over {pieces - 1:,} {what}, more than a picture needs: save it anew")


def _most_pieces(file: IO[bytes]) -> int:
    return PIECES + file.seek(0, 2) // PIECE


def _jpeg_segments(file: IO[bytes]) -> int:
    """Segments before the first scan, padding included; counting stops above the limit."""
    most, place, count = _most_pieces(file), 2, 0
    while count <= most:
        file.seek(place)
        head = file.read(4)
        if len(head) < 4 or head[0] != 0xFF or head[1] == 0xDA:
            break
        count += 1
        if head[1] in (0x00, 0x01, 0xFF) or 0xD0 <= head[1] <= 0xD8:
            place += 1 if head[1] == 0xFF else 2
        else:
            place += 2 + max(2, int.from_bytes(head[2:], "big"))
    return count


def _png_chunks(file: IO[bytes]) -> int:
    """Chunks; counting stops above the limit."""
    most, place, count = _most_pieces(file), 8, 0
    while count <= most:
        file.seek(place)
        head = file.read(8)
        if len(head) < 8:
            break
        count += 1
        place += 12 + int.from_bytes(head[:4], "big")
    return count


NEXT_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


def _jpeg_scans(file: IO[bytes], name: str) -> int:
    file.seek(0)
    content = file.read()
    scans = content.count(b"\xff\xda")  # never inside coded pixels; a few may be inside notes, such as a thumbnail
    if scans <= LEAST_SCANS:
        return scans
    scans = place = 0
    while found := NEXT_MARKER.search(content, place):
        place, marker = found.end(), content[found.end() - 1]
        if marker == 0xD9:
            break
        if marker != 0xD8 and marker != 0x01:
            scans += marker == 0xDA
            place += max(2, int.from_bytes(content[place : place + 2], "big"))
    return scans


def _webp_size(start: bytes) -> tuple[int, int] | None:
    """The canvas that a WebP declares: its decoder allocates that when it is made."""
    kind = start[12:16]
    if kind == b"VP8X" and len(start) >= 30:
        return 1 + int.from_bytes(start[24:27], "little"), 1 + int.from_bytes(start[27:30], "little")
    if kind == b"VP8L" and len(start) >= 25:
        bits = int.from_bytes(start[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(start) >= 30:
        return int.from_bytes(start[26:28], "little") & 0x3FFF, int.from_bytes(start[28:30], "little") & 0x3FFF
    return None


MOST_ICON = 4096  # pixels of a side


def _check_icons(file: IO[bytes], name: str) -> None:
    """The pictures inside an icon, which may be larger than its directory says."""
    file.seek(4)
    count = int.from_bytes(file.read(2), "little")
    entries = file.read(16 * min(count, 1024))
    for entry in range(0, len(entries) - 15, 16):
        file.seek(int.from_bytes(entries[entry + 12 : entry + 16], "little"))
        head = file.read(24)
        if head.startswith(b"\x89PNG"):
            width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
        else:
            width, height = int.from_bytes(head[4:8], "little"), int.from_bytes(head[8:12], "little") // 2
        if max(width, height) > MOST_ICON:
            raise TooLargeError(f"{name} is an icon of {width} × {height} pixels, expected at most {MOST_ICON} a side")


# PPM and its kin. Pillow reads their headers letter by letter, and text and unusual ranges number by number.

PPM_TOKEN = re.compile(rb"#[^\r\n]*(?:[\r\n]|\Z)|([^\s#]+)")
PPM_KINDS = {b"P1": 1, b"P2": 1, b"P3": 3, b"P5": 1, b"P6": 3}  # channels


def read_ppm(file: IO[bytes], name: str, most_pixels: int) -> Image.Image | None:
    """A PPM, PGM or PBM that is written as text or does not count to 255 or 65535; None: another, which Pillow reads.

    Raises:
        TooLargeError: a header, a text or a picture above the limits.
        MeshcapError: a damaged one.
    """
    file.seek(0)
    head = file.read(PPM_HEADER)
    found = (one for one in PPM_TOKEN.finditer(head) if one[1] is not None)
    kind = next(found)[1]
    tokens = [one for one, _ in zip(found, range(2 if kind in (b"P1", b"P4") else 3), strict=False)]
    if len(head) == PPM_HEADER and (not tokens or tokens[-1].end() >= PPM_HEADER or len(tokens) < 2):
        raise TooLargeError(f"{name} has a header of more than {PPM_HEADER:,} bytes, expected three numbers")
    if kind not in PPM_KINDS:
        return None
    try:
        width, height, most = [int(one[1][:12]) for one in tokens] + [1] * (kind == b"P1")
    except ValueError:
        return None  # Pillow says what is wrong
    if kind in (b"P5", b"P6") and most in (255, 65535):
        return None
    if not 0 < most < 65536 or not width > 0 < height:
        return None
    check_size(width, height, name, most_pixels)
    channels = PPM_KINDS[kind]
    file.seek(tokens[-1].end() + 1)
    content = file.read(PPM_NUMBERS + 1)
    if len(content) > PPM_NUMBERS:
        raise TooLargeError(f"{name} has more than {PPM_NUMBERS:,} bytes of numbers: save it as PNG")
    numbers = _ppm_numbers(kind, content, most)
    if numbers is None or len(numbers) < width * height * channels:
        reason = "something that is no number" if numbers is None else "too few numbers"
        raise MeshcapError(f"{name} is truncated or damaged ({reason}): expected a whole picture")
    numbers = numbers[: width * height * channels]
    scaled = np.empty(len(numbers), np.uint8)
    for part in range(0, len(numbers), 2**20):
        scaled[part : part + 2**20] = np.rint(np.minimum(numbers[part : part + 2**20] / most, 1) * 255)
    return Image.fromarray(scaled.reshape((height, width, 3) if channels == 3 else (height, width)))


def _ppm_numbers(kind: bytes, content: bytes, most: int) -> np.ndarray | None:
    if kind in (b"P5", b"P6"):
        kind_of_number = ">u2" if most > 255 else "u1"
        return np.frombuffer(content, kind_of_number, count=len(content) // np.dtype(kind_of_number).itemsize)
    text = _without_comments(content)
    if kind == b"P1":  # digits need no spaces between them; 1 is black
        return ord("1") - np.frombuffer(text.translate(None, b" \t\r\n\v\f"), np.uint8)
    if re.search(rb"[^\d\s]|\d{11}", text):
        return None
    return np.fromstring(text, np.uint32, sep=" ")


def _without_comments(content: bytes) -> bytes:
    """In parts: millions of comments are millions of objects while they are cut out."""
    parts, inside = [], False
    for start in range(0, len(content), 2**20):
        part = content[start : start + 2**20]
        if inside:
            end = re.search(rb"[\r\n]", part)
            part = part[end.start() :] if end else b""
        inside = (inside and not part) or b"#" in part[max(part.rfind(b"\n"), part.rfind(b"\r")) + 1 :]
        parts.append(re.sub(rb"#[^\r\n]*", b"", part))
    return b"".join(parts)
