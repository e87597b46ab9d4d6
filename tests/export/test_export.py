"""What an exported captioner says is what the captioner says, of photographs."""

import copy
from pathlib import Path

import pytest
import torch

import exported
import tiny
from meshcap import Captioner, MeshcapError
from meshcap.decoding import Beam
from meshcap.export import compare, export_captioner
from meshcap.export.graphs import folded, parts_of
from meshcap.vision import create_vision
from meshcap.vision.vit import ViT

pytest.importorskip("onnxscript")
RUNTIMES = {"onnx": "onnx", "torch": "torch-export"}


@pytest.fixture(params=list(RUNTIMES), scope="module")
def one(request: pytest.FixtureRequest) -> Captioner:
    return Captioner.from_pretrained(exported.folder(request.param))


def test_the_same_captions(one: Captioner) -> None:
    ours = exported.captioner()
    for beams in (1, 5):
        found = compare(ours, one, exported.pictures(), beams=beams)
        assert (found.same, found.pictures, found.differing) == (6, 6, ())
        assert found.largest < 1e-4
    captions = ours.caption(exported.pictures())
    assert len({caption.text for caption in captions}) > 2  # captions depend on the picture


def test_any_number_of_pictures_and_hypotheses(one: Captioner) -> None:
    ours, pictures = exported.captioner(), exported.pictures()
    for count, beams in ((1, 1), (1, 2), (2, 1), (3, 7)):
        for a, b in zip(
            ours.caption(pictures[:count], strategy=Beam(beams), n=beams),
            one.caption(pictures[:count], strategy=Beam(beams), n=beams),
            strict=True,
        ):
            assert [x.words for x in (a, *a.alternatives)] == [x.words for x in (b, *b.alternatives)]
            assert a.score == pytest.approx(b.score, abs=1e-4)
            assert a.confidence == pytest.approx(b.confidence, abs=1e-4)
            assert (a.text, a.finished) == (b.text, b.finished)


def test_options_mean_the_same(one: Captioner) -> None:
    ours, picture = exported.captioner(), exported.pictures()[1]
    plain = ours.caption(picture)
    for options in (
        {"strategy": "greedy"},
        {"must_not": plain.words[:1]},
        {"max_words": 3, "min_words": 3},
        {"max_words": 3},
        {"must_not": plain.words[0].upper()},
        {"must_not": "dog red|" + " ".join(plain.words[:2])},
        {"no_repeat_ngram": 1, "good_endings": False},
        {"strategy": Beam(4, length_penalty=1.0), "n": 4},
        {"n": 4, "groups": 2},
        {"must": ["Dog|ball", "of"]},
        {"strategy": "sample", "top_k": 1, "seed": 1},
    ):
        a, b = ours.caption(picture, **options), one.caption(picture, **options)
        assert [x.words for x in (a, *a.alternatives)] == [x.words for x in (b, *b.alternatives)], options
        assert a.score == pytest.approx(b.score, abs=1e-4)
        assert (a.warning, a.missing) == (b.warning, b.missing)
    theirs, own = (captioner.score(picture, ["a red dog", "ball"]) for captioner in (one, ours))
    for a, b in zip(theirs, own, strict=True):
        assert a.words == b.words and a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
    for options, message in (
        ({"attention": True}, "attention is not part of an exported model"),
        ({"must_not": ["zebra"]}, "zebra"),
        ({"max_words": 99}, "at most 13 words"),
    ):
        with pytest.raises(MeshcapError, match=message):
            one.caption(picture, **options)
    with pytest.raises(MeshcapError, match="no pictures"):
        one.caption([])


def test_a_calibration_travels_along(one: Captioner) -> None:
    ours, told = (each.caption(exported.pictures()[0]) for each in (exported.captioner(), one))
    assert told.probability == pytest.approx(ours.probability, abs=1e-4)
    assert told.confidence == pytest.approx(ours.confidence, abs=1e-4)
    mean = sum(told.log_probs) / len(told.log_probs)
    assert told.confidence == pytest.approx(0.75 + mean / 6, abs=1e-4)  # the line from (-3, 0.25) to (0, 0.75)


