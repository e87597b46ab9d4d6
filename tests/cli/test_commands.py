"""The commands as people call them."""

import json
from pathlib import Path

import numpy
import pytest
import torch

from meshcap import cli

FIXTURES = Path(__file__).parent.parent / "fixtures"
WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"word{i}" for i in range(4, 200))]


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def model(tmp_path: Path, vocab: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    done = import_small(capsys, "--vocab", vocab, "--out", tmp_path / "model")
    assert done[0] == 0, done
    return tmp_path / "model"


def import_small(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    return call(capsys, "import-reference", FIXTURES / "small.pth", "--regions", 12, "--head-width", 16, *words)


@pytest.fixture
def golden() -> dict:
    return torch.load(FIXTURES / "small_golden.pt", weights_only=True)


@pytest.fixture
def files(tmp_path: Path, golden: dict) -> list[Path]:
    paths = []
    for index, (features, count) in enumerate(zip(golden["features"], golden["n_regions"], strict=True)):
        paths.append(tmp_path / f"{index}.npy")
        numpy.save(paths[-1], features[:count].numpy())
    return paths


def test_an_imported_checkpoint_says_what_the_public_code_says(
    model: Path, files: list[Path], golden: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(
        capsys, "caption", *files, "--model", model, "--json", "--dtype", "float32", "--no-good-endings"
    )
    assert code == 0
    captions = [json.loads(line) for line in out.splitlines()]
    checked = 0
    assert [caption["file"] for caption in captions] == [str(path) for path in files]
    for caption, ids in zip(captions, golden["outputs"]["beam5_top1_ids"].tolist(), strict=True):
        said = ids[: ids.index(3)] if 3 in ids else ids
        if not said or {0, 1, 2} & set(said):  # which a caption for people never does
            continue
        checked += 1
        assert caption["words"] == [WORDS[i] for i in said]
    assert checked > 3


def test_plain_lines_and_n_best(model: Path, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("caption", *files[:2], "--model", model, "--device", "cpu", "--confidence")
    code, out, _ = call(capsys, *words, "--n", 2)
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == [str(files[0])] * 2 + [str(files[1])] * 2
    assert all(0 <= float(row[1]) <= 1 and row[2].startswith("Word") for row in rows)


def test_mention_and_sample(model: Path, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("caption", files[0], "--model", model, "--device", "cpu")
    _, out, _ = call(capsys, *words, "--must", "word17|word18 word19", "--must", "word150", "--json")
    said = json.loads(out)["words"]
    assert "word150" in said
    assert "word17" in said or "word18 word19" in " ".join(said)
    first = call(capsys, *words, "--strategy", "sample", "--seed", 3, "--n", 4)
    assert first == call(capsys, *words, "--strategy", "sample", "--seed", 3, "--n", 4)
    assert first != call(capsys, *words, "--strategy", "sample", "--seed", 4, "--n", 4)
    assert len(call(capsys, *words, "--groups", 3, "--beams", 6, "--n", 6)[1].splitlines()) == 6


def mistake(done: tuple[int, str, str], message: str) -> None:
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_caption_mistakes(model: Path, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def caption(*words: object) -> tuple[int, str, str]:
        return call(capsys, "caption", *words, "--device", "cpu")

    mistake(caption(tmp_path / "none.npy", "--model", model), "none.npy is not a file")
    mistake(caption(files[0], "--model", tmp_path / "nowhere"), "nowhere")
    mistake(caption(files[0], "--model", model, "--must", "zebra"), "zebra")
    mistake(
        caption(files[0], "--model", model, "--strategy", "sample", "--must", "word17"), "--must needs a beam search"
    )
    mistake(caption(files[0], "--model", model, "--max-words", 99), "at most 53")
    numpy.save(tmp_path / "wide.npy", numpy.zeros((3, 49)))
    mistake(caption(tmp_path / "wide.npy", "--model", model), "49 numbers each, this model expects 48")
    numpy.save(tmp_path / "nan.npy", numpy.full((3, 48), numpy.nan))
    mistake(caption(tmp_path / "nan.npy", "--model", model), "NaN")
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    mistake(caption(files[0], "--model", model), "truncated or corrupted")


def test_import_mistakes_write_nothing(vocab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    before = sorted(tmp_path.iterdir())

    def refused(message: str, *words: object) -> None:
        mistake(call(capsys, "import-reference", *words), message)
        assert sorted(path for path in tmp_path.iterdir() if path.suffix != ".bad") == before

    small = FIXTURES / "small.pth"
    refused("is not a file", tmp_path / "none.pth", "--vocab", vocab, "--out", out)
    refused("48 does not divide", small, "--vocab", vocab, "--out", out, "--head-width", "48")
    short = tmp_path / "short.bad"
    short.write_text("\n".join(WORDS[:150]), encoding="utf-8")
    refused("150 words and the model was made for 200", small, "--vocab", short, "--out", out, "--head-width", "16")
    half = tmp_path / "half.bad"
    half.write_bytes(small.read_bytes()[:10_000])
    refused("refused", half, "--vocab", vocab, "--out", out)
    refused("not an empty folder", small, "--vocab", vocab, "--out", tmp_path)
