"""`meshcap score` as people call it."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from meshcap import cli
from meshcap.metrics import score

REFERENCES = {
    "1": ["a dog runs in the park", "the dog is running outside"],
    "2": ["two red boats sail slowly home", "boats on the water"],
    "3": ["a man eats three green apples", "someone with fruit"],
}
CANDIDATES = {"1": "a dog runs in the garden", "2": "red boats sail on water", "3": "a man eats three green apples"}
OTHERS = {"1": "the dog is running outside", "2": "boats on the water", "3": "a man eats"}


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["score", *(str(word) for word in words)])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "refs.json", REFERENCES)
    write(tmp_path / "a.json", CANDIDATES)
    write(tmp_path / "b.json", OTHERS)
    return tmp_path


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_json_is_what_python_gives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, folder / "a.json", "--references", folder / "refs.json", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found)[:4] == ["scores", "intervals", "per_image", "signature"]
    assert list(found["scores"]) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]
    assert found == score(CANDIDATES, REFERENCES).to_dict()


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, folder / "a.json", "--references", folder / "refs.json")
    assert (code, err) == (0, "")
    found = score(CANDIDATES, REFERENCES)
    assert "× 100" in out and "95 % interval" in out
    (row,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["CIDEr"])
    low, high = found.intervals["CIDEr"]
    assert row[1:] == [f"{100 * found.scores['CIDEr']:.2f}", f"{100 * low:.2f}", "–", f"{100 * high:.2f}"]
    assert out.splitlines()[-1] == found.signature
    code, out, _ = call(capsys, folder / "a.json", "--references", folder / "refs.json", "--bootstrap", 0)
    assert code == 0 and "–" not in out


def test_against(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (folder / "a.json", "--references", folder / "refs.json", "--against", folder / "b.json", "--seed", 3)
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "A − B" in out and "p" in out.split()
    code, out, _ = call(capsys, *words, "--json")
    found = json.loads(out)["against"]
    assert found["scores"] == score(OTHERS, REFERENCES).scores
    apart = found["differences"]["CIDEr"]
    ours, theirs = (score(captions, REFERENCES).scores["CIDEr"] for captions in (CANDIDATES, OTHERS))
    assert apart["difference"] == pytest.approx(ours - theirs)
    assert 0 < apart["p"] <= 1
    code, out, _ = call(capsys, folder / "a.json", *words[1:3], "--against", folder / "a.json", "--json")
    assert {found["p"] for found in json.loads(out)["against"]["differences"].values()} == {1}


def test_coco_and_karpathy_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [{"image_id": int(id), "caption": caption} for id, caption in CANDIDATES.items()]
    annotations = [{"image_id": int(id), "caption": text} for id, texts in REFERENCES.items() for text in texts]
    coco = {"images": [{"id": int(id)} for id in REFERENCES], "annotations": annotations}
    images = [
        {"filename": f"{id}.jpg", "imgid": int(id), "split": "val", "sentences": [{"raw": text} for text in texts]}
        for id, texts in REFERENCES.items()
    ]
    write(folder / "results.json", results)
    write(folder / "coco.json", coco)
    (folder / "karpathy.json.gz").write_bytes(gzip.compress(json.dumps({"images": images}).encode()))
    expected = score(CANDIDATES, REFERENCES).scores
    for name, *more in (("coco.json",), ("karpathy.json.gz", "--split", "val")):
        code, out, _ = call(capsys, folder / "results.json", "--references", folder / name, *more, "--json")
        assert code == 0
        assert json.loads(out)["scores"] == expected


def test_nocaps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    domains = ["in-domain", "near-domain", "near-domain"]
    images = [{"id": int(id), "domain": domain} for id, domain in zip(REFERENCES, domains, strict=True)]
    annotations = [{"image_id": int(id), "caption": text} for id, texts in REFERENCES.items() for text in texts]
    write(folder / "nocaps.json", {"images": images, "annotations": annotations})
    words = (folder / "a.json", "--references", folder / "nocaps.json")
    _, out, _ = call(capsys, *words)
    assert "in-domain (1)" in out and "near-domain (2)" in out and "overall (3)" in out
    _, out, _ = call(capsys, *words, "--json")
    assert list(json.loads(out)["domains"]) == ["in-domain", "near-domain", "overall"]


def test_table_of_pictures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "each.csv"
    assert call(capsys, folder / "a.json", "--references", folder / "refs.json", "--out", path)[0] == 0
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = score(CANDIDATES, REFERENCES)
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert [row["caption"] for row in rows] == list(CANDIDATES.values())
    assert [float(row["CIDEr"]) for row in rows] == [each["CIDEr"] for each in found.per_image.values()]
    where = folder / "none" / "x.csv"
    mistake(call(capsys, folder / "a.json", "--references", folder / "refs.json", "--out", where), "written")


def test_warnings_are_on_stderr_and_in_the_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "a.json", {"1": "", "2": "boats"})
    write(folder / "b.json", {"1": "a dog", "2": "boats", "3": "x"})
    words = (folder / "a.json", "--references", folder / "refs.json", "--subset", "--json")
    code, out, err = call(capsys, *words, "--against", folder / "b.json")
    assert code == 0
    lines = [
        "1 picture has references and no candidate (first: '3'): left out",
        "1 of 2 candidates is empty: scored as such",
    ]
    assert json.loads(out)["warnings"] == lines
    assert err == "".join(f"warning: {line}\n" for line in lines)


def test_everything_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "best.json", {id: [caption, "something else"] for id, caption in CANDIDATES.items()})
    write(folder / "training.json", {"x": ["A man eats three green apples."]})
    write(folder / "objects.json", {"1": ["dog"], "2": [], "3": ["person"]})
    (folder / "synonyms.txt").write_text("dog, puppy\nperson, man\nboat\ngarden\n")
    words = (folder / "best.json", "--references", folder / "refs.json", "--training", folder / "training.json")
    more = ("--objects", folder / "objects.json", "--metrics", "cider,cider-plain", "--tokenizer", "unicode")
    code, out, _ = call(capsys, *words, *more, "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["scores"]) == ["CIDEr", "CIDEr-plain", "CHAIR-i", "CHAIR-s"]
    assert found["scores"]["CHAIR-s"] == 0
    assert found["diversity"]["unseen"] == 2 / 3
    assert "tokenizer:unicode" in found["signature"]
    code, out, _ = call(capsys, *words, *more, "--synonyms", folder / "synonyms.txt")
    assert code == 0
    assert "self-CIDEr" in out and "66.7 %" in out
    assert "CHAIR:synonyms=synonyms.txt" in out
    assert next(line.split()[1] for line in out.splitlines() if "CHAIR-s" in line) == "33.33"  # the garden


def mistake(done: tuple[int, str, str], message: str) -> None:
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refs = ("--references", folder / "refs.json")
    mistake(call(capsys, folder / "none.json", *refs), "none.json cannot be read: No such file or directory")
    mistake(call(capsys, folder / "a.json", "--references", folder), "cannot be read: Is a directory")
    mistake(call(capsys, folder / "a.json", *refs, "--metrics", "bleurt"), "there is no metric 'bleurt'")
    mistake(call(capsys, folder / "a.json", *refs, "--split", "val"), "has no splits")
    mistake(call(capsys, folder / "a.json", *refs, "--synonyms", folder / "x"), "--synonyms is for CHAIR")
    mistake(call(capsys, folder / "a.json", *refs, "--pictures", folder), "--pictures is for CLIPScore")
    mistake(call(capsys, folder / "a.json", *refs, "--clip", folder), "--clip needs --pictures")
    mistake(
        call(capsys, folder / "a.json", *refs, "--clip", folder, "--pictures", folder), "3 of 3 pictures are not in"
    )
    write(folder / "b.json", {"1": "a"})
    mistake(call(capsys, folder / "b.json", *refs), "2 pictures have references and no candidate (first: '2')")
    mistake(call(capsys, folder / "a.json", *refs, "--against", folder / "b.json"), "no candidate of the other system")


def test_missing_java_is_no_mistake(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("meshcap.metrics.meteor.find_spec", lambda name: None)
    words = (folder / "a.json", "--references", folder / "refs.json", "--meteor", "--spice", "--json")
    code, out, err = call(capsys, *words)
    assert code == 0
    assert list(json.loads(out)["scores"])[-1] == "CIDEr"
    assert [line[:24] for line in err.splitlines()] == ["warning: METEOR left out", "warning: SPICE left out:"]


def test_needs_no_torch(folder: Path) -> None:
    words = ["score", str(folder / "a.json"), "--references", str(folder / "refs.json"), "--json"]
    script = (
        f"import sys; from meshcap import cli\ntry: cli.main({words!r})\n"
        "finally: print(sorted({'torch', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert json.loads(done.stdout)["scores"]


def test_several_systems(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "c_d.json", dict.fromkeys(REFERENCES, "zebra"))
    words = (folder / "a.json", folder / "b.json", folder / "c_d.json", "--references", folder / "refs.json")
    code, out, _ = call(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["systems"]) == ["a", "b", "c_d"] and list(found["differences"]) == ["b", "c_d"]
    assert found["systems"]["b"]["scores"] == score(OTHERS, REFERENCES).scores
    apart = [one for row in found["differences"].values() for one in row.values()]
    assert all(one["p"] <= one["corrected"] <= 1 for one in apart)
    assert min(one["corrected"] for one in apart) == pytest.approx(min(1, 12 * min(one["p"] for one in apart)))
    code, out, _ = call(capsys, *words)
    assert code == 0 and "differs from a" in out and "for 12 comparisons" in out

    ours = score(CANDIDATES, REFERENCES)
    code, out, _ = call(capsys, *words, "--table", "markdown", "--metrics", "cider")
    lines = out.splitlines()
    low, high = ours.intervals["CIDEr"]
    assert lines[:2] == ["|  | CIDEr |", "|---|---:|"]
    assert lines[2] == f"| a | {100 * ours.scores['CIDEr']:.1f} ({100 * low:.1f}–{100 * high:.1f}) |"
    assert lines[3].startswith("| b | **")
    assert lines[4].startswith("| c_d | 0.0\\* (0.0–0.0) |")
    assert lines[-1].startswith("`meshcap:") and "CIDEr:D" in lines[-1]
    code, out, _ = call(capsys, *words, "--table", "latex", "--metrics", "cider")
    assert r"c\_d & 0.0$^{*}$ (0.0--0.0) \\" in out.splitlines() and out.startswith("% Scores")
    code, out, _ = call(capsys, words[0], *words[3:], "--against", words[1], "--table", "markdown", "--bootstrap", 0)
    assert code == 0 and len([line for line in out.splitlines() if line.startswith("|")]) == 4
    mistake(call(capsys, *words, "--against", folder / "a.json"), "--against is for one file")
    mistake(call(capsys, *words, "--out", folder / "x.csv"), "--out is for one file")
    mistake(call(capsys, words[0], *words[0:1], *words[3:]), "was given twice")


NEEDED = ("numpy", "typer", "rich")  # as docs/scoring.md says


def links_to(folder: Path, names: list[str]) -> None:
    """A folder that holds these installed packages and what they ask for, and nothing else."""
    done: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in done:
            continue
        done.add(name)
        package = metadata.distribution(name)
        names += [re.split(r"[^\w.-]", line)[0] for line in package.requires or [] if "extra ==" not in line]
        for top in {file.parts[0] for file in package.files or [] if file.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(package.locate_file(top))).resolve())


def test_in_an_environment_without_torch(folder: Path) -> None:
    packages = folder / "packages"
    packages.mkdir()
    links_to(packages, list(NEEDED))
    (packages / "meshcap").symlink_to(Path(cli.__file__).resolve().parents[1])
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run = [sys.executable, "-S", "-m", "meshcap", "score", "a.json", "b.json", "--references", "refs.json", "--json"]
    done = subprocess.run(run, capture_output=True, text=True, env=env | {"PYTHONPATH": str(packages)}, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["systems"]["a"]["scores"] == score(CANDIDATES, REFERENCES).scores
    script = "from meshcap.metrics.coco import Cider; import meshcap.metrics.score; import torch"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, env=env | {"PYTHONPATH": str(packages)}
    )
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"
