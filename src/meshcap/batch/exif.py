"""ImageDescription of EXIF. What is there stays at its place, because maker notes point to places; a new list of the
first directory's entries is put behind it all."""

from __future__ import annotations

from typing import Literal

from meshcap.errors import MeshcapError

DESCRIPTION, ASCII = 0x010E, 2
ENTRY = 12  # bytes: tag, kind, count, value or where it is


def described(old: bytes | None, text: str, overwrite: bool) -> bytes | None:
    """EXIF (a small TIFF) with this description; None where it, or one that may stay, is there.

    Raises:
        MeshcapError: EXIF that cannot be understood.
    """
    value = text.encode("utf-8") + b"\0"
    if old is None:
        old = b"II*\0\x08\0\0\0" + bytes(2 + 4)  # a directory without entries
    order: Literal["little", "big"] = "little" if old[:2] == b"II" else "big"
    if old[:4] not in (b"II*\0", b"MM\0*"):
        raise MeshcapError("its EXIF is damaged: write XMP instead")
    start = int.from_bytes(old[4:8], order)
    count = int.from_bytes(old[start : start + 2], order)
    end = start + 2 + count * ENTRY
    if start < 8 or end + 4 > len(old):
        raise MeshcapError("its EXIF is damaged: write XMP instead")
    entries = [old[place : place + ENTRY] for place in range(start + 2, end, ENTRY)]
    rest = [entry for entry in entries if int.from_bytes(entry[:2], order) != DESCRIPTION]
    there = b"".join(_value(old, entry, order) for entry in entries if entry not in rest)
    if there == value or (there.strip(b"\0 \t\r\n") and not overwrite):
        return None
    body = old + b"\0" * (len(old) % 2)  # directories and values begin at even places

    def entry_at(place: int) -> bytes:
        where = value.ljust(4, b"\0") if len(value) <= 4 else place.to_bytes(4, order)
        return DESCRIPTION.to_bytes(2, order) + ASCII.to_bytes(2, order) + len(value).to_bytes(4, order) + where

    directory = len(body)
    behind = directory + 2 + (len(rest) + 1) * ENTRY + 4
    listed = sorted([*rest, entry_at(behind)], key=lambda entry: int.from_bytes(entry[:2], order))
    return (
        body[:4]
        + directory.to_bytes(4, order)
        + body[8:]
        + len(listed).to_bytes(2, order)
        + b"".join(listed)
        + old[end : end + 4]  # where the thumbnail's directory is
        + (value if len(value) > 4 else b"")
    )


def _value(content: bytes, entry: bytes, order: Literal["little", "big"]) -> bytes:
    count = int.from_bytes(entry[4:8], order)
    if count <= 4:
        return entry[8 : 8 + count]
    place = int.from_bytes(entry[8:12], order)
    return content[place : place + count]
