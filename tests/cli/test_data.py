"""`meshcap data` as people call it."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meshcap import cli


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["data", *(str(word) for word in words)])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = ["image,caption,split"]
    for n in range(12):
        spots = np.random.default_rng(n).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(spots).resize((60, 40), Image.Resampling.BICUBIC).save(folder / f"{n}.png")
        rows.append(f"{n}.png,picture number {n},{'val' if n % 4 == 0 else 'train'}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    return folder


def add(folder: Path, row: str) -> None:
    with open(folder / "captions.csv", "a") as file:
        file.write(row + "\n")


def test_a_clean_dataset_is_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "check", folder, "--workers", 1)
    assert (code, err) == (0, "")
    assert "12: train 9, val 3" in out
    assert "nothing to do" in out
    code, out, _ = call(capsys, "check", folder, "--workers", 1, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["splits"] == {"train": 9, "val": 3}
    assert (report["advice"], report["leaks"]) == ([], [])


def test_a_warning_is_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(folder, "0.png,  ,val")
    code, out, _ = call(capsys, "check", folder, "--workers", 1)
    assert code == 0
    assert "empty captions: 1" in out


def test_a_leak_is_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer = io.BytesIO()
    Image.open(folder / "1.png").save(buffer, "JPEG", quality=60)
    (folder / "copy [1].jpg").write_bytes(buffer.getvalue())
    add(folder, "copy [1].jpg,a copy,val")
    code, out, _ = call(capsys, "check", folder, "--workers", 1)
    assert code == 1
    assert "1.png (train) and copy [1].jpg (val)" in out
    assert "must" in out and "pairs in two splits: 1" in out
    assert call(capsys, "check", folder, "--fast")[0] == 0  # which does not look
    names = folder / "without.txt"
    assert call(capsys, "check", folder, "--workers", 1, "--leave-out", names)[0] == 1
    assert names.read_text() == "1.png\n"
    code, out, _ = call(capsys, "check", folder, "--workers", 1, "--without", names)
    assert code == 0 and "train 8" in out
    code, _, err = call(capsys, "check", folder, "--fast", "--leave-out", names)
    assert code == 2 and "--leave-out" in err


def test_a_missing_picture_is_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "3.png").unlink()
    for words in (["--workers", 1], ["--fast"]):
        code, out, _ = call(capsys, "check", folder, *words)
        assert code == 1
        assert "missing pictures: 1" in out and "3.png is not there" in out


def test_misuse_is_code_2_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["check", folder / "nonesuch"],
        ["pack", folder, "--out", folder / "captions.csv"],
        ["pack", folder, "--out", "x", "--size", 3],
    ):
        code, out, err = call(capsys, *words)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1


def test_pack_and_check_what_was_packed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "packed"
    words = ["pack", folder, "--out", out, "--size", 32, "--format", "jpg", "--workers", 1]
    code, said, err = call(capsys, *words)
    assert (code, err) == (0, "")
    assert "train 9, val 3 pictures in 2 shards" in said
    code, said, _ = call(capsys, *words, "--json")  # again: nothing to do
    assert json.loads(said) == {"folder": str(out), "shards": 2, "pictures": {"train": 9, "val": 3}, "left_out": []}
    code, said, _ = call(capsys, "check", out, "--workers", 1, "--json")
    report = json.loads(said)
    assert code == 0
    assert (report["splits"], report["smallest"]["width"], report["captions"]["captions"]) == (
        {"train": 9, "val": 3},
        32,
        12,
    )


def test_pack_leaves_broken_pictures_out_when_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "5.png").write_bytes(b"nothing")
    words = ["pack", folder, "--out", tmp_path / "packed", "--size", 32, "--workers", 1]
    code, _, err = call(capsys, *words)
    assert code == 2
    assert "5.png" in err and "--skip-broken" in err and err.count("\n") == 1
    code, out, _ = call(capsys, *words, "--skip-broken")
    assert code == 0
    assert "train 8, val 3" in out and "left out: 5.png" in out


def test_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--count", 10, "--val", 3, "--test", 4, "--size", 64, "--workers", 1]
    code, out, _ = call(capsys, "draw", "--out", tmp_path / "scenes", *words, "--json")
    assert code == 0
    assert json.loads(out)["pictures"] == {"test": 4, "val": 3, "train": 10}
    code, _, err = call(capsys, "draw", "--out", tmp_path / "scenes", *words, "--seed", 1)
    assert code == 2
    assert "choose another folder" in err


@pytest.mark.parametrize("command", ["check", "pack", "draw", "features"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert f"Example: meshcap data {command}" in out
