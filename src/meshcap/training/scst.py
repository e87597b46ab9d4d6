"""Self-critical training: captions that the model draws itself, judged by CIDEr-D against the references.

The captions come from a fast search without gradients; the gradient comes from one teacher-forced pass over them. For
the two to speak of the same policy, both run without dropout and with the same words banned (the model itself never
says `<pad>`, `<bos>` or `<unk>`) and the same truncation. Where only the search bans a word, probability leaks into
ids that are never drawn and so never punished, and captions get worse: `disagreement` watches for that in every run.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor

from meshcap.decoding import Beam, Graphs, Hypotheses, Rules, Sample, Strategy, decode
from meshcap.decoding.choose import keep_likeliest
from meshcap.models import CaptionModel
from meshcap.regions import Regions

# Mean absolute difference of a word's log-probability between the two passes that rounding alone explains.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.05}


class Speaker:
    """The model as it speaks: a copy in the precision that searches run in, brought up to date before each search."""

    def __init__(
        self,
        model: CaptionModel,
        *,
        dtype: torch.dtype,
        samples: int,
        max_length: int,
        search: Literal["sample", "beam"] = "sample",
        temperature: float = 1.0,
        top_k: int = 0,
    ):
        self.model = model
        self.twin = copy.deepcopy(model).to(dtype).requires_grad_(False).eval()
        self.samples, self.search, self.temperature, self.top_k = samples, search, temperature, top_k
        self.rules = Rules(max_length=max_length)
        self.graphs = Graphs()

    @torch.no_grad()
    def speak(self, regions: Regions, seed: int) -> Hypotheses:
        """`samples` captions of each picture, (B, S, T)."""
        torch._foreach_copy_(list(self.twin.parameters()), list(self.model.parameters()))
        strategy: Strategy = Beam(self.samples)
        if self.search == "sample":
            strategy = Sample(self.samples, self.temperature, self.top_k, seed=seed)
        return decode(
            self.twin,
            regions.to(dtype=self.twin.dtype),
            strategy,
            self.rules,
            n_best=strategy.width,
            graphs=self.graphs,
            # Of so many captions one is nearly always as long as can be: a look would only hold up the next launches.
            stop_early=not regions.features.is_cuda,
        )


def advantages(rewards: Tensor) -> Tensor:
    """How much better each caption (B, S) is than the mean of its picture's *other* captions."""
    count, mean = rewards.shape[1], rewards.mean(1, keepdim=True)
    return (rewards - mean) * (count / (count - 1))


def scst_sum(
    model: CaptionModel,
    regions: Regions,
    ids: Tensor,
    drawn: Tensor,
    advantage: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
) -> tuple[Tensor, Tensor]:
    """The summed loss of the words of captions ids (B, S, T), and how far the passes disagree.

    Args:
        drawn: (B, S, T) the search's own log-probabilities of the words.
        advantage: (B, S).

    Returns:
        Σ -A log p over all words, with gradient; Σ |log p - drawn| over all words, without.
    """
    config = model.config
    said = ids != config.pad
    before = torch.cat((torch.full_like(ids[..., :1], config.bos), ids[..., :-1]), -1)
    all_log_probs = model.read(model.encode(regions), before)  # (B, S, T, V)
    log_probs = all_log_probs.gather(-1, ids[..., None])[..., 0]
    gap = (log_probs.detach() - drawn).abs().where(said, 0).sum()
    if temperature != 1 or top_k:  # the distribution that words were truly drawn from
        odds = keep_likeliest(all_log_probs / temperature, top_k, 1.0).log_softmax(-1)
        log_probs = odds.gather(-1, ids[..., None])[..., 0]
        log_probs = log_probs.clamp_min(-30)  # rounding may have put a drawn word just outside the likeliest k
    return -(advantage[..., None] * log_probs).where(said, 0).sum(), gap
