"""German captions find the pictures of Flickr8k by Flickr's numbers, and stay in Flickr8k's splits."""

import gzip
from pathlib import Path

import pytest

from meshcap import MeshcapError
from meshcap.data import Dataset, Sample
from recipes.german import PARTS, WRITERS, german_captions, in_german


@pytest.fixture
def multi30k(tmp_path: Path) -> Path:
    task = tmp_path / "data" / "task2"
    (task / "image_splits").mkdir(parents=True)
    (task / "raw").mkdir()
    for part in PARTS:
        (task / "image_splits" / f"{part}_images.txt").write_text(f"1{part[-1:]}.jpg\n22.jpg\n".replace("n.", "1."))
        for writer in WRITERS:
            text = f"Ein Hund ({part}, {writer}).\n{'' if writer == 2 else 'Zwei Männer.'}\n"
            (task / "raw" / f"{part}.{writer}.de.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_captions_join_their_pictures(multi30k: Path) -> None:
    captions = german_captions(multi30k)
    assert captions["11"] == [f"Ein Hund (train, {writer})." for writer in WRITERS]
    assert captions["22"] == ["Zwei Männer."] * 12  # of three parts, what one writer left empty is no caption
    names = [("11_ab.jpg", "val"), ("22_cd.jpg", "train"), ("33_ef.jpg", "train")]
    flickr8k = Dataset("f", [Sample(name, ("in English",), split, None, name) for name, split in names])
    german = in_german(flickr8k, captions, {"train": None, "val": 1})
    assert [(one.id, one.split, len(one.captions)) for one in german] == [
        ("22_cd.jpg", "train", 12),
        ("11_ab.jpg", "val", 5),
    ]
    with pytest.raises(MeshcapError, match="shares no picture"):
        in_german(flickr8k, {}, {})
