"""Objects as a reward, by hand and beside CHAIR's own way of finding objects."""

import json
from pathlib import Path

import pytest
import torch

from meshcap.errors import MeshcapError
from meshcap.metrics.hallucination import Synonyms
from meshcap.metrics.reward_objects import ObjectReward

WORDS = (
    "<unk> <pad> <bos> <eos> a hot dog dogs teddy bear man men train tracks bench cell phone table with orange "
    "people knives station"
).split()
IDS = {word: at for at, word in enumerate(WORDS)}
SENTENCES = [
    "a hot dog with a man",
    "dogs with train tracks",
    "men with a cell phone",
    "a teddy bear bench",
    "people with knives",
    "a train station with a train",
    "a bear with a bear",
]


def encoded(sentence: str, length: int = 10) -> list[int]:
    ids = [IDS[word] for word in sentence.split()] + [IDS["<eos>"]]
    return ids + [IDS["<pad>"]] * (length - len(ids))


def reward(tmp_path: Path, objects: dict[str, list[str]], ids: list[str], **options: float) -> ObjectReward:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(objects), encoding="utf-8")
    given = {"penalty": 0.2, "bonus": 0.05} | options
    return ObjectReward.of_pictures(str(path), [(one, one) for one in ids], WORDS, **given)


def test_names_what_chair_finds(tmp_path: Path) -> None:
    found = reward(tmp_path, {"1": []}, ["1"])
    synonyms = Synonyms.ours()
    names = sorted({name for name in synonyms.phrases.values() if name is not None})
    named = found.named(torch.tensor([[encoded(one) for one in SENTENCES]]))[0]
    for sentence, row in zip(SENTENCES, named, strict=True):
        assert {names[at] for at in row.nonzero().flatten()} == set(synonyms.mentioned(sentence.split())), sentence


def test_by_hand(tmp_path: Path) -> None:
    found = reward(tmp_path, {"57870": ["hot dog"], "2": ["person", "cell phone"]}, ["000000057870.jpg", "2"])
    ids = torch.tensor([[encoded("a hot dog with a man"), encoded("a table")], [encoded("men with a cell phone")] * 2])
    got = found(ids, torch.tensor([0, 1]))
    torch.testing.assert_close(got, torch.tensor([[0.05 - 0.2, -0.2], [0.1, 0.1]]))
    torch.testing.assert_close(found(ids.flip(0), torch.tensor([1, 0])), got.flip(0))


def test_a_picture_without_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeshcapError, match=r"has no entry for picture b\.jpg"):
        reward(tmp_path, {"1": []}, ["1", "b.jpg"])
