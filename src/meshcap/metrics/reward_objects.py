"""Objects as a reward: what a caption gains by each object it names that is there, and loses by each that is not.

CIDEr-D alone hardly minds an invented object: the caption loses a few n-grams. Beside it, for each candidate,

    bonus · |named ∩ there| - penalty · |named \\ there|

with each kind of object counted once. What words name is what CHAIR counts (`meshcap.metrics.hallucination`): single
words and pairs of words, the pair first ("hot dog" names no dog). Longer phrases and words that are as often no object
("orange", "remote") count for nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.metrics.hallucination import DOUBTFUL, Synonyms, read_objects
from meshcap.text.sentence import singular


class ObjectReward:
    """Called with candidates (B, S, T) of the pictures (B,), it returns (B, S) float32, on the device of `there`.

    Args:
        there: (pictures, objects) bool, objects in the order of `names`.
        words: the vocabulary.
    """

    def __init__(self, there: Tensor, names: Sequence[str], words: Sequence[str], *, penalty: float, bonus: float):
        place = {name: at for at, name in enumerate(names)}
        phrases = Synonyms.ours().phrases
        forms: dict[str, list[int]] = {}  # a word and its plural -> ids
        single = torch.full((len(words),), -1)
        for at, word in enumerate(words):
            for form in {word, singular(word)}:
                forms.setdefault(form, []).append(at)
                name = phrases.get((form,))
                if name is not None and word not in DOUBTFUL:
                    single[at] = place[name]
        first = {word: at for at, word in enumerate(words)}
        pairs: dict[int, int] = {}
        for phrase, name in phrases.items():
            if len(phrase) == 2 and phrase[0] in first:
                for last in forms.get(phrase[1], ()):
                    pairs[first[phrase[0]] * len(words) + last] = -1 if name is None else place[name]
        keys = sorted(pairs)
        self.there, self.single, self.penalty, self.bonus = there, single, penalty, bonus
        self.keys, self.pairs = torch.tensor(keys, dtype=torch.long), torch.tensor([pairs[key] for key in keys])
        self.words, self.kinds = len(words), len(names)
        self.signature = (
            f"{int((single >= 0).sum())} words and {len(keys)} pairs, +{bonus:g} for an object that is there, "
            f"-{penalty:g} for one that is not"
        )
        self.to(there.device)

    @classmethod
    def of_pictures(
        cls,
        path: str,
        pictures: Sequence[tuple[str, object]],
        words: Sequence[str],
        *,
        penalty: float,
        bonus: float,
    ) -> Self:
        """From a file of the objects in each picture.

        Args:
            path: as `read_objects` takes it.
            pictures: ids and file names. COCO's numbers are found in names such as 000000057870.jpg.

        Raises:
            MeshcapError: a file that cannot be read, or without one of the pictures.
        """
        synonyms = Synonyms.ours()
        shown = read_objects(path, synonyms).shown
        names = sorted({name for name in synonyms.phrases.values() if name is not None})
        place = {name: at for at, name in enumerate(names)}
        there = torch.zeros(len(pictures), len(names), dtype=torch.bool)
        for row, (id, file) in enumerate(pictures):
            number = re.search(r"(\d+)(?:\.\w+)?$", str(id))
            keys = (str(id), str(file), str(int(number[1])) if number else "")
            found = next((shown[key] for key in keys if key in shown), None)
            if found is None:
                raise MeshcapError(f"{path} has no entry for picture {id}, expected one for every training picture")
            there[row, [place[name] for name in found]] = True
        return cls(there, names, words, penalty=penalty, bonus=bonus)

    def to(self, device: torch.device) -> Self:
        self.there, self.single = self.there.to(device), self.single.to(device)
        self.keys, self.pairs = self.keys.to(device), self.pairs.to(device)
        return self

    def named(self, ids: Tensor) -> Tensor:
        """(B, S, T) -> (B, S, objects) bool."""
        found = self.single[ids]
        if len(self.keys):
            key = ids[..., :-1] * self.words + ids[..., 1:]
            at = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
            pair = self.keys[at] == key
            found[..., 1:] = torch.where(pair, -1, found[..., 1:])
            found[..., :-1] = torch.where(pair, self.pairs[at], found[..., :-1])
        named = torch.zeros(*ids.shape[:-1], self.kinds + 1, dtype=torch.bool, device=ids.device)
        return named.scatter_(-1, found.where(found >= 0, self.kinds), True)[..., : self.kinds]

    def __call__(self, ids: Tensor, pictures: Tensor) -> Tensor:
        named, there = self.named(ids), self.there[pictures][:, None]
        return self.bonus * (named & there).sum(-1) - self.penalty * (named & ~there).sum(-1)
