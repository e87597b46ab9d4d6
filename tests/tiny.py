"""Tiny captioners and pictures, made from a seed: what the tests of several rooms run on."""

from dataclasses import fields
from functools import cache

import torch

from meshcap.models import MODELS, CaptionModel
from meshcap.regions import Regions

WIDTH = 6  # numbers of a region
VOCAB = 10
LONGEST = 9

SIZES = {
    "vocab_size": VOCAB, "d_input": WIDTH, "d_model": 16, "heads": 2, "d_ff": 24, "max_length": LONGEST,
    "encoder_layers": 2, "decoder_layers": 2, "slots": 3,
}  # fmt: skip

# The paper's ablations and what imported checkpoints need, on top of whatever is registered.
VARIANTS = {
    "m2-last": {"mesh": "last"},
    "m2-one-to-one": {"mesh": "one-to-one"},
    "m2-softmax": {"gates": "softmax", "d_head": 5},
    "m2-no-slots": {"slots": 0},
    "m2-no-boxes": {"boxes": False},
    "m2-attend-padding": {"boxes": False, "attend_padding": 8, "never": ()},
}


def names() -> list[str]:
    return [*MODELS, *VARIANTS]


def build(name: str, *, seed: int = 0, **settings) -> CaptionModel:
    """A captioner of its own for the test that asks. Its weights are random, every bias included, and such that
    captions are sharp, of various lengths, and depend on the picture and on the words before."""
    model_class = MODELS[name if name in MODELS else "m2"]
    known = {field.name: field.default for field in fields(model_class.config_class)}
    sizes = {key: value for key, value in SIZES.items() if key in known}
    if known.get("slots") == 0:
        del sizes["slots"]
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**sizes, **VARIANTS.get(name, {}), **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.6 if parameter.dim() > 1 else 1).add_(0.1 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.weight.mul_(6)
            elif isinstance(module, torch.nn.Linear) and module.out_features == model.config.vocab_size:
                module.weight.mul_(2)
    return model.eval()


@cache
def shared(name: str) -> CaptionModel:
    """The same captioner for every test that only looks."""
    return build(name)


def pictures(*counts: int, seed: int = 0) -> Regions:
    """Pictures with these numbers of regions."""
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(count, WIDTH, generator=generator) for count in counts]
    corners = [torch.rand(count, 2, 2, generator=generator).sort(1).values.flatten(1) for count in counts]
    return Regions.collate(features, corners)


def one(regions: Regions, picture: int) -> Regions:
    """A picture of a batch by itself, without padding."""
    alone = regions[picture : picture + 1]
    if alone.mask is None:
        return alone
    real = alone.mask[0]
    return Regions(alone.features[:, real], None if alone.boxes is None else alone.boxes[:, real])
