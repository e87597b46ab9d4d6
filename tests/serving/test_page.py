"""The page in a real browser, as a person uses it: mouse, keyboard, narrow and dark screens."""

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import tiny_captioner
from meshcap.captioner import Captioner
from meshcap.options import NAMES
from meshcap.vision.score import picture_of
from music_scores import EIGHT
from serving import small
from serving.browser import Browser, find

PROGRAM = find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")

KEY = "a-long-key-for-the-page"
DONE = "[...document.querySelectorAll('.card')].length && !document.querySelector('.card[aria-busy=true]')"


@pytest.fixture(scope="module")
def address(eyes: Captioner) -> Iterator[str]:
    with small.listening(eyes) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def locked(eyes: Captioner) -> Iterator[str]:
    with small.listening(eyes, keys=[KEY]) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, address: str) -> Iterator[Browser]:
    """At the page, and without a complaint when the test is over."""
    window.look(1200, 900)
    window.open(address)
    window.wait("document.getElementById('about').textContent.includes('10 words')")
    window.complaints.clear()
    yield window
    assert window.complaints == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(small.picture())
    return path


def text(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))


def words(browser: Browser, card: str = ".card") -> str:
    found = browser.evaluate(f"[...document.querySelectorAll('{card} .word')].map((one) => one.textContent)")
    return " ".join(found)


def drop(browser: Browser, *paths: Path) -> None:
    browser.drop(list(paths), "#drop")
    browser.wait(DONE)


def light(browser: Browser) -> list[int]:
    """How lit the middle of each of the 4 × 4 cells is, row by row; empty where no light is shown."""
    return browser.evaluate(
        """(() => {
          const canvas = document.querySelector(".card canvas");
          if (!canvas.classList.contains("lit")) return [];
          const pen = canvas.getContext("2d"), lit = [];
          for (let row = 0; row < 4; row += 1) for (let column = 0; column < 4; column += 1)
            lit.push(pen.getImageData((column + .5) / 4 * canvas.width, (row + .5) / 4 * canvas.height, 1, 1).data[3]);
          return lit;
        })()"""
    )


def test_drop_a_picture_and_read_its_caption(browser: Browser, photo: Path, eyes: Captioner) -> None:
    expected = eyes.caption(photo, n=3)
    drop(browser, photo)
    assert words(browser).lower() == " ".join(expected.words)
    assert text(browser, ".card .name") == "photo.png"
    assert text(browser, ".card .percent") == f"{round(100 * expected.confidence)} % confident"
    captions = "[...document.querySelectorAll('.others button')].map((one) => one.children[0].textContent)"
    listed = browser.evaluate(captions)
    # By their confidence, which the list shows; the search's own choice is the one that is chosen.
    ranked = sorted((expected, *expected.alternatives), key=lambda one: -one.confidence)
    assert listed == [one.text for one in ranked]
    assert text(browser, ".others [aria-pressed=true] span") == expected.text
    assert browser.evaluate("document.querySelector('.card img').alt") == expected.text
    assert browser.evaluate("document.querySelector('.card img').naturalWidth") == 64
    assert expected.text in text(browser, "#status")  # what a screen reader is told


def test_drop_a_midi_file_and_see_its_roll(window: Browser, tmp_path: Path) -> None:
    pytest.importorskip("symusic")
    eyes, music, path = small.captioner(), tiny_captioner.of_music(), tmp_path / "song.mid"
    eyes._of_scores = music
    path.write_bytes(EIGHT.to_midi())
    expected = music.caption(path, n=3, attention=True)
    assert expected.attention is not None
    with small.listening(eyes) as port:
        window.open(f"http://127.0.0.1:{port}/")
        window.wait("document.getElementById('about').textContent.includes('10 words')")
        drop(window, path)
        assert words(window).lower() == " ".join(expected.words)
        window.wait("document.querySelector('.card img').naturalWidth > 0")
        sides = ("naturalWidth", "naturalHeight")
        shown = [window.evaluate(f"document.querySelector('.card img').{side}") for side in sides]
        assert tuple(shown) == picture_of(path).size
        assert not window.evaluate("document.querySelector('.card .frame').classList.contains('none')")
        label = str(window.evaluate("document.querySelector('.card .word').getAttribute('aria-label')"))
        assert f"looked at bar {int(expected.attention[0].argmax()) + 1}" in label


