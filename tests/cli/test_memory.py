"""`meshcap remember`, `recall`, `forget`, and `--memory` of the other commands."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

import tiny_captioner
from meshcap import Captioner, cli
from meshcap.data.scenes import draw_scene
from meshcap.errors import MeshcapError
from meshcap.memory import FolderStore, default_place
from meshcap.models.memory_level import MemoryConfig, MemoryLevel

SMALL = {"d_head": 8, "reader_head": 4, "d_ff": 12, "d_pointer": 8, "captions": 4, "entries": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies whatever it remembers."""
    captioner = tiny_captioner.build()
    torch.manual_seed(0)
    level = MemoryLevel(MemoryConfig.of(captioner.model, **SMALL, least_similarity=0.3))
    with torch.no_grad():
        level.switch.bias.fill_(8.0)
    captioner.backend.level = level.eval()
    folder = tmp_path_factory.mktemp("models") / "model"
    captioner.save_pretrained(folder)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    place = tmp_path / "photos"
    place.mkdir()
    for number in range(4):
        draw_scene(number, 64).image.save(place / f"{number}.png")
    (place / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    return place


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def call(command: str, *words: object, model: object = model) -> tuple[int, str, str]:
        more = [] if command == "forget" else ["--model", str(model), "--device", "cpu"]
        with pytest.raises(SystemExit) as left:
            cli.main([command, *map(str, words), *more])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


def test_remember_recall_forget(run, photos: Path, tmp_path: Path) -> None:
    code, _, err = run("recall", "--text", "dog")
    assert code == 2 and "nothing is remembered yet" in err
    code, out, err = run("remember", photos / "0.png", "Rex on the sofa", "my dog", "--name", "Rex")
    assert (code, out, err) == (0, f"remembered as 1 in {tmp_path / 'data' / 'meshcap' / 'memory'}\n", "")
    run("remember", photos / "1.png", "the beach", "--source", "holiday 7")

    code, out, err = run("recall", photos / "0.png")
    first, second = out.splitlines()
    assert (code, err) == (0, "")
    assert first == f"1.000\t1\tRex on the sofa / my dog\tRex\t{photos / '0.png'}"
    assert second.split("\t")[1:] == ["2", "the beach", "", "holiday 7"] and float(second.split("\t")[0]) < 0.999
    code, out, _ = run("recall", photos / "1.png", "--k", 1, "--json")
    assert json.loads(out)["captions"] == ["the beach"] and json.loads(out)["similarity"] > 0.999
    code, out, _ = run("recall", "--text", "SOFA", "--json")
    assert json.loads(out) | {"time": 0} == {
        "id": 1,
        "captions": ["Rex on the sofa", "my dog"],
        "names": ["Rex"],
        "source": str(photos / "0.png"),
        "time": 0,
    }
    assert [line.split("\t")[1] for line in run("recall")[1].splitlines()] == ["2", "1"]
    assert run("recall", "--text", "unheard of")[2] == "nothing like that is remembered\n"

    assert run("forget", 9)[2] == f"error: there is no entry 9 in {default_place()}: see meshcap recall\n"
    assert run("forget", "--name", "rex")[1] == "forgot 1 picture\n"
    assert run("forget", "--source", "holiday 7", "--json")[1] == '{"forgotten": 1}\n'
    assert run("forget", "--all")[:2] == (0, "forgot 0 pictures\n")


def test_forgetting_all_is_asked_for(run, photos: Path) -> None:
    run("remember", photos / "0.png", "a dog")
    code, out, err = run("forget", "--all")
    assert code == 2 and out == "" and "give --yes" in err  # nobody is there to answer
    assert run("forget", "--all", "--yes")[1] == "forgot 1 picture\n"
    assert run("forget")[0] == 2


def test_captions_know_what_is_remembered(run, photos: Path, tmp_path: Path) -> None:
    code, before, _ = run("caption", photos / "0.png")
    run("remember", photos / "0.png", "okapi okapi okapi okapi")
    assert "Okapi" in run("caption", photos / "0.png")[1]  # the user's own, where none is named
    assert run("caption", photos / "0.png", "--memory", "none")[1] == before
    code, out, err = run("caption", photos / "0.png", "--memory", tmp_path / "nowhere")
    assert code == 2 and "is no memory" in err and out == ""
    table = tmp_path / "captions.jsonl"
    run("batch", photos / "0.png", "--out", table, "--memory", "default")
    assert "Okapi" in json.loads(table.read_text())["caption"]
    run("batch", photos / "0.png", "--out", tmp_path / "other.jsonl")
    assert "okapi" not in (tmp_path / "other.jsonl").read_text().lower()
    run("forget", "--all", "--yes")
    assert run("caption", photos / "0.png")[1] == before


def test_another_vision_is_refused(run, photos: Path, tmp_path: Path) -> None:
    run("remember", photos / "0.png", "a dog", "--memory", tmp_path / "m")
    other = tmp_path / "other"
    from meshcap.text import Vocabulary
    from meshcap.vision import create_vision

    captioner = tiny_captioner.build()
    size = create_vision("patches", size=48, gain=2.0)
    Captioner(captioner.model, Vocabulary(tiny_captioner.WORDS), size).save_pretrained(other)
    for words in (("caption", photos / "0.png"), ("recall", photos / "0.png"), ("remember", photos / "1.png", "x")):
        code, _, err = run(*words, "--memory", tmp_path / "m", model=other)
        assert code == 2 and f"`meshcap remember {tmp_path / 'm'} --memory NEW`" in err and err.count("\n") == 1
    # The command that the message names rebuilds it.
    code, out, _ = run("remember", tmp_path / "m", "--memory", tmp_path / "new", model=other)
    assert (code, out) == (0, f"remembered 1 pictures in {tmp_path / 'new'}\n")
    assert "a dog" in run("recall", photos / "0.png", "--memory", tmp_path / "new", model=other)[1]
    # The user's own is left out with a line, where nobody named it.
    run("remember", photos / "0.png", "a dog")
    code, out, err = run("caption", photos / "0.png", model=other)
    assert code == 0 and out and "captioned without your memory" in err


@pytest.mark.parametrize("kind", ["jsonl", "csv", "coco", "sidecars", "folder"])
def test_importing(run, photos: Path, tmp_path: Path, kind: str) -> None:
    given = photos / f"captions.{kind}"
    rows = [(f"{n}.png", f"picture {n}") for n in range(4)]
    if kind in ("jsonl", "folder"):
        given = photos / "captions.jsonl"
        lines = [{"image": file, "caption": text, "names": ["Rex"]} for file, text in rows]
        given.write_text("\n".join(map(json.dumps, lines)))
    elif kind == "csv":
        lines = [f"{file},{text},Rex;Bo" for file, text in rows]
        given.write_text("\n".join(["image,caption,names", *lines]))
    elif kind == "coco":
        given = photos / "captions_train2017.json"
        images = [{"id": n, "file_name": file} for n, (file, _) in enumerate(rows)]
        notes = [{"image_id": n, "id": n, "caption": text} for n, (_, text) in enumerate(rows)]
        given.write_text(json.dumps({"images": images, "annotations": notes}))
    else:
        for file, text in rows:
            (photos / file).with_suffix(".txt").write_text(f"{text}\n\n")
    place = photos if kind in ("sidecars", "folder") else given
    code, out, _ = run("remember", place, "--memory", tmp_path / "m")
    assert (code, out) == (0, f"remembered 4 pictures in {tmp_path / 'm'}\n")
    found = list(FolderStore(tmp_path / "m").entries())
    assert [(one.source, one.captions[0]) for one in found] == [(str(photos / file), text) for file, text in rows]
    names = {"csv": ("Rex", "Bo"), "jsonl": ("Rex",), "folder": ("Rex",)}.get(kind, ())
    assert {one.names for one in found} == {names}
    again = run("remember", place, "--memory", tmp_path / "m", "--json")
    assert json.loads(again[1]) == {"added": 0, "known": 4, "errors": 0, "memory": str(tmp_path / "m")}


def test_importing_shards(run, photos: Path, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for n in range(2):
            (tmp_path / "text").write_text(f"picture {n}")
            tar.add(photos / f"{n}.png", f"{n}.png")
            tar.add(tmp_path / "text", f"{n}.txt")
    assert run("remember", tmp_path / "train-0.tar", "--memory", tmp_path / "m")[0] == 0
    assert [one.captions for one in FolderStore(tmp_path / "m").entries()] == [("picture 0",), ("picture 1",)]
    assert f"{tmp_path / 'train-0.tar'}:1.png" in run("recall", photos / "1.png", "--memory", tmp_path / "m")[1]
    assert "remembered 2 pictures" in run("remember", tmp_path / "m", "--memory", tmp_path / "new")[1]


def test_pictures_that_cannot_be_read(run, photos: Path, tmp_path: Path) -> None:
    lines = [{"image": name, "caption": "a dog"} for name in ("0.png", "broken.png", "missing.png", "1.png")]
    (photos / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, out, err = run("remember", photos / "c.jsonl", "--memory", tmp_path / "m")
    assert code == 1 and "remembered 2 pictures" in out
    errors = [line for line in err.splitlines() if line.startswith("error")]
    assert len(errors) == 2 and "broken.png" in errors[0] and "missing.png" in errors[1]
    for words in (("remember", photos / "broken.png", "x"), ("remember", photos / "none.png", "x"),
                  ("recall", photos / "broken.png")):  # fmt: skip
        code, _, err = run(*words, "--memory", tmp_path / "m")
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert len(FolderStore(tmp_path / "m")) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("photos/0.png",), "an empty caption"),
        (("photos/0.png", "  "), "an empty caption"),
        (("photos", "words"), "says itself what to remember"),
        (("photos/0.png", "x", "--memory", "photos"), "holds other files"),
        (("nothing.jsonl",), "is not there"),
    ],
)
def test_one_line_says_what_is_wrong(
    run, photos: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(photos.parent)
    code, out, err = run("remember", *words)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_damaged_memory_says_what_is_lost(run, photos: Path, tmp_path: Path) -> None:
    for n in range(3):
        run("remember", photos / f"{n}.png", f"number {n}", "--memory", tmp_path / "m")
    log = tmp_path / "m" / "entries-1.log"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    code, out, err = run("recall", "--memory", tmp_path / "m")
    assert code == 0 and len(out.splitlines()) == 2
    assert err == f"warning: the memory {tmp_path / 'm'} is damaged: 1 of its entries is lost, 2 are kept\n"


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.slow
def test_a_full_disk_loses_nothing(run, photos: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {disk} 2>/dev/null"):
        pytest.skip("no right to mount")
    try:
        said = 0
        for n in range(60):
            code, _, err = run("remember", photos / f"{n % 4}.png", f"{n} " + "long " * 390, "--memory", disk / "m")
            if code:
                assert code == 2 and "No space left" in err and err.count("\n") == 1
                break
            said += 1
        assert 2 < said < 59
        kept = FolderStore(disk / "m")
        assert len(kept) == said and kept.check() == []
    finally:
        os.system(f"umount -l {disk}")  # files may still be mapped


def test_python(photos: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    captioner = Captioner.from_pretrained(model, device="cpu")
    assert captioner.memory is None and captioner.recall(text="dog") == [] and captioner.forget(1) == 0
    assert captioner.remember(photos / "0.png", "okapi okapi okapi", names="Rex") == 1
    assert default_place() == tmp_path / "data" / "meshcap" / "memory" and len(captioner.memory) == 1
    assert captioner.recall(photos / "0.png")[0].names == ("Rex",)
    assert captioner.recall(text="okapi")[0].id == 1
    assert "okapi" in captioner(photos / "0.png").text.lower()
    with pytest.raises(MeshcapError, match="a picture or a text"):
        captioner.recall()
    with pytest.raises(MeshcapError, match="empty caption"):
        captioner.remember(photos / "0.png", " ")
    assert captioner.forget([1]) == 1 and captioner.recall(photos / "0.png") == []
    captioner.memory = None
    captioner.memory = tmp_path / "data" / "meshcap" / "memory"
    optimized = Captioner.from_pretrained(model, device="cpu").optimize()
    optimized.memory = captioner.memory  # the same vision, rearranged
    bfloat = Captioner.from_pretrained(model, device="cpu", dtype="bfloat16")
    bfloat.memory = captioner.memory
    shutil.rmtree(tmp_path / "data")
