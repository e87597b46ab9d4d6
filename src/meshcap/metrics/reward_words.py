"""A bonus for words that people use of a picture and the captioner seldom says.

CIDEr-D rewards what many people say of a picture, and a captioner that learns from it alone ends with a few hundred
words. Here a word that is right, because one of the picture's own references has it, is worth the more the further the
captioner falls behind people in saying it at all:

    f_w = in how many of people's captions the word stands, a share
    u_w = in how many of the captioner's last captions it does and is meant: likelier than all other words together
    s_w = clamp(log(min(share · f_w, often) / u_w), 0, most)

    bonus = Σ s_w over the different words w of the candidate that stand in a reference of its picture

Nobody is asked to say a word as often as people do: where u_w reaches `share` of f_w, or is said `often` enough to be
heard now and then, the bonus is gone, and CIDEr-D alone decides. A wrong word earns nothing, and costs what it costs in
CIDEr-D: the more, the rarer it is. `most` decides how unsure a captioner may be of a word that it tries: where a wrong
one costs 0.27 and a right one brings 0.16, a bonus of b pays from a probability of 0.27 / (0.43 + b) on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from meshcap.errors import MeshcapError

MOST = 3.0  # a word said at a twentieth of the share that was asked for is worth as much as one never said
MEMORY = 0.99  # of the captioner's use of words, from one step to the next
MEANT = math.log(0.5)
FLOOR = 1e-6  # a share too small to be told from none


class SeldomWords:
    """The words of every training picture's references, and how often the captioner has said each word lately.

    It begins as if the captioner spoke as people do, and learns better by `remember`.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[int]]],
        *,
        words: int,
        ignored: Sequence[int],
        share: float,
        often: float = 1.0,
        most: float = MOST,
        device: torch.device | None = None,
    ):
        """From the references of every training picture, as lists of ids.

        Args:
            words: size of the vocabulary.
            ignored: ids that are no words: `<pad>`, `<eos>`, `<unk>` and their like.
            share: of people's use of a word, at which the captioner says it often enough.
            often: the share of captions that is enough for any word, however often people say it.
            most: what a word can be worth, however seldom it is said.

        Raises:
            MeshcapError: no pictures, or shares that are none.
        """
        if not references:
            raise MeshcapError("no pictures were given, expected at least one")
        if not 0 < share <= 1:
            raise MeshcapError(f"words are to be said at {share} of people's rate, expected a share above 0")
        if not 0 < often <= 1:
            raise MeshcapError(f"{often} of the captions is to be enough for a word, expected a share above 0")
        if not most > 0:
            raise MeshcapError(f"a word is to be worth at most {most}, expected more than 0")
        none = set(ignored)
        self.most = most
        bags = [sorted({word for caption in captions for word in caption} - none) for captions in references]
        # (P, most words of a picture), filled up with -1, which no candidate holds.
        known = numpy.full((len(bags), max(map(len, bags)) or 1), -1, numpy.int32)
        for row, bag in zip(known, bags, strict=True):
            row[: len(bag)] = bag
        said = numpy.zeros(words)
        captions = 0
        for of_picture in references:
            captions += len(of_picture)
            for caption in of_picture:
                said[list(set(caption) - none)] += 1
        self.known = torch.from_numpy(known).to(device)
        people = torch.from_numpy(said / max(1, captions)).float().to(device)
        self.wanted = (share * people).clamp_max(often)
        self.used = people  # (V,) the captioner's, and the only thing here that changes
        counts = torch.ones(words, dtype=torch.bool)
        counts[[one for one in none if 0 <= one < words]] = False
        self.counts = counts.to(device)

    @property
    def worth(self) -> Tensor:
        """s (V,): what it brings now to say a word where it is right."""
        return ((self.wanted + FLOOR) / (self.used + FLOOR)).log_().clamp_(0, self.most)

    def __call__(self, candidates: Tensor, pictures: Tensor) -> Tensor:
        """The bonus (B, S) of candidates (B, S, T), filled up with an ignored id, for pictures (B,)."""
        right = (candidates[..., None] == self.known[pictures][:, None, None]).any(-1)  # (B, S, T)
        return (self.worth[candidates] * (right & self._first(candidates))).sum(-1)

    def hint(self, pictures: Tensor) -> Tensor:
        """(B, V): what every word of the references of pictures (B,) is worth now; 0 for other words."""
        known = self.known[pictures].long()  # (B, K), filled up with -1
        found = torch.zeros(len(pictures), len(self.used), device=known.device)
        return found.scatter_add_(1, known.clamp_min(0), self.worth[known].where(known >= 0, 0.0))

    def count(self, candidates: Tensor, log_probs: Tensor) -> Tensor:
        """(V + 1,): in how many of candidates (B, S, T) each word is meant, and last how many candidates these are.

        Captions are drawn while learning and searched for later. A word that is drawn once in ten times for each of ten
        pictures would never be said of any of them, so what counts is a word of which log_probs (B, S, T) say that it
        was no accident.
        """
        one_each = (self._first(candidates) & self.counts[candidates] & (log_probs > MEANT)).float()
        found = torch.zeros(len(self.used) + 1, device=candidates.device)
        found.index_add_(0, candidates.flatten(), one_each.flatten())
        found[-1] = candidates.shape[0] * candidates.shape[1]
        return found

    def remember(self, counted: Tensor) -> None:
        """What a step's candidates said, as `count` gives it, added up over all processes."""
        self.used.lerp_(counted[:-1] / counted[-1], 1 - MEMORY)

    @staticmethod
    def _first(candidates: Tensor) -> Tensor:
        """(B, S, T) whether a word stands there for the first time in its caption."""
        same = candidates[..., :, None] == candidates[..., None, :]  # (B, S, T, T)
        return ~same.tril(-1).any(-1)