def test_hover_a_word_and_see_where_the_model_looked(browser: Browser, photo: Path, eyes: Captioner) -> None:
    attention = eyes.caption(photo, n=3, attention=True).attention
    assert attention is not None and len(attention) > 1
    drop(browser, photo)
    assert light(browser) == []
    for number in (0, 1):
        browser.hover(f".card .word:nth-of-type({number + 1})")
        # Brightest where the weight is largest, darkest where it is smallest, once one light has become the other.
        weights = attention[number].tolist()
        until = time.monotonic() + 60
        most, least = weights.index(max(weights)), weights.index(min(weights))
        while not (lit := light(browser)) or lit[most] < max(lit) - 1 or lit[least] > min(lit) + 1:
            assert time.monotonic() < until, (lit, weights)
        assert lit[most] > 240 and lit[most] > lit[least]
    # The light is the picture itself, not darker than without.
    place = f"({most % 4} + .5) / 4 * canvas.width, ({most // 4} + .5) / 4 * canvas.height"
    bright = browser.evaluate(BRIGHT.replace("PLACE", place))
    assert bright["lit"] >= bright["plain"]
    browser.hover("h1")
    browser.wait("!document.querySelector('.card canvas.lit')")


BRIGHT = """(() => {
  const canvas = document.querySelector(".card canvas"), image = document.querySelector(".card img");
  const plain = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  plain.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const sum = (one) => [...one.getContext("2d").getImageData(PLACE, 1, 1).data.slice(0, 3)].reduce((a, b) => a + b);
  return { lit: sum(canvas), plain: sum(plain) };
})()"""


def test_tab_to_a_word(browser: Browser, photo: Path) -> None:
    drop(browser, photo)
    browser.evaluate("document.querySelector('.remove').focus()")
    browser.evaluate("document.querySelector('#must_not').focus()")
    for _ in range(12):
        browser.press("Tab", 9)
        if browser.evaluate("document.activeElement.classList.contains('word')"):
            break
    said = browser.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "%, looked at the " in said
    first = light(browser)
    assert first
    browser.press("ArrowRight", 39)
    assert browser.evaluate("document.activeElement === document.querySelectorAll('.word')[1]")
    browser.press("Escape", 27)
    assert light(browser) == []


