"""What clients let a server remember: asked over HTTP, kept in a store, shown with the next similar picture."""

import base64
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from meshcap.captioner import Captioner
from meshcap.memory import FolderStore
from serving import small
from serving.browser import Browser, find
from serving.conftest import Opened

KEY = "a-key-for-those-who-remember"
pytestmark = pytest.mark.filterwarnings("ignore:captions are made without the memory")


@pytest.fixture
def remembering(tmp_path: Path) -> Captioner:
    captioner = small.captioner()
    captioner.open_memory(tmp_path / "memory")
    return captioner


def test_a_correction_is_kept_and_shown_with_the_next_similar_picture(
    opened: Opened, remembering: Captioner, tmp_path: Path, eyes: Captioner
) -> None:
    client = opened(remembering, remember=True)
    content = small.picture(3)
    before = client.post("/v1/caption", **small.form(content)).json()["results"][0]
    assert "similar" not in before and client.get("/version").json()["memory"] == 0
    told = client.post("/v1/remember", **small.form(content, caption=" Rex in  the sun ", names="Rex, Bo"))
    assert (told.status_code, told.json()) == (200, {"id": 1, "entries": 1})
    encoded = base64.b64encode(small.picture(4)).decode()
    asked = {"pictures": [{"base64": encoded}], "caption": ["a house", "home"], "names": ["Home"]}
    assert client.post("/v1/remember", json=asked).json() == {"id": 2, "entries": 2}
    raw = {"Content-Type": "image/png"}
    assert client.post("/v1/remember?caption=a+boat", content=small.picture(5), headers=raw).json()["id"] == 3
    kept = FolderStore(tmp_path / "memory")
    assert [(one.captions, one.names) for one in kept.entries()] == [
        (("Rex in the sun",), ("Rex", "Bo")), (("a house", "home"), ("Home",)), (("a boat",), ()),
    ]  # fmt: skip
    after = client.post("/v1/caption", **small.form(content)).json()["results"][0]
    similar = after.pop("similar")
    assert after == before  # this model reads no memory: its captions are as they were
    assert similar[0] == {"id": 1, "similarity": 1.0, "captions": ["Rex in the sun"], "names": ["Rex", "Bo"]}
    expected = eyes.embed(eyes.see([eyes.read(content)])).numpy()
    near = [one for one in kept.nearest(expected, 3)[0] if one.similarity >= 0.5]
    assert [one["id"] for one in similar] == [one.id for one in near]
    assert client.get("/version").json() | {"memory": 3, "remember": True} == client.get("/version").json()


def test_off_unless_opted_in(client: TestClient, opened: Opened, remembering: Captioner) -> None:
    reading = opened(remembering)
    for one in (client, reading):
        answer = one.post("/v1/remember", **small.form(small.picture(), caption="x"))
        assert answer.status_code == 403 and "--remember" in answer.json()["error"]["message"]
        assert one.get("/version").json()["remember"] is False
    assert len(remembering.memory) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"caption": "  "}, "an empty caption"),
        ({}, "an empty caption"),
        ({"caption": "x" * 2001}, "too long"),
        ({"caption": "x", "beams": "3"}, "'beams' is unknown"),
    ],
)
def test_what_cannot_be_remembered(
    opened: Opened, remembering: Captioner, fields: dict[str, str], message: str
) -> None:
    client = opened(remembering, remember=True, keys=[KEY])
    header = {"Authorization": f"Bearer {KEY}"}
    answer = client.post("/v1/remember", **small.form(small.picture(), **fields), headers=header)
    assert answer.status_code == 422 and message in answer.json()["error"]["message"]
    for pictures in ([b"no picture"], [small.picture(1), small.picture(2)]):
        answer = client.post("/v1/remember", **small.form(*pictures, caption="x"), headers=header)
        assert answer.status_code == 422
    wrong = {"pictures": [{"base64": base64.b64encode(small.picture()).decode()}], "caption": 3}
    assert "caption is wrong" in client.post("/v1/remember", json=wrong, headers=header).json()["error"]["message"]
    assert client.post("/v1/remember", **small.form(small.picture(), caption="x")).status_code == 401
    assert len(remembering.memory) == 0


def test_text_that_no_answer_could_hold(opened: Opened, remembering: Captioner) -> None:
    """It would be in the answer for every picture like this one."""
    client = opened(remembering, remember=True)
    encoded = base64.b64encode(small.picture()).decode()
    for more in (r'"caption": "\ud800"', r'"caption": "x", "names": ["\udc80"]'):
        body = f'{{"pictures": [{{"base64": "{encoded}"}}], {more}}}'
        answer = client.post("/v1/remember", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422 and "UTF-8 cannot hold" in answer.json()["error"]["message"]
    odd = "\0\u202e</script>\U0001f415"
    assert client.post("/v1/remember", **small.form(small.picture(), caption=odd)).status_code == 200
    (found,) = client.post("/v1/caption", **small.form(small.picture())).json()["results"]
    assert [one["captions"] for one in found["similar"]] == [[odd]]


def test_a_store_that_cannot_be_written(opened: Opened, remembering: Captioner, monkeypatch) -> None:
    from meshcap.memory import store

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    client = opened(remembering, remember=True)
    monkeypatch.setattr(store.os, "write", full)
    answer = client.post("/v1/remember", **small.form(small.picture(), caption="x"))
    monkeypatch.undo()
    assert answer.status_code == 500 and "No space left" in answer.json()["error"]["message"]
    assert client.post("/v1/remember", **small.form(small.picture(), caption="x")).json() == {"id": 1, "entries": 1}


@pytest.mark.skipif(find() is None, reason="no Chromium on this machine")
def test_the_page(remembering: Captioner, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(small.picture())
    program = find()
    assert program is not None
    with (
        small.listening(remembering, remember=True) as port,
        small.listening(remembering) as other,
        Browser(program, tmp_path / "profile") as browser,
    ):
        browser.open(f"http://127.0.0.1:{port}/")
        done = "document.querySelector('.found:not([hidden])') !== null"
        browser.drop([photo], "#drop")
        browser.wait(done)
        browser.wait("!document.querySelector('.remember').hidden")
        browser.evaluate("document.querySelector('.remember textarea').value = 'Rex at home'")
        browser.evaluate("document.querySelector('.remember input').value = 'Rex, Bo'")
        browser.evaluate("document.querySelector('.remember button').click()")
        browser.wait("document.querySelector('.remember .note').textContent.startsWith('Remembered')")
        (entry,) = remembering.memory.entries()
        assert (entry.captions, entry.names) == (("Rex at home",), ("Rex", "Bo"))
        browser.open(f"http://127.0.0.1:{other}/")  # reads the same memory, takes nothing
        browser.drop([photo], "#drop")
        browser.wait(done)
        assert browser.evaluate("document.querySelector('.similar li').textContent") == "Rex at home – Rex, Bo"
        assert browser.evaluate("document.querySelector('.remember').hidden")
        assert browser.complaints == []
