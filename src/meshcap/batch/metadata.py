"""Descriptions and keywords inside picture files: EXIF, IPTC and XMP, in JPEG and PNG.

Each editor takes the old metadata block (None: the file has none), the text, and whether an existing description may
be replaced. It returns the new block, or None where nothing is to change. All other content stays byte for byte; what
cannot be edited without losing something is refused with a MeshcapError. Keywords are added to those that are there,
and none is taken away; EXIF has no field for them.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from meshcap.errors import MeshcapError

# EXIF, a small TIFF: old bytes stay in place, because maker notes hold absolute offsets; a new first directory is
# appended.

IMAGE_DESCRIPTION, ASCII = 0x010E, 2
ENTRY = 12  # bytes: tag, kind, count, value or where it is


def exif_with_description(old: bytes | None, text: str, overwrite: bool) -> bytes | None:
    """EXIF (a small TIFF) with this description; None: it needs no change.

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
    rest = [entry for entry in entries if int.from_bytes(entry[:2], order) != IMAGE_DESCRIPTION]
    own = [entry for entry in entries if int.from_bytes(entry[:2], order) == IMAGE_DESCRIPTION]
    existing = _exif_value(old, own[0], order) if own else b""
    if existing == value or (existing.strip(b"\0 \t\r\n") and not overwrite):
        return None
    body = old + b"\0" * (len(old) % 2)  # directories and values begin at even places

    def entry_at(place: int) -> bytes:
        where = value.ljust(4, b"\0") if len(value) <= 4 else place.to_bytes(4, order)
        return IMAGE_DESCRIPTION.to_bytes(2, order) + ASCII.to_bytes(2, order) + len(value).to_bytes(4, order) + where

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


def _exif_value(content: bytes, entry: bytes, order: Literal["little", "big"]) -> bytes:
    count = int.from_bytes(entry[4:8], order)
    if count <= 4:
        return entry[8 : 8 + count]
    place = int.from_bytes(entry[8:12], order)
    return content[place : place + count]


# IPTC: Caption/Abstract (2:120), inside Photoshop's resources

NAA, DIGEST = 0x0404, 0x0425  # resources: the fields, and a checksum of them
CHARSET, VERSION, KEYWORD, CAPTION = (1, 90), (2, 0), (2, 25), (2, 120)
UTF8 = b"\x1b%G"
LONGEST_CAPTION, LONGEST_KEYWORD = 2000, 64  # bytes of a caption and of a keyword, by the standard
IPTC_DAMAGED = "its IPTC is damaged: write EXIF or XMP instead"

Field = tuple[tuple[int, int], bytes]  # record and number, value
Read = TypeVar("Read")


def iptc_with_caption(old: bytes | None, text: str, overwrite: bool) -> bytes | None:
    """Photoshop's resources with this caption; None: they need no change.

    Raises:
        MeshcapError: resources that cannot be understood, or fields in another alphabet.
    """
    resources = list(_resources(old or b""))
    fields = [field for number, _, data in resources if number == NAA for field in _fields(data)]
    existing = b"".join(value for key, value in fields if key == CAPTION)
    value = _iptc_value(text, LONGEST_CAPTION)
    if existing == value or (existing.strip(b"\0 \t\r\n") and not overwrite):
        return None
    return _iptc_with(resources, [field for field in fields if field[0] != CAPTION], [(CAPTION, value)])


def iptc_with_keywords(old: bytes | None, keywords: Sequence[str]) -> bytes | None:
    """Photoshop's resources with these keywords beside those that are there; None: they need no change.

    Raises:
        MeshcapError: resources that cannot be understood, or fields in another alphabet.
    """
    resources = list(_resources(old or b""))
    fields = [field for number, _, data in resources if number == NAA for field in _fields(data)]
    known = {value.strip().lower() for key, value in fields if key == KEYWORD}
    values = dict.fromkeys(_iptc_value(keyword, LONGEST_KEYWORD) for keyword in keywords)
    added = [(KEYWORD, value) for value in values if value and value.lower() not in known]
    return _iptc_with(resources, fields, added) if added else None


