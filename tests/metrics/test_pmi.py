"""PMI from the captioner's own log-probabilities, word by word."""

import json
from pathlib import Path

import numpy
import pytest

import tiny_captioner
from meshcap import cli
from meshcap.data.scenes import draw_scene
from meshcap.errors import MeshcapError
from meshcap.metrics import compare_systems, pmi, score
from meshcap.metrics.pmi import pmi_scores

CAPTIONS = ["a dog on the grass", "", "a cat with a dog", "red horse zzz in grass", "a dog on the grass"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five drawn pictures, and a captioner in `model`."""
    folder = tmp_path_factory.mktemp("pmi")
    for number in range(5):
        draw_scene(number, 48).image.save(folder / f"{number}.png")
    tiny_captioner.saved(folder / "model")
    return folder


def paths(folder: Path) -> list[Path]:
    return [folder / f"{number}.png" for number in range(5)]


def test_is_the_difference_of_mean_log_probabilities(folder: Path) -> None:
    captioner = tiny_captioner.build()
    (found,) = pmi_scores(captioner, paths(folder), [CAPTIONS])

    def mean(picture: int, caption: str) -> float:
        return float(numpy.mean(captioner.score(folder / f"{picture}.png", caption).log_probs))

    for number in (0, 2, 4):  # the others hold no word, or one that is unknown
        here, *others = [mean(k, CAPTIONS[number]) for k in (number, *(set(range(5)) - {number}))]
        assert found.per_image[number] == pytest.approx(here - numpy.mean(others), abs=1e-4)
    assert found.per_image[0] != pytest.approx(found.per_image[4], abs=1e-4)  # the same caption of other pictures
    assert found.corpus() == pytest.approx(found.per_image.mean())
    assert numpy.isfinite(found.per_image).all()


def test_an_unknown_word_is_read_but_does_not_count(folder: Path) -> None:
    captioner = tiny_captioner.build()
    vocabulary, eos = captioner.vocabulary, captioner.backend.settings.eos
    ids = [*vocabulary.encode(CAPTIONS[3].split()), eos]
    assert ids.count(vocabulary.unk) == 1

    def mean(picture: int) -> float:
        seen = captioner.see([captioner.read(folder / f"{picture}.png")])
        values = numpy.array(captioner.backend.score(seen, [ids])[0])
        return float(values[[id != vocabulary.unk for id in ids]].mean())

    found = pmi.pmi(captioner, paths(folder), CAPTIONS)
    assert found[3] == pytest.approx(mean(3) - numpy.mean([mean(k) for k in (0, 1, 2, 4)]), abs=1e-4)


def test_rows_of_one_picture_batches_and_long_captions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = tiny_captioner.build()
    long = " ".join(["a dog"] * 200)
    pictures = [folder / "0.png"] * 4 + [folder / "1.png"]
    captions = ["a dog", "a cat", long, "a dog", "a dog"]
    whole = pmi.pmi(captioner, pictures, captions)
    assert whole[0] == whole[3] and whole[0] == pytest.approx(-whole[4], abs=1e-5)  # of two, each is the other's other
    monkeypatch.setattr(pmi, "BATCH", 1)
    assert pmi.pmi(captioner, pictures, captions) == pytest.approx(whole, abs=1e-4)


def test_through_score(folder: Path) -> None:
    captioner = tiny_captioner.build()
    said = dict(enumerate(CAPTIONS))
    found = score(said, None, model=captioner, pictures=folder, bootstrap=20)
    assert list(found.scores) == ["PMI"] and "|PMI:torch,others=5|" in found.signature
    assert found.scores["PMI"] == pytest.approx(pmi.pmi(captioner, paths(folder), CAPTIONS).mean())
    both = score(said, {k: ["a dog"] for k in said}, model=captioner, pictures=folder, metrics="cider", bootstrap=0)
    assert list(both.scores) == ["CIDEr", "PMI"] and both.scores["PMI"] == pytest.approx(found.scores["PMI"])
    several = compare_systems({"a": said, "b": dict.fromkeys(said, "a cat")}, None, model=captioner, pictures=folder)
    assert several.results["a"].scores["PMI"] == pytest.approx(found.scores["PMI"], abs=1e-5)
    with pytest.raises(MeshcapError, match="PMI needs the pictures"):
        score(said, None, model=captioner)
    with pytest.raises(MeshcapError, match="there are no references"):
        score(said, None)
    with pytest.raises(MeshcapError, match="expected captions of two or more"):
        score({0: "a dog"}, None, model=captioner, pictures=folder)


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "said.json"
    file.write_text(json.dumps({str(k): caption for k, caption in enumerate(CAPTIONS)}))

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["score", *(str(word) for word in words)])
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, _ = call(file, "--model", folder / "model", "--pictures", folder, "--json", "--bootstrap", 0)
    found = json.loads(out)
    assert code == 0 and list(found["scores"]) == ["PMI"] and "|PMI:model,others=5|" in found["signature"]
    assert found["per_image"]["0"]["PMI"] == pytest.approx(
        float(pmi.pmi(tiny_captioner.build(), paths(folder), CAPTIONS)[0]),
        abs=0.05,  # in bfloat16, where a CPU multiplies such
    )
    for words, message in (
        (("--model", folder / "model"), "--model needs --pictures"),
        (("--pictures", folder), "--pictures is for CLIPScore, which needs --clip, and for PMI"),
        ((), "give --references"),
    ):
        code, _, err = call(file, *words)
        assert code == 2 and message in err and err.count("\n") == 1
