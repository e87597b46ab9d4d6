"""The page without a server: its scripts say what Python says, and the folder is whole or not there."""

import gzip
import io
import json
import os
import random
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import exported
from benchmarks.web import measure
from meshcap import Captioner, MeshcapError
from meshcap.backends.base import Backend
from meshcap.calibration import SIGNALS, Calibration
from meshcap.decoding.array_search import search_arrays
from meshcap.export import export_captioner, web
from meshcap.folders import PACKAGED
from meshcap.options import CaptionOptions
from meshcap.text import Vocabulary
from meshcap.vision.preprocess import to_square
from serving.browser import find

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
WORDS = """
<unk> <pad> <bos> <eos> a dog dogs red ball of the on wearing tv 's and cat cats n't do standing next to " ' -lrb- -rrb-
""".split()
CALIBRATION = Calibration({"mean": 4.0, "lowest third": 0.5, "length": -1.0}, (-30.0, -9.0, -3.0), (0.1, 0.5, 0.8))

DRIVER = """
import { readFileSync } from "node:fs";
import { search } from "./search.js";
import { Language, confidence } from "./sentence.js";
import { square } from "./pictures.js";

const { model, table, asked, sentences, chances, pictures } = JSON.parse(readFileSync(0));
const language = new Language(model);
const rows = table && Float32Array.from(table);
const said = {};
if (asked) said.captions = await Promise.all(asked.map(async (options) => {
  try {
    const { strategy, rules } = language.plan(options);
    const size = model.words.length;
    let before = null; // the words before the last ones
    let last = null;
    const step = (words) => {
      [before, last] = [last || words.map(() => 0), words];
      const starts = words.map((word, at) => (before[at] * size + word) * size);
      return starts.map((start) => rows.slice(start, start + size));
    };
    const reorder = (parents) => { last = parents.map((parent) => last[parent]); };
    const found = await search(model.settings, step, reorder, strategy, rules);
    return language.captions(found, options, model.calibration);
  } catch (error) {
    return { error: error.message };
  }
}));
if (sentences) said.sentences = sentences.map(([words, finished]) => language.sentence(words, finished));
if (chances) said.confidences = chances.map(([one, calibration]) => confidence(one, calibration));
if (pictures) said.pictures = pictures.map(({ width, height, hex, size, geometry, preResize }) => {
  const data = Uint8ClampedArray.from(Buffer.from(hex, "hex"));
  const found = square({ width, height, data }, size, geometry, preResize);
  return Array.from(found.data).filter((_, at) => at % 4 < 3);
});
process.stdout.write(JSON.stringify(said));
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for path in web.SCRIPTS.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "driver.js").write_text(DRIVER)
    return folder


def run(scripts: Path, **given: Any) -> Any:
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(scripts / "driver.js")], input=json.dumps(given), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Table(Backend):
    """Log-probabilities of a word after any two: a model with a state that follows its hypothesis."""

    name = "table"
    preprocess = None

    def __init__(self, seed: int):
        size = len(WORDS)
        given = np.random.default_rng(seed).normal(0, 2.5, (size, size, size)).astype(np.float32)
        given[..., 3] += 1.5  # captions end
        self.table = (given - np.log(np.exp(given).sum(-1, keepdims=True))).astype(np.float32)

        class Settings:
            vocab_size, max_length, unk, pad, bos, eos = size, 14, 0, 1, 2, 3

        self.settings = Settings()

    def search(self, seen: Any, strategy: Any, rules: Any, *, n_best: int = 1, **_: Any) -> Any:
        state: dict[str, Any] = {"before": np.zeros((1, strategy.width), int), "last": None}

        def step(ids: np.ndarray) -> np.ndarray:
            state["before"] = np.zeros_like(ids) if state["last"] is None else state["last"]
            state["last"] = ids
            return self.table[state["before"], ids].copy()

        def reorder(parents: np.ndarray) -> None:
            state["last"] = np.take_along_axis(state["last"], parents, 1)

        return search_arrays(self.settings, step, reorder, strategy, rules, pictures=1, n_best=n_best)

    def see(self, pixels: Any) -> Any: ...
    def score(self, seen: Any, ids: Any) -> Any: ...
    def optimize(self) -> None: ...
    def check(self, seen: Any) -> None: ...


def about(captioner: Captioner) -> dict[str, Any]:
    settings = captioner.backend.settings
    names = ("vocab_size", "max_length", "unk", "pad", "bos", "eos")
    return web.about_model(captioner, {**{name: getattr(settings, name) for name in names}, "state": []})


def in_python(captioner: Captioner, options: dict[str, Any]) -> Any:
    try:
        [best] = captioner.describe(None, CaptionOptions.parse(options, attention=False, tags=False))
    except MeshcapError as error:
        return str(error)
    return [best, *best.alternatives]


@needs_node
@pytest.mark.parametrize("seed", [1, 3])
def test_the_search_in_javascript_is_python_s(scripts: Path, seed: int) -> None:
    captioner = Captioner(Table(seed), Vocabulary(WORDS), calibration=CALIBRATION)
    asked: list[dict[str, Any]] = [
        {},
        {"n": "4"},
        {"n": "3", "beams": "8"},
        {"beams": "1"},
        {"max_words": "4", "n": "2"},
        {"max_words": "1"},
        {"must_not": "dog, red ball"},
        {"must_not": "a|of the, Cat"},
        {"must": "ball"},
        {"must": "red|cat, Dog's", "n": "3"},
        {"must": "dog, dogs, tv", "must_not": "dog", "beams": "3"},
        {"must": "dogs, standing next to, cat", "must_not": "dog", "beams": "3"},
        {"must": "zebra"},
        {"must_not": "okapi"},
        {"max_words": "99"},
    ]
    model = about(captioner)
    found = run(scripts, model=model, table=captioner.backend.table.ravel().tolist(), asked=asked)["captions"]  # type: ignore[attr-defined]
    assert any(one.get("shortened") for one in found)
    for options, ours in zip(asked, found, strict=True):
        theirs = in_python(captioner, options)
        if isinstance(theirs, str):
            assert "error" in ours, (options, theirs)
            assert ours["error"].split(":")[0].split(",")[0] == theirs.split(":")[0].split(",")[0]
            continue
        ours = [ours, *ours.get("alternatives", [])]
        assert [one["caption"] for one in ours] == [one.text for one in theirs], options
        for one, other in zip(ours, theirs, strict=True):
            assert [word["word"] for word in one["words"]] == other.words
            chances = [word["probability"] for word in one["words"]]
            assert chances == pytest.approx(np.exp(other.log_probs[: len(chances)]), rel=1e-4)
            assert one["score"] == pytest.approx(other.score, abs=1e-5)
            assert one["confidence"] == pytest.approx(other.confidence, abs=1e-5)
            assert one["probability"] == pytest.approx(other.probability, rel=1e-5)
            assert (one["finished"], one["missing"]) == (other.finished, other.missing)
            assert bool(one.get("warning")) == bool(other.warning)
            assert one.get("shortened", False) == other.shortened


@needs_node
def test_varied_captions_are_drawn_by_their_probability(scripts: Path) -> None:
    captioner = Captioner(Table(1), Vocabulary(WORDS))
    asked = [{"strategy": "sample", "temperature": str(heat), "n": "10"} for heat in (0.01, 1.0) for _ in range(20)]
    table = captioner.backend.table.ravel().tolist()  # type: ignore[attr-defined]
    found = run(scripts, model=about(captioner), table=table, asked=asked)["captions"]
    cold, warm = ({one["caption"] for one in part} for part in (found[:20], found[20:]))
    [greedy] = captioner.describe(None, strategy="greedy")  # type: ignore[arg-type]
    assert cold == {greedy.text} and len(warm) > 4


@needs_node
def test_sentences_and_confidence_in_javascript(scripts: Path) -> None:
    """Of the vocabulary in the package, with everything odd that it holds."""
    vocabulary = Vocabulary.load(PACKAGED / "vocabulary.json")
    known = "tv i dvd new york big ben can not".split()
    odd = [one for one in vocabulary.words[4:] if not one.isalpha() or one in known]
    draw = random.Random(0)
    lists = [
        [draw.choice(odd if draw.random() < 0.4 else vocabulary.words[4:]) for _ in range(draw.randint(1, 12))]
        for _ in range(3000)
    ] + [["a", one] for one in vocabulary.words[4:]]
    captioner = Captioner(Table(1), Vocabulary(WORDS))
    model = {**about(captioner), "words": vocabulary.words, "sentence": web.sentence_tables(vocabulary)}
    chances = [[min(0.0, draw.gauss(-1, 1)) for _ in range(draw.randint(1, 20))] for _ in range(200)]
    weights = {name: draw.random() for name in SIGNALS}
    calibration = Calibration(weights, (-8.0, -2.0, 1.0), (0.1, 0.7, 0.9))
    told = {"weights": weights, "x": calibration.x, "y": calibration.y}
    sentences = [[words, finished] for words in lists for finished in (True, False)]
    found = run(scripts, model=model, sentences=sentences, chances=[[one, told] for one in chances])
    for (words, finished), text in zip(sentences, found["sentences"], strict=True):
        if words[-1] in ("n't", "n’t"):
            continue  # of nonsense such as "romann't" the tokenizer has opinions of its own
        assert text == vocabulary.sentence([*words, "<eos>"] if finished else words), words
    assert found["confidences"] == pytest.approx([calibration.apply(one) for one in chances])


@needs_node
def test_pictures_are_resized_as_pillow_does(scripts: Path) -> None:
    cases = [
        ((57, 40), "squash", 0), ((31, 47), "crop", 0), ((24, 24), "squash", 0), ((200, 163), "squash", 0),
        ((170, 211), "crop", 0), ((90, 60), "squash", 40), ((9, 300), "crop", 0),
    ]  # fmt: skip
    pictures, expected = [], []
    for number, (size, geometry, pre_resize) in enumerate(cases):
        noise = np.random.default_rng(number).integers(60, 196, (size[1], size[0], 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        expected.append(np.asarray(to_square(image, 24, geometry, pre_resize)).ravel().tolist())
        told = {"size": 24, "geometry": geometry, "preResize": pre_resize}
        pictures.append({"width": size[0], "height": size[1], "hex": image.convert("RGBA").tobytes().hex(), **told})
    found = run(scripts, model=about(Captioner(Table(1), Vocabulary(WORDS))), pictures=pictures)["pictures"]
    for case, ours, theirs in zip(cases, found, expected, strict=True):
        # To the last bit; Pillow 13 resizes tall pictures in the other order, rows last, which rounds otherwise.
        (wide, high), *_ = case
        assert np.abs(np.subtract(ours, theirs)).max() <= (wide < high), case


# The folder.

DIST = {
    "ort.wasm.min.mjs": b"import('ort-wasm-simd-threaded.mjs')\n//# sourceMappingURL=ort.map\n",
    "ort-wasm-simd-threaded.mjs": b"glue", "ort-wasm-simd-threaded.wasm": b"wasm" * 1000,
    "ort.webgpu.min.mjs": b"import('ort-wasm-simd-threaded.asyncify.mjs')",
    "ort-wasm-simd-threaded.asyncify.mjs": b"glue 2", "ort-wasm-simd-threaded.asyncify.wasm": b"wasm 2",
    "ort.all.min.mjs": b"not needed",
}  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `npm pack` makes it, with a link that nobody may follow."""
    path = tmp_path_factory.mktemp("npm") / "onnxruntime-web-9.9.9.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in DIST.items():
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("package/dist/ort-wasm-simd-threaded.jsep.wasm")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return path