def _iptc_value(text: str, most: int) -> bytes:
    return text.encode("utf-8")[:most].decode("utf-8", "ignore").encode("utf-8")  # no half letter


def _iptc_with(resources: Sequence[tuple[int, bytes, bytes]], fields: list[Field], added: list[Field]) -> bytes:
    """The resources with further fields."""
    if not fields or not all(value.isascii() for _, value in added):
        # Fields share one alphabet: declaring it must not change what the others say.
        if dict(fields).get(CHARSET) != UTF8 and any(not value.isascii() for _, value in fields):
            raise MeshcapError("its IPTC is not in UTF-8, and the text needs it: write EXIF or XMP instead")
        fields = [field for field in fields if field[0] != CHARSET]
        fields.append((CHARSET, UTF8))
    if VERSION not in dict(fields):
        fields.append((VERSION, b"\0\4"))
    fields = [*fields, *added]
    fields.sort(key=lambda field: field[0] if field[0][0] < 3 else (3, 0))  # later records stay in their order
    data = b"".join(b"\x1c" + bytes(key) + _length(value) + value for key, value in fields)
    kept = [(number, name, value) for number, name, value in resources if number not in (NAA, DIGEST)]
    kept.append((NAA, b"\0\0", data))
    if any(number == DIGEST for number, _, _ in resources):
        kept.append((DIGEST, b"\0\0", hashlib.md5(data, usedforsecurity=False).digest()))
    return b"".join(_resource(*one) for one in kept)


def iptc_keywords(resources: bytes) -> list[str]:
    """The keywords inside the resources."""
    fields = [field for number, _, data in _resources(resources) if number == NAA for field in _fields(data)]
    return [value.decode("utf-8", "replace") for key, value in fields if key == KEYWORD]


def iptc_caption(resources: bytes) -> str:
    """The caption inside the resources."""
    fields = [field for number, _, data in _resources(resources) if number == NAA for field in _fields(data)]
    return b"".join(value for key, value in fields if key == CAPTION).decode("utf-8", "replace")


