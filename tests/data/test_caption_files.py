"""Every layout, and every way in which a file can be wrong."""

import csv
import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcap.data.caption_files import pictures, read_candidates, read_references, read_training
from meshcap.errors import MeshcapError

PAIRS = {"42": ["a dog, running", "dogs run"], "7": ["un café\u2028noir"]}
COCO = {
    "images": [
        {"id": 42, "file_name": "COCO_42.jpg", "domain": "in-domain"},
        {"id": 7, "file_name": "COCO_7.jpg", "domain": "out-domain"},
    ],
    "annotations": [
        {"id": 900, "image_id": 42, "caption": "a dog, running"},
        {"id": 901, "image_id": 7, "caption": "un café\u2028noir"},
        {"id": 902, "image_id": 42, "caption": "dogs run"},
    ],
}
RECORDS = [{"image_id": int(id), "caption": caption} for id, captions in PAIRS.items() for caption in captions]
KARPATHY = {
    "dataset": "coco",
    "images": [
        {"cocoid": id, "imgid": k, "filename": name, "split": split, "sentences": [{"raw": text} for text in captions]}
        for k, (id, name, split, captions) in enumerate(
            [
                (42, "x.jpg", "test", PAIRS["42"]),
                (7, "y.jpg", "test", PAIRS["7"]),
                (8, "z.jpg", "train", ["seen"]),
                (9, "w.jpg", "restval", ["seen too"]),
            ]
        )
    ],
}


def table(mark: str, head: str = "image_id,caption") -> str:
    def field(text: str) -> str:
        return f'"{text}"'

    rows = [head.replace(",", mark)]
    rows += [f"{id}{mark}{field(caption)}" for id, captions in PAIRS.items() for caption in captions]
    return "\n".join(rows) + "\n\n"


REFERENCE_FILES = {
    "coco.json": json.dumps(COCO),
    "annotations-alone.json": json.dumps({"annotations": COCO["annotations"]}),
    "karpathy.json": json.dumps(KARPATHY),
    "plain.json": json.dumps(PAIRS, ensure_ascii=False),
    "nested.json": json.dumps({id: [{"caption": c} for c in captions] for id, captions in PAIRS.items()}),
    "results.json": json.dumps(RECORDS),
    "lines.jsonl": "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS) + "\n\n",
    "lines-in-json.json": "\n".join(json.dumps(record) for record in RECORDS),
    "lists.jsonl": "\n".join(json.dumps({"id": id, "captions": captions}) for id, captions in PAIRS.items()),
    "lines-unnamed": "\n".join(json.dumps(record) for record in RECORDS),
    "commas.csv": table(","),
    "tabs.tsv": table("\t", "File,Caption"),
    "captions.txt": table(",", "image,caption"),
    "bom.csv": "\ufeff" + table(","),
}


@pytest.mark.parametrize("zipped", [False, True], ids=["", "gz"])
@pytest.mark.parametrize("name", REFERENCE_FILES)
def test_references(name: str, zipped: bool, tmp_path: Path) -> None:
    raw = REFERENCE_FILES[name].encode()
    path = tmp_path / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    assert read_references(path).captions == PAIRS


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


CANDIDATE_FILES = {
    "results.json": [{"image_id": 42, "caption": "a dog"}, {"image_id": 7.0, "caption": ""}],
    "plain.json": {"42": "a dog", "7": ""},
    "one.jsonl": '{"image": "42", "caption": "a dog"}\n{"image": " 7 ", "caption": ""}',
    "ids.csv": "id,caption\n42,a dog\n7,\n",
    # "id" is the annotation's own number here
    "annotations.json": [{"id": 1, "image_id": 42, "caption": "a dog"}, {"id": 2, "image_id": 7, "caption": ""}],
    "coco.json": {
        "images": [{"id": 42}, {"id": 7}],
        "annotations": [{"image_id": 7, "caption": ""}, {"image_id": 42, "caption": "a dog"}],
    },
}


@pytest.mark.parametrize("name", CANDIDATE_FILES)
def test_candidates(name: str, tmp_path: Path) -> None:
    assert read_candidates(write(tmp_path, name, CANDIDATE_FILES[name])) == {"42": ["a dog"], "7": [""]}


def test_one_record_is_a_record_and_not_two_pictures(tmp_path: Path) -> None:
    assert read_candidates(write(tmp_path, "one.json", {"image_id": 3, "caption": "a dog"})) == {"3": ["a dog"]}