@pytest.fixture(scope="module")
def written(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("web") / "page"
    names = [path.name for path in web.export_web(exported.captioner(), folder, runtime=package, name="tiny")]
    assert names == sorted(path.name for path in folder.iterdir())
    return folder


def test_all_that_the_page_asks_for_is_there(written: Path) -> None:
    model = json.loads((written / "model.json").read_text(encoding="utf-8"))
    html = (written / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:src|href)="(?!data:|#)([^"]+)"', html)) - {"docs"}
    for script in written.glob("*.js"):
        named |= {name.removeprefix("./") for name in re.findall(r'(?:from|import) "([^"]+)"', script.read_text())}
    for one in model["runtime"].values():
        named |= {one["main"], one["glue"], one["wasm"]["name"]}
    named |= {one["name"] for one in model["files"].values()} | {"captioner.js", "offline.js", "model.json"}
    assert named <= {path.name for path in written.iterdir()}
    for told in (*model["files"].values(), *(one["wasm"] for one in model["runtime"].values())):
        content = (written / told["name"]).read_bytes()
        assert (len(content), len(gzip.decompress(content))) == (told["bytes"], told["size"])
    assert gzip.decompress((written / "ort-wasm-simd-threaded.wasm.gz").read_bytes()) == b"wasm" * 1000
    assert b"sourceMappingURL" not in (written / "ort.wasm.js").read_bytes()
    assert model["name"] == "tiny" and model["words"][:4] == ["<unk>", "<pad>", "<bos>", "<eos>"]
    # The worker that keeps the files knows all of them but itself.
    offline = (written / "offline.js").read_text()
    files = json.loads(re.search(r"const FILES = (.+);", offline)[1])  # type: ignore[index]
    assert sorted([*files, "offline.js"]) == sorted(path.name for path in written.iterdir())


