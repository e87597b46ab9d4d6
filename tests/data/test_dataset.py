"""Training pictures left out by a file of their ids."""

from pathlib import Path

import pytest

from meshcap.data import Dataset, Sample
from meshcap.data.dataset import without
from meshcap.errors import MeshcapError

SAMPLES = [Sample(str(n), ("a",), "val" if n == 5 else "train", None) for n in range(6)]


@pytest.fixture
def names(tmp_path: Path) -> Path:
    return tmp_path / "without.txt"


def test_named_pictures_are_left_out(names: Path) -> None:
    names.write_text("# twins of test pictures\n3\n\n 1 \n")
    found = without(Dataset("x", SAMPLES), names)
    assert [one.id for one in found] == ["0", "2", "4", "5"]
    assert found.counts() == {"train": 3, "val": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3\n03\n", r"names '03', which is no training picture \(1 such\): expected ids like '0'"),
        ("5\n", r"names '5', which is no training picture"),
        ("0\n1\n2\n3\n4\n", "names all 5 training pictures"),
    ],
)
def test_mistakes(names: Path, text: str, told: str) -> None:
    names.write_text(text)
    with pytest.raises(MeshcapError, match=told):
        without(Dataset("x", SAMPLES), names)


def test_no_such_file(names: Path) -> None:
    with pytest.raises(MeshcapError, match="cannot be read"):
        without(Dataset("x", SAMPLES), names)
