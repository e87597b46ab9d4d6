"""The documentation site in a real browser: it finds what is looked for, fits a phone, and asks no other host."""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import browser

pytest.importorskip("mkdocs", reason='no mkdocs: pip install -e ".[docs]"')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    program = browser.find()
    assert program is not None
    with browser.Browser(program, tmp_path_factory.mktemp("profile")) as window:
        yield window


def test_search(window: browser.Browser, address: str) -> None:
    window.look(1200, 900)
    window.open(address)
    window.click("input.md-search__input")
    window.write("diverse beam")
    found = window.wait(
        "(() => { const all = [...document.querySelectorAll('a.md-search-result__link')].map(a => a.href);"
        " return all.length ? all : null; })()"
    )
    assert any("/decoding/" in link for link in found), found


@pytest.mark.parametrize("page", ["", "faq/", "mechanisms/", "batch/", "api/captioner/", "api/training/"])
def test_pages_fit_a_phone_and_ask_nobody(window: browser.Browser, address: str, page: str) -> None:
    window.look(390, 844, phone=True)
    window.open(address + page)
    wide = window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    asked = window.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
    assert asked and all(name.startswith((address, "blob:", "data:")) for name in asked), asked
    assert window.evaluate("[...document.images].filter(one => one.complete && !one.naturalWidth).length") == 0
    assert not window.complaints, json.dumps(window.complaints)