def test_nothing_of_the_page_comes_from_elsewhere(written: Path) -> None:
    assert f'content="{web.POLICY}"' in (written / "index.html").read_text(encoding="utf-8")
    own = [*web.SCRIPTS.glob("*.js"), *web.PAGE.iterdir()]
    assert len(own) > 6
    for path in own:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|innerHTML|insertAdjacentHTML|document\.write|eval\(", text), path


def test_the_graphs_are_those_of_the_onnx_backend(written: Path, tmp_path: Path) -> None:
    """Unpacked, the page's files are an exported model."""
    model = json.loads((written / "model.json").read_text(encoding="utf-8"))
    for one in ("see", "say"):
        (tmp_path / f"{one}.onnx").write_bytes(gzip.decompress((written / f"{one}.onnx.gz").read_bytes()))
    ours = exported.captioner()
    ours.vocabulary.save(tmp_path / "vocabulary.json")
    settings = {key: value for key, value in model["settings"].items() if key not in ("tokenizer", "words")}
    (tmp_path / "runtime.json").write_text(json.dumps({**settings, "state": model["state"]}))
    theirs = Captioner.from_pretrained(tmp_path)
    for picture in exported.pictures():
        assert theirs.caption(picture).text == ours.caption(picture).text


def test_what_is_no_runtime(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old" / "dist").mkdir(parents=True)
    (tmp_path / "broken.tgz").write_bytes(package.read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    for runtime in ("nothing", "empty", "broken.tgz", "old"):
        with pytest.raises(MeshcapError, match="npm pack onnxruntime-web") as error:
            web.export_web(exported.captioner(), tmp_path / "page", runtime=tmp_path / runtime)
        assert "\n" not in str(error.value)
    (tmp_path / "empty" / "file").touch()
    with pytest.raises(MeshcapError, match="not an empty folder"):
        web.export_web(exported.captioner(), tmp_path / "empty", runtime=package)

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(web, "export_captioner", no_room)
    with pytest.raises(MeshcapError, match="No space left"):
        web.export_web(exported.captioner(), tmp_path / "page", runtime=package)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.tgz", "empty", "old"]  # nothing half-written


def test_a_runtime_that_is_a_link_to_elsewhere(tmp_path: Path) -> None:
    """The page is for everybody to read."""
    (tmp_path / "secret").write_bytes(b"key")
    (tmp_path / "dist").mkdir()
    for name, content in DIST.items():
        (tmp_path / "dist" / name).write_bytes(content)
    read = web.runtime_reader(tmp_path)
    assert read("ort.wasm.min.mjs") == DIST["ort.wasm.min.mjs"]
    (tmp_path / "dist/ort.wasm.min.mjs").unlink()
    (tmp_path / "dist/ort.wasm.min.mjs").symlink_to(tmp_path / "secret")
    with pytest.raises(MeshcapError, match="is a link to elsewhere"):
        read("ort.wasm.min.mjs")


def test_a_runtime_that_asks_for_too_much(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(len(content) for name, content in DIST.items() if name != "ort.all.min.mjs")
    for name, most in (("MOST", total), ("WHOLE", 2**15)):
        monkeypatch.setattr(web, name, most)
        assert web.runtime_reader(package)("ort.wasm.min.mjs") == DIST["ort.wasm.min.mjs"]
        monkeypatch.setattr(web, name, most - 1 if name == "MOST" else 2**12)
        with pytest.raises(MeshcapError, match="holds more than"):
            web.runtime_reader(package)
        monkeypatch.undo()


RUNTIME = Path(os.environ.get("ONNXRUNTIME_WEB", Path(__file__).parents[2] / "node_modules" / "onnxruntime-web"))


@pytest.mark.slow
@pytest.mark.skipif(find() is None or not RUNTIME.exists(), reason="no Chromium, or no onnxruntime-web")
def test_the_browser_says_what_python_says(tmp_path: Path) -> None:
    """The captioner in the package, of examples/, on a host that sends no headers but files."""
    captioner = Captioner.from_pretrained(dtype="float32", device="cpu")
    export_captioner(captioner, tmp_path / "onnx", bits=8)
    web.export_web(captioner, tmp_path / "web", runtime=RUNTIME)
    pictures = sorted((Path(__file__).parents[2] / "examples").glob("*.jpg"))
    found = measure(tmp_path / "web", pictures)
    theirs = Captioner.from_pretrained(tmp_path / "onnx").caption(list(pictures))
    assert found.captions == [one.text for one in theirs]
    assert found.complaints == []
    assert found.ready["threads"] > 1 or os.cpu_count() == 1  # the service worker made them possible