def test_a_broken_file_is_an_error_on_its_card(browser: Browser, photo: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(photo.read_bytes()[:100])
    drop(browser, broken, photo)
    browser.wait("document.querySelectorAll('.card').length === 2")
    shown = browser.evaluate(
        "[...document.querySelectorAll('.card')].map((one) => [one.getAttribute('aria-label'),"
        " one.querySelector('.problem').hidden, one.querySelector('.problem').textContent,"
        " one.querySelector('.found').hidden])"
    )
    of_name = {name: rest for name, *rest in shown}
    assert of_name["photo.png"] == [True, "", False]
    heights = browser.evaluate("[...document.querySelectorAll('.card')].map((one) => one.offsetHeight)")
    assert heights[0] < 150 < heights[1]  # a small preview beside an error
    hidden, message, nothing_found = of_name["broken.png"]
    assert not hidden and nothing_found and message.startswith("The picture is truncated or damaged")
    browser.complaints[:] = [one for one in browser.complaints if "422" not in one]  # the browser notes the status


def test_what_is_no_picture_is_left_out(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    browser.drop([tmp_path / "notes.txt"], "#drop")
    browser.wait("document.getElementById('status').textContent.includes('none is a picture')")
    assert browser.evaluate("document.querySelectorAll('.card').length") == 0


def set_to(browser: Browser, name: str, value: object) -> None:
    browser.evaluate(
        f"(() => {{ const one = document.getElementById('{name}'); one.value = {json.dumps(value)};"
        " one.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_options_change_the_captions(browser: Browser, photo: Path, eyes: Captioner) -> None:
    drop(browser, photo)
    set_to(browser, "n", 1)
    browser.wait("document.querySelector('.others').hidden")
    browser.click("#must_not")
    browser.write("ball")
    expected = eyes.caption(photo, must_not=["ball"])
    assert expected.text != eyes.caption(photo).text
    browser.wait(f"document.querySelector('.card img').alt === {json.dumps(expected.text)}")
    set_to(browser, "must_not", "")
    set_to(browser, "must", "dog")
    expected = eyes.caption(photo, must=["dog"])
    browser.wait(f"document.querySelector('.card img').alt === {json.dumps(expected.text)}")
    assert "dog" in words(browser).lower().split()
    set_to(browser, "must", "dig")
    browser.wait("!document.getElementById('problem').hidden")
    assert "nearest known: dog" in text(browser, "#problem")
    assert browser.evaluate("document.getElementById('must').getAttribute('aria-invalid')") == "true"
    browser.evaluate("document.querySelector('[value=sample]').click()")
    browser.wait("document.getElementById('problem').hidden")
    assert browser.evaluate("document.getElementById('temperature').offsetParent !== null")
    assert browser.evaluate("document.getElementById('beams').offsetParent === null")
    browser.wait(DONE)
    browser.complaints[:] = [one for one in browser.complaints if "422" not in one]


def test_another_caption_may_be_chosen_and_copied(browser: Browser, photo: Path, eyes: Captioner) -> None:
    found = eyes.caption(photo, n=3)
    second = sorted((found, *found.alternatives), key=lambda one: -one.confidence)[1]
    drop(browser, photo)
    browser.click(".others li:nth-child(2) button")
    assert browser.evaluate("document.querySelector('.card img').alt") == second.text
    browser.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    found = {}
    for kind in ("text", "alt", "json"):
        browser.click(f"[data-as={kind}]")
        browser.wait(f"document.querySelector('[data-as={kind}]').textContent === 'Copied'")
        found[kind] = browser.evaluate("window.copied")
    assert found["text"] == second.text and found["alt"] == f'alt="{second.text}"'
    told = json.loads(found["json"])
    assert told["file"] == "photo.png" and [one["word"] for one in told["words"]] == second.words


def test_all_captions_are_copied_saved_and_cleared(browser: Browser, photo: Path, eyes: Captioner) -> None:
    odd = photo.with_name('=1+2, "two".png')  # what spreadsheets would compute
    odd.write_bytes(small.picture(4))
    assert browser.evaluate("document.getElementById('all').hidden")
    drop(browser, photo, odd)
    browser.wait("document.querySelectorAll('.word').length && " + DONE)
    browser.evaluate(
        """navigator.clipboard.writeText = async (text) => { window.copied = text; };
        window.saved = {};
        URL.createObjectURL = (blob) => { window.blob = blob; return "blob:none"; };
        HTMLAnchorElement.prototype.click = function () {
          window.blob.arrayBuffer().then((content) => {
            window.saved[this.download] = new TextDecoder("utf-8", { ignoreBOM: true }).decode(content);
          });
        };"""
    )
    said = {path.name: eyes.caption(path, n=3) for path in (photo, odd)}
    browser.click("#copy-all")
    assert browser.wait("window.copied") == "".join(f"{name}\t{one.text}\n" for name, one in said.items())
    browser.click("#save-csv")
    content = browser.wait("window.saved['captions.csv']")
    assert content.startswith("\ufeff")
    rows = list(csv.DictReader(io.StringIO(content.removeprefix("\ufeff"), newline="")))
    assert [row["file"] for row in rows] == ["photo.png", "'" + odd.name]
    assert [row["caption"] for row in rows] == [one.text for one in said.values()]
    assert {*rows[0]["alternatives"].split(" | ")} == {one.text for one in said["photo.png"].alternatives}
    browser.click("#save-json")
    told = json.loads(browser.wait("window.saved['captions.json']"))
    assert [one["file"] for one in told] == list(said)
    for one, caption in zip(told, said.values(), strict=True):
        assert [word["word"] for word in one["words"]] == caption.words
        assert one["confidence"] == pytest.approx(caption.confidence, abs=1e-3)
        assert {other["caption"] for other in one["alternatives"]} == {other.text for other in caption.alternatives}
    browser.click("#clear")
    assert browser.evaluate("document.querySelectorAll('.card').length") == 0
    assert browser.evaluate("document.getElementById('all').hidden && document.activeElement.id") == "pick"


def test_paste_and_remove(browser: Browser) -> None:
    browser.evaluate(
        """new Promise((go) => {
          const canvas = document.createElement("canvas");
          canvas.width = canvas.height = 32;
          canvas.toBlob((blob) => {
            const data = new DataTransfer();
            data.items.add(new File([blob], "image.png", { type: "image/png" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
            go(1);
          });
        })"""
    )
    browser.wait(DONE)
    assert words(browser)
    browser.click(".remove")
    assert browser.evaluate("document.querySelectorAll('.card').length") == 0
    assert browser.evaluate("document.activeElement.id") == "pick"


def test_the_camera(browser: Browser) -> None:
    """Chromium's made-up one."""
    browser.click("#camera")
    browser.wait("document.getElementById('booth').open && document.getElementById('video').videoWidth")
    browser.click("#shoot")
    browser.wait(DONE)
    assert text(browser, ".card .name") == "photo.jpg" and words(browser)
    assert not browser.evaluate("document.getElementById('booth').open")


def test_a_phone(browser: Browser, photo: Path) -> None:
    browser.look(360, 740, phone=True)
    drop(browser, photo)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    small_targets = browser.evaluate(
        "[...document.querySelectorAll('button:not([hidden])')].filter((one) => one.offsetParent"
        " && Math.min(one.offsetWidth, one.offsetHeight) < 24).map((one) => one.className + one.textContent)"
    )
    assert small_targets == []


def test_dark_and_light_are_readable(browser: Browser, photo: Path) -> None:
    """Text against its background, by the formula of WCAG 2: 4.5 at least."""
    for dark in (False, True):
        browser.look(1200, 900, dark=dark)
        drop(browser, photo)
        browser.wait("document.getAnimations().length === 0")  # colours on their way are neither
        for selector in "h1 #about .word .percent .name .hint #pick #camera .choice output .others".split():
            ratio = browser.evaluate(CONTRAST % json.dumps(selector))
            assert ratio >= 4.5, (selector, dark, ratio)


CONTRAST = """((selector) => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const weighed = ([red, green, blue]) => 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  const bright = (colour) => weighed(parts(colour).map(linear));
  const one = document.querySelector(selector);
  let behind = one;
  const seen = (colour) => { const found = parts(colour); return found.length < 4 || found[3] > 0; };
  while (behind && !seen(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const [a, b] = [getComputedStyle(one).color, getComputedStyle(behind || document.body).backgroundColor].map(bright);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})(%s)"""


def test_everything_has_a_name(browser: Browser, photo: Path) -> None:
    """The tree that screen readers are given: no button, slider, field or picture without words."""
    drop(browser, photo)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "textbox", "radio", "image", "article", "form", "heading"}
    found = [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes if not one.get("ignored")]
    named = [(role, name) for role, name in found if role in roles]
    assert {"button", "slider", "textbox", "radio", "image", "heading"} <= {role for role, _ in named}
    assert [role for role, name in named if not name.strip()] == []
    assert browser.evaluate("document.documentElement.lang") == "en"


def test_a_key_is_asked_for(window: Browser, locked: str, photo: Path) -> None:
    window.look(1200, 900)
    window.open(locked)
    window.wait("!document.getElementById('key-field').hidden")
    drop(window, photo)
    assert "API key" in text(window, "#problem")
    window.click("#key")
    window.write(KEY)
    window.press("Tab", 9)
    window.wait("document.querySelectorAll('.word').length")
    assert window.evaluate("document.getElementById('problem').hidden")


def test_nothing_comes_from_elsewhere(browser: Browser, photo: Path, address: str) -> None:
    drop(browser, photo)
    asked = browser.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert all(one.startswith((address, "blob:", "data:")) for one in asked) and len(asked) >= 4
    browser.evaluate(
        "(() => { const own = document.createElement('script'); own.textContent = 'window.written = 1';"
        " document.body.append(own); })()"
    )
    assert not browser.evaluate("'written' in window")  # nor from a picture's name that got into the page
    assert len(browser.complaints) == 1 and "Content Security Policy" in browser.complaints.pop()


def test_the_interfaces_are_described(window: Browser, address: str) -> None:
    """Every operation of openapi.json, with its fields, and nothing from elsewhere."""
    window.complaints.clear()
    window.look(1200, 900)
    window.open(f"{address}docs")
    window.wait("document.querySelectorAll('.operation').length")
    shown = window.evaluate(
        "[...document.querySelectorAll('.operation')].map((one) => [...one.querySelectorAll('.method, .path')]"
        ".map((part) => part.textContent).join(' ').replace(/^[A-Z]+/, (method) => method.toLowerCase()))"
    )
    paths = window.evaluate("fetch('openapi.json').then((answer) => answer.json()).then((given) => given.paths)")
    assert sorted(shown) == sorted(f"{method} {path}" for path, methods in paths.items() for method in methods)
    assert shown[0] == "post /v1/caption"
    fields = set(
        window.evaluate(
            "[...document.querySelectorAll('.operation td:first-child code')].map((one) => one.textContent)"
        )
    )
    assert {*NAMES, "picture", "images", "messages", "image_url", "confidence", "usage"} <= fields
    asked = window.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert all(one.startswith((address, "data:")) for one in asked) and window.complaints == []


@pytest.mark.parametrize("size", [(200, 900), (900, 200), (64, 64)])
def test_the_light_lies_on_the_picture(browser: Browser, tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "plain.png"
    Image.new("RGB", size, "teal").save(path)
    drop(browser, path)
    set_to(browser, "n", 9)  # the card grows under the picture
    browser.wait("document.querySelectorAll('.others li').length === 9")
    browser.hover(".card .word")
    browser.wait("document.querySelector('.card canvas.lit') !== null")
    light, shown = (
        browser.evaluate(f"document.querySelector('.card {one}').getBoundingClientRect().toJSON()")
        for one in ("canvas", "img")
    )
    scale = min(shown["width"] / size[0], shown["height"] / size[1])
    assert light["width"] == pytest.approx(size[0] * scale, abs=2.5)
    assert light["height"] == pytest.approx(size[1] * scale, abs=2.5)
    for middle in (lambda box: box["x"] + box["width"] / 2, lambda box: box["y"] + box["height"] / 2):
        assert middle(light) == pytest.approx(middle(shown), abs=2.5)
