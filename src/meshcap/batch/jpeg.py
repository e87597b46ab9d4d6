"""Descriptions inside JPEG files: segments of their header are added or replaced, and no other byte is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from meshcap.batch import exif, iptc, xmp
from meshcap.errors import MeshcapError

EXIF, XMP, PHOTOSHOP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"Photoshop 3.0\0"
APP0, APP1, APP2, APP13, SOS = 0xE0, 0xE1, 0xE2, 0xED, 0xDA
SEVERAL = b"MPF\0"  # of APP2: where further pictures begin, counted from here
WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD9))  # TEM, RST0-7, SOI
LARGEST = 65_533  # bytes of a segment: its length has two bytes and counts them

# Old content (without its label, None: there was none) and text to new content; None: leave it as it is.
Edit = Callable[[bytes | None, str, bool], bytes | None]
# Which segment holds it, what it begins with, and how it is edited.
KINDS: dict[str, tuple[int, bytes, Edit]] = {
    "exif": (APP1, EXIF, exif.described),
    "xmp": (APP1, XMP, xmp.described),
    "iptc": (APP13, PHOTOSHOP, iptc.described),
}


class Segment(NamedTuple):
    """A piece of the header."""

    marker: int
    start: int  # of its first 0xFF
    end: int
    payload: bytes


def described(content: bytes, text: str, kind: str, *, overwrite: bool) -> bytes:
    """The same file with a description: `kind` is exif, xmp or iptc. One that is there stays, unless told otherwise.

    Raises:
        MeshcapError: no JPEG, or metadata that cannot be edited without losing some.
    """
    marker, label, edit = KINDS[kind]
    segments = list(header(content))
    old = [one for one in segments if one.marker == marker and one.payload.startswith(label)]
    if len(old) > 1 and kind == "iptc":
        raise MeshcapError("its IPTC is split over several segments: write EXIF or XMP instead")
    payload = edit(old[0].payload[len(label) :] if old else None, text, overwrite)
    if payload is None:
        return content
    if len(label) + len(payload) > LARGEST:
        raise MeshcapError(f"its {kind.upper()} would take {len(payload):,} bytes, and a JPEG segment has no room")
    segment = bytes((0xFF, marker)) + (len(label) + len(payload) + 2).to_bytes(2, "big") + label + payload
    if old:
        start, end = old[0].start, old[0].end
    else:
        # Readers look for EXIF first of all, where JFIF's own segment is not before it; XMP and IPTC follow.
        before = (EXIF, XMP) if kind != "exif" else ()
        first = [
            one for one in segments if one.marker == APP0 or (one.marker == APP1 and one.payload.startswith(before))
        ]
        start = end = max((one.end for one in first), default=2)
    if any(one.marker == APP2 and one.payload.startswith(SEVERAL) and one.end <= start for one in segments):
        raise MeshcapError("it holds several pictures, whose places would no longer be right")
    return content[:start] + segment + content[end:]


def header(content: bytes) -> Iterator[Segment]:
    """The segments before the first scan.

    Raises:
        MeshcapError: no JPEG, or one that ends in its header.
    """
    if content[:2] != b"\xff\xd8":
        raise MeshcapError("it is no JPEG")
    place = 2
    while place + 4 <= len(content):
        start = place
        if content[place] != 0xFF:
            break
        while content[place + 1 : place + 2] == b"\xff":  # as many as one likes may come before a marker
            place += 1
        marker = content[place + 1] if place + 1 < len(content) else SOS
        if marker == SOS:
            return
        if marker in WITHOUT_LENGTH:
            place += 2
            continue
        length = int.from_bytes(content[place + 2 : place + 4], "big")
        end = place + 2 + length
        if length < 2 or end > len(content):
            break
        yield Segment(marker, start, end, content[place + 4 : end])
        place = end
    raise MeshcapError("its JPEG header is damaged")