def test_folders_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(MeshcapError, match="not an empty folder"):
        export_captioner(exported.captioner(), tmp_path / "full")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meshcap.export.folder.torch.export.save", no_room)
    with pytest.raises(MeshcapError, match="No space left"):
        export_captioner(exported.captioner(), tmp_path / "new", format="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = exported.captioner()
    blind = Captioner(tiny.build("m2"), ours.vocabulary)
    packed = copy.deepcopy(ours).optimize()
    for captioner, options, message in (
        (blind, {}, "precomputed features"),
        (packed, {}, "optimized in place and cannot be exported"),
        (ours, {"bits": 16}, "expected 8 or 32"),
        (ours, {"bits": 8, "format": "torch"}, "keep weights in 32 bits"),
        (ours, {"format": "tflite"}, "expected onnx or torch"),
    ):
        with pytest.raises(MeshcapError, match=message):
            export_captioner(captioner, tmp_path / "out", **options)
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(MeshcapError, match=r"pip install 'meshcap\[export\]'"):
        export_captioner(ours, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_state_that_no_search_on_arrays_can_move_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("m2")
    regions = tiny.pictures(4, 4, 4)
    begin = type(model).start

    def start(self, encoded, *, width, length):
        return {**begin(self, encoded, width=width, length=length), "odd": torch.zeros(width + length)}

    monkeypatch.setattr(type(model), "start", start)
    with pytest.raises(MeshcapError, match="odd has an axis"):
        parts_of(model, regions)


def test_an_exported_folder_is_no_model(one: Captioner) -> None:
    with pytest.raises(MeshcapError, match="holds an exported model"):
        Captioner.from_pretrained(exported.folder("onnx"), backend="torch")
    with pytest.raises(MeshcapError, match="runs on the CPU"):
        Captioner.from_pretrained(exported.folder("onnx"), dtype=torch.bfloat16)
    with pytest.raises(MeshcapError, match=r"has no see\.pt2"):
        Captioner.from_pretrained(exported.folder("onnx"), backend="torch-export")
    for use in (lambda: one.model, lambda: one.save_pretrained("x"), lambda: one.to("cpu")):
        with pytest.raises(MeshcapError, match=r"export|has no model in torch"):
            use()


def test_folding_changes_nothing() -> None:
    vision = create_vision("efficientnet-lite2", size=64)
    with torch.no_grad():
        for name, weight in vision.named_parameters():
            weight.mul_(1.1).add_(0.01 if name.endswith("shift") else 0)
        pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
        before, after = vision(pixels).features, folded(vision)(pixels).features
    assert torch.allclose(before, after, atol=1e-3 * before.abs().max().item())
    assert before.abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.names())
@pytest.mark.parametrize("format", list(RUNTIMES))
def test_every_captioner(name: str, format: str, tmp_path: Path) -> None:
    vision = create_vision("small-cnn", channels=(16, 16), size=48)
    ours = exported.small(name, vision)
    export_captioner(ours, tmp_path / "out", format=format)
    one = Captioner.from_pretrained(tmp_path / "out", backend=RUNTIMES[format])
    for beams in (1, 5):
        found = compare(ours, one, exported.pictures(), beams=beams)
        assert found.same == found.pictures, found.differing


@pytest.mark.slow
def test_what_was_read_in_few_bits_is_exported_in_8_without_loss(tmp_path: Path) -> None:
    vision = ViT(width=128, layers=2, heads=2, d_ff=128, patch=16, grid=4)
    exported.small("m2", vision, d_model=64, d_ff=128).save_pretrained(tmp_path / "six", bits=6)
    ours = Captioner.from_pretrained(tmp_path / "six", dtype="float32")
    export_captioner(ours, tmp_path / "out", bits=8)
    found = compare(ours, Captioner.from_pretrained(tmp_path / "out"), exported.pictures())
    assert (found.same, found.pictures) == (6, 6), found.differing
    assert found.largest < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("format", "bits"), [("onnx", 32), ("torch", 32), ("onnx", 8)])
def test_efficientnet(format: str, bits: int, tmp_path: Path) -> None:
    ours = exported.small("m2", create_vision("efficientnet-lite2", size=128), d_model=64, d_ff=256)
    export_captioner(ours, tmp_path / "out", format=format, bits=bits)
    one = Captioner.from_pretrained(tmp_path / "out", backend=RUNTIMES[format])
    found = compare(ours, one, exported.pictures())
    assert found.same >= (6 if bits == 32 else 4), found.differing


@pytest.mark.slow
@pytest.mark.parametrize("format", list(RUNTIMES))
def test_vision_transformer(format: str, tmp_path: Path) -> None:
    """Any number of pictures at once: the size of a batch must not be taken for granted."""
    ours = exported.small("m2", ViT(width=64, layers=2, heads=2, d_ff=128, patch=16, grid=4))
    export_captioner(ours, tmp_path / "out", format=format)
    one = Captioner.from_pretrained(tmp_path / "out", backend=RUNTIMES[format])
    found = compare(ours, one, exported.pictures())
    assert found.same == found.pictures, found.differing
