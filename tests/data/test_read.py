"""Every layout to the same samples, and one line for what is none of them."""

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from meshcap.data import Dataset, read_dataset
from meshcap.data.dataset import FileSource, hashed_split, hashed_splits, split_in_name
from meshcap.data.read import expand_braces
from meshcap.errors import MeshcapError

# name -> split, captions
TRUTH = {
    "a.jpg": ("train", ["a red ball", "the ball"]),
    "b.jpg": ("val", ["a blue star , shining"]),
    "c.jpg": ("test", ['a "green" tree', "one tree", "trees"]),
}


def told(dataset: Dataset) -> dict[str, tuple[str, list[str]]]:
    return {sample.filename or "": (sample.split, list(sample.captions)) for sample in dataset}


def paths(dataset: Dataset) -> list[Path]:
    assert all(isinstance(sample.picture, FileSource) for sample in dataset)
    return [sample.picture.path for sample in dataset]  # type: ignore[union-attr]


def draw(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path, "PNG")  # whatever its name says
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in TRUTH:
        draw(tmp_path / "pictures" / name)
    return tmp_path


def rows(per_caption: bool) -> list[dict]:
    if not per_caption:
        return [{"image": name, "captions": said, "split": split} for name, (split, said) in TRUTH.items()]
    return [{"image": n, "caption": c, "split": split} for n, (split, said) in TRUTH.items() for c in said]


def write_table(path: Path, records: list[dict], mark: str = ",") -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, records[0], delimiter=mark)
        table.writeheader()
        table.writerows(records)
    return path


