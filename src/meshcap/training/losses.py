"""What a step is judged by: cross-entropy, REINFORCE with a self-critical baseline, and what attention adds.

Losses are sums over words; whoever calls divides by the number of words of the whole batch, so that batches of any
size, split in any way, give the same gradient. Each takes Regions, or regions that the model has encoded already.

B pictures, S captions of each, T words, V vocabulary, N regions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshcap.attention import RunningMean, State, score_function_loss
from meshcap.decoding.choose import keep_likeliest
from meshcap.models import CaptionModel
from meshcap.models.recurrent import joined
from meshcap.models.show_attend_tell import ShowAttendTell
from meshcap.regions import Regions


def targets(ids: Tensor, *, pad: int, unk: int, suppressed: Sequence[int]) -> Tensor:
    """Which of the next words count, of ids (…, T): not padding, and not `<unk>` where it is suppressed."""
    words = ids[..., 1:]
    counted = words != pad
    return counted & (words != unk) if unk in suppressed else counted


def xe_sum(
    model: CaptionModel,
    pictures: Regions | State,
    rectangles: Sequence[Tensor],
    smoothing: float = 0.0,
    attention_loss: AttentionLoss | None = None,
) -> Tensor:
    """The summed cross-entropy of every next word; pictures are encoded once for all their captions.

    Args:
        rectangles: (B, S, T) each, from `<bos>` to `<eos>`, filled up with `<pad>`, which is not counted.
        smoothing: this share of the probability should be spread evenly over all words that may be said.
        attention_loss: what the model's attention adds, as a sum too.
    """
    config = model.config
    encoded = model.encode(pictures) if isinstance(pictures, Regions) else pictures
    total = torch.zeros((), device=next(iter(encoded.values())).device)
    sayable = config.vocab_size - len(set(config.suppressed))
    for ids in rectangles:
        counted = targets(ids, pad=config.pad, unk=config.unk, suppressed=config.suppressed)
        if attention_loss is None:
            log_probs = model.read(encoded, ids[..., :-1])  # (B, S, T - 1, V)
        else:
            log_probs, attention = attention_loss.read(encoded, ids[..., :-1])
        right = log_probs.gather(-1, ids[..., 1:, None])[..., 0]
        loss = -right
        if smoothing:
            even = -log_probs.masked_fill(log_probs == float("-inf"), 0).sum(-1) / sayable
            loss = (1 - smoothing) * loss + smoothing * even
        total = total + loss.where(counted, 0).sum()
        if attention_loss is not None:
            total = total + attention_loss(attention, right, counted, encoded.get("visible"))
    return total


def xe_loss(
    model: CaptionModel,
    pictures: Regions | State,
    ids: Tensor,
    smoothing: float = 0.0,
    attention_loss: AttentionLoss | None = None,
) -> Tensor:
    """The mean cross-entropy of each next word of ids (B, T) or (B, S, T)."""
    config = model.config
    captions = ids if ids.dim() == 3 else ids[:, None]
    counted = targets(captions, pad=config.pad, unk=config.unk, suppressed=config.suppressed)
    return xe_sum(model, pictures, [captions], smoothing, attention_loss) / counted.sum().clamp_min(1)


def advantages(rewards: Tensor) -> Tensor:
    """How much better each caption (B, S) is than the mean of its picture's *other* captions."""
    count, mean = rewards.shape[1], rewards.mean(1, keepdim=True)
    return (rewards - mean) * (count / (count - 1))


def scst_sum(
    model: CaptionModel,
    pictures: Regions | State,
    ids: Tensor,
    drawn: Tensor,
    advantage: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
) -> tuple[Tensor, Tensor]:
    """The summed loss of the words of captions ids (B, S, T), and how far the two passes disagree.

    Args:
        drawn: (B, S, T) the search's own log-probabilities of the words.
        advantage: (B, S).

    Returns:
        Σ -A log p over all words, with gradient; Σ |log p - drawn| over all words, without.
    """
    config = model.config
    encoded = model.encode(pictures) if isinstance(pictures, Regions) else pictures
    words = ids != config.pad
    before = torch.cat((torch.full_like(ids[..., :1], config.bos), ids[..., :-1]), -1)
    all_log_probs = model.read(encoded, before)  # (B, S, T, V)
    log_probs = all_log_probs.gather(-1, ids[..., None])[..., 0]
    gap = (log_probs.detach() - drawn).abs().where(words, 0).sum()
    if temperature != 1 or top_k:  # the distribution that words were truly drawn from
        odds = keep_likeliest(all_log_probs / temperature, top_k, 1.0).log_softmax(-1)
        log_probs = odds.gather(-1, ids[..., None])[..., 0]
        log_probs = log_probs.clamp_min(-30)  # rounding may have put a drawn word just outside the likeliest k
    return -(advantage[..., None] * log_probs).where(words, 0).sum(), gap


