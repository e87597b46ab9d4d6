"""The documentation site: it builds without a warning, loads nothing from elsewhere, and finds what is looked for."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

from docs.pages import ROOT

pytest.importorskip("mkdocs", reason='no mkdocs: pip install -e ".[docs]"')

# Elements that a browser fetches by itself; <a href> is a link, and only a person follows it.
OUTSIDE = r'"?(?:https?:)?//'
LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=" + OUTSIDE)
LINKED = re.compile(r'<link\b(?=[^>]*rel="?(?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*href=' + OUTSIDE)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert not LOADED.search(text) and not LINKED.search(text), path
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), path


@pytest.mark.slow
def test_formulas_are_mathml(site: Path) -> None:
    for name in ("mechanisms", "memory", "explain"):
        text = page(site, name)
        assert "<math" in text
        assert "arithmatex" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "anchors"),
    [
        ("captioner", ["meshcap.captioner.Captioner.caption", "meshcap.captioner.Captioner.stream"]),
        ("captioner", ["meshcap.caption.Caption"]),
        ("models", ["meshcap.regions.Regions", "meshcap.models.registry.load_model", "meshcap.models.m2.M2"]),
        ("decoding", ["meshcap.decoding.records.Beam", "meshcap.decoding.records.Rules"]),
        ("metrics", ["meshcap.metrics.score.score"]),
        ("training", ["meshcap.training.settings.TrainSettings"]),
        ("attention", ["meshcap.attention.key_value.KeyValueAttention"]),
        ("memory", ["meshcap.memory.slots.MemorySlots", "meshcap.memory.turing.TuringMachine"]),
        ("explain", ["meshcap.explain.explanation.explain"]),
        ("export", ["meshcap.export.folder.export_captioner"]),
        ("serving", ["meshcap.serving.app.create_app"]),
    ],
)  # fmt: skip
def test_api(site: Path, name: str, anchors: list[str]) -> None:
    text = page(site, f"api/{name}")
    for anchor in anchors:
        assert f'id="{anchor}"' in text


@pytest.mark.slow
def test_every_command_is_told(site: Path) -> None:
    text = page(site, "commands")
    for name in ("caption", "batch", "serve", "data-features", "export"):
        assert f'id="meshcap-{name}"' in text
    for option in ("--min-confidence", "--write-exif", "--must-not", "--leave-out"):
        assert f"<code>{option}</code>" in text


@pytest.mark.slow
def test_search_knows_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"", "quickstart/", "faq/", "api/captioner/", "changelog/"} <= found


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    broken = []
    for path in site.rglob("index.html"):
        for target in re.findall(r'(?:href|src)="([^"]*)"', path.read_text(encoding="utf-8")):
            name = target.partition("#")[0].partition("?")[0]
            if not name or re.match(r"[a-z]+:|//", name):
                continue
            to = path.parent / unquote(name)
            if not (to / "index.html" if to.is_dir() else to).is_file():
                broken.append(f"{path.relative_to(site)}: {target}")
    assert not broken


@pytest.mark.slow
def test_links_out_of_docs_stay_in_the_site(site: Path) -> None:
    assert 'href="changelog/"' in (site / "index.html").read_text(encoding="utf-8")
    assert 'href="../changelog/"' in page(site, "api")
    assert (site / "examples" / "cat.jpg").is_file()


def test_gallery(hooks: ModuleType, tmp_path: Path) -> None:
    assert hooks.gallery(tmp_path / "captions.json") == ""
    (tmp_path / "captions.json").write_text(json.dumps({"dog.jpg": 'A cat & a "dog".'}), encoding="utf-8")
    assert hooks.gallery(tmp_path / "captions.json").splitlines()[1] == (
        '<figure><img src="examples/dog.jpg" alt="" loading="lazy">'
        "<figcaption>A cat &amp; a &quot;dog&quot;.</figcaption></figure>"
    )


def test_the_captioner_in_the_browser_is_linked_where_it_was_built(hooks: ModuleType, tmp_path: Path) -> None:
    assert hooks.try_link(tmp_path) == ""
    for name in ("index.html", "see.onnx.gz", "say.onnx.gz"):
        (tmp_path / name).write_bytes(b"x" * 1_000_000)
    assert "(try/index.html)" in hooks.try_link(tmp_path) and "Loads 2 MB" in hooks.try_link(tmp_path)


def test_links(hooks: ModuleType) -> None:
    assert hooks.from_root("[a](docs/model.md#b) [c](CHANGELOG.md)") == "[a](model.md#b) [c](changelog.md)"
    links = hooks.site_links("[c](../../CHANGELOG.md) [r](../../README.md)", to_root="../../", to_docs="../")
    assert links == "[c](../changelog.md) [r](../index.md)"
    assert hooks.from_root("[`r`](recipes/coco.sh), [e](examples)") == "`r`, e"


def test_missing_pages_leave_the_navigation(hooks: ModuleType) -> None:
    nav = [{"Home": "index.md"}, {"Project": [{"Card": "model-card.md"}, "api/index.md"]}]
    assert hooks.without(nav, {"model-card.md"}) == [{"Home": "index.md"}, {"Project": ["api/index.md"]}]


def test_formula(hooks: ModuleType) -> None:
    content = '<p>So <span class="arithmatex">\\(a &lt; b\\)</span>.</p><div class="arithmatex">\\[x^2\\]</div>'
    found = hooks.on_page_content(content)
    assert found.startswith('<p>So <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">')
    assert "&lt;" in found or "&#x0003C;" in found
    assert '<div class="formula"><math' in found and "<msup>" in found
    with pytest.raises(ValueError, match="empty line"):
        hooks.as_mathml("\\[a$$$$b\\]", block=True)