def write_lines(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def karpathy(first_id: int = 57870, folder: str | None = None) -> dict:
    return {
        "images": [
            {"cocoid": first_id + i, "filename": name, "split": "restval" if split == "train" else split,
             "sentences": [{"raw": caption} for caption in said]} | ({"filepath": folder} if folder else {})
            for i, (name, (split, said)) in enumerate(TRUTH.items())
        ]
    }  # fmt: skip


LAYOUTS = {
    "jsonl": lambda to: write_lines(to / "captions.jsonl", rows(per_caption=False)),
    "jsonl, a caption a line": lambda to: write_lines(to / "metadata.jsonl", rows(per_caption=True)),
    "csv": lambda to: write_table(to / "captions.csv", rows(per_caption=True)),
    "tsv": lambda to: write_table(to / "captions.tsv", rows(per_caption=True), "\t"),
    "txt": lambda to: write_table(to / "captions.txt", rows(per_caption=True)),
    "karpathy": lambda to: (to / "dataset_x.json").write_text(json.dumps(karpathy()), encoding="utf-8"),
    "gzip": lambda to: (to / "dataset_x.json.gz").write_bytes(gzip.compress(json.dumps(karpathy()).encode())),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_agree(layout: str, folder: Path) -> None:
    LAYOUTS[layout](folder)
    dataset = read_dataset(folder, pictures=folder / "pictures")
    assert told(dataset) == TRUTH
    assert paths(dataset) == [folder / "pictures" / name for name in TRUTH]
    assert all(sample.picture and sample.picture.read().startswith(b"\x89PNG") for sample in dataset)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_lie_beside_their_captions(layout: str, folder: Path) -> None:
    LAYOUTS[layout](folder / "pictures")
    assert paths(read_dataset(folder / "pictures")) == [folder / "pictures" / name for name in TRUTH]


def test_hugging_face_folder(tmp_path: Path) -> None:
    draw(tmp_path / "x" / "1.png")
    write_lines(tmp_path / "metadata.jsonl", [{"file_name": "x/1.png", "text": " a dot "}])
    (sample,) = read_dataset(tmp_path)
    assert (sample.captions, sample.picture) == (("a dot",), FileSource(tmp_path / "x" / "1.png"))


def coco(name: str, id: int, file: str, captions: list[str]) -> dict:
    return {
        "images": [{"id": id, "file_name": file}],
        "annotations": [{"id": 7 + n, "image_id": id, "caption": caption} for n, caption in enumerate(captions)],
    }


def test_coco_annotations_take_their_split_from_the_files_name(tmp_path: Path) -> None:
    for split, id in (("train", 9), ("val", 42)):
        content = coco(split, id, f"COCO_{split}2014_{id:012d}.jpg", [f"{split} one", f"{split} two"])
        (tmp_path / f"captions_{split}2014.json").write_text(json.dumps(content))
        (tmp_path / f"instances_{split}2014.json").write_text("{}")  # lies beside in every download
    draw(tmp_path / "train2014" / "COCO_train2014_000000000009.jpg")
    draw(tmp_path / "000000000042.jpg")  # the same picture under its name of 2017
    for path in (tmp_path, tmp_path / "captions_*2014.json", tmp_path / "captions_{train,val}2014.json"):
        dataset = read_dataset(path)
        assert [(s.id, s.split, s.captions) for s in dataset] == [
            ("9", "train", ("train one", "train two")),
            ("42", "val", ("val one", "val two")),
        ]
        assert [p.relative_to(tmp_path) for p in paths(dataset)] == [
            Path("train2014/COCO_train2014_000000000009.jpg"),
            Path("000000000042.jpg"),
        ]


def test_karpathys_pictures_are_found_under_three_names(tmp_path: Path) -> None:
    content = karpathy(folder="val2014")
    for image in content["images"]:
        image["filename"] = "COCO_val2014_" + image["filename"]
    (tmp_path / "dataset_coco.json").write_text(json.dumps(content))
    made = [
        draw(tmp_path / "COCO_val2014_a.jpg"),
        draw(tmp_path / "val2014" / "COCO_val2014_b.jpg"),
        draw(tmp_path / "train2017" / "000000057872.jpg"),
    ]
    assert paths(read_dataset(tmp_path)) == made


def test_flickr_tokens_with_and_without_lists(tmp_path: Path) -> None:
    lines = [f"{name}#{n}\t{caption}" for name, (_, said) in TRUTH.items() for n, caption in enumerate(said)]
    tokens = tmp_path / "Flickr8k.token.txt"
    tokens.write_text("\n".join([*lines, "stray.jpg.1#0\tin no list", ""]))
    (tmp_path / "Flickr8k.lemma.token.txt").write_text("\n".join(lines))
    draw(tmp_path / "Flicker8k_Dataset" / "b.jpg")
    alone = read_dataset(tokens)
    assert len(alone) == 4 and set(alone.counts()) <= {"train", "val", "test"}
    for list_, split in (("trainImages", "train"), ("devImages", "val"), ("testImages", "test")):
        names = [name for name, (of, _) in TRUTH.items() if of == split]
        (tmp_path / f"Flickr_8k.{list_}.txt").write_text("\n".join(names) + "\n")
    dataset = read_dataset(tmp_path)
    assert told(dataset) == TRUTH
    assert dataset.left_out.in_no_list == 1
    assert paths(dataset)[1] == tmp_path / "Flicker8k_Dataset" / "b.jpg"


def test_captions_alone_have_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "said.json"
    path.write_text(json.dumps({"17": ["a"], "18": ["b"]}))
    draw(tmp_path / "18.png")
    first, second = read_dataset(path)
    assert first.picture is None
    assert second.picture == FileSource(tmp_path / "18.png")


def test_empty_captions_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "x.jsonl",
        [{"image": "a.jpg", "captions": ["  a dog \n", " ", ""]}, {"image": "b.jpg", "captions": ["\t"]}],
    )
    dataset = read_dataset(path)
    assert [(s.id, s.captions) for s in dataset] == [("a.jpg", ("a dog",))]
    assert (dataset.left_out.empty_captions, dataset.left_out.without_captions) == (3, ("b.jpg",))


@pytest.mark.parametrize("name", ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "..", "a\0.jpg"])
def test_a_picture_outside_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    draw(tmp_path / "x.jpg")
    (tmp_path / "in").mkdir()
    path = write_lines(tmp_path / "in" / "c.jsonl", [{"image": name, "caption": "a"}])
    with pytest.raises(MeshcapError, match=r"is outside of .*in: expected a path below it"):
        read_dataset(path)


def test_paths_that_stay_inside_are_taken(tmp_path: Path) -> None:
    draw(tmp_path / "x.jpg")
    names = ["a/../x.jpg", "./x.jpg", str(tmp_path / "x.jpg")]
    path = write_lines(tmp_path / "c.jsonl", [{"image": name, "caption": "a"} for name in names])
    assert [p.read_bytes() for p in paths(read_dataset(path))] == [(tmp_path / "x.jpg").read_bytes()] * 3