class AttentionLoss:
    """What Show, Attend and Tell learns from besides the words (Xu et al., 2015), each a sum over captions:

    - λ Σ_n (1 - Σ_t α_tn)², setting `doubly_stochastic` = λ: over a caption, look at every region about once.
    - Hard attention has no derivative. A draw earns the log-probability of all words from its own on, R_t, compared
      with what so many words earned lately, b_t: -Σ_t (R_t - b_t) log α_t,drawn (REINFORCE). The gradient is, on
      average, that of the expected loss. Setting `entropy` = μ adds -μ Σ_t H(α_t), so that looking does not settle
      too early.
    """

    def __init__(self, model: ShowAttendTell):
        self.model, self.config = model, model.config
        self.baseline = RunningMean(0.98).to(model.device) if self.config.attention == "hard" else None

    @classmethod
    def of(cls, model: CaptionModel) -> AttentionLoss | None:
        """The loss of a model whose attention has one."""
        if not isinstance(model, ShowAttendTell):
            return None
        config = model.config
        return cls(model) if config.attention == "hard" or config.doubly_stochastic else None

    def state(self) -> dict[str, Tensor]:
        """What changes without being learned: checkpoints keep it."""
        own = {} if self.baseline is None else self.baseline.state_dict()
        return {f"attention_loss.{name}": tensor for name, tensor in own.items()}

    def read(self, encoded: State, ids: Tensor) -> tuple[Tensor, State]:
        """ids (B, S, T) -> log-probabilities (B, S, T, V), and the attention of every word."""
        log_probs, looks = self.model.read_with_attention(encoded, ids)
        return log_probs, joined(looks)

    def __call__(self, attention: State, right: Tensor, counted: Tensor, visible: Tensor | None) -> Tensor:
        """
        Args:
            attention: what `read` returned.
            right: (B, S, T) log-probabilities of the right words, with gradient; -inf where one is never said.
            counted: (B, S, T) bool, the words that are learned.
            visible: (B, N) bool, the real regions.
        """
        odds = attention.get("odds", attention["words"]).float()  # (B, S, T, N)
        loss = torch.zeros((), device=right.device)
        if self.config.doubly_stochastic:
            loss = loss + self.config.doubly_stochastic * unevenness(odds, counted, visible)
        if self.baseline is not None:
            if self.config.entropy:
                entropy = -torch.special.xlogy(odds, odds).sum(-1)  # (B, S, T)
                loss = loss - self.config.entropy * entropy.where(counted, 0).sum()
            loss = loss + draws_loss(attention["log_prob"], right, counted, self.baseline)
        return loss


def unevenness(weights: Tensor, counted: Tensor, visible: Tensor | None) -> Tensor:
    """Σ over captions and regions of (1 - Σ_t α_tn)²: weights (B, S, T, N), counted (B, S, T), visible (B, N).

    Filling counts for nothing: words that are not learned, captions without any, regions that are not real.
    """
    looked = (weights * counted[..., None]).sum(2)  # (B, S, N)
    uneven = (1 - looked).square() * counted.any(-1, keepdim=True)
    return uneven.sum() if visible is None else uneven.where(visible[:, None], 0).sum()


def draws_loss(log_prob: Tensor, right: Tensor, counted: Tensor, baseline: RunningMean) -> Tensor:
    """-Σ_t (R_t - b_t) log p(draw_t): R_t the log-probability of the words from t on, b_t what so many earned lately.

    log_prob of the draws, right of the words, (B, S, T) both. A look cannot change the words before it, so these would
    add nothing to R_t but noise.
    """
    earned = right.detach().where(counted, 0)
    to_come = torch.stack((earned, counted.to(earned.dtype))).flip(-1).cumsum(-1).flip(-1)  # rewards and words, from t
    loss = score_function_loss(log_prob.where(counted, 0), to_come[0], to_come[1] * baseline.value) * right.numel()
    baseline.update(earned.sum() / counted.sum().clamp_min(1))  # only now: see RunningMean
    return loss