def test_n_best_lists(tmp_path: Path) -> None:
    best = {"1": ["a", "b"], "2": ["c"]}
    assert read_candidates(write(tmp_path, "plain.json", best)) == best
    own = [  # what `meshcap caption --json --n 2` prints
        {"file": "1", "caption": "a", "confidence": 0.5, "alternatives": [{"caption": "b", "confidence": 0.4}]},
        {"file": "2", "caption": "c", "confidence": 0.5},
    ]
    assert read_candidates(write(tmp_path, "own.jsonl", "\n".join(map(json.dumps, own)))) == best
    assert read_candidates(write(tmp_path, "karpathy.json", KARPATHY), split="train") == {"8": ["seen"]}


def test_no_caption_is_no_candidate(tmp_path: Path) -> None:
    assert read_candidates(write(tmp_path, "plain.json", {"1": ["a"], "2": []})) == {"1": ["a"]}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(["42", "7"], ["42", "7"]), (["x.jpg", "y.jpg"], ["x.jpg", "y.jpg"]), (["0", "1"], ["0", "1"]), ([], ["42", "7"])],
)
def test_karpathy_pictures_go_by_the_name_that_candidates_use(
    ids: list[str], expected: list[str], tmp_path: Path
) -> None:
    found = read_references(write(tmp_path, "k.json", KARPATHY), like=ids)
    assert list(found.captions) == expected
    assert list(found.files.values()) == ["x.jpg", "y.jpg"]


def test_coco_pictures_by_file_name_with_domains(tmp_path: Path) -> None:
    path = write(tmp_path, "coco.json", COCO)
    assert read_references(path).domains == {"42": "in-domain", "7": "out-domain"}
    found = read_references(path, like=["COCO_7.jpg"])
    assert found.domains == {"COCO_42.jpg": "in-domain", "COCO_7.jpg": "out-domain"}
    assert found.captions["COCO_42.jpg"] == PAIRS["42"]


def test_splits(tmp_path: Path) -> None:
    path = write(tmp_path, "k.json", KARPATHY)
    assert list(read_references(path, split="train+restval").captions) == ["8", "9"]
    assert list(read_references(path, split="all").captions) == ["42", "7", "8", "9"]
    assert read_training(path) == ["seen", "seen too"]
    assert read_training(write(tmp_path, "plain.json", PAIRS)) == [*PAIRS["42"], *PAIRS["7"]]
    with pytest.raises(MeshcapError) as raised:
        read_references(path, split="val")
    assert "has no split 'val', expected one of test (2 pictures), train (1 pictures)" in str(raised.value)
    with pytest.raises(MeshcapError, match=r"has no splits, expected Karpathy's JSON for --split val"):
        read_references(write(tmp_path, "plain.json", PAIRS), split="val")


def test_pictures_without_captions_are_counted(tmp_path: Path) -> None:
    found = read_references(write(tmp_path, "p.json", {"1": ["a"], "2": [], "3": []}))
    assert found.captions == {"1": ["a"]}
    assert found.warnings == [f"2 pictures of {tmp_path / 'p.json'} have no captions (first: '2')"]