MISTAKES = {
    "nothing": ("c.jsonl", "", "holds no pictures, expected at least one with a caption"),
    "blank": ("c.csv", "image,caption\na.jpg,\n", "holds 1 pictures without captions"),
    "number": (
        "c.jsonl",
        '{"image": "a.jpg", "caption": "a"}\n{"image": "b.jpg", "caption": 3}',
        "line 2 .* caption 3",
    ),
    "null": ("c.jsonl", '\n{"image": "b.jpg", "captions": ["a", null]}', "line 2 .* expected a string"),
    "two splits": ("c.csv", "image,caption,split\na.jpg,a,train\na.jpg,b,val\n", "in the splits train and val"),
    "two files": ("c.csv", "image_id,file_name,caption\n1,a.jpg,a\n1,b.jpg,b\n", "the file a.jpg and b.jpg"),
    "token": ("x.token.txt", "a.jpg#0\ta dog\nb.jpg a cat\n", "line 2 .* expected name.jpg#0"),
    "compressed": ("x.tar.gz", "", "unpack it first"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(mistake: str, tmp_path: Path) -> None:
    name, content, expected = MISTAKES[mistake]
    (tmp_path / name).write_text(content)
    with pytest.raises(MeshcapError, match=expected) as raised:
        read_dataset(tmp_path / name)
    assert name in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_must_say_one_thing(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match="holds no captions, expected tar shards"):
        read_dataset(tmp_path)
    write_lines(tmp_path / "captions.jsonl", rows(per_caption=False))
    write_table(tmp_path / "captions.csv", rows(per_caption=True))
    with pytest.raises(MeshcapError, match=r"holds captions.csv, captions.jsonl: name the one"):
        read_dataset(tmp_path)
    assert len(read_dataset(tmp_path / "captions.csv")) == 3
    with pytest.raises(MeshcapError, match="is not there"):
        read_dataset(tmp_path / "nonesuch-*.jsonl")
    with pytest.raises(MeshcapError, match="is not a folder, expected one with pictures"):
        read_dataset(tmp_path / "captions.csv", pictures=tmp_path / "nonesuch")


def test_one_file_a_split_is_one_dataset(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        write_lines(tmp_path / f"{split}.jsonl", [{"image": f"{split}.jpg", "caption": "a"}])
    assert read_dataset(tmp_path).counts() == {"train": 1, "val": 1, "test": 1}
    write_lines(tmp_path / "test.jsonl", [{"image": "train.jpg", "caption": "b"}])
    with pytest.raises(MeshcapError, match="is in the splits test and train, expected one"):
        read_dataset(tmp_path)


@pytest.mark.parametrize(
    "name, split",
    [
        ("captions_train2014.json", "train"), ("val-0.tar", "val"), ("coco-dev_003", "val"), ("Test.csv", "test"),
        ("trainval.json", None), ("captions.json", None), ("train_val.json", None), ("contest.json", None),
    ],
)  # fmt: skip
def test_splits_in_names(name: str, split: str | None) -> None:
    assert split_in_name(name) == split


def test_braces() -> None:
    assert expand_braces("a-{8..11}.tar") == ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{x,y}-{00..01}") == ["x-00", "x-01", "y-00", "y-01"]
    assert expand_braces("no{thing}") == ["no{thing}"]


# Splits by hash


@given(st.sets(st.text(min_size=1, max_size=12), max_size=60), st.sets(st.text(min_size=1, max_size=12), max_size=60))
def test_a_picture_stays_in_its_split_when_others_come(some: set[str], more: set[str]) -> None:
    few, many = hashed_splits(some, val=0.2, test=0.2), hashed_splits(some | more, val=0.2, test=0.2)
    own = {id: hashed_split(id, val=0.2, test=0.2) for id in some | more}
    for splits in (few, many):  # but for one that fills an empty val, and one that fills an empty train
        assert sum(splits[id] != own[id] for id in splits) <= 2
        if len(splits) > 1:
            assert "train" in splits.values()
        if {"train", "val"} <= {own[id] for id in splits}:
            assert splits == {id: own[id] for id in splits}


@given(st.integers(2, 40), st.integers(0, 10_000))
def test_the_smallest_datasets_have_a_val_picture(count: int, start: int) -> None:
    splits = hashed_splits((f"{start + n}.jpg" for n in range(count)), val=0.05, test=0.0)
    assert {"train", "val"} == set(splits.values())


def test_named_splits_are_not_filled_from_the_unnamed(tmp_path: Path) -> None:
    named = [{"image": f"{n}.jpg", "caption": "a", "split": split} for n, split in enumerate(("train", "val"))]
    more = [{"image": f"more{n}.jpg", "caption": "a"} for n in range(5)]
    splits = [s.split for s in read_dataset(write_lines(tmp_path / "c.jsonl", named + more), val=1e-9, test=0)]
    assert splits == ["train", "val"] + ["train"] * 5
    splits = [s.split for s in read_dataset(write_lines(tmp_path / "c.jsonl", more), val=1e-9, test=0)]
    assert sorted(splits) == ["train"] * 4 + ["val"]


@given(st.floats(0.01, 0.4), st.floats(0, 0.4), st.integers(0, 10**6))
def test_shares_are_those_asked_for(val: float, test: float, start: int) -> None:
    count = 4000
    found = Counter(hashed_split(str(start + n), val=val, test=test) for n in range(count))
    for split, share in (("val", val), ("test", test), ("train", 1 - val - test)):
        sigma = (count * share * (1 - share)) ** 0.5
        assert abs(found[split] - count * share) <= 5 * sigma + 1


def test_hash_is_the_same_everywhere() -> None:
    # `printf 0.jpg | b2sum -l 64` begins with 4b, and the others with 41, 79, d4, ac, 6c; of 256 each
    found = [hashed_split(f"{n}.jpg", val=0.3, test=0.3) for n in range(6)]
    assert found == ["test", "test", "val", "train", "train", "val"]


@pytest.mark.parametrize("val, test", [(0.6, 0.5), (-0.1, 0), (1.0, 0.0)])
def test_shares_that_leave_nothing_are_refused(val: float, test: float, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "c.jsonl", [{"image": "a.jpg", "caption": "a"}])
    with pytest.raises(MeshcapError, match="are no shares"):
        read_dataset(path, val=val, test=test)


def test_texts_beside_pictures(tmp_path: Path) -> None:
    """What `meshcap batch --sidecar` and the trainers of other models keep."""
    for name, text in (
        ("train/a.jpg", "A dog.\nTwo dogs.\n"),
        ("val/b.png", None),
        ("c.webp", " A cat. "),
        ("d.jpg", None),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
        if text is not None:
            path.with_suffix(".txt").write_text(text)
    (tmp_path / "val/b.png.txt").write_text("A bird.\n")
    (tmp_path / "notes.txt").write_text("nobody's\n")
    found = read_dataset(tmp_path)
    assert {sample.id: sample.captions for sample in found} == {
        "train/a.jpg": ("A dog.", "Two dogs."), "val/b.png": ("A bird.",), "c.webp": ("A cat.",),
    }  # fmt: skip
    assert {sample.id: sample.split for sample in found if "/" in sample.id} == {
        "train/a.jpg": "train",
        "val/b.png": "val",
    }
    assert all(sample.picture.path == tmp_path / sample.id for sample in found)
    assert found.left_out.without_captions == ("d.jpg",)
    (tmp_path / "captions.jsonl").write_text('{"image": "d.jpg", "caption": "written down"}\n')
    assert [sample.id for sample in read_dataset(tmp_path)] == ["d.jpg"]  # a caption file comes before texts


LINES = [
    '{"image": "a.jpg", "caption": "one"}', '{"image": "a.jpg", "caption": 7}', "no json",
    '{"picture": "b.jpg", "text": "two"}', '{"foto": "c.jpg", "text": "three"}', '{"image": true, "caption": "four"}',
]  # fmt: skip


def test_bad_records_are_named_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(LINES))
    with pytest.raises(MeshcapError) as caught:
        read_dataset(path)
    text = str(caught.value)
    assert "x.jsonl: 4 bad records: line 2 has the caption 7; line 3 is not JSON" in text
    assert "line 5 has the keys foto, text; line 6 has the id True" in text and "\n" not in text
    found = read_dataset(path, skip_broken=True)
    assert {sample.id: sample.captions for sample in found} == {"a.jpg": ("one",), "b.jpg": ("two",)}
    assert [line.split(" has ")[0].split(" is ")[0][-6:] for line in found.left_out.broken] == [
        "line 2", "line 3", "line 5", "line 6",
    ]  # fmt: skip
    path.write_text(LINES[4])
    with pytest.raises(
        MeshcapError, match=r"line 1 has the keys foto, text, .*: rename the one that names pictures to image$"
    ):
        read_dataset(path)
    table = tmp_path / "x.csv"
    table.write_text("picture,text\na.jpg,one\nb.jpg,two,three\n,four\nc.jpg,five\n")
    with pytest.raises(
        MeshcapError, match=r"2 bad records: line 3 has 3 fields and the header 2.*; line 4 has the id ''"
    ):
        read_dataset(table)
    assert [sample.id for sample in read_dataset(table, skip_broken=True)] == ["a.jpg", "c.jpg"]
    table.write_text("foto,beschreibung\n")
    with pytest.raises(
        MeshcapError, match="rename the one that names pictures to image and the one with captions to caption"
    ):
        read_dataset(table)
