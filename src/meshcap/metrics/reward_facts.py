"""True statements as a reward, for captions of music whose facts are known (`meshcap.music`).

CIDEr-D rewards a chord that is often said; whether it sounds, it hardly asks. Beside it, for each candidate,

    bonus · true statements - penalty · false ones

so that a statement is worth saying where its chances are above penalty / (penalty + bonus). Words of no statement,
repeated kinds of statements and captions without an end cost half a penalty each: otherwise nonsense would be safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from meshcap.errors import MeshcapError
from meshcap.music.captions import read_caption
from meshcap.music.facts import Facts


class FactReward:
    """Called with candidates (B, S, T) of the pieces (B,), it returns (B, S) float32, on their device."""

    def __init__(self, facts: Sequence[Facts], words: Sequence[str], *, eos: int, penalty: float, bonus: float):
        self.facts, self.words, self.eos, self.penalty, self.bonus = facts, list(words), eos, penalty, bonus
        self.signature = f"+{bonus:g} for a true statement, -{penalty:g} for a false one"

    @classmethod
    def of_samples(
        cls,
        samples: Sequence[tuple[str, Mapping[str, Any] | None]],
        words: Sequence[str],
        *,
        eos: int,
        penalty: float,
        bonus: float,
    ) -> Self:
        """From ids and what a dataset says beside the captions (`Sample.more`).

        Raises:
            MeshcapError: a sample without facts.
        """
        facts = []
        for id, more in samples:
            try:
                facts.append(Facts.from_dict((more or {})["facts"]))
            except (KeyError, TypeError, MeshcapError):
                raise MeshcapError(
                    f"{id} has no facts of a piece of music: scst.facts needs them in the data"
                ) from None
        return cls(facts, words, eos=eos, penalty=penalty, bonus=bonus)

    def worth(self, caption: str, facts: Facts, *, ended: bool = True) -> float:
        """Of one caption."""
        statements, left = read_caption(caption)
        true = sum(one.holds(facts) for one in statements)
        repeated = len(statements) - len({one.kind for one in statements})
        wrong = len(statements) - true + (len(left) + repeated + (not ended)) / 2
        return self.bonus * true - self.penalty * wrong

    def __call__(self, ids: Tensor, pictures: Tensor) -> Tensor:
        found = np.zeros(tuple(ids.shape[:2]), np.float32)
        for row, (piece, captions) in enumerate(zip(pictures.tolist(), ids.tolist(), strict=True)):
            for place, words in enumerate(captions):
                ended = self.eos in words
                text = " ".join(self.words[word] for word in (words[: words.index(self.eos)] if ended else words))
                found[row, place] = self.worth(text, self.facts[piece], ended=ended)
        return torch.from_numpy(found).to(ids.device)
