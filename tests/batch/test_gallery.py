"""The page of a job: every caption, nothing that a name or a caption could do, pages of bounded size."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from batch.seeing import draw
from meshcap.batch import gallery
from meshcap.batch.gallery import of_table, write_gallery
from meshcap.batch.inputs import Picture, list_pictures
from meshcap.batch.output import write_table

EVIL = "</script><img src=x onerror=alert(1)>\"'&"


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def row(path: str, caption: str | None, **more: object) -> dict[str, object]:
    return {"path": path, "caption": caption, "confidence": 0.5, **more}


def test_everything_is_there_and_nothing_runs(tmp_path: Path) -> None:
    [first] = draw(tmp_path / "a", 1)
    second = first.rename(first.with_name("javascript:alert(1)<b>.png"))
    gone = Picture(str(tmp_path / "gone.png"))
    rows = [
        (Picture(str(second)), row(str(second), EVIL, tags=[{"name": "<i>dog</i>"}])),
        (gone, row(gone.path, "A cat.", alternatives=[{"caption": "A <u>dog</u>."}])),
        (Picture("withheld.png"), row("withheld.png", None)),
    ]
    write_gallery(tmp_path / "g" / "g.html", rows)
    text = (tmp_path / "g/g.html").read_text()
    page = Tags(text)
    assert (
        EVIL in page.text and "<i>dog</i>" in page.text and "A <u>dog</u>." in page.text and "no picture" in page.text
    )
    assert "2 captions" in page.text and "withheld" not in page.text
    [image] = page.of("img")
    assert image["src"].startswith("data:image/jpeg;base64,") and not page.of("i") and not page.of("u")
    assert [link["href"] for link in page.of("a")] == ["../a/javascript%3Aalert%281%29%3Cb%3E.png", "../gone.png"]
    assert len(page.of("script")) == 2 and not any(name.startswith("on") for _, some in page.found for name in some)
    [policy] = [one["content"] for one in page.of("meta") if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:;") and "'unsafe-inline'; script-src 'sha256-" in policy


def test_many_pictures_are_several_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "EACH", 2)
    monkeypatch.setattr(gallery, "MOST", 5)
    paths = [Picture(str(path)) for path in draw(tmp_path / "a", 7)]
    write_gallery(tmp_path / "g.html", [(one, row(one.path, f"w{n} </script>")) for n, one in enumerate(paths)])
    assert sorted(path.name for path in tmp_path.glob("g*")) == ["g-2.html", "g-3.html", "g.html"]
    for name, numbers in (("g.html", [1, 2]), ("g-2.html", [3, 4]), ("g-3.html", [5])):
        text = (tmp_path / name).read_text()
        page = Tags(text)
        assert "7 captions, the first 5 of them shown" in page.text
        assert [one["id"] for one in page.of("figure")] == [f"p{number}" for number in numbers]
        # The search knows the captions of the other pages.
        others = json.loads(re.search(r'id="others">(.*)</script>\n<script>', text)[1])
        assert [number for _, number, _ in others] == [n for n in range(1, 6) if n not in numbers]
        assert {number: file for file, number, _ in others}.get(3, name) == "g-2.html"


@pytest.mark.parametrize("name", ["javascript:alert(1).html", "a#b?c%20.html", "\udcff.html"])
def test_pages_find_each_other_whatever_they_are_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "EACH", 1)
    [first, second] = draw(tmp_path / "a", 2)
    write_gallery(tmp_path / name, [(Picture(str(one)), row(str(one), "w")) for one in (first, second)])
    text = (tmp_path / name).read_text()
    [[other, *_]] = json.loads(re.search(r'id="others">(.*)</script>\n<script>', text)[1])
    [link] = [one["href"] for one in Tags(text).of("a") if not one["href"].startswith("a/")]
    assert link == other and ":" not in other
    assert (tmp_path / os.fsdecode(unquote_to_bytes(other))).read_text().count("<figure") == 1


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_rows_find_their_pictures_again(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "a", 3)
    Path("a/002.png").rename("a/é,\udce4.png")
    Path("a/001.png").rename("=1.png")
    pictures = list_pictures(["=1.png", "a"])
    rows = [
        row(one.path, f"w{n}", tags=[{"name": "t", "kind": "k", "probability": 0.5}]) for n, one in enumerate(pictures)
    ]
    rows[1] = {"path": pictures[1].path, "error": "broken"}
    table = tmp_path / f"t{suffix}"
    write_table(table, rows, words=False, alternatives=False, tags=True, excel=True)
    found = list(of_table(table, pictures))
    assert [(one, row["caption"], row["tags"][0]["name"]) for one, row in found] == [
        (pictures[0], "w0", "t"), (pictures[2], "w2", "t"),
    ]  # fmt: skip
