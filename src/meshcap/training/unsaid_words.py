"""Listening to a captioner: what it says of pictures, and which words it nearly says (`meshcap.training.heard`).

A place counts for a word only where people have said the word after the one that stands before it, so that "umbrella"
is not raised for having come second after "a".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from meshcap.captioner import Captioner
from meshcap.data.dataset import Sample
from meshcap.decoding import Beam
from meshcap.errors import MeshcapError
from meshcap.models.output import Output
from meshcap.regions import Regions
from meshcap.text.vocabulary import Vocabulary
from meshcap.training.captions import tokenized
from meshcap.training.examine import seen
from meshcap.training.heard import NEAREST, Heard


def follows(captions: Iterable[Sequence[Sequence[str]]], vocabulary: Vocabulary) -> Tensor:
    """(V, V) bool: whether people say the second word after the first, `<bos>` among these; once is a slip of the pen.

    Args:
        captions: of each picture, its captions as lists of words.
    """
    size = len(vocabulary)
    pairs = Counter[int]()
    for of_picture in captions:
        for words in of_picture:
            ids = [vocabulary.bos, *vocabulary.encode(words)]
            pairs.update(size * first + second for first, second in pairwise(ids))
    said = torch.zeros(size * size, dtype=torch.bool)
    said[[pair for pair, times in pairs.items() if times > 1]] = True
    return said.view(size, size)


@torch.no_grad()
def listen(
    captioner: Captioner,
    samples: Sequence[Sample],
    *,
    may_follow: Tensor | None = None,
    tokenizer: str = "ptb",
    beams: int = 5,
    batch: int = 32,
    more: bool = False,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> Heard:
    """Captions of all pictures, word by word. A bias that the captioner has already is not heard, unless with `more`.

    Args:
        may_follow: (V, V) as `follows` makes it; None: from the captions of these pictures.

    Raises:
        MeshcapError: it has no eyes, or a picture cannot be read or has no captions.
    """
    if captioner.vision is None:
        raise MeshcapError("this captioner reads precomputed features: expected one that looks at pictures")
    for sample in samples:
        if not sample.captions:
            raise MeshcapError(f"{sample.id} has no captions: words are raised where people say them")
    if not more:
        captioner = with_word_bias(captioner, None)
    model, vocabulary = captioner.model, captioner.vocabulary
    people = tokenized(samples, tokenizer)
    may_follow = (follows(people, vocabulary) if may_follow is None else may_follow).to(model.device)
    size = model.config.vocab_size
    said = torch.zeros(size, dtype=torch.int64)
    nearest = torch.full((NEAREST, size), float("inf"), device=model.device)
    right = torch.zeros(NEAREST, size, dtype=torch.bool, device=model.device)
    done = 0
    for regions in seen(captioner, samples, batch=batch):
        captions = captioner.describe(regions, strategy=Beam(beams))
        ids = [vocabulary.encode(caption.words) for caption in captions]
        lacking = _lacking(captioner, regions, ids, may_follow)  # (B, V)
        by_people = torch.zeros_like(lacking, dtype=torch.bool)
        for at, words in enumerate(ids):
            said[sorted(set(words))] += 1
            lacking[at, words] = float("inf")
            by_people[at, sorted({id for one in people[done + at] for id in vocabulary.encode(one)})] = True
        by_people &= lacking.isfinite()
        nearest, rows = torch.cat((nearest, lacking)).topk(NEAREST, dim=0, largest=False)
        right = torch.cat((right, by_people)).gather(0, rows)
        done += len(ids)
        tell(done, len(samples))
    nearest[:, model.config.eos] = float("inf")  # no word
    return Heard(done, said, nearest.cpu(), right.cpu())


def _lacking(captioner: Captioner, regions: Regions, ids: list[list[int]], may_follow: Tensor) -> Tensor:
    """(B, V): what words lacked where they came nearest in each caption, its end included."""
    model = captioner.model
    config = model.config
    longest = min(max(map(len, ids)) + 1, config.max_length)
    before = torch.full((len(ids), 1, longest), config.pad)
    for row, words in zip(before, ids, strict=True):
        start = [config.bos, *words][:longest]
        row[0, : len(start)] = torch.tensor(start)
    before = before.to(model.device)
    log_probs = model.read(model.encode(regions.to(model.device, model.dtype)), before)[:, 0].float()
    behind = log_probs.amax(-1, keepdim=True) - log_probs  # (B, T, V)
    counts = may_follow[before[:, 0]] & (before[:, 0] != config.pad)[..., None]
    return behind.where(counts, float("inf")).amin(1)


def word_bias(captioner: Captioner) -> Tensor:
    """(V,) what the captioner adds to the logits of its words, on the CPU; zeros where nothing was raised."""
    model = captioner.model
    output = next(module for module in model.modules() if isinstance(module, Output))
    return torch.zeros(model.config.vocab_size) if output.bias is None else output.bias.detach().float().cpu()


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
