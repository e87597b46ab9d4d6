"""Shards as img2dataset and Hugging Face keep them: a file of captions beside each, and the rest untouched."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from batch.seeing import captioner, draw
from meshcap import Captioner, MeshcapError
from meshcap.batch import local
from meshcap.batch.inputs import Share, list_pictures
from meshcap.batch.job import weights_of
from meshcap.batch.per_shard import Shards
from meshcap.data.parquet import picture_column
from tiny_data import call

ALWAYS = ["--device", "cpu", "--threads", "1", "--batch-size", "2", "--max-words", "6"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    captioner().save_pretrained(folder)
    return folder


def img2dataset(folder: Path, shard: int, count: int, *, kind: str) -> list[bytes]:
    """A shard as img2dataset writes it: its columns, one picture that could not be fetched, text and JSON of each."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{shard:05}"
    keys = [f"{name}{number:04}" for number in range(count)]
    contents = [path.read_bytes() for path in draw(folder.parent / "drawn", count, first=10 * shard, suffix=".jpg")]
    rows = [
        {"url": f"http://x/{key}", "caption": f"alt of {key}", "key": key, "status": "success", "error_message": None,
         "width": 64, "height": 64}
        for key in keys
    ]  # fmt: skip
    rows[1] |= {"status": "failed_to_download", "error_message": "HTTP Error 404: Not Found", "width": None}
    if kind == "parquet":
        rows = [
            {**row, "txt": row["caption"], "jpg": content if row["status"] == "success" else None}
            for row, content in zip(rows, contents, strict=True)
        ]
    parquet.write_table(arrow.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=3)
    (folder / f"{name}_stats.json").write_text(json.dumps({"count": count, "successes": count - 1}))
    good = [(row, content) for row, content in zip(rows, contents, strict=True) if row["status"] == "success"]
    if kind == "files":
        for row, content in good:
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{row['key']}.jpg").write_bytes(content)
            (folder / name / f"{row['key']}.txt").write_text(row["caption"])
            (folder / name / f"{row['key']}.json").write_text(json.dumps(row))
    if kind == "webdataset":
        with tarfile.open(folder / f"{name}.tar", "w") as tar:
            for row, content in good:
                for ending, inside in (
                    ("jpg", content), ("txt", row["caption"].encode()), ("json", json.dumps(row).encode()),
                ):  # fmt: skip
                    info = tarfile.TarInfo(f"{row['key']}.{ending}")
                    info.size = len(inside)
                    tar.addfile(info, io.BytesIO(inside))
    return [content for _, content in good]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def batch(model: Path, *more: object) -> int:
    return call(["batch", *(str(one) for one in more), "--model", str(model), *ALWAYS])


