"""HTML pages whose pictures lack `alt`: which pictures those are, and the page with them filled in.

A page is edited as bytes: what is inserted stands in the middle of what was there, and nothing else moves. `alt=""`
says that a picture is decoration, and stays.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from meshcap.batch.inputs import Picture
from meshcap.batch.output import write_output
from meshcap.errors import MeshcapError
from meshcap.files import edit_bytes, read_regular, write_text

ATTRIBUTE = re.compile(r"""([^\s/>=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>]*))?""")


class Image(NamedTuple):
    """An <img> whose description is wanted."""

    path: str  # of its picture, as seen from here
    start: int  # what the new attribute replaces: in letters of the page
    end: int


class Finder(HTMLParser):
    """Collects the pictures of a page. Comments and scripts are skipped."""

    def __init__(self, folder: str, text: str, overwrite: bool):
        super().__init__(convert_charrefs=True)
        self.folder = folder
        self.overwrite = overwrite
        self.base = ""
        self.images: list[Image] = []
        self.lines = [0]
        for line in text.split("\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(reversed(attrs))  # of two attributes of one name, the first counts
        if tag == "base" and not self.base:
            self.base = "".join(
                (attributes.get("href") or "").rpartition("/")[:2]
            )  # a/b.html and a/ are the same start
        if (
            tag != "img"
            or attributes.get("role") in ("presentation", "none")
            or attributes.get("aria-hidden") == "true"
        ):
            return
        folder = local_file(self.folder, self.base) if self.base else self.folder
        path = None if folder is None else local_file(folder, attributes.get("src") or "")
        if path is None or ("alt" in attributes and not (self.overwrite and (attributes["alt"] or "").strip())):
            return
        line, column = self.getpos()
        tag_start = self.lines[line - 1] + column
        raw = self.get_starttag_text() or ""
        start = end = len("<img")
        if "alt" in attributes:
            # The name of the tag is the first match.
            found = next(one for one in list(ATTRIBUTE.finditer(raw, 1))[1:] if one[1].lower() == "alt")
            start, end = found.span()
        self.images.append(Image(path, tag_start + start, tag_start + end))


def local_file(folder: str, src: str) -> str | None:
    """The path of a picture that lies beside its page; None for one from the net, or from a server's own root."""
    try:
        parts = urlsplit(src)
    except ValueError:
        return None
    path = unquote(parts.path, errors="surrogateescape")
    if parts.scheme or parts.netloc or not path or path.startswith("/") or "\0" in path:
        return None
    return os.path.join(folder, path)


def read_page(page: str) -> str:
    """Letters that turn into the same bytes again, whatever the page's alphabet is."""
    try:
        content = read_regular(page)
    except OSError as error:
        raise MeshcapError(f"{page} cannot be read: {error.strerror or error}") from error
    if b"\0" in content:
        raise MeshcapError(f"{page} is no HTML in UTF-8 or an alphabet like it")
    return content.decode("utf-8", "surrogateescape")


def find_images(page: str, text: str, *, overwrite: bool) -> list[Image]:
    """The pictures of a page that lack a description (or have one that may be replaced)."""
    return Finder(os.path.dirname(page), text, overwrite).images


def pictures_of(pages: Sequence[str], *, overwrite: bool, saved_list: Path) -> list[Picture]:
    """The pictures that pages want descriptions of.

    They are written down, and read from there when a job goes on: a page that was filled in already wants none, and
    the job must still be the same.
    """
    try:
        saved = json.loads(saved_list.read_text(encoding="utf-8", errors="surrogateescape"))
        if saved["pages"] == list(pages):
            return [Picture(path) for path in saved["pictures"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = [image.path for page in pages for image in find_images(page, read_page(page), overwrite=overwrite)]
    paths = list(dict.fromkeys(found))
    text = json.dumps({"pages": list(pages), "pictures": paths}, ensure_ascii=False) + "\n"
    try:
        saved_list.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{saved_list.parent} cannot be written: {error.strerror or error}") from error
    write_text(saved_list, text, errors="surrogateescape")
    return [Picture(path) for path in paths]


def filled(page: str, text: str, captions: Mapping[str, str], *, overwrite: bool) -> tuple[str, int]:
    """The page with the captions that are there, and how many were put in."""
    pieces, place, count = [], 0, 0
    for image in find_images(page, text, overwrite=overwrite):
        caption = captions.get(Picture(image.path).key)
        if not caption:
            continue
        # ASCII alone, for pages in any alphabet.
        value = html.escape(caption, quote=True).encode("ascii", "xmlcharrefreplace").decode("ascii")
        pieces += [text[place : image.start], f' alt="{value}"' if image.start == image.end else f'alt="{value}"']
        place, count = image.end, count + 1
    return "".join([*pieces, text[place:]]), count


def fill(page: str, out: Path, captions: Mapping[str, str], *, overwrite: bool) -> int:
    """Write the page with its descriptions to `out`, which may be itself."""
    text = read_page(page)
    new, count = filled(page, text, captions, overwrite=overwrite)
    content = new.encode("utf-8", "surrogateescape")
    if os.path.realpath(page) != os.path.realpath(out):
        write_output(out, content)
    elif count:
        edit_bytes(out, content, keep_times=False)  # the page itself has changed
    return count
