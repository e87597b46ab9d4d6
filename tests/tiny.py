"""Tiny captioners and pictures, made from a seed: what the tests of several rooms run on."""

from dataclasses import fields
from functools import cache
from typing import Any

import torch

from meshcap.models import MODELS, CaptionModel
from meshcap.regions import Regions

WIDTH = 6  # numbers of a region
VOCAB = 10
LONGEST = 9

SIZES = {
    "vocab_size": VOCAB, "d_input": WIDTH, "d_model": 16, "heads": 2, "d_ff": 24, "max_length": LONGEST,
    "encoder_layers": 2, "decoder_layers": 2, "slots": 3,
    "groups": 2, "memory_rows": 5, "memory_width": 4, "patterns": 4,
}  # fmt: skip

# The paper's ablations, what imported checkpoints need, and other ways of looking, on top of whatever is registered.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "m2-last": ("m2", {"mesh": "last"}),
    "m2-one-to-one": ("m2", {"mesh": "one-to-one"}),
    "m2-softmax": ("m2", {"gates": "softmax", "d_head": 5}),
    "m2-no-slots": ("m2", {"slots": 0}),
    "m2-no-boxes": ("m2", {"boxes": False}),
    "m2-attend-padding": ("m2", {"boxes": False, "attend_padding": 8, "suppressed_ids": ()}),
    "m2-tied": ("m2", {"tied_words": True}),
    "show-attend-tell-tied": ("show-attend-tell", {"tied_words": True}),
    "show-attend-tell-hard": ("show-attend-tell", {"attention": "hard", "score": "bilinear"}),
    "ntm-two-heads": ("ntm", {"read_heads": 2, "write_heads": 2, "score": "scaled", "boxes": False}),
    "hopfield-alone": ("hopfield", {"self_attention": False, "beta": "learned", "retrieval_steps": 2}),
}


def names() -> list[str]:
    return [*MODELS, *VARIANTS]


def sizes(name: str) -> dict[str, Any]:
    """Of `SIZES`, what a registered captioner knows; one whose slots are switched off leaves them off."""
    known = {field.name: field.default for field in fields(MODELS[name].config_class)}
    return {key: value for key, value in SIZES.items() if key in known and not (key == "slots" and known[key] == 0)}


def looks_hard(model: CaptionModel) -> bool:
    """Whether it looks at one region at a time: never at all of them, and elsewhere at once if numbers change a bit."""
    return getattr(model.config, "attention", "soft") == "hard"


def build_plain(name: str, **settings) -> CaptionModel:
    """A captioner with the weights that it begins with."""
    model_name, own = VARIANTS.get(name, (name, {}))
    model_class = MODELS[model_name]
    return model_class(model_class.config_class(**{**sizes(model_name), **own, **settings}))


def build(name: str, *, seed: int = 0, **settings) -> CaptionModel:
    """A captioner of its own for the test that asks. Its weights are random, every bias included, and such that
    captions are sharp, of various lengths, and depend on the picture and on the words before."""
    torch.manual_seed(seed)
    model = build_plain(name, **settings)
    model_name = model.name
    loud = 6 if model_name == "seq2seq" else 2  # its last state lies between -1 and 1, where others sum up more
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.6 if parameter.dim() > 1 else 1).add_(0.1 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.weight.mul_(2 if model.config.tied_words else 6)  # tied, they are as loud as the output
            elif isinstance(module, torch.nn.Linear) and module.out_features == model.config.vocab_size:
                module.weight.mul_(loud)
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