def _resources(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, name as it is written, and data of each."""
    place = 0
    while place < len(content):
        if content[place : place + 4] != b"8BIM" or place + 7 > len(content):
            if any(content[place:]):
                raise MeshcapError(IPTC_DAMAGED)
            return  # padding
        name = place + 6
        size = name + (content[name] + 2) // 2 * 2  # a length, so many letters, and all of it even
        start = size + 4
        end = start + int.from_bytes(content[size:start], "big")
        if end > len(content):
            raise MeshcapError(IPTC_DAMAGED)
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
            raise MeshcapError(IPTC_DAMAGED)
        length = int.from_bytes(data[place + 3 : place + 5], "big")
        start = place + 5
        if length & 0x8000:  # a length of several bytes
            start += length & 0x7FFF
            length = int.from_bytes(data[place + 5 : start], "big")
        if start + length > len(data):
            raise MeshcapError(IPTC_DAMAGED)
        yield (data[place + 1], data[place + 2]), data[start : start + length]
        place = start + length


def _length(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") if len(value) < 0x8000 else b"\x80\x04" + len(value).to_bytes(4, "big")


# XMP: dc:description. Edited as text to keep the rest as written, then parsed again to check the result

RDF, DC, XML = (
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "http://purl.org/dc/elements/1.1/",
    "http://www.w3.org/XML/1998/namespace",
)
PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{rdf}">
</rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>"""


def xmp_with_description(old: bytes | None, text: str, overwrite: bool) -> bytes | None:
    """A packet with this description; None: it needs no change.

    Raises:
        MeshcapError: a packet that cannot be edited without losing some of it.
    """
    text = _xml_text(text)
    packet, existing = _xmp_packet(old, xmp_description)
    if existing == text or (existing.strip() and not overwrite):
        return None
    value = f'<rdf:Alt><rdf:li xml:lang="x-default">{escape(text)}</rdf:li></rdf:Alt>'
    return _xmp_with(packet, "description", value, lambda new: xmp_description(new) == text)


def xmp_with_keywords(old: bytes | None, keywords: Sequence[str]) -> bytes | None:
    """A packet with these keywords (dc:subject) beside those that are there; None: it needs no change.

    Raises:
        MeshcapError: a packet that cannot be edited without losing some of it.
    """
    packet, existing = _xmp_packet(old, xmp_keywords)
    known = {one.strip().lower() for one in existing}
    added = dict.fromkeys(text for keyword in keywords if (text := _xml_text(keyword).strip()).lower() not in known)
    if not added:
        return None
    wanted = [*existing, *added]
    value = "<rdf:Bag>" + "".join(f"<rdf:li>{escape(one)}</rdf:li>" for one in wanted) + "</rdf:Bag>"
    return _xmp_with(packet, "subject", value, lambda new: xmp_keywords(new) == wanted)


def xmp_keywords(packet: str) -> list[str]:
    """The keywords in a packet."""
    found = [li.text or "" for one in _xmp_root(packet).iter(f"{{{DC}}}subject") for li in one.iter(f"{{{RDF}}}li")]
    return [one for one in found if one.strip()]


def _xml_text(text: str) -> str:
    return "".join(one for one in text if one in "\t\n\r" or one >= " ")  # without what XML cannot hold


def _xmp_packet(old: bytes | None, read: Callable[[str], Read]) -> tuple[str, Read]:
    """The old packet, or a new one, and what is read of it."""
    try:
        packet = PACKET.format(rdf=RDF) if old is None else old.decode("utf-8").rstrip("\0")
        return packet, read(packet)
    except (UnicodeDecodeError, ElementTree.ParseError):
        raise MeshcapError("its XMP is damaged or not UTF-8") from None


def _xmp_with(packet: str, name: str, value: str, right: Callable[[str], bool]) -> bytes:
    """The packet with one element of Dublin Core replaced or added, and everything else as it was."""
    about = re.search(r"""\brdf:about\s*=\s*("[^"<]*"|'[^'<]*')""", packet)
    element = (
        f"<rdf:Description xmlns:rdf={_quoted(RDF)} rdf:about={about[1] if about else _quoted('')}"
        f" xmlns:dc={_quoted(DC)}>"
        f"<dc:{name}>{value}</dc:{name}></rdf:Description>"
    )
    # Whoever wrote the packet may have named Dublin Core otherwise; almost nobody does.
    without = _without(packet, f"dc:{name}")
    new, count = re.subn(r"</(\w+):RDF\s*>", lambda end: element + "\n" + end[0], without)
    if not count:  # <rdf:RDF …/>, which holds nothing
        start, end = _find_tag(without, "rdf:RDF", 0)
        if start >= 0 and without[end - 2] == "/":
            new, count = f"{without[: end - 2]}>{element}</rdf:RDF>{without[end:]}", 1
    try:
        whole = count == 1 and right(new) and _other_elements(new, name) == _other_elements(packet, name)
    except ElementTree.ParseError:
        whole = False
    if not whole:
        raise MeshcapError("its XMP is written in a way that cannot be edited safely")
    return new.encode("utf-8")


def xmp_description(packet: str) -> str:
    """The description in a packet: in its default language, else the first."""
    root = _xmp_root(packet)
    for one in root.iter(f"{{{RDF}}}Description"):  # a short way to write it, which is not edited
        if short := one.get(f"{{{DC}}}description"):
            return short
    found: list[ElementTree.Element] = []
    inner: set[ElementTree.Element] = set()  # descriptions inside others are not gone through twice
    for one in root.iter(f"{{{DC}}}description"):
        if one not in inner:
            inner.update(one.iter(f"{{{DC}}}description"))
            found += one.iter(f"{{{RDF}}}li")
    found.sort(key=lambda li: li.get(f"{{{XML}}}lang") != "x-default")
    return (found[0].text or "") if found else ""


def _xmp_root(packet: str) -> ElementTree.Element:
    if "<!DOCTYPE" in packet or "<!ENTITY" in packet:  # XMP has none; entities can be bombs
        raise ElementTree.ParseError("a document type")
    start, end = packet.find("<"), packet.rfind(">")
    # Instructions around the packet may be several, which XML as a whole may not begin with.
    body, rest = [], packet[start : end + 1]
    place = 0
    while (start := rest.find("<?", place)) >= 0 and (end := rest.find("?>", start)) >= 0:
        body.append(rest[place:start])
        place = end + 2
    return ElementTree.fromstring("".join([*body, rest[place:]]).strip())


# By hand and in one pass: regular expressions start anew at every "<" of a packet that was made for that.


def _find_tag(packet: str, name: str, place: int) -> tuple[int, int]:
    """Where the next tag of this name begins and ends; (-1, -1): there is none."""
    while (start := packet.find(f"<{name}", place)) >= 0 and (end := packet.find(">", start)) >= 0:
        if packet[start + len(name) + 1] in " \t\r\n/>":
            return start, end + 1
        place = end
    return -1, -1


def _without(packet: str, name: str) -> str:
    """Without elements of this name."""
    pieces, place = [], 0
    while (found := _find_tag(packet, name, place))[0] >= 0:
        start, end = found
        if packet[end - 2] != "/":
            end = _find_tag(packet, f"/{name}", end)[1]
            if end < 0:
                break
        pieces.append(packet[place:start])
        place = end
    return "".join([*pieces, packet[place:]])


def _other_elements(packet: str, name: str) -> list[tuple[str, str, tuple[tuple[str, str], ...]]]:
    """Everything but the elements of this name of Dublin Core: elements, their text and attributes."""
    root = _xmp_root(packet)
    for parent in root.iter():
        parent[:] = [child for child in parent if child.tag != f"{{{DC}}}{name}"]
    plain = ((one.tag, (one.text or "").strip(), tuple(sorted(one.attrib.items()))) for one in root.iter())
    return [one for one in plain if one[0] != f"{{{RDF}}}Description" or len(one[2]) > 1]


def _quoted(text: str) -> str:
    return f'"{text}"'


# PNG: one iTXt chunk is added or replaced

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
XMP_KEYWORD = b"XML:com.adobe.xmp\0"
LARGEST_PACKET = 16_000_000  # bytes of a packet that is unpacked: more is no packet


def png_with_description(content: bytes, text: str, *, overwrite: bool, keywords: Sequence[str] = ()) -> bytes:
    """The same file with a description and keywords. An existing description stays, unless `overwrite`.

    Raises:
        MeshcapError: no PNG, or XMP that cannot be edited without losing some.
    """
    place, old, span = 0, None, None
    for kind, start, end in _png_chunks(content):
        data = content[start + 8 : end - 4]
        if kind == b"IHDR":
            place = end
        elif kind == b"iTXt" and data.startswith(XMP_KEYWORD):
            old, span = _png_packet(data), (start, end)
            break
    new = edited("xmp", old, text, overwrite, keywords)
    if new is None:
        return content
    data = b"iTXt" + XMP_KEYWORD + b"\0\0\0\0" + new  # not compressed, no language, no translated keyword
    chunk = (len(data) - 4).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    start, end = span or (place, place)
    return content[:start] + chunk + content[end:]


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    if not content.startswith(PNG_SIGNATURE):
        raise MeshcapError("it is no PNG")
    place = len(PNG_SIGNATURE)
    while place < len(content):
        kind, end = content[place + 4 : place + 8], place + 12 + int.from_bytes(content[place : place + 4], "big")
        if end > len(content):
            raise MeshcapError("its PNG chunks are damaged")
        yield kind, place, end
        if kind == b"IEND":
            return
        place = end


def _png_packet(data: bytes) -> bytes:
    """The text of an iTXt chunk: keyword, compressed?, method, language, keyword in that language, text."""
    if len(data) < len(XMP_KEYWORD) + 4:
        raise MeshcapError("its XMP is damaged")
    compressed = data[len(XMP_KEYWORD)]
    _, _, packet = data[len(XMP_KEYWORD) + 2 :].partition(b"\0")
    _, _, packet = packet.partition(b"\0")
    if not compressed:
        return packet
    unpack = zlib.decompressobj()
    try:
        packet = unpack.decompress(packet, LARGEST_PACKET)
    except zlib.error:
        raise MeshcapError("its XMP is damaged") from None
    if not unpack.eof:
        raise MeshcapError("its XMP is damaged or too large")
    return packet


# JPEG: one header segment is added or replaced

EXIF, XMP, PHOTOSHOP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"Photoshop 3.0\0"
APP0, APP1, APP2, APP13, SOS = 0xE0, 0xE1, 0xE2, 0xED, 0xDA
MPF = b"MPF\0"  # of APP2: where further pictures begin, counted from here
WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD9))  # TEM, RST0-7, SOI
LARGEST_SEGMENT = 65_533  # bytes of a segment: its length has two bytes and counts them

