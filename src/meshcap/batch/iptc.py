"""Caption/Abstract (2:120) of IPTC, inside Photoshop's resources. Other fields and resources stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from meshcap.errors import MeshcapError

NAA, DIGEST = 0x0404, 0x0425  # resources: the fields, and a checksum of them
CHARSET, VERSION, CAPTION = (1, 90), (2, 0), (2, 120)
UTF8 = b"\x1b%G"
LONGEST = 2000  # bytes of a caption, says the standard
DAMAGED = "its IPTC is damaged: write EXIF or XMP instead"

Field = tuple[tuple[int, int], bytes]  # record and number, value


def described(old: bytes | None, text: str, overwrite: bool) -> bytes | None:
    """Photoshop's resources with this caption; None where it, or one that may stay, is there.

    Raises:
        MeshcapError: resources that cannot be understood, or fields in another alphabet.
    """
    resources = list(_resources(old or b""))
    fields = [field for number, _, data in resources if number == NAA for field in _fields(data)]
    there = b"".join(value for key, value in fields if key == CAPTION)
    value = text.encode("utf-8")[:LONGEST].decode("utf-8", "ignore").encode("utf-8")  # no half letter at the end
    if there == value or (there.strip(b"\0 \t\r\n") and not overwrite):
        return None
    fields = [field for field in fields if field[0] != CAPTION]
    if not text.isascii() or not fields:
        # Fields share one alphabet: declaring it must not change what the others say.
        if dict(fields).get(CHARSET) != UTF8 and any(not value.isascii() for _, value in fields):
            raise MeshcapError("its IPTC is not in UTF-8, and the caption needs it: write EXIF or XMP instead")
        fields = [field for field in fields if field[0] != CHARSET]
        fields.append((CHARSET, UTF8))
    if VERSION not in dict(fields):
        fields.append((VERSION, b"\0\4"))
    fields.append((CAPTION, value))
    fields.sort(key=lambda field: field[0] if field[0][0] < 3 else (3, 0))  # later records stay in their order
    data = b"".join(b"\x1c" + bytes(key) + _length(value) + value for key, value in fields)
    kept = [(number, name, value) for number, name, value in resources if number not in (NAA, DIGEST)]
    kept.append((NAA, b"\0\0", data))
    if any(number == DIGEST for number, _, _ in resources):
        kept.append((DIGEST, b"\0\0", hashlib.md5(data, usedforsecurity=False).digest()))
    return b"".join(_resource(*one) for one in kept)


def caption(resources: bytes) -> str:
    """What the resources say the picture shows."""
    fields = [field for number, _, data in _resources(resources) if number == NAA for field in _fields(data)]
    return b"".join(value for key, value in fields if key == CAPTION).decode("utf-8", "replace")


def _resources(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, name as it is written, and data of each."""
    place = 0
    while place < len(content):
        if not any(content[place:]):  # padding
            return
        if content[place : place + 4] != b"8BIM" or place + 7 > len(content):
            raise MeshcapError(DAMAGED)
        name = place + 6
        size = name + (content[name] + 2) // 2 * 2  # a length, so many letters, and all of it even
        start = size + 4
        end = start + int.from_bytes(content[size:start], "big")
        if end > len(content):
            raise MeshcapError(DAMAGED)
        yield int.from_bytes(content[place + 4 : name], "big"), content[name:size], content[start:end]
        place = end + (end - start) % 2


def _resource(number: int, name: bytes, data: bytes) -> bytes:
    return b"8BIM" + number.to_bytes(2, "big") + name + len(data).to_bytes(4, "big") + data + b"\0" * (len(data) % 2)


def _fields(data: bytes) -> Iterator[Field]:
    place = 0
    while place < len(data):
        if data[place] != 0x1C:
            if not any(data[place:]):
                return
            raise MeshcapError(DAMAGED)
        length = int.from_bytes(data[place + 3 : place + 5], "big")
        start = place + 5
        if length & 0x8000:  # a length of several bytes
            start += length & 0x7FFF
            length = int.from_bytes(data[place + 5 : start], "big")
        if start + length > len(data):
            raise MeshcapError(DAMAGED)
        yield (data[place + 1], data[place + 2]), data[start : start + length]
        place = start + length


def _length(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") if len(value) < 0x8000 else b"\x80\x04" + len(value).to_bytes(4, "big")
