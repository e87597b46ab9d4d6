"""Descriptions inside pictures: other readers find them, all else stays, and pixels are never touched."""

import hashlib
import io
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, IptcImagePlugin, PngImagePlugin

from meshcap import MeshcapError
from meshcap.batch import metadata
from meshcap.data.scenes import draw_scene

DESCRIPTION, MAKE, ORIENTATION, MAKER_NOTE, EXIF_IFD = 0x010E, 0x010F, 0x0112, 0x927C, 0x8769
TEXT = "A cat & a <dog> “sit” in Zürich."
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn", "Co")), min_size=1, max_size=60)


def photo(form: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    draw_scene(5, 64).image.convert("RGB").save(file, form, **options)
    return file.getvalue()


def exif_of(content: bytes) -> Image.Exif:
    return Image.open(io.BytesIO(content)).getexif()


def exif_text(content: bytes) -> str:
    """Pillow reads the tag's bytes as Latin-1."""
    return exif_of(content)[DESCRIPTION].encode("latin-1").decode("utf-8")


def scan(content: bytes) -> bytes:
    """Everything from the first table of quantisation on: what the pixels are made of."""
    return content[content.index(b"\xff\xdb") :]


def iptc_text(content: bytes) -> bytes:
    return IptcImagePlugin.getiptcinfo(Image.open(io.BytesIO(content)))[(2, 120)]


def xmp_text(content: bytes) -> str:
    info = Image.open(io.BytesIO(content)).info
    packet = info.get("xmp") or info["XML:com.adobe.xmp"]
    return metadata.xmp_description(packet if isinstance(packet, str) else packet.decode())


def directories(tiff: bytes, order: str) -> list[dict[int, int]]:
    """By hand: the entries of each directory, in their order, with what their last four bytes are as a number."""
    found = []
    place = struct.unpack(f"{order}I", tiff[4:8])[0]
    while place:
        count = struct.unpack(f"{order}H", tiff[place : place + 2])[0]
        entries = [struct.unpack(f"{order}HHII", tiff[place + 2 + 12 * n :][:12]) for n in range(count)]
        found.append({tag: value for tag, _, _, value in entries})
        place = struct.unpack(f"{order}I", tiff[place + 2 + 12 * count :][:4])[0]
    return found


READERS = {"exif": exif_text, "xmp": xmp_text, "iptc": lambda content: iptc_text(content).decode()}


@settings(max_examples=20)
@given(text=TEXTS, order=st.permutations(list(READERS)))
def test_all_kinds_side_by_side_in_any_order(text: str, order: list[str]) -> None:
    content = old = photo()
    for kind in order:
        content = metadata.jpeg_with_description(content, text, kind, overwrite=False)
    for kind, read in READERS.items():
        assert read(content) == text, kind
        assert metadata.jpeg_with_description(content, text, kind, overwrite=True) == content  # twice is once
        assert (
            metadata.jpeg_with_description(content, "Another.", kind, overwrite=False) == content
        )  # what is there stays
        content = metadata.jpeg_with_description(content, "Another, and a longer one.", kind, overwrite=True)
        assert read(content) == "Another, and a longer one."
    assert scan(content) == scan(old)


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_keeps_its_other_tags_where_they_were(order: str) -> None:
    exif = Image.Exif()
    exif.endian = order
    exif[MAKE], exif[ORIENTATION] = "Some camera", 6
    exif.get_ifd(EXIF_IFD)[MAKER_NOTE] = b"note whose places must not move"
    old = photo(exif=exif)
    new = metadata.jpeg_with_description(old, TEXT, "exif", overwrite=False)
    assert exif_text(new) == TEXT
    read = exif_of(new)
    assert (read[MAKE], read[ORIENTATION]) == ("Some camera", 6)
    assert read.get_ifd(EXIF_IFD)[MAKER_NOTE] == b"note whose places must not move"
    # Counted from EXIF's own start, every byte of before is where it was, but the pointer to the first directory.
    before, after = (content[content.index(b"Exif\0\0") + 6 :] for content in (old, new))
    length = struct.unpack(">H", old[old.index(b"Exif\0\0") - 2 :][:2])[0] - 8
    assert after[8:length] == before[8:length]
    tags = list(directories(after, order)[0])
    assert tags == [DESCRIPTION, MAKE, ORIENTATION, EXIF_IFD]  # the standard wants them in order
    assert scan(new) == scan(old)


def test_exif_keeps_the_thumbnail() -> None:
    exif = Image.Exif()
    exif.endian = "<"
    exif[MAKE] = "Some camera"
    tiff = exif.tobytes().removeprefix(b"Exif\0\0")
    thumbnail = photo()
    first = struct.unpack("<I", tiff[4:8])[0]
    count = struct.unpack("<H", tiff[first : first + 2])[0]
    end = first + 2 + 12 * count
    second = struct.pack("<H", 2) + struct.pack("<HHII", 0x0201, 4, 1, len(tiff) + 30)
    second += struct.pack("<HHII", 0x0202, 4, 1, len(thumbnail)) + bytes(4)
    tiff = tiff[:end] + struct.pack("<I", len(tiff)) + tiff[end + 4 :] + second + thumbnail
    new = metadata.jpeg_with_description(photo(exif=b"Exif\0\0" + tiff), TEXT, "exif", overwrite=False)
    first_directory, second_directory = directories(new[new.index(b"Exif\0\0") + 6 :], "<")
    place, length = second_directory[0x0201], second_directory[0x0202]
    assert new[new.index(b"Exif\0\0") + 6 :][place : place + length] == thumbnail
    assert list(first_directory) == [DESCRIPTION, MAKE] and exif_of(new)[MAKE] == "Some camera"
    assert exif_text(new) == TEXT


def test_short_descriptions_are_inside_their_entry() -> None:
    assert exif_text(metadata.jpeg_with_description(photo(), "Cat", "exif", overwrite=False)) == "Cat"


def test_a_blank_description_is_none() -> None:
    exif = Image.Exif()
    exif[DESCRIPTION] = "        "
    assert exif_text(metadata.jpeg_with_description(photo(exif=exif), TEXT, "exif", overwrite=False)) == TEXT


PACKETS = {
    "usual": '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{rdf}"><rdf:Description rdf:about="" '
    'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"/>{more}</rdf:RDF></x:xmpmeta>',
    "without a wrapper": '<rdf:RDF xmlns:rdf="{rdf}"><rdf:Description rdf:about="uuid:1" '
    'xmlns:xmp="http://ns.adobe.com/xap/1.0/"><xmp:Rating>4</xmp:Rating></rdf:Description>{more}</rdf:RDF>',
}
THERE = (
    '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:description><rdf:Alt>'
    '<rdf:li xml:lang="x-default">Old</rdf:li></rdf:Alt></dc:description><dc:title><rdf:Alt>'
    '<rdf:li xml:lang="x-default">Title</rdf:li></rdf:Alt></dc:title></rdf:Description>'
)


@pytest.mark.parametrize("packet", PACKETS.values(), ids=PACKETS)
@pytest.mark.parametrize("padding", ["", '<?xpacket begin="" id="x"?>'])
def test_xmp_keeps_what_else_it_says(packet: str, padding: str) -> None:
    old = padding + packet.format(rdf=metadata.RDF, more="")
    new = metadata.xmp_with_description(old.encode(), TEXT, False)
    assert new is not None
    assert metadata.xmp_description(new.decode()) == TEXT and b"Rating" in new
    old = padding + packet.format(rdf=metadata.RDF, more=THERE)
    assert metadata.xmp_with_description(old.encode(), TEXT, False) is None
    new = metadata.xmp_with_description(old.encode(), TEXT, True)
    assert new is not None and metadata.xmp_description(new.decode()) == TEXT
    assert b"Rating" in new and b">Title<" in new and b">Old<" not in new


@pytest.mark.parametrize(
    "packet",
    [
        b"<no",
        b"\xff\xfe<x/>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><x/>',
        b"<x/>",
        THERE.replace(">Old<", ">Short<").encode(),
        f'<rdf:RDF xmlns:rdf="{metadata.RDF}"><rdf:Description rdf:about="" xmlns:dc="{metadata.DC}" '
        'dc:description="Short"/></rdf:RDF>'.encode(),
    ],
)
def test_xmp_that_is_not_edited(packet: bytes) -> None:
    with pytest.raises(MeshcapError, match="its XMP is"):
        metadata.xmp_with_description(packet, TEXT, True)


def test_iptc_keeps_other_fields_and_resources() -> None:
    fields = b"\x1c\x02\x69\0\x08Headline" + b"\x1c\x02\x78\0\x03Old"
    resources = b"8BIM\x03\xf3\0\0\0\0\0\x02hi" + b"8BIM\x04\x04\0\0" + len(fields).to_bytes(4, "big") + fields
    resources += b"\0" * (len(fields) % 2) + b"8BIM\x04\x25\0\0\0\0\0\x10" + bytes(16)
    assert metadata.iptc_with_caption(resources, TEXT, False) is None
    new = metadata.iptc_with_caption(resources, TEXT, True)
    assert new is not None and new.startswith(b"8BIM\x03\xf3\0\0\0\0\0\x02hi")
    payload = metadata.PHOTOSHOP + new
    segment = b"\xff\xed" + (len(payload) + 2).to_bytes(2, "big") + payload
    read = IptcImagePlugin.getiptcinfo(Image.open(io.BytesIO(b"\xff\xd8" + segment + photo()[2:])))
    assert read[(2, 105)] == b"Headline" and read[(2, 120)].decode() == TEXT and read[(1, 90)] == b"\x1b%G"
    data = new[new.index(b"\x1c") : new.index(b"8BIM\x04\x25")]
    length = int.from_bytes(new[new.index(b"8BIM\x04\x04") + 8 :][:4], "big")
    assert new.endswith(hashlib.md5(data[:length]).digest())  # or Photoshop would distrust the fields


def test_iptc_in_another_alphabet_is_not_mixed_with_ours() -> None:
    fields = b"\x1c\x02\x69\0\x02\xfc\xdf"  # Latin-1
    resources = b"8BIM\x04\x04\0\0" + len(fields).to_bytes(4, "big") + fields + b"\0"
    with pytest.raises(MeshcapError, match="not in UTF-8"):
        metadata.iptc_with_caption(resources, TEXT, False)
    new = metadata.iptc_with_caption(resources, "Plain.", False)
    assert new is not None and metadata.iptc_caption(new) == "Plain." and b"\xfc\xdf" in new


def test_long_captions_end_with_a_whole_letter() -> None:
    new = metadata.iptc_with_caption(None, "ü" * 1500, False)
    assert new is not None and metadata.iptc_caption(new) == "ü" * 1000


@pytest.mark.parametrize("compressed", [False, True])
def test_png(compressed: bool) -> None:
    info = PngImagePlugin.PngInfo()
    packet = PACKETS["usual"].format(rdf=metadata.RDF, more=THERE)
    info.add_itxt("XML:com.adobe.xmp", packet, zip=compressed)
    info.add_text("Author", "Somebody")
    old = photo("PNG", pnginfo=info)
    assert metadata.png_with_description(old, TEXT, overwrite=False) == old
    new = metadata.png_with_description(old, TEXT, overwrite=True)
    assert xmp_text(new) == TEXT and Image.open(io.BytesIO(new)).text["Author"] == "Somebody"
    plain = photo("PNG")
    new = metadata.png_with_description(plain, TEXT, overwrite=False)
    assert xmp_text(new) == TEXT
    place = plain.index(b"IDAT")
    assert new.endswith(plain[place - 4 :])
    Image.open(io.BytesIO(new)).verify()  # every checksum


@given(st.data())
def test_damaged_files_are_refused_or_left_readable(data: st.DataObject) -> None:
    """Never another exception than ours, whatever bytes there are."""
    old = photo(exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x0e\0\x02\0\0\0\x03ab\0\0\0\0\0\0")
    old = metadata.jpeg_with_description(
        metadata.jpeg_with_description(old, "x", "xmp", overwrite=True), "y", "iptc", overwrite=True
    )
    content = bytearray(old)
    for place in data.draw(st.lists(st.integers(0, old.index(b"\xff\xdb") + 8), min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    for broken in (bytes(content), cut):
        for kind in READERS:
            try:
                metadata.jpeg_with_description(broken, TEXT, kind, overwrite=True)
            except MeshcapError:
                continue


@given(st.data())
def test_damaged_pngs(data: st.DataObject) -> None:
    old = metadata.png_with_description(photo("PNG"), "x", overwrite=True)
    content = bytearray(old)
    for place in data.draw(st.lists(st.integers(0, len(old) - 1), min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        metadata.png_with_description(bytes(content), TEXT, overwrite=True)
    except MeshcapError:
        return


def test_xmp_that_unpacks_without_end() -> None:
    body = b"iTXt" + metadata.XMP_KEYWORD + b"\1\0\0\0" + zlib.compress(bytes(20_000_000))
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    old = photo("PNG")
    with pytest.raises(MeshcapError, match="too large"):
        metadata.png_with_description(old[:33] + chunk + old[33:], TEXT, overwrite=True)


def test_no_room_in_a_segment() -> None:
    exif = Image.Exif()
    exif.get_ifd(EXIF_IFD)[MAKER_NOTE] = bytes(65_000)
    with pytest.raises(MeshcapError, match="no room"):
        metadata.jpeg_with_description(photo(exif=exif), TEXT * 20, "exif", overwrite=True)


def test_several_pictures_in_one_file() -> None:
    file = io.BytesIO()
    first, second = (draw_scene(number, 64).image.convert("RGB") for number in (1, 2))
    first.save(file, "MPO", save_all=True, append_images=[second])
    new = metadata.jpeg_with_description(file.getvalue(), TEXT, "exif", overwrite=False)
    with Image.open(io.BytesIO(new)) as image, Image.open(file) as before:
        assert image.n_frames == 2 and image.getexif()[DESCRIPTION]
        image.seek(1)
        before.seek(1)
        assert image.tobytes() == before.tobytes()
    # A description behind the list of places would move what the list points to.
    place = new.index(b"MPF\0") - 4
    end = place + 2 + int.from_bytes(new[place + 2 : place + 4], "big")
    packet = metadata.XMP + (metadata.xmp_with_description(None, "Old", True) or b"")
    behind = new[:end] + b"\xff\xe1" + (len(packet) + 2).to_bytes(2, "big") + packet + new[end:]
    with pytest.raises(MeshcapError, match="holds several pictures"):
        metadata.jpeg_with_description(behind, TEXT, "xmp", overwrite=True)


def png_with_chunk(kind: bytes, data: bytes) -> bytes:
    content = photo("PNG")
    chunk = len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return content[:33] + chunk + content[33:]


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\0\0", b"\1\0", b"\1\0\0\0", b"\1\0\0\0broken"])
def test_a_short_itxt_chunk_is_one_line(rest: bytes) -> None:
    with pytest.raises(MeshcapError, match="its XMP is damaged"):
        metadata.png_with_description(png_with_chunk(b"iTXt", b"XML:com.adobe.xmp\0" + rest), TEXT, overwrite=False)


class CountedText(str):
    """Text that counts how far it is searched."""

    searched = 0

    def find(self, what: str, start: int = 0, *rest: int) -> int:
        found = super().find(what, start, *rest)
        CountedText.searched += (len(self) if found < 0 else found) - start
        return found

    def __getitem__(self, key: object) -> str:
        return CountedText(super().__getitem__(key))


@pytest.mark.parametrize("many", ["<?", "<dc:description>", "<dc:description ", "<rdf:RDF ", "</a:RDF ", "<?x?>"])
def test_xmp_is_searched_in_one_pass(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that are well-formed by hiding this in a comment; regular expressions took a minute for 200 kB."""

    monkeypatch.setattr(metadata, "re", None)  # patterns start anew at every <
    packet = CountedText(metadata.PACKET.format(rdf=metadata.RDF).replace("\n</rdf", f"<!--{many * 20_000}-->\n</rdf"))
    CountedText.searched = 0
    try:
        metadata._xmp_root(packet)
    except metadata.ElementTree.ParseError:
        assert many == "<?"
    metadata._without(packet, "dc:description")
    assert CountedText.searched < 8 * len(packet)


def test_nested_descriptions_are_gone_through_once() -> None:
    depth = 1500
    inside = "<dc:description>" * depth + "<rdf:li>deep</rdf:li>" + "</dc:description>" * depth
    element = f'<a xmlns:dc="{metadata.DC}">{inside}</a>'
    packet = metadata.PACKET.format(rdf=metadata.RDF).replace("\n</rdf", f"{element}</rdf")
    assert metadata.xmp_description(packet) == "deep"


def keywords_of(content: bytes, kind: str) -> list[str]:
    """By Pillow: its own reader of IPTC, and the packet as it finds it."""
    image = Image.open(io.BytesIO(content))
    if kind == "iptc":
        found = IptcImagePlugin.getiptcinfo(image)[(2, 25)]
        return [one.decode() for one in (found if isinstance(found, list) else [found])]
    packet = image.info.get("xmp") or image.info["XML:com.adobe.xmp"]
    return metadata.xmp_keywords(packet if isinstance(packet, str) else packet.decode())


@pytest.mark.parametrize("kind", ["iptc", "xmp"])
def test_keywords_join_those_that_are_there(kind: str) -> None:
    first = metadata.jpeg_with_description(photo(), TEXT, kind, overwrite=False, keywords=["dog", "Zürich", "dog"])
    assert keywords_of(first, kind) == ["dog", "Zürich"]
    again = metadata.jpeg_with_description(first, TEXT, kind, overwrite=False, keywords=["dog", "zürich"])
    assert again == first  # writing twice is the same as writing once
    more = metadata.jpeg_with_description(first, "Another.", kind, overwrite=True, keywords=["tree", "Dog"])
    assert keywords_of(more, kind) == ["dog", "Zürich", "tree"]
    assert "Another." in (iptc_text(more).decode() if kind == "iptc" else xmp_text(more))
    assert scan(more) == scan(photo())


def test_keywords_of_other_formats() -> None:
    png = metadata.png_with_description(photo("PNG"), TEXT, overwrite=False, keywords=["a & b", "snow"])
    assert (xmp_text(png), keywords_of(png, "xmp")) == (TEXT, ["a & b", "snow"])
    plain = metadata.jpeg_with_description(photo(), TEXT, "exif", overwrite=False, keywords=["snow"])
    assert plain == metadata.jpeg_with_description(photo(), TEXT, "exif", overwrite=False)  # it has no field for them