# Old content (without its label, None: there was none) and text to new content; None: leave it as it is.
Edit = Callable[[bytes | None, str, bool], bytes | None]
# Which segment holds it, what it begins with, and how it is edited.
JPEG_EDITS: dict[str, tuple[int, bytes, Edit]] = {
    "exif": (APP1, EXIF, exif_with_description),
    "xmp": (APP1, XMP, xmp_with_description),
    "iptc": (APP13, PHOTOSHOP, iptc_with_caption),
}


# Keywords beside those that are there; EXIF has no field for them.
KEYWORD_EDITS: dict[str, Callable[[bytes | None, Sequence[str]], bytes | None]] = {
    "xmp": xmp_with_keywords,
    "iptc": iptc_with_keywords,
}


def edited(kind: str, old: bytes | None, text: str, overwrite: bool, keywords: Sequence[str] = ()) -> bytes | None:
    """A metadata block with a description and keywords; None: it needs no change."""
    new = JPEG_EDITS[kind][2](old, text, overwrite)
    if not keywords or kind not in KEYWORD_EDITS:
        return new
    tagged = KEYWORD_EDITS[kind](old if new is None else new, keywords)
    return new if tagged is None else tagged


class Segment(NamedTuple):
    """A piece of the header."""

    marker: int
    start: int  # of its first 0xFF
    end: int
    payload: bytes


def jpeg_with_description(
    content: bytes, text: str, kind: str, *, overwrite: bool, keywords: Sequence[str] = ()
) -> bytes:
    """The same file with a description: `kind` is exif, xmp or iptc. An existing one stays, unless `overwrite`.

    Keywords are added to those that are there, in XMP and IPTC.

    Raises:
        MeshcapError: no JPEG, or metadata that cannot be edited without losing some.
    """
    marker, label, _ = JPEG_EDITS[kind]
    segments = list(jpeg_segments(content))
    old = [one for one in segments if one.marker == marker and one.payload.startswith(label)]
    if len(old) > 1 and kind == "iptc":
        raise MeshcapError("its IPTC is split over several segments: write EXIF or XMP instead")
    payload = edited(kind, old[0].payload[len(label) :] if old else None, text, overwrite, keywords)
    if payload is None:
        return content
    if len(label) + len(payload) > LARGEST_SEGMENT:
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
    if any(one.marker == APP2 and one.payload.startswith(MPF) and one.end <= start for one in segments):
        raise MeshcapError("it holds several pictures, whose places would no longer be right")
    return content[:start] + segment + content[end:]


def jpeg_segments(content: bytes) -> Iterator[Segment]:
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
