"""The page is whole and harmless and says every word; the sheet is a picture."""

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

import tiny
from meshcap import Captioner, MeshcapError
from meshcap.data.scenes import draw_scene
from meshcap.explain import Explanation, explain
from meshcap.explain.heatmap import draw_sheet, write_sheet
from meshcap.explain.page import page, percent, write_page
from meshcap.text import Vocabulary
from meshcap.vision.backbone import Patches

EVIL = "<script>alert('x')</script>"
WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog", EVIL, "red", "ball", "of"]
VOID = {"meta", "img", "wbr", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags that must be balanced, attributes and text."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> ends something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        found = [attrs for name, attrs in self.tags if name == tag]
        return [attrs for attrs in found if not kind or kind in (attrs.get("class") or "").split()]


@cache
def explained(name: str = "m2", attribution: bool = True) -> Explanation:
    vision = Patches(cells=4, side=4, preprocess={"size": 16, "geometry": "crop"})
    captioner = Captioner(tiny.build(name, d_input=vision.width), Vocabulary(WORDS), vision)
    picture = draw_scene(3, 64).image.resize((90, 60))
    return explain(captioner, picture, attribution=attribution, steps=4)


@pytest.mark.parametrize("name", tiny.names())
def test_every_captioner_gives_a_whole_page(name: str) -> None:
    found = explained(name)
    read = Page(page(found, "photo.png"))
    buttons = read.all("button", "word")
    assert [one["data-word"] for one in buttons] == [str(number) for number in range(len(found.words))]
    for number, one in enumerate(found.words):
        assert one.word in read.text
        assert any(attrs.get("id") == f"word-{number}" for _, attrs in read.tags)
        for word, _ in one.runners_up:
            assert word in read.text
    for text, _ in found.best:
        assert text in read.text
    levels = read.all("div", "stack")
    assert bool(levels) == (found.words[0].levels is not None)
    assert ("encoder layer 1" in read.text) == (found.memory is not None)
    assert len(read.all("div", "strip")) == sum(
        tensor[0].numel() // tensor.shape[-1] * len(found.words)
        for key, tensor in found.other.items()
        if key in ("groups", "memory_reads", "memory_writes")
    )


def test_it_asks_nobody_for_anything() -> None:
    html = page(explained(), "photo.png")
    assert not re.search(r"(?:https?:)?//(?!\s)[\w.]+\.\w", re.sub(r"base64,[\w+/=]+", "", html))
    read = Page(html)
    for attrs in read.all("img"):
        assert attrs["src"].startswith("data:image/") and attrs["alt"]
    assert not read.all("link") and not read.all("iframe")
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)[1]
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [one["content"] for one in read.all("meta") if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'") and f"'sha256-{own}'" in policy
    assert all(url.startswith("data:image/") for url in re.findall(r"url\(([^)]*)\)", html))


def test_words_cannot_run() -> None:
    found = explained()
    evil = replace(
        found,
        text=EVIL + '"',
        words=(replace(found.words[0], word=EVIL + '" onload="x', runners_up=((EVIL, 0.5),)), *found.words[1:]),
        best=((EVIL, 0.5),),
        facts=(("model", EVIL),),
    )
    html = page(evil, EVIL + '" onload="x')
    read = Page(html)
    assert len(read.all("script")) == 1
    assert not any("onload" in attrs for _, attrs in read.tags)
    assert EVIL in read.text


def test_every_map_has_its_picture_and_a_description() -> None:
    found = explained()
    html = page(found)
    for number in range(len(found.words)):
        for kind in "ab":
            assert html.count(f".m{number}{kind} {{ background-image: url(data:image/png;base64,") == 1
    maps = [attrs for attrs in Page(html).all("div", "photo") if attrs.get("role") == "img"]
    assert len(maps) == 2 * len(found.words)
    assert all(re.search("for “.*”", attrs["aria-label"]) for attrs in maps)


def test_without_attribution_nothing_counted() -> None:
    read = Page(page(explained(attribution=False)))
    assert "counted" not in read.text and "made it" not in read.text
    assert len(read.all("div", "photo")) == len(explained(attribution=False).words)


def test_regions_without_a_picture_have_a_page_and_no_sheet() -> None:
    captioner = Captioner(tiny.shared("m2"), Vocabulary(WORDS))
    found = explain(captioner, tiny.pictures(4), steps=2)
    read = Page(page(found))
    assert not read.all("img") and not read.all("div", "photo")
    assert found.words[0].word in read.text
    with pytest.raises(MeshcapError, match="no picture to draw on"):
        draw_sheet(found)


def test_small_is_not_zero() -> None:
    assert [percent(share) for share in (0, 0.001, 0.014, 1)] == ["0 %", "&lt; 1 %", "1 %", "100 %"]


@pytest.mark.parametrize("attribution", [True, False])
def test_the_sheet(tmp_path: Path, attribution: bool) -> None:
    write_sheet(tmp_path / "sheet.png", explained(attribution=attribution))
    with Image.open(tmp_path / "sheet.png") as image:
        image.load()
        assert image.format == "PNG" and image.width == 1120
    assert [one.name for one in tmp_path.iterdir()] == ["sheet.png"]


def test_a_row_more_for_attribution() -> None:
    assert draw_sheet(explained()).height > draw_sheet(explained(attribution=False)).height


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="cannot be written"):
        write_page(tmp_path / "nowhere" / "x.html", explained())
