"""The report is one whole, harmless page, and says what it was given."""

import base64
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from meshcap.data.scenes import draw_scene
from meshcap.errors import MeshcapError
from meshcap.evaluation.charts import curves_of
from meshcap.evaluation.drawing import Drawing
from meshcap.evaluation.page import ReportContent, SampleCard, page, picks, write_report
from meshcap.metrics import Result
from meshcap.vision.pictures import thumbnail

VOID = {"meta", "img", "wbr", "br", "hr", "link", "input"}
EVIL = "<script>alert('x')</script> \"&' </figure>"


class Page(HTMLParser):
    """Tags that must be balanced, attributes and text."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> ends something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def result(**more: object) -> Result:
    return Result(
        **{
            "scores": {"BLEU-4": 0.3912, "CIDEr": 1.3125},
            "intervals": {"BLEU-4": (0.3811, 0.4017), "CIDEr": (1.2901, 1.3344)},
            "per_image": {},
            "signature": "meshcap:1|CIDEr:D",
            "warnings": [],
            "diversity": {"vocabulary": 1204.0, "bad endings": 0.025, "Div-1": 0.6},
        }
        | more
    )


def records() -> list[dict]:
    train = [{"kind": "train", "stage": "xe", "step": s, "loss": 9 / s, "lr": 1e-4, "rate": 800} for s in range(1, 500)]
    return [*train, {"kind": "val", "stage": "xe", "step": 499, "CIDEr": 0.7, "bad_endings": 0.01}]


def card(number: int, **more: object) -> SampleCard:
    scene = draw_scene(number, 224)
    given = {"confidence": 0.71, "score": 1.052, "references": scene.captions[1:], "id": f"scene {number}"}
    return SampleCard(scene.image, scene.captions[0], **(given | more))


@pytest.fixture
def content() -> ReportContent:
    return ReportContent(
        title="M² on drawn scenes",
        facts=[("parameters", "38.4 million")],
        results={"val": result(), "test": result(scores={"CIDEr": 1.29}, intervals={}, warnings=["no METEOR"])},
        curves=curves_of(records()),
        samples={"Taken at random": [card(1), card(2)], "Best by CIDEr": [card(3)]},
        settings={"model": {"name": "m2", "slots": 40}, "betas": [0.9, 0.98], "resume": None, "bf16": True},
        notes=["resumed at step 300"],
        reward="CIDEr:D,df=train",
    )


def test_is_balanced_html_with_all_sections(content: ReportContent) -> None:
    seen = Page(page(content))
    sections = ["scores", "curves", "captions", "events", "settings"]
    assert [attrs["id"] for attrs in seen.all("section")] == sections
    assert [attrs["href"] for attrs in seen.all("a")] == [f"#{name}" for name in sections]
    assert len(seen.all("h1")) == 1


def test_asks_nobody_for_anything(content: ReportContent) -> None:
    html = page(content)
    seen = Page(html)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"^\s*//.*$", "", html, flags=re.M))
    for _, attrs in seen.tags:
        assert (attrs.get("src") or "data:").startswith("data:image/jpeg;base64,") or "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attrs)
    [policy] = [attrs["content"] for attrs in seen.all("meta") if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:;") and "script-src 'sha256-" in policy


def test_the_reliability_diagram_is_in_it_whole(content: ReportContent) -> None:
    drawing = Drawing(40, 30, "0.5 came to <0.6>")
    seen = Page(page(replace(content, confidence=drawing)))
    assert [attrs["id"] for attrs in seen.all("section")][1:4] == ["curves", "confidence", "captions"]
    kind = "data:image/svg+xml;base64,"
    [drawn] = [attrs for attrs in seen.all("img") if (attrs["src"] or "").startswith(kind)]
    assert base64.b64decode((drawn["src"] or "").removeprefix(kind)).decode() == drawing.as_svg()
    assert (drawn["alt"], drawn["width"], drawn["height"]) == ("0.5 came to <0.6>", "40", "30")


def test_the_policy_allows_the_script_that_is_there(content: ReportContent) -> None:
    html = page(content)
    [script] = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in html


def test_escapes_everything_it_is_given() -> None:
    told = ReportContent(
        title=EVIL,
        facts=[(EVIL, EVIL)],
        results={
            EVIL: result(scores={EVIL: 1.0}, intervals={}, signature=EVIL, warnings=[EVIL], diversity={EVIL: 0.5})
        },
        curves=curves_of([{"kind": "train", "stage": EVIL, "step": s, "loss": 1.0} for s in (1, 2)]),
        samples={EVIL: [card(1, references=[EVIL], id=EVIL), SampleCard(None, EVIL)]},
        settings={EVIL: {EVIL: EVIL}},
        notes=[EVIL],
        reward=EVIL,
    )
    html = page(told)
    seen = Page(html)
    assert len(seen.all("script")) == 1
    assert html.count("<script>") == 1 and html.count("alert(&#x27;x&#x27;)") >= 15
    assert "".join(seen.text).count(EVIL) >= 12
    assert [attrs["alt"] for attrs in seen.all("img")] == [EVIL]


def test_prints_the_numbers_it_was_given(content: ReportContent) -> None:
    text = " ".join(Page(page(content)).text)
    for told in ("39.12", "38.11 – 40.17", "131.25", "129.01 – 133.44", "129.00", "no interval", "no METEOR"):
        assert told in text
    for told in ("1,204", "2.5 %", "0.600", "105.2", "71 %", "38.4 million", "resumed at step 300"):
        assert told in text
    for told in ("model.slots", "40", "0.9, 0.98", "not set", "yes", "CIDEr:D,df=train"):
        assert told in text


def test_a_score_that_one_split_lacks_is_a_dash(content: ReportContent) -> None:
    [row] = re.findall(r'<tr><th scope="row">BLEU-4</th>(.*?)</tr>', page(content))
    assert re.findall(r"<b>(.*?)</b>", row) == ["39.12", "–"]


def test_tables_have_heads_and_pictures_have_words(content: ReportContent) -> None:
    seen = Page(page(content))
    assert all(attrs["scope"] in ("row", "col") for attrs in seen.all("th"))
    assert [attrs["alt"] for attrs in seen.all("img")] == [draw_scene(n, 224).captions[1] for n in (1, 2, 3)]
    charts = [attrs for attrs in seen.all("svg") if attrs.get("role") == "img"]
    assert len(charts) == len(content.curves)
    assert all(attrs["tabindex"] == "0" and "at step" in attrs["aria-label"] for attrs in charts)


def test_what_is_not_given_is_not_there() -> None:
    seen = Page(page(ReportContent("only a title")))
    for tag in ("section", "table", "nav", "dl", "svg", "details", "a"):
        assert seen.all(tag) == []
    empty = ReportContent("x", samples={"Best": []}, curves=curves_of([]), results={})
    assert Page(page(empty)).all("section") == []
    only_notes = Page(page(ReportContent("x", notes=["stopped by SIGTERM at step 9"])))
    assert [attrs["id"] for attrs in only_notes.all("section")] == ["events"]


def test_numbers_that_are_not_finite_do_not_break_it(content: ReportContent) -> None:
    odd = result(
        scores={"CIDEr": math.nan}, intervals={"CIDEr": (math.nan, math.inf)}, diversity={"length mean": math.nan}
    )
    cards = [card(1, score=math.nan, confidence=math.inf), card(2, score=None, confidence=None, references=())]
    html = page(replace(content, results={"val": odd}, samples={"all": cards}))
    text = " ".join(Page(html).text)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert "confidence" not in text


def test_domains_have_a_table() -> None:
    domains = {"in-domain": {"pictures": 1200, "scores": {"CIDEr": 0.8}, "intervals": {"CIDEr": (0.7, 0.9)}}}
    text = " ".join(Page(page(ReportContent("x", results={"nocaps": result(domains=domains)}))).text)
    assert "nocaps by domain" in text and "in-domain (1,200)" in text and "70.00 – 90.00" in text


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "CMYK", "LA", "1"])
def test_pictures_of_any_kind_become_small_ones(mode: str) -> None:
    image = Image.new("RGB", (900, 300), "red").convert(mode)
    [shown] = Page(page(ReportContent("x", samples={"all": [SampleCard(image, "red")]}))).all("img")
    assert (shown["width"], shown["height"]) == ("256", "85")
    assert image.size == (900, 300)  # the one given is left alone


def test_pictures_stand_upright_and_what_is_transparent_is_white(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned to the right by the camera
    Image.new("RGB", (400, 200), "red").save(tmp_path / "turned.jpg", exif=exif)
    with Image.open(tmp_path / "turned.jpg") as turned:
        assert thumbnail(turned).size == (128, 256)
    assert thumbnail(Image.new("RGBA", (10, 10), (0, 0, 0, 0))).getpixel((5, 5)) == (255, 255, 255)


def test_a_picture_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "half.jpg"
    Image.effect_noise((300, 300), 90).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as half:
        seen = Page(page(ReportContent("x", samples={"all": [SampleCard(half, "grey")]})))
    assert seen.all("img") == [] and "no picture" in seen.text and "grey" in seen.text


def test_48_photographs_make_a_modest_file(tmp_path: Path, content: ReportContent) -> None:
    data = pytest.importorskip("skimage.data")
    photographs = [Image.fromarray(data.astronaut()), Image.fromarray(data.chelsea())]
    cards = [SampleCard(photographs[n % 2], "a person", 0.5, 1.0, ["someone"] * 5, str(n)) for n in range(48)]
    path = tmp_path / "report.html"
    write_report(path, replace(content, samples={"all": cards}))
    assert path.stat().st_size < 1.5e6
    assert len(Page(path.read_text("utf-8")).all("img")) == 48


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=r"report\.html cannot be written"):
        write_report(tmp_path / "nowhere" / "report.html", ReportContent("x"))


def test_picks_best_worst_and_random_without_repeating() -> None:
    found = result(per_image={str(n): {"CIDEr": n / 100} for n in range(100)} | {"none": {"CIDEr": None}})
    chosen = picks(found, random=10, each=10)
    assert {name: len(ids) for name, ids in chosen.items()} == {
        "Taken at random": 10,
        "Best by CIDEr": 10,
        "Worst by CIDEr": 10,
    }
    ids = [id for those in chosen.values() for id in those]
    assert len(set(ids)) == 30
    best, worst = (list(map(int, chosen[f"{name} by CIDEr"])) for name in ("Best", "Worst"))
    assert best == sorted(best, reverse=True) and min(best) >= 80
    assert worst == sorted(worst) and max(worst) < 20
    assert picks(found, random=10, each=10) == chosen != picks(found, random=10, each=10, seed=1)
    # As a report takes them: 50 that nobody chose, then the best and the worst of the others.
    assert [len(ids) for ids in picks(found).values()] == [50, 16, 16]


def test_picks_of_few_or_no_pictures() -> None:
    assert picks(result()) == {}
    few = picks(result(per_image={"a": {"CIDEr": 0.1}, "b": {"CIDEr": 0.2}, "c": {}}), random=2, each=2)
    assert len([id for ids in few.values() for id in ids]) <= 3 and len(few["Taken at random"]) == 2
