"""Rare words, given back to a captioner that has forgotten to say them.

Self-critical training takes probability from words that seldom score, the rare ones first. What it took is measured
where people's own captions are read, and a share of it is added to the logits:

    f_w = how often people say w, a share of everything they say
    p_w = the captioner's mean probability of w, teacher-forced over people's captions
    b_w = strength · clamp(log f_w - log p_w, 0, 3)     where f_w is below a limit; other words are left alone

- <eos> counts as a word in both: it is one of the things that p_w is shared among at every step.
- What the captioner can never say (<unk>) counts in neither.
- f_w is counted in all captions, for rare words need many; p_w has a part at every place, and needs fewer pictures.

Menon et al. 2021, "Long-tail learning via logit adjustment", is the same idea for classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor

from meshcap.captioner import Captioner
from meshcap.data.dataset import Sample
from meshcap.errors import MeshcapError
from meshcap.models import CaptionModel
from meshcap.models.output import Output
from meshcap.training.captions import CaptionTable, rectangles, tokenized
from meshcap.training.examine import seen
from meshcap.training.xe import targets

RARE = 3e-4  # of all words that people say
MOST = 3.0  # that a logit is raised by at strength 1
FLOOR = 1e-7  # a share too small to be told from none
LONGEST = 21  # words of a caption that are read, as training reads them
CAPTIONS = 5  # of each picture


@dataclass(frozen=True)
class WordUse:
    """How often each word is said: shares (V,) of everything that is, float64 on the CPU."""

    people: Tensor  # f
    model: Tensor  # p

    def bias(self, strength: float, rare: float = RARE) -> Tensor:
        """What is added to the logits (V,), float32.

        Raises:
            MeshcapError: a strength below 0, or a limit that is no share.
        """
        if not 0 <= strength < float("inf"):
            raise MeshcapError(f"the strength is {strength}, expected a number of at least 0")
        if not 0 <= rare <= 1:
            raise MeshcapError(f"words are to be rare below {rare}, expected a share from 0 to 1")
        missing = (self.people + FLOOR).log() - (self.model + FLOOR).log()
        return (strength * missing.clamp(0, MOST)).where(self.people < rare, 0).float()


@torch.no_grad()
def measure(
    captioner: Captioner,
    samples: Sequence[Sample],
    *,
    count: int = 1000,
    seed: int = 0,
    batch: int = 16,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> WordUse:
    """People's words in all captions, and the captioner's where it reads captions of `count` of the pictures.

    A bias that the captioner has already is not counted.

    Raises:
        MeshcapError: it has no eyes, there is nothing to read, or a picture cannot be read.
    """
    if captioner.vision is None:
        raise MeshcapError("this captioner reads precomputed features: expected one that looks at pictures")
    if count < 1:
        raise MeshcapError(f"count is {count}, expected at least one picture")
    captioner = with_rare_words(captioner, None)
    model, config = captioner.model, captioner.model.config
    tokens = tokenized(samples, captioner.vocabulary.tokenizer)
    table = CaptionTable.build(tokens, captioner.vocabulary, min(LONGEST, config.max_length))
    _, said = _counted(model, torch.from_numpy(table.ids).long())
    people = torch.bincount(said, minlength=config.vocab_size).double()
    if not people.any():
        raise MeshcapError("the captions hold no word that this captioner knows: expected those it learned from")

    rng = numpy.random.default_rng(seed)
    chosen = numpy.sort(rng.permutation(len(samples))[:count])
    shapes = rectangles(table, CAPTIONS)
    total, done = torch.zeros(config.vocab_size, dtype=torch.float64), 0
    for regions in seen(captioner, [samples[one] for one in chosen], batch=batch):
        pictures = chosen[done : done + len(regions)]
        encoded = model.encode(regions.to(model.device, model.dtype))
        for ids in table.cut(table.choose(pictures, CAPTIONS, rng), shapes):
            counted, _ = _counted(model, ids)
            probabilities = model.read(encoded, ids[..., :-1].to(model.device)).exp_()  # (B, S, T, V)
            total += probabilities[counted.to(model.device)].sum(0).cpu()
        done += len(pictures)
        tell(done, len(chosen))
    return WordUse(people / people.sum(), total / total.sum())


def _counted(model: CaptionModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the next words of ids (…, T + 1) are counted (…, T), and those words in a row."""
    config = model.config
    counted = targets(ids, pad=config.pad, unk=config.unk, never=config.never_said)
    return counted, ids[..., 1:][counted]


def with_rare_words(captioner: Captioner, bias: Tensor | None) -> Captioner:
    """A copy with another bias of its words, or none; its eyes are the same, and it is not calibrated.

    Args:
        bias: (V,), in place of what there was.
    """
    model = captioner.model
    other = type(model)(replace(model.config, word_bias=bias is not None)).to(model.device, model.dtype)
    weights = model.state_dict()
    name = next(name for name, module in model.named_modules() if isinstance(module, Output)) + ".bias"
    weights.pop(name, None)
    other.load_state_dict(weights if bias is None else {**weights, name: bias})
    return Captioner(other.requires_grad_(False), captioner.vocabulary, captioner.vision)