MISTAKES = {
    "not JSON": ("a.json", "hello", "is not JSON (Expecting value: line 1 column 1 (char 0)), expected COCO"),
    "half a JSON": ("a.json", '{"1": "a', "is not JSON (Unterminated string"),
    "nested": ("a.json", "[" * 100_000, "is not JSON (nested too deeply)"),
    "a number": ("a.json", "3", "holds a JSON int, expected COCO annotations"),
    "nothing": ("a.json", "{}", "holds no captions"),
    "an empty list": ("a.json", "[]", "holds no captions"),
    "other values": ("a.json", {"1": 3.5}, "'1' has 3.5, expected COCO annotations"),
    "null": ("a.json", {"1": [None]}, "'1' has [None], expected COCO annotations"),
    "other records": ("a.json", [{"name": 1, "text": "a"}], "entry 1 has the keys name, text, expected COCO"),
    "no records": ("a.json", ["a"], "entry 1 has 'a', expected COCO"),
    "null caption": ("a.json", [{"id": 1, "caption": None}], "entry 1 has the caption None, expected a string"),
    "null id": ("a.json", [{"id": None, "caption": "a"}], "entry 1 has the id None, expected a number or a name"),
    "id is a truth": ("a.json", [{"id": True, "caption": "a"}], "entry 1 has the id True, expected a number or a name"),
    "broken line": ("a.jsonl", '{"id": 1, "caption": "a"}\n{"id":', "line 2 is not JSON"),
    "instances": ("a.json", {"images": [], "annotations": [{"image_id": 1}]}, "annotation 1 has the caption None"),
    "stray": (
        "a.json",
        {"images": [{"id": 1}], "annotations": [{"image_id": 2, "caption": "a"}]},
        "annotation 1 is of picture '2', which is not among its images",
    ),
    "no sentences": ("a.json", {"images": [{"id": 1, "width": 2}]}, "image 1 has the keys id, width, expected COCO"),
    "no raw": (
        "a.json",
        {"images": [{"cocoid": 1, "split": "test", "sentences": [{"tokens": []}]}]},
        "image 1 lacks cocoid, filename and imgid, or a sentence lacks raw",
    ),
    "columns": ("a.csv", "one,two\n1,2\n", "has the columns one, two, expected COCO"),
    "empty table": ("a.csv", "", "has the columns (none), expected"),
    "comma": ("a.csv", "id,caption\n1,a dog, running\n", "line 2 has 3 fields and the header 2: a caption with a sep"),
    "quote": ("a.csv", 'id,caption\n1,"a dog', "line 2 is not CSV"),
    "latin-1": ("a.json", '{"1": "café"}'.encode("latin-1"), "is not UTF-8 text (byte 0xe9 at 10)"),
    "utf-16": ("a.csv", "id,caption".encode("utf-16"), "is not UTF-8 text (byte 0xff at 0)"),
    "half a gz": ("a.json.gz", gzip.compress(b'{"1": "a"}' * 100)[:-12], "is a damaged gzip file"),
    "a broken gz": ("a.json.gz", b"\x1f\x8b" + b"x" * 50, "is a damaged gzip file"),
}


@pytest.mark.parametrize("which", MISTAKES)
def test_mistakes_are_one_line(which: str, tmp_path: Path) -> None:
    name, content, message = MISTAKES[which]
    path = write(tmp_path, name, content)
    for read in (read_candidates, read_references):
        with pytest.raises(MeshcapError) as raised:
            read(path)
        assert message in str(raised.value)
        assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=r"none\.json cannot be read: No such file or directory"):
        read_candidates(tmp_path / "none.json")
    with pytest.raises(MeshcapError, match="cannot be read: Is a directory"):
        read_candidates(tmp_path)


TWICE = {
    "results.json": [{"image_id": 4, "caption": "a"}, {"image_id": "4", "caption": "b"}],
    "lines.csv": "id,caption\n4,a\n4,a\n",
    "coco.json": {"images": [{"id": 4}], "annotations": [{"image_id": 4, "caption": c} for c in "ab"]},
}


@pytest.mark.parametrize("name", TWICE)
def test_two_candidates_of_a_picture(name: str, tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=r"picture '4' has two candidates, expected one \(an n-best"):
        read_candidates(write(tmp_path, name, TWICE[name]))


def test_pictures_twice_where_they_cannot_be(tmp_path: Path) -> None:
    same = {**KARPATHY, "images": [KARPATHY["images"][0]] * 2}
    for content in ('{"1": ["a"], "2": ["b"], "1": ["c"]}', json.dumps(same)):
        with pytest.raises(MeshcapError, match="is there twice, expected once"):
            read_references(write(tmp_path, "a.json", content))


def test_tables_hold_what_the_csv_module_writes(tmp_path: Path) -> None:
    captions = {"a": 'he says "hi", twice', "b": "line\nbreak", "c": "tab\there"}
    for name, dialect in (("a.csv", "excel"), ("a.tsv", "excel-tab")):
        with open(tmp_path / name, "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, dialect)
            rows.writerows([("image", "note", "caption"), *((id, "", text) for id, text in captions.items())])
        assert read_candidates(tmp_path / name) == {id: [caption] for id, caption in captions.items()}


KEYS = st.sampled_from(
    "images annotations id image_id caption captions cocoid split sentences raw file_name 1 2".split()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(content=VALUES.map(json.dumps) | st.text(max_size=60), name=st.sampled_from(["a.json", "a.jsonl", "a.csv", "a"]))
def test_any_file_is_read_or_refused_in_one_line(content: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        for read in (read_candidates, read_references, read_training):
            try:
                found = read(path)
            except MeshcapError as mistake:
                assert len(str(mistake).splitlines()) == 1
            else:
                assert found


@pytest.mark.parametrize("line", ['{"image": "\\ud800", "caption": "a dog"}', '{"image": "a", "caption": "\\udfff"}'])
def test_halves_of_letters_are_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(MeshcapError, match="line 1 has the"):
        list(pictures(path))
