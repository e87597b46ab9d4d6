"""A search under way: what the W hypotheses of each picture have said so far.

Shapes never change and nothing is read back to the host, so that a whole step can be captured as one CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from meshcap.decoding.protocol import Settings


class Choice(NamedTuple):
    """How a strategy goes on: all (B, W)."""

    parents: Tensor | None  # which hypothesis each new one continues; None: each its own
    words: Tensor
    log_probs: Tensor  # of those words, by the model; 0 for hypotheses that had ended
    scores: Tensor  # of the hypotheses with those words


@dataclass(frozen=True)
class Search:
    """Tensors updated in place by `take`."""

    ids: Tensor  # (B, W, T), <pad> where nothing is said yet
    log_probs: Tensor  # (B, W, T)
    scores: Tensor  # (B, W)
    lengths: Tensor  # (B, W)
    finished: Tensor  # (B, W) bool
    last: Tensor  # (B, W) the latest word
    step: Tensor  # (1,)
    settings: Settings

    @classmethod
    def new(cls, settings: Settings, *, pictures: int, width: int, length: int, device: torch.device) -> Search:
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        search = cls(
            ids=zeros(pictures, width, length, dtype=torch.long),
            log_probs=zeros(pictures, width, length, dtype=torch.float),
            scores=zeros(pictures, width, dtype=torch.float),
            lengths=zeros(pictures, width, dtype=torch.long),
            finished=zeros(pictures, width, dtype=torch.bool),
            last=zeros(pictures, width, dtype=torch.long),
            step=zeros(1, dtype=torch.long),
            settings=settings,
        )
        search.reset()
        return search

    def reset(self) -> None:
        self.ids.fill_(self.settings.pad)
        self.last.fill_(self.settings.bos)
        for tensor in (self.log_probs, self.scores, self.lengths, self.finished, self.step):
            tensor.zero_()

    def take(self, choice: Choice) -> None:
        """Go on with a choice. A hypothesis that nothing is allowed to follow scores -inf and says no more."""
        parents, words, log_probs, scores = choice
        alive = scores > float("-inf")
        words, log_probs = words.masked_fill(~alive, self.settings.pad), log_probs.masked_fill(~alive, 0)
        if parents is not None:
            for tensor in (self.lengths, self.finished):
                tensor.copy_(tensor.gather(1, parents))
            for tensor in (self.ids, self.log_probs):
                tensor.copy_(tensor.gather(1, parents[..., None].expand_as(tensor)))
        self.ids.index_copy_(2, self.step, words[..., None])
        self.log_probs.index_copy_(2, self.step, log_probs[..., None])
        self.scores.copy_(scores)
        self.last.copy_(words)
        self.lengths.add_(~self.finished & alive)
        self.finished.logical_or_(words == self.settings.eos)
        self.step.add_(1)

    def over(self) -> bool:
        """Whether every hypothesis has ended or is out of the running; reads the data."""
        return bool((self.finished | (self.scores == float("-inf"))).all())


def rest(finished: Tensor, log_probs: Tensor, words: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Of candidates (B, W, k), leave a finished hypothesis one: to stay as it is, saying `<pad>` for nothing."""
    ended = finished[..., None]
    first = torch.arange(words.shape[-1], device=words.device) == 0
    log_probs = log_probs.masked_fill(ended, float("-inf")).masked_fill(ended & first, 0)
    return log_probs, words.masked_fill(ended, pad)


def normalised(scores: Tensor, lengths: Tensor, penalty: float) -> Tensor:
    """Scores divided by length ** penalty."""
    return scores if penalty == 0 else scores / lengths.clamp_min(1).float() ** penalty


def best_continuations(
    search: Search,
    gained: Tensor,
    words: Tensor,
    *,
    keep: slice = slice(None),
    cost: Tensor | None = None,
    penalty: float,
) -> Choice:
    """Of the hypotheses `keep` (w of them), each with k candidate words, the w best continuations.

    Args:
        gained, words: (B, w, k) log-probabilities and ids, as `rest` leaves them.
        cost: (B, w, k) what a candidate costs in the comparison alone.
    """
    totals = search.scores[:, keep, None] + gained  # (B, w, k)
    lengths = (search.lengths + ~search.finished)[:, keep, None]
    keys = normalised(totals if cost is None else totals - cost, lengths, penalty)
    picked = keys.flatten(1).topk(words.shape[1]).indices  # (B, w)
    return Choice(
        parents=picked // words.shape[-1] + (keep.start or 0),
        words=words.flatten(1).gather(1, picked),
        log_probs=gained.flatten(1).gather(1, picked),
        scores=totals.flatten(1).gather(1, picked),
    )