@pytest.mark.parametrize("kind", ["webdataset", "parquet", "files"])
def test_captions_beside_each_shard(
    kind: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = [img2dataset(tmp_path / "data", shard, count, kind=kind) for shard, count in enumerate((6, 4))]
    before = digests(tmp_path / "data")
    assert batch(model, "data", "--per-shard", "--n", 2, "--tags") == 0
    assert capsys.readouterr().out == "2 shards, 8 captions\n"
    after = digests(tmp_path / "data")
    assert set(after) - set(before) == {"00000.captions.parquet", "00001.captions.parquet"}
    assert {name: after[name] for name in before} == before
    one = Captioner.from_pretrained(model)
    for shard, there in enumerate(contents):
        rows = parquet.read_table(f"data/{shard:05}.captions.parquet").to_pylist()
        names = ["key", "caption", "alternatives", "confidence", "tags", "model", "weights_hash"]
        assert list(rows[0])[:7] == names
        keys = [f"{shard:05}{number:04}" for number in range(len(there) + 1) if number != 1]
        assert [row["key"] for row in rows] == keys
        said = one.caption(there, n=2, max_words=6, tags=True)
        assert [row["caption"] for row in rows] == [caption.text for caption in said]
        assert [row["alternatives"][0]["caption"] for row in rows] == [caption.alternatives[0].text for caption in said]
        assert all(row["weights_hash"] == weights_of(str(model)) and row["tags"] is not None for row in rows)
    assert len({row["caption"] for row in rows}) > 1

    # What is finished is not opened again; a shard that is new, or was fetched anew, is done alone.
    img2dataset(tmp_path / "data", 2, 3, kind=kind)
    calls: list[int] = []
    real = local.caption_blocks

    def counting(captioner, blocks, *more, **others):  # type: ignore[no-untyped-def]
        for number, rows in real(captioner, blocks, *more, **others):
            calls.append(len(rows))
            yield number, rows

    monkeypatch.setattr(local, "caption_blocks", counting)
    assert batch(model, "data", "--per-shard", "--n", 2, "--tags") == 0
    assert capsys.readouterr().out == "3 shards, 2 of them done before, 10 captions\n" and sum(calls) == 2
    assert batch(model, "data", "--per-shard", "--n", 2, "--tags", "--json") == 0
    assert json.loads(capsys.readouterr().out)["new"] == 0 and sum(calls) == 2
    # Other options are another job.
    assert batch(model, "data", "--per-shard", "--tags") == 2
    assert "n was 2 and is 1" in capsys.readouterr().err
    assert batch(model, "data", "--per-shard", "--restart", "--out", "elsewhere") == 0
    assert sorted(digests(tmp_path / "elsewhere")) == [f"{shard:05}.captions.parquet" for shard in range(3)]


def test_hugging_face_datasets(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by `datasets` itself, and read back by it with the captions as a column."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    paths = draw(tmp_path / "drawn", 5)
    kinds = datasets.Features({"picture": datasets.Image(), "text": datasets.Value("string")})
    inside = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    made = datasets.Dataset.from_dict({"picture": inside, "text": list("abcde")}, features=kinds)
    (tmp_path / "data").mkdir()
    made.to_parquet("data/train-00000-of-00001.parquet", batch_size=2)
    datasets.Dataset.from_dict({"picture": [*map(str, paths)], "text": list("abcde")}, features=kinds).to_parquet(
        "beside.parquet"
    )
    assert picture_column("data/train-00000-of-00001.parquet") == "picture"
    assert batch(model, "data", "--per-shard") == 0
    rows = parquet.read_table("data/train-00000-of-00001.captions.parquet").to_pylist()
    one = Captioner.from_pretrained(model)
    assert [row["caption"] for row in rows] == [caption.text for caption in one.caption(paths, max_words=6)]
    assert [row["key"] for row in rows] == [path.name for path in paths]
    back = datasets.load_dataset("parquet", data_files="data/train-00000-of-00001.parquet", split="train")
    assert back.add_column("caption", [row["caption"] for row in rows])[3]["text"] == "d"
    # Also into one table, and the pictures with descriptions into a folder.
    assert batch(model, "data", "--out", "all.jsonl") == 0
    table = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    assert [row["caption"] for row in table] == [row["caption"] for row in rows]
    assert table[0]["path"] == "data/train-00000-of-00001.parquet:000.png"
    # Pictures that were named and not put inside are read from where they are.
    assert batch(model, "beside.parquet", "--per-shard") == 0
    assert parquet.read_table("beside.captions.parquet").column("caption").to_pylist() == [
        row["caption"] for row in rows
    ]


def test_rows_without_a_picture_are_listed(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good = draw(tmp_path / "drawn", 1)[0].read_bytes()
    struct = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    images = [
        {"bytes": good, "path": "a.png"},
        {"bytes": None, "path": None},
        {"bytes": b"no", "path": "a.png"},
    ]
    parquet.write_table(arrow.table({"image": arrow.array(images, struct)}), "x.parquet")
    assert batch(model, "x.parquet", "--per-shard") == 1
    assert "1 caption, 2 errors" in capsys.readouterr().out
    rows = parquet.read_table("x.captions.parquet").to_pylist()
    assert [row["key"] for row in rows] == ["0", "1", "2"]  # names that are there twice name nothing
    assert [row["caption"] is None for row in rows] == [False, True, True]
    errors = [json.loads(line) for line in Path("x.captions.errors.jsonl").read_text().splitlines()]
    assert [one["path"] for one in errors] == ["x.parquet:1", "x.parquet:2"]
    assert "has no picture" in errors[0]["error"] and "x.parquet:2" in errors[1]["error"]


def test_a_killed_job_goes_on(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for shard in range(3):
        img2dataset(tmp_path / "data", shard, 6, kind="webdataset")
    assert batch(model, "data", "--per-shard", "--out", "whole") == 0
    real, calls = local.caption_blocks, []

    def dying(captioner, blocks, *more, **others):  # type: ignore[no-untyped-def]
        for number, rows in real(captioner, blocks, *more, **others):
            calls.append(number)
            if len(calls) == 5:  # in the middle of the second shard
                raise KeyboardInterrupt
            yield number, rows

    monkeypatch.setattr(local, "caption_blocks", dying)
    assert batch(model, "data", "--per-shard", "--out", "again") == 130
    assert (tmp_path / "again/00000.captions.parquet").exists()
    assert not (tmp_path / "again/00001.captions.parquet").exists()
    assert batch(model, "data", "--per-shard", "--out", "again") == 0
    assert len(calls) == 4 + 1 + 5  # 9 blocks, of which the one in work was lost
    assert digests(tmp_path / "again") == digests(tmp_path / "whole")  # and no folder of the job is left


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--sidecar"], "--per-shard writes a Parquet file for each shard"),
        (["--out", "x.jsonl"], "expected a folder as --out"),
    ],
)
def test_one_line_for_mistakes(
    more: list[str], text: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    img2dataset(tmp_path / "data", 0, 3, kind="webdataset")
    before = digests(tmp_path)
    assert batch(model, "data", "--per-shard", *more) == 2
    assert text in capsys.readouterr().err and digests(tmp_path) == before


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    img2dataset(tmp_path / "a", 0, 3, kind="webdataset")
    img2dataset(tmp_path / "b", 0, 3, kind="webdataset")
    with pytest.raises(MeshcapError, match="would both get"):
        list_pictures([str(tmp_path / "a"), str(tmp_path / "b")], leave=Shards({}, tmp_path / "out").is_done)
    own = tmp_path / "a/00000.captions.parquet"
    parquet.write_table(arrow.table({"key": ["mine"]}), own)
    with pytest.raises(MeshcapError, match="no job that wrote it"):
        list_pictures([str(tmp_path / "a")], leave=Shards({}).is_done)


def test_shards_are_shared_whole(tmp_path: Path) -> None:
    for shard in range(5):
        img2dataset(tmp_path / "data", shard, 3, kind="files")
    inputs = [str(tmp_path / "data")]
    shares = [list_pictures(inputs, share=Share(number, 2), leave=lambda _: False) for number in (1, 2)]
    folders = [{str(Path(picture.path).parent) for picture in pictures} for pictures in shares]
    assert not folders[0] & folders[1] and len(folders[0] | folders[1]) == 5
    assert sum(map(len, shares)) == 10
