"""The optimizer: groups of weights with their rates, the learning rate's schedule, the average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def named_weights(model: nn.Module, vision: nn.Module | None) -> dict[str, nn.Parameter]:
    """Everything that learns, under names that checkpoints use."""
    found = {f"model.{name}": weight for name, weight in model.named_parameters() if weight.requires_grad}
    if vision is not None:
        found |= {f"vision.{name}": weight for name, weight in vision.named_parameters() if weight.requires_grad}
    return found


def named_others(model: nn.Module) -> dict[str, Tensor]:
    """What of a model is saved and does not learn: it may still change, as a running mean does."""
    learned = {name for name, _ in model.named_parameters()}
    return {f"other.{name}": tensor for name, tensor in model.state_dict().items() if name not in learned}


def make_optimizer(
    weights: dict[str, nn.Parameter],
    *,
    lr: float,
    lr_vision: float,
    weight_decay: float,
    device: torch.device,
    stages: Sequence[Sequence[nn.Parameter]] = (),
    layer_decay: float = 1.0,
) -> torch.optim.AdamW:
    """AdamW. Matrices decay; biases, norms and words do not: a rare word would fade between its appearances.

    Args:
        stages: of the vision, from the pixels up (`Vision.stages`).
        layer_decay: a stage of the vision learns at lr_vision · layer_decay^(stages above it).
    """
    above = {id(weight): len(stages) - 1 - place for place, stage in enumerate(stages) for weight in stage}
    groups: dict[tuple[str, float, bool], list[nn.Parameter]] = {}
    for name, weight in weights.items():
        part = name.partition(".")[0]
        rate = lr if part == "model" else lr_vision * layer_decay ** above.get(id(weight), 0)
        groups.setdefault((part, rate, _decays(name, weight)), []).append(weight)
    options = [
        {"params": members, "lr": rate, "highest": rate, "weight_decay": weight_decay * decays}
        for (_, rate, decays), members in groups.items()
    ]
    return torch.optim.AdamW(options, lr=lr, betas=(0.9, 0.98), fused=device.type == "cuda")


def _decays(name: str, weight: Tensor) -> bool:
    embeds = name.endswith("words.weight") and not name.endswith("output.words.weight")
    return weight.dim() > 1 and not embeds


def set_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["highest"] * share


def schedule(step: int, steps: int, warmup: float, last: float) -> float:
    """The share of the highest rate at a step: a straight rise, then half a cosine down to `last`."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    along = (step - rise) / max(1, steps - rise)
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * min(1.0, along)))


class Average:
    """The exponentially weighted mean of the weights over the last steps, which captions better than any of them.

    The mean is over few steps at first, so that it forgets the random start.
    """

    def __init__(self, weights: dict[str, nn.Parameter], decay: float):
        self.weights, self.decay, self.steps = weights, decay, 0
        self.mean = {name: weight.detach().clone().float() for name, weight in weights.items()} if decay else {}

    @torch.no_grad()
    def update(self) -> None:
        if not self.decay:
            return
        self.steps += 1
        keep = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(list(self.mean.values()), list(self.weights.values()), 1 - keep)

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """The averaged weights in the model for a while."""
        if not self.decay:
            yield
            return
        own = [weight.detach().clone() for weight in self.weights.values()]
        torch._foreach_copy_(list(self.weights.values()), list(self.mean.values()))
        try:
            yield
        finally:
            torch._foreach_copy_(list(self.weights.values()), own)
