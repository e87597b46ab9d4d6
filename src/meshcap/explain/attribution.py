"""What each region did for each word: attribution by gradients, to be held against attention.

Attention says where a model looked, not what it made of it. Integrated gradients (Sundararajan et al., 2017) follow
the word's log-probability f from a picture of nothing, x′, to the picture x and share out what was gained on the way:

    A_n = Σ_i (x_ni - x′_ni) ∫₀¹ ∂f/∂x_ni (x′ + a (x - x′)) da,      Σ_n A_n = f(x) - f(x′)

The sum on the right is *completeness*; how far it is missed says how much the numbers may be trusted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from meshcap.backends.packed import InferenceOnly
from meshcap.decoding.extension import Extended, Extension
from meshcap.errors import MeshcapError
from meshcap.models import CaptionModel
from meshcap.regions import Regions

Baseline = Literal["zero", "mean"]
STEPS, BATCH = 32, 16  # points along the path, and how many of them the model reads together
Function = Callable[[Tensor], Tensor]  # (m, N, F) -> (m, T): each word's log-probability
Report = Callable[[int, int], object]  # called with how much is done, and of how much


@dataclass(frozen=True)
class Attribution:
    """Of one caption: T words, N regions."""

    regions: Tensor  # (T, N): what each region added to the word's log-probability, below 0 where it spoke against it
    gradient_input: Tensor  # (T, N): the same from the gradient at the picture alone, without a path
    gained: Tensor  # (T,): log-probability with the picture less that with the baseline
    baseline: Baseline

    @property
    def gap(self) -> Tensor:
        """(T,): how far the regions' sum misses what was gained."""
        return (self.regions.sum(-1) - self.gained).abs()

    def of(self, places: Sequence[int]) -> Attribution:
        """The same of some of the words."""
        kept = list(places)
        return replace(
            self, regions=self.regions[kept], gradient_input=self.gradient_input[kept], gained=self.gained[kept]
        )


def attribute(
    model: CaptionModel,
    regions: Regions,
    ids: Tensor,
    *,
    extension: Extension | None = None,
    baseline: Baseline = "zero",
    steps: int = STEPS,
    report: Report = lambda done, total: None,
) -> Attribution:
    """Attribute every word of a caption to the regions of one picture.

    Args:
        regions: of one picture, without padding.
        ids: (T,) words to be explained, the end included where it is one of them.
        extension: words for the moment that are among them.
        baseline: the picture of nothing: features all zero, or every region the picture's mean region.
        report: told how many gradients are done, and of how many.

    Raises:
        MeshcapError: an optimized model, which has no gradients; a baseline or a number of steps that makes no sense.
    """
    if baseline not in ("zero", "mean"):
        raise MeshcapError(f"baseline is {baseline!r}, expected zero or mean")
    if steps < 1:
        raise MeshcapError(f"steps is {steps}, expected at least 1")
    model = differentiable(model)
    regions = regions.to(model.device, torch.float32)
    before = torch.cat((ids.new_full((1,), model.config.bos), ids[:-1]))
    speaker = model if extension is None else Extended(model, extension)

    def log_probs_of(features: Tensor) -> Tensor:
        many = len(features)
        boxes = None if regions.boxes is None else regions.boxes.expand(many, -1, -1)
        log_probs = speaker(Regions(features, boxes), before.expand(many, -1))
        return log_probs.gather(-1, ids.expand(many, -1)[..., None])[..., 0].float()

    x = regions.features[0]
    nothing = torch.zeros_like(x) if baseline == "zero" else x.mean(0, keepdim=True).expand_as(x)
    with torch.no_grad():
        ends = log_probs_of(torch.stack((nothing, x)))
    return Attribution(
        regions=integrated_gradients(log_probs_of, x, nothing, steps=steps, report=report).cpu(),
        gradient_input=(gradients(log_probs_of, x[None])[:, 0] * (x - nothing)).sum(-1).cpu(),
        gained=(ends[1] - ends[0]).cpu(),
        baseline=baseline,
    )


def integrated_gradients(
    function: Function,
    x: Tensor,
    start: Tensor,
    *,
    steps: int,
    batch: int = BATCH,
    report: Report = lambda done, total: None,
) -> Tensor:
    """(T, N): the path integral from `start` to x, both (N, F), summed over each region's numbers.

    By Gauss and Legendre's rule, which needs far fewer points than a plain mean of gradients.
    """
    rule = np.polynomial.legendre.leggauss(steps)
    nodes, weights = (torch.as_tensor(one, dtype=x.dtype, device=x.device) for one in rule)
    places, shares = (nodes + 1) / 2, weights / 2  # from -1 … 1 to 0 … 1
    found: Tensor | None = None
    for part, (place, share) in enumerate(zip(places.split(batch), shares.split(batch), strict=True)):

        def report_word(done: int, words: int, before: int = part * batch, now: int = len(place)) -> None:
            report(words * before + done * now, words * steps)

        slopes = gradients(function, start + place[:, None, None] * (x - start), report_word)  # (T, m, N, F)
        some = (slopes * share[:, None, None]).sum(1)
        found = some if found is None else found + some
    assert found is not None
    return (found * (x - start)).sum(-1)


def gradients(function: Function, points: Tensor, report: Report = lambda done, total: None) -> Tensor:
    """(T, m, N, F) of T words at m points (m, N, F). A point's words depend on that point alone: their sum will do."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        values = function(points).sum(0)  # (T,)
        slopes: list[Tensor] = []
        for done, value in enumerate(values, 1):
            slopes += torch.autograd.grad(value, points, retain_graph=done < len(values))
            report(done, len(values))
    return torch.stack(slopes)


def differentiable(model: CaptionModel) -> CaptionModel:
    """The model itself, or a float32 copy where it computes with shorter numbers.

    Raises:
        MeshcapError: the weights were rearranged for inference (`Captioner.optimize`) and have no gradients.
    """
    if any(isinstance(module, InferenceOnly) for module in model.modules()):
        raise MeshcapError("an optimized model has no gradients: load it again, or leave attribution out")
    return model if model.dtype == torch.float32 else copy.deepcopy(model).float()


def rank_correlation(one: Tensor, other: Tensor) -> float | None:
    """Spearman's ρ, from -1 to 1; None where one of them ranks nothing."""
    a, b = (ranks(x) - (len(x) - 1) / 2 for x in (one, other))
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / size) if size > 0 else None


def ranks(x: Tensor) -> np.ndarray:
    """0 for the smallest; equals share the mean of their ranks."""
    _, place, count = np.unique(x.detach().cpu().numpy(), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    mean: np.ndarray = (ends - (count + 1) / 2)[place]
    return mean
