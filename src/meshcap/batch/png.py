"""XMP inside PNG files: one text chunk is added or replaced, and no other byte is touched."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from meshcap.batch import xmp
from meshcap.errors import MeshcapError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORD = b"XML:com.adobe.xmp\0"
LARGEST = 16_000_000  # bytes of a packet that is unpacked: more is no packet


def described(content: bytes, text: str, *, overwrite: bool) -> bytes:
    """The same file with a description. One that is there stays, unless told otherwise.

    Raises:
        MeshcapError: no PNG, or XMP that cannot be edited without losing some.
    """
    place, old, span = 0, None, None
    for kind, start, end in _chunks(content):
        data = content[start + 8 : end - 4]
        if kind == b"IHDR":
            place = end
        elif kind == b"iTXt" and data.startswith(KEYWORD):
            old, span = _packet(data), (start, end)
            break
    new = xmp.described(old, text, overwrite)
    if new is None:
        return content
    data = b"iTXt" + KEYWORD + b"\0\0\0\0" + new  # not compressed, no language, no translated keyword
    chunk = (len(data) - 4).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    start, end = span or (place, place)
    return content[:start] + chunk + content[end:]


def _chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    if not content.startswith(SIGNATURE):
        raise MeshcapError("it is no PNG")
    place = len(SIGNATURE)
    while place < len(content):
        kind, end = content[place + 4 : place + 8], place + 12 + int.from_bytes(content[place : place + 4], "big")
        if end > len(content):
            raise MeshcapError("its PNG chunks are damaged")
        yield kind, place, end
        if kind == b"IEND":
            return
        place = end


def _packet(data: bytes) -> bytes:
    """The text of an iTXt chunk: keyword, compressed?, method, language, keyword in that language, text."""
    compressed = data[len(KEYWORD)]
    _, _, packet = data[len(KEYWORD) + 2 :].partition(b"\0")
    _, _, packet = packet.partition(b"\0")
    if not compressed:
        return packet
    unpack = zlib.decompressobj()
    try:
        packet = unpack.decompress(packet, LARGEST)
    except zlib.error:
        raise MeshcapError("its XMP is damaged") from None
    if not unpack.eof:
        raise MeshcapError("its XMP is damaged or too large")
    return packet
