"""dc:description of XMP. The packet is edited as text, so that all else in it stays as its writer wrote it, and then
read back with an XML parser: what cannot be edited safely is refused."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from meshcap.errors import MeshcapError

RDF, DC, XML = (
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "http://purl.org/dc/elements/1.1/",
    "http://www.w3.org/XML/1998/namespace",
)
PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{rdf}">
</rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>"""


def described(old: bytes | None, text: str, overwrite: bool) -> bytes | None:
    """A packet with this description; None where it, or one that may stay, is there.

    Raises:
        MeshcapError: a packet that cannot be edited without losing some of it.
    """
    text = "".join(one for one in text if one in "\t\n\r" or one >= " ")  # what XML cannot hold
    try:
        packet = PACKET.format(rdf=RDF) if old is None else old.decode("utf-8").rstrip("\0")
        there = description(packet)
    except (UnicodeDecodeError, ElementTree.ParseError):
        raise MeshcapError("its XMP is damaged or not UTF-8") from None
    if there == text or (there.strip() and not overwrite):
        return None
    about = re.search(r"""\brdf:about\s*=\s*("[^"<]*"|'[^'<]*')""", packet)
    element = (
        f"<rdf:Description xmlns:rdf={_quoted(RDF)} rdf:about={about[1] if about else _quoted('')}"
        f" xmlns:dc={_quoted(DC)}>"
        f'<dc:description><rdf:Alt><rdf:li xml:lang="x-default">{escape(text)}</rdf:li></rdf:Alt></dc:description>'
        "</rdf:Description>"
    )
    # Whoever wrote the packet may have named Dublin Core otherwise; almost nobody does.
    without = re.sub(r"<dc:description\b[^>]*?(/>|>.*?</dc:description\s*>)", "", packet, flags=re.DOTALL)
    new, count = re.subn(r"</(\w+):RDF\s*>", lambda end: element + "\n" + end[0], without)
    if not count:  # <rdf:RDF …/>, which holds nothing
        new, count = re.subn(r"<(rdf:RDF\b[^>]*?)/>", lambda one: f"<{one[1]}>{element}</rdf:RDF>", without)
    try:
        whole = count == 1 and description(new) == text and _others(new) == _others(packet)
    except ElementTree.ParseError:
        whole = False
    if not whole:
        raise MeshcapError("its XMP is written in a way that cannot be edited safely")
    return new.encode("utf-8")


def description(packet: str) -> str:
    """What a packet says the picture shows, in its default language or the first that is there."""
    root = _root(packet)
    for one in root.iter(f"{{{RDF}}}Description"):  # a short way to write it, which is not edited
        if short := one.get(f"{{{DC}}}description"):
            return short
    found = [li for one in root.iter(f"{{{DC}}}description") for li in one.iter(f"{{{RDF}}}li")]
    found.sort(key=lambda li: li.get(f"{{{XML}}}lang") != "x-default")
    return (found[0].text or "") if found else ""


def _root(packet: str) -> ElementTree.Element:
    if "<!DOCTYPE" in packet or "<!ENTITY" in packet:  # XMP has none; entities can be bombs
        raise ElementTree.ParseError("a document type")
    start, end = packet.find("<"), packet.rfind(">")
    # Instructions around the packet may be several, which XML as a whole may not begin with.
    body = re.sub(r"<\?.*?\?>", "", packet[start : end + 1], flags=re.DOTALL)
    return ElementTree.fromstring(body.strip())


def _others(packet: str) -> list[tuple[str, str, tuple[tuple[str, str], ...]]]:
    """All that is said beside the description: elements, their text and attributes."""
    root = _root(packet)
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{{{DC}}}description":
                parent.remove(child)
    plain = ((one.tag, (one.text or "").strip(), tuple(sorted(one.attrib.items()))) for one in root.iter())
    return [one for one in plain if one[0] != f"{{{RDF}}}Description" or len(one[2]) > 1]


def _quoted(text: str) -> str:
    return f'"{text}"'
