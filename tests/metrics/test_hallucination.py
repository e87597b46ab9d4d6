"""CHAIR by hand, and the words for objects."""

import json
from pathlib import Path

import numpy
import pytest

from meshcap.errors import MeshcapError
from meshcap.metrics import score
from meshcap.metrics.hallucination import Synonyms, chair, read_objects, singular
from meshcap.metrics.result import intervals

OURS = Synonyms.ours()


def test_our_table_has_the_80_objects() -> None:
    names = {name for name in OURS.phrases.values() if name}
    assert len(names) == 80
    assert {"person", "traffic light", "hair drier", "toothbrush", "hot dog"} <= names
    for name in names:
        assert OURS.object(name) == name


@pytest.mark.parametrize(
    ("caption", "objects"),
    [
        ("two men and a puppy", ["person", "dog"]),
        ("a man eats a hot dog", ["person", "hot dog"]),
        ("hot dogs and dogs", ["hot dog", "dog"]),
        ("a teddy bear beside bears", ["teddy bear", "bear"]),
        ("people waiting at a bus stop near train tracks", ["person"]),
        ("a couple of cats and a couple", ["cat", "person"]),
        ("knives , buses , benches , scissors and skis", ["knife", "bus", "bench", "scissors", "skis"]),
        ("an orange cat on an orange", ["cat", "orange"]),
        ("oranges in a bowl", ["orange", "bowl"]),
        ("a remote beach near a ski slope", []),
        ("a remote on a table", ["remote", "dining table"]),
        ("a flat screen tv on the wall", ["tv"]),
        ("", []),
    ],
)
def test_mentions(caption: str, objects: list[str]) -> None:
    assert OURS.mentioned(caption.split()) == objects


def test_singular() -> None:
    plural = "dogs women puppies couches glasses buses boxes knives bus grass tennis sheep"
    assert [singular(word) for word in plural.split()] == (
        "dog woman puppy couch glass bus box knife bus grass tennis sheep".split()
    )


def test_chair_by_hand() -> None:
    candidates = [caption.split() for caption in ("a dog and a cat on a cat", "a dog", "nothing at all", "a car")]
    references = [[["a", "dog"]], [["an", "animal"]], [["a", "field"]], [["cars"]]]
    shown = [set(), {"dog"}, {"cow"}, set()]
    wrong, captions = chair(candidates, references, shown, OURS)
    # dog by the reference, cat twice by nobody; dog by the annotation; no mention; car by the plural in the reference
    assert wrong.corpus() == 2 / 5
    assert captions.corpus() == 1 / 4
    numpy.testing.assert_array_equal(wrong.per_image, [2 / 3, 0, numpy.nan, 0])
    assert captions.per_image.tolist() == [1, 0, 0, 0]
    assert [measure.name for measure in (wrong, captions)] == ["CHAIR-i", "CHAIR-s"]
    (low, high), _ = intervals([wrong, captions], 500, 0)
    assert 0 <= low < 2 / 5 < high <= 2 / 3


def test_no_mention_at_all() -> None:
    wrong, captions = chair([["x"]], [[["y"]]], [set()], OURS)
    assert (wrong.corpus(), captions.corpus()) == (0, 0)


def test_objects_of_coco_instances(tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    content = {
        "images": [{"id": 1, "file_name": "one.jpg"}, {"id": 2, "file_name": "two.jpg"}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [{"image_id": 1, "category_id": 18}, {"image_id": 1, "category_id": 1}],
    }
    path.write_text(json.dumps(content))
    found = read_objects(path, OURS)
    both = {"dog", "person"}
    assert found.shown == {"1": both, "one.jpg": both, "2": set(), "two.jpg": set()}
    assert found.warnings == []


def test_objects_by_name(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"1": ["Dogs", "unicorn", "dragon"], "2": []}))
    found = read_objects(path, OURS)
    assert found.shown == {"1": {"dog"}, "2": set()}
    assert found.warnings == [
        f"2 object names of {path} are unknown and cannot be found in captions (first: 'unicorn')"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "holds a JSON list, expected COCO's instances JSON or"),
        ('{"1": "dog"}', "'1' has 'dog', expected COCO's instances JSON or"),
        ('{"categories": [], "images": []}', "lacks 'annotations' in its images, annotations or categories"),
        ("{", "is not JSON"),
    ],
)
def test_objects_in_another_layout(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(content)
    with pytest.raises(MeshcapError) as raised:
        read_objects(path, OURS)
    assert message in str(raised.value)


def test_synonyms_file(tmp_path: Path) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text("person, girl,boy\n\nsurfboard, surf board, board\n")
    synonyms = Synonyms.read(path)
    assert synonyms.mentioned("girls and boys on surf boards with a dog".split()) == ["person", "person", "surfboard"]
    assert synonyms.object("surfboard") == "surfboard"
    assert synonyms.source == "synonyms.txt"
    path.write_text(", girl\n")
    with pytest.raises(MeshcapError, match=r"line 1 is ', girl', expected an object, then its synonyms"):
        Synonyms.read(path)
    path.write_text("\n")
    with pytest.raises(MeshcapError, match="holds no objects"):
        Synonyms.read(path)


def test_with_a_synonyms_file_as_the_papers_program(tmp_path: Path) -> None:
    """The figures that the program itself gave for these captions."""
    given = json.loads((Path(__file__).parents[1] / "fixtures/chair.json").read_text())
    (tmp_path / "synonyms.txt").write_text(given["synonyms"])
    (tmp_path / "objects.json").write_text(json.dumps({k: each["objects"] for k, each in enumerate(given["pictures"])}))
    synonyms = Synonyms.read(tmp_path / "synonyms.txt")
    objects = read_objects(tmp_path / "objects.json", synonyms)
    assert not objects.warnings
    for each in given["pictures"]:
        assert synonyms.mentioned(each["caption"].split()) == each["mentioned"], each["caption"]
    found = score(
        {k: each["caption"] for k, each in enumerate(given["pictures"])},
        {k: each["references"] for k, each in enumerate(given["pictures"])},
        objects=objects, synonyms=synonyms, bootstrap=0,
    )  # fmt: skip
    assert found.scores["CHAIR-i"] == pytest.approx(given["CHAIR-i"], abs=1e-12)
    assert found.scores["CHAIR-s"] == pytest.approx(given["CHAIR-s"], abs=1e-12)
    assert "|CHAIR:synonyms=synonyms.txt|" in found.signature
