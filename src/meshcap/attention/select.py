"""From scores to weights: looking a little everywhere (soft), or at one place alone (hard).

Every selection takes scores (…, N) and a mask that broadcasts to them (True = real), and returns a `Selection`. A row
with nothing real in it gets weights of zero, and sends back gradients of zero. Exponentials and logarithms are taken
in float32 at least; weights come back in the dtype of the scores.

Soft selection is the expectation under the attention distribution and is trained like anything else. Hard selection
has no derivative. Here are the two ways around that: draw, and follow the score-function (REINFORCE) estimate of the
gradient (`Sampled` with `score_function_loss`); or pretend in the backward pass to have been soft
(`straight_through`), which is biased and steady where the other is exact on average and noisy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshcap.errors import MeshcapError


class Selection(NamedTuple):
    """Where a query looks."""

    weights: Tensor  # (…, N); sum to one, or to zero where nothing is real
    log_prob: Tensor  # (…), in float32 or wider: of the draw, with its gradient; 0 = log 1 where nothing was drawn


Select = Callable[[Tensor, Tensor | None], Selection]  # (scores, mask); what `KeyValueAttention` takes


def soft(scores: Tensor, mask: Tensor | None = None, *, temperature: float = 1.0) -> Selection:
    """softmax(scores / temperature): towards 0 it becomes `hardest`, towards infinity the plain mean."""
    return _certain(_hide(_log_probs(scores, mask, temperature).exp(), mask, 0).to(scores.dtype))


def hardest(scores: Tensor, mask: Tensor | None = None) -> Selection:
    """All weight on the highest score (the first of equals). No gradient reaches the scores."""
    return _certain(_one_hot(scores, mask))


def sample(scores: Tensor, mask: Tensor | None = None, *, generator: torch.Generator | None = None) -> Selection:
    """All weight on one place drawn from softmax(scores), with the log-probability of having drawn it.

    Args:
        generator: where chance comes from; torch's own generator if None.
    """
    log_probs = _log_probs(scores, mask)
    drawn = _one_hot(log_probs + _gumbel(log_probs, generator), mask)
    return Selection(drawn.to(scores.dtype), torch.where(drawn > 0, log_probs, 0.0).sum(-1))


def straight_through(
    scores: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    gumbel: bool = False,
    generator: torch.Generator | None = None,
) -> Selection:
    """`hardest` on the way forward; on the way back, the gradient of `soft` at that temperature.

    Args:
        gumbel: add Gumbel noise to the scores first, so that the one chosen is a draw from softmax(scores)
            (Jang et al., 2017). Its log-probability stays 0: the gradient goes through the weights instead.
    """
    wide = _wide(scores)
    noisy = wide + _gumbel(wide, generator) if gumbel else wide
    chosen, smooth = _one_hot(noisy, mask), _hide(_log_probs(noisy, mask, temperature).exp(), mask, 0)
    return _certain((chosen + (smooth - smooth.detach())).to(scores.dtype))  # the bracket is exactly 0


class Sampled(nn.Module):
    """`sample` while training; `hardest` in evaluation, where a captioner should say the same thing twice."""

    def __init__(self, generator: torch.Generator | None = None):
        super().__init__()
        self.generator = generator

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Selection:
        return sample(scores, mask, generator=self.generator) if self.training else hardest(scores, mask)


SELECTS: dict[str, Callable[[], Select]] = {
    "soft": lambda: soft,
    "hardest": lambda: hardest,
    "sampled": Sampled,
    "straight-through": lambda: straight_through,
}


def make_select(name: str) -> Select:
    """The selection of that name in `SELECTS`, with its default settings."""
    if name not in SELECTS:
        raise MeshcapError(f"there is no selection {name!r}, expected one of {', '.join(SELECTS)}")
    return SELECTS[name]()


def score_function_loss(log_probs: Tensor, reward: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
    """-mean((reward - baseline) · Σ log_probs): its gradient is, on average, that of the negative expected reward.

    Args:
        log_probs: (B, …) of all draws that led to a reward, such as (B, T) for T looks; they are summed.
        reward: (B,) or more of the leading axes of `log_probs`; the higher the better. No gradient goes into it.
        baseline: what reward was to be expected. Whatever does not depend on the draws changes nothing on average,
            and a good guess lowers the variance.
    """
    if log_probs.shape[: reward.dim()] != reward.shape:
        raise MeshcapError(
            f"the reward has shape {tuple(reward.shape)}, expected the leading axes of log_probs "
            f"{tuple(log_probs.shape)}"
        )
    together = log_probs if log_probs.dim() == reward.dim() else log_probs.flatten(reward.dim()).sum(-1)
    return -((reward - baseline).detach() * together).mean()


class RunningMean(nn.Module):
    """The exponentially forgetting mean of the rewards so far, as a baseline.

    Read `value` for the loss first and `update` afterwards: a baseline that has seen the reward it is subtracted from
    depends on the draw, and biases the gradient.
    """

    mean: Tensor
    trust: Tensor

    def __init__(self, momentum: float = 0.9):
        super().__init__()
        if not 0 <= momentum < 1:
            raise MeshcapError(f"momentum is {momentum}, expected at least 0 and less than 1")
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("trust", torch.zeros(()))  # how much of `mean` is rewards, and not its start at zero

    @property
    def value(self) -> Tensor:
        """The mean, () float32; 0 before the first reward."""
        return self.mean / self.trust.clamp_min(torch.finfo(self.trust.dtype).tiny)

    @torch.no_grad()
    def update(self, reward: Tensor) -> None:
        """Take in rewards of any shape."""
        self.mean.lerp_(reward.to(self.mean).mean(), 1 - self.momentum)
        self.trust.lerp_(torch.ones_like(self.trust), 1 - self.momentum)


def _log_probs(scores: Tensor, mask: Tensor | None, temperature: float = 1.0) -> Tensor:
    """log softmax over what is real, in float32 or wider; where nothing is, whatever it is sends no gradient back."""
    if not temperature > 0:
        raise MeshcapError(f"temperature is {temperature}, expected more than 0 (`hardest` is its limit)")
    scores = _wide(scores) / temperature
    # Hidden by the lowest finite number and not by -inf: a row of -inf would be NaN for a moment, until it is hidden,
    # and whoever hunts NaNs (torch's anomaly detection) would be stopped by it.
    return torch.log_softmax(_hide(scores, mask, torch.finfo(scores.dtype).min), -1)


def _wide(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _hide(x: Tensor, mask: Tensor | None, filler: float) -> Tensor:
    if mask is None:
        return x
    if mask.dtype != torch.bool:
        raise MeshcapError(f"mask is {mask.dtype}, expected torch.bool with True for what is real")
    return x.masked_fill(~mask, filler)


def _one_hot(scores: Tensor, mask: Tensor | None) -> Tensor:
    highest = _hide(scores.detach(), mask, float("-inf")).argmax(-1, keepdim=True)
    return _hide(torch.zeros_like(scores, requires_grad=False).scatter(-1, highest, 1), mask, 0)


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """argmax(scores + this) is a draw from softmax(scores)."""
    return -torch.empty_like(like, requires_grad=False).exponential_(generator=generator).log()


def _certain(weights: Tensor) -> Selection:
    return Selection(weights, torch.zeros(weights.shape[:-1], dtype=torch.float32, device=weights.device))
