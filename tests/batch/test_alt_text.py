"""Pages whose pictures lack `alt`: worked out by hand, and byte for byte the same elsewhere."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcap import MeshcapError
from meshcap.batch.alt_text import fill, filled, find_images, local_file, pictures_of, read_page

CAPTIONS = {os.path.abspath("site/a.jpg"): 'A "cat" & <dog>', os.path.abspath("site/b c.jpg"): "Zürich"}
A = "A &quot;cat&quot; &amp; &lt;dog&gt;"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<img src="a.jpg">', f'<img alt="{A}" src="a.jpg">'),
        ("<IMG SRC=a.jpg>", f'<IMG alt="{A}" SRC=a.jpg>'),
        ("<p>é\n\n <img\n  src='./a.jpg'\n/></p>", f"<p>é\n\n <img alt=\"{A}\"\n  src='./a.jpg'\n/></p>"),
        ('<img src="b%20c.jpg?x=1#y">', '<img alt="Z&#252;rich" src="b%20c.jpg?x=1#y">'),
        ('<img src="a.jpg"><img src="a.jpg" alt="">', f'<img alt="{A}" src="a.jpg"><img src="a.jpg" alt="">'),
        ('<base href="../site/"><img src="a.jpg">', f'<base href="../site/"><img alt="{A}" src="a.jpg">'),
        # What stays as it is: a text, decoration, other hosts, what is no element.
        ('<img src="a.jpg" alt="mine">', None),
        ('<img src="a.jpg" alt>', None),
        ('<img src="a.jpg" role="presentation"><img src="a.jpg" aria-hidden="true">', None),
        ('<img src="https://example.org/a.jpg"><img src="//x/a.jpg"><img src="/a.jpg"><img>', None),
        ('<!-- <img src="a.jpg"> --><script>"<img src=a.jpg>"</script>', None),
        ('<img src="data:image/png;base64,AAAA"><img src="unknown.jpg">', None),
        ('<base href="https://example.org/"><img src="a.jpg">', None),
    ],
)
def test_filling(before: str, after: str | None) -> None:
    new, count = filled("site/page.html", before, CAPTIONS, overwrite=False)
    assert new == (before if after is None else after)
    assert count == (after is not None)
    assert filled("site/page.html", new, CAPTIONS, overwrite=False) == (new, 0)  # twice is once


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<img src="a.jpg" alt="mine">', f'<img src="a.jpg" alt="{A}">'),
        ("<img alt=mine src='a.jpg'>", f"<img alt=\"{A}\" src='a.jpg'>"),
        ('<img title="alt=1" ALT = \'x > y\' src="a.jpg">', f'<img title="alt=1" alt="{A}" src="a.jpg">'),
        ('<img data-alt="no" alt="yes" src="a.jpg">', f'<img data-alt="no" alt="{A}" src="a.jpg">'),
        ('<img src="a.jpg" alt="">', '<img src="a.jpg" alt="">'),
    ],
)
def test_replacing(before: str, after: str) -> None:
    assert filled("site/page.html", before, CAPTIONS, overwrite=True)[0] == after


@given(st.text(max_size=30), st.text(max_size=30))
def test_nothing_else_moves(before: str, after: str) -> None:
    """Whatever surrounds a picture, taking the insertions away again gives the page of before."""
    page = f'{before}<img src="a.jpg">{after}'
    new, count = filled("site/page.html", page, CAPTIONS, overwrite=False)
    assert new.replace(f' alt="{A}"', "") == page
    assert new.count(f' alt="{A}"') == count


def test_bytes_of_any_alphabet_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(b'\xe9\xff<img src="a.jpg">\r\n\xfc')
    page.chmod(0o640)
    assert fill(str(page), page, {str(tmp_path / "a.jpg"): "Ein Fuß"}, overwrite=False) == 1
    assert page.read_bytes() == b'\xe9\xff<img alt="Ein Fu&#223;" src="a.jpg">\r\n\xfc'
    assert page.stat().st_mode & 0o777 == 0o640
    page.write_bytes("<img src=a.jpg>".encode("utf-16"))
    with pytest.raises(MeshcapError, match="no HTML in UTF-8"):
        read_page(str(page))
    with pytest.raises(MeshcapError, match="cannot be read"):
        read_page(str(tmp_path / "none.html"))


def test_a_job_remembers_what_pages_wanted(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="a.jpg"><img src="a.jpg"><img src="b.jpg">', encoding="utf-8")
    remember = tmp_path / "job" / "pages.json"
    found = pictures_of([str(page)], overwrite=False, saved_list=remember)
    assert [picture.path for picture in found] == [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")]
    page.write_text('<img alt="done" src="a.jpg"><img src="b.jpg">', encoding="utf-8")
    assert pictures_of([str(page)], overwrite=False, saved_list=remember) == found
    remember.unlink()
    assert pictures_of([str(page)], overwrite=False, saved_list=remember) == found[1:]


def test_paths() -> None:
    assert local_file("", "x/a.jpg") == "x/a.jpg" and local_file("site", "../a.jpg") == "site/../a.jpg"
    assert local_file("", "http://[bad") is None and local_file("", "a%00b") is None and local_file("", "#x") is None
    assert find_images("p.html", "<picture><source srcset=x.webp><img src=x.jpg></picture>", overwrite=False)
