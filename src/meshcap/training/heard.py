"""Which words a captioner should say a little sooner, and how much that is worth.

Self-critical training takes probability from words that seldom score. Many of them are still second or third at some
place of some caption, and are never said: "tarmac" where it says "runway". A number b_w that is added to the logit of
such a word makes it the likeliest wherever it lacked less than that. Of N captions that were listened to:

    lacking_wk = what w lacked to be the likeliest, in the caption where it came k-th nearest
    b_w        = lacking_wk + NUDGE     for one k, which makes w heard k times more

For a reader of `READ` captions the word is then heard u0 + u times instead of u0, and a share p of that is right,
because people said it of that picture too:

    u0 = READ · (times it is said) / N,   u = READ · k / N
    gain = exp(-u0) - exp(-u0 - u)           by how much likelier the reader meets the word at all (Poisson)
    cost = u · (WRONG · (1 - p) - p)         a wrong word costs more CIDEr than a right one brings

and k is what makes gain - price · cost largest, or the word is left alone. p comes from the places nearest to the word
and, as if PRIOR more of them had been seen, from how far it has to be raised: the further, the less often it is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshcap.errors import MeshcapError

READ = 5000
NUDGE = 0.5  # beyond equally likely, since beam search weighs whole captions
NEAREST = 16  # places that are remembered of each word
LOOKED_AT = 12  # of them, at least, for p
PRIOR = 5
WRONG = 1.7  # on COCO val a raised word that was wrong cost 27 CIDEr of its caption, a right one brought 16
OFTEN = 8.0  # a word that the reader hears so often needs no help


def guess(raised: Tensor) -> Tensor:
    """How often words are right that were raised so far: on COCO val 0.6 of those below 1, 0.2 of those above 5."""
    return (0.62 - 0.08 * raised).clamp_min(0.1)


@dataclass(frozen=True)
class Heard:
    """What a captioner said of pictures, and what it nearly said."""

    captions: int
    said: Tensor  # (V,) int64: in how many captions
    lacking: Tensor  # (K, V) float32: what a word's logit lacked, nearest first; infinite where there was no such place
    right: Tensor  # (K, V) bool: whether people said it of that picture

    def bias(self, limit: float, price: float) -> Tensor:
        """What is added to the logits (V,), float32.

        Args:
            limit: words that lacked more are left alone.
            price: what is paid for a word that is met: the higher, the fewer words are raised.

        Raises:
            MeshcapError: a limit or a price below 0.
        """
        for name, value in (("limit", limit), ("price", price)):
            if not 0 <= value < float("inf"):
                raise MeshcapError(f"the {name} is {value}, expected a number of at least 0")
        places = len(self.lacking)
        more = torch.arange(1, places + 1)[:, None]  # k (K, 1)
        raised = self.lacking + NUDGE
        reached = self.lacking < limit

        looked = more.clamp_min(LOOKED_AT).clamp_max(places).expand_as(raised) - 1
        there = self.lacking.isfinite().cumsum(0).gather(0, looked)
        p = (self.right.cumsum(0).gather(0, looked) + PRIOR * guess(raised)) / (there + PRIOR)

        heard = READ * self.said / self.captions  # u0 (V,)
        u = READ * more / self.captions
        gain = (-heard).exp() - (-heard - u).exp()
        worth = gain - price * u * (WRONG * (1 - p) - p)
        best, k = worth.where(reached & (heard < OFTEN), -1.0).max(0)
        return raised.gather(0, k[None])[0].where(best > 0, 0.0)
