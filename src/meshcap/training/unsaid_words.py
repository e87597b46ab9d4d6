"""Words that a captioner knows, nearly says, and never does.

Self-critical training takes probability from words that seldom score. Many of them are still second at some place of
some caption: "tarmac" where it says "runway". So it is listened to, and each word that it never says is raised until it
is said where it came nearest:

    lacking_w = the least, over all places of all captions, of (highest logit - logit of w)
    b_w       = lacking_w + NUDGE     for words never said that lack at most a limit; other words are left alone

- A word is raised no further than one caption needs, so most captions stay as they were.
- Nobody's captions are needed for that, only pictures: they should be new to the captioner, for it knows by heart what
  to say of those it learned from.
- Beam search weighs whole captions, so that a word that is likeliest at its place may still not be said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from meshcap.captioner import Captioner
from meshcap.data.dataset import Sample
from meshcap.decoding import Beam
from meshcap.errors import MeshcapError
from meshcap.models.output import Output
from meshcap.regions import Regions
from meshcap.training.examine import seen

NUDGE = 0.3  # beyond equally likely: 0.8 made more words said and cost 0.6 CIDEr on COCO val


@dataclass(frozen=True)
class Heard:
    """What a captioner said of pictures: one number for each word (V,)."""

    said: Tensor  # int64: in how many captions
    lacking: Tensor  # float32: how much its logit lacked where it came nearest; infinite for what can never be said

    def bias(self, limit: float) -> Tensor:
        """What is added to the logits (V,), float32.

        Raises:
            MeshcapError: a limit below 0.
        """
        if not 0 <= limit < float("inf"):
            raise MeshcapError(f"the limit is {limit}, expected a number of at least 0")
        raised = (self.said == 0) & (self.lacking < limit)
        return (self.lacking + NUDGE).where(raised, 0.0)


@torch.no_grad()
def listen(
    captioner: Captioner,
    samples: Sequence[Sample],
    *,
    beams: int = 5,
    batch: int = 32,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> Heard:
    """Captions of all pictures, word by word. A bias that the captioner has already is not heard.

    Raises:
        MeshcapError: it has no eyes, or a picture cannot be read.
    """
    if captioner.vision is None:
        raise MeshcapError("this captioner reads precomputed features: expected one that looks at pictures")
    captioner = with_word_bias(captioner, None)
    model = captioner.model
    size = model.config.vocab_size
    said = torch.zeros(size, dtype=torch.int64)
    lacking = torch.full((size,), float("inf"), device=model.device)
    done = 0
    for regions in seen(captioner, samples, batch=batch):
        captions = captioner.describe(regions, strategy=Beam(beams))
        ids = [captioner.vocabulary.encode(caption.words) for caption in captions]
        for words in ids:
            said[sorted(set(words))] += 1
        lacking = torch.minimum(lacking, _lacking(captioner, regions, ids))
        done += len(ids)
        tell(done, len(samples))
    lacking[model.config.eos] = float("inf")  # no word
    return Heard(said, lacking.cpu())


def _lacking(captioner: Captioner, regions: Regions, ids: list[list[int]]) -> Tensor:
    """(V,): what words lacked where they came nearest in these captions, their ends included."""
    model = captioner.model
    config = model.config
    longest = min(max(map(len, ids)) + 1, config.max_length)
    before = torch.full((len(ids), 1, longest), config.pad)
    for row, words in zip(before, ids, strict=True):
        start = [config.bos, *words][:longest]
        row[0, : len(start)] = torch.tensor(start)
    log_probs = model.read(model.encode(regions.to(model.device, model.dtype)), before.to(model.device))[:, 0].float()
    behind = log_probs.amax(-1, keepdim=True) - log_probs  # (B, T, V)
    beyond = (before[:, 0] == config.pad).to(model.device)
    return behind.masked_fill(beyond[..., None], float("inf")).amin((0, 1))


def with_word_bias(captioner: Captioner, bias: Tensor | None) -> Captioner:
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
