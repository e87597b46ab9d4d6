"""Which split a picture belongs to: by its own word, by its file's name, or by a hash of its id.

The first that says anything counts. Names are those of the field brought to three: Karpathy's "restval" is for
training, "validation", "valid" and "dev" are "val". A name that is none of these is a split of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from meshcap.data.dataset import hashed_place, hashed_split
from meshcap.errors import MeshcapError

MEANINGS = {
    "train": "train",
    "training": "train",
    "restval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
# A whole word of a file's name, years and numbers being no letters: captions_train2014.json, val-0.tar. Not "trainval".
_WORD = re.compile(rf"(?<![a-z])({'|'.join(sorted(MEANINGS, key=len, reverse=True))})(?![a-z])")


def named_split(told: str | None) -> str | None:
    """The split that a file says, by its usual name; None if it says nothing."""
    told = (told or "").strip()
    return MEANINGS.get(told.lower(), told) or None


def split_in_name(name: str) -> str | None:
    """The split that is a word of a file's name; None if none is, or several are."""
    found = {MEANINGS[word] for word in _WORD.findall(name.lower())}
    return found.pop() if len(found) == 1 else None


def hashed_splits(ids: Iterable[str], *, val: float, test: float, alone: bool = True) -> dict[str, str]:
    """A split for each id, of pictures whose files name none.

    Each by itself, so that a picture stays where it is when others come or go. But training needs pictures, and a few
    to watch itself by: of a dataset so small that chance leaves out either, the picture whose place in the order of
    hashes is nearest goes there. That one picture may move when others are added.

    Args:
        alone: these are the whole dataset. Where other pictures have splits by name, nothing need be filled.

    Raises:
        MeshcapError: shares that leave nothing for training.
    """
    if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
        raise MeshcapError(f"val {val} and test {test} are no shares, expected 0 or more, below 1 together")
    splits = {id: hashed_split(id, val=val, test=test) for id in ids}
    if not alone:
        return splits
    if splits and "train" not in splits.values():
        splits[max(splits, key=hashed_place)] = "train"
    training = [id for id, split in splits.items() if split == "train"]
    if val > 0 and len(training) > 1 and "val" not in splits.values():
        splits[min(training, key=hashed_place)] = "val"
    return splits
