"""What a run begins with: a vocabulary, a vision and a model, new or taken from a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from meshcap.captioner import VOCABULARY
from meshcap.data.features import FeatureStore
from meshcap.errors import MeshcapError
from meshcap.folders import find_file
from meshcap.models import CaptionModel, create_model, load_model
from meshcap.models.registry import model_class
from meshcap.text import Vocabulary
from meshcap.training.captions import Tokens
from meshcap.training.settings import TrainSettings
from meshcap.vision import Vision, create_vision, load_vision

RARE = 100  # words whose mean a new word starts from


@dataclass
class Parts:
    """What a run trains."""

    model: CaptionModel
    vocabulary: Vocabulary
    vision: Vision | None


def build(settings: TrainSettings, tokens: Tokens, store: FeatureStore | None) -> Parts:
    """Everything new, or what `model.start` names, with the words it lacks added.

    Args:
        tokens: of the training captions.
        store: precomputed features, where pictures are not looked at.
    """
    data, given = settings.data, settings.model
    assert data.min_count is not None
    flat = [caption for captions in tokens for caption in captions]
    if given.start is not None:
        return _build_from(settings, given.start, flat, store)
    vocabulary = Vocabulary.build(flat, data.min_count, data.vocabulary, tokenizer=data.tokenizer)
    vision = None
    if store is None:
        assert given.vision is not None
        vision = create_vision(given.vision, size=given.size, geometry=given.geometry)
    width = vision.width if vision is not None else store.width if store is not None else 0
    known = {field.name for field in fields(model_class(given.arch).config_class)}
    sizes = {name: value for name, value in given.built().items() if name in known} | given.options
    needed: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "d_input": width,
        "max_length": data.max_length,
        "boxes": vision is not None or (store is not None and store.boxes),
        # <unk> tells a reader nothing, and self-critical training must not draw what is banned later.
        "suppressed_ids": (vocabulary.unk, vocabulary.pad, vocabulary.bos),
    }
    return Parts(create_model(given.arch, **sizes, **needed), vocabulary, vision)


def _build_from(settings: TrainSettings, start: str, flat: list[Sequence[str]], store: FeatureStore | None) -> Parts:
    vocabulary = Vocabulary.load(find_file(start, VOCABULARY))
    model, vision = load_model(start), load_vision(start)
    if store is not None:
        vision = None
        if store.width != model.config.d_input:
            raise MeshcapError(
                f"the features have {store.width} numbers a region, and {start} was made for {model.config.d_input}"
            )
    elif vision is None:
        raise MeshcapError(f"{start} reads precomputed features and cannot look at pictures: give --features")
    if vision is not None and settings.model.size is not None:
        vision = resized(vision, settings.model.size)
    counts = Counter(word for caption in flat for word in caption)
    least = settings.data.min_count or 1
    new = sorted(word for word, count in counts.items() if word not in vocabulary and count >= least)
    if new:
        vocabulary = Vocabulary([*vocabulary.words, *new], tokenizer=vocabulary.tokenizer)
    return Parts(with_words(model, len(vocabulary), vocabulary), vocabulary, vision)


def with_words(model: CaptionModel, count: int, vocabulary: Vocabulary) -> CaptionModel:
    """The same model for a vocabulary of `count` words, of which the first are its own; never says `<unk>`."""
    old = model.config.vocab_size
    never = (vocabulary.unk, vocabulary.pad, vocabulary.bos)
    larger = type(model)(replace(model.config, vocab_size=count, suppressed_ids=never))
    weights = model.state_dict()
    with torch.no_grad():
        for name, target in larger.state_dict().items():
            source = weights[name]
            if target.shape != source.shape:  # a row for each word, or of their bias a number
                target[:old] = source
                target[old:] = _rare(source) if source.dim() > 1 else 0
            else:
                target.copy_(source)
    return larger


def _rare(rows: Tensor) -> Tensor:
    """What a word that was never seen looks most like: the rarest words, which come last."""
    return rows[-RARE:].mean(0)


def resized(vision: Vision, size: int, pre_resize: int | None = None) -> Vision:
    """The same image encoder for squares of `size` pixels, made from squares of `pre_resize` (see `Preprocess`).

    Training shows parts of pictures, enlarged, so that things look larger than they do in whole pictures. A vision that
    is shown whole pictures a little enlarged sees things as it learned them: Touvron et al. 2019, "Fixing the
    train-test resolution discrepancy".
    """
    settings = vision.settings()
    if "preprocess" not in settings:
        raise MeshcapError(f"{vision.name} reads pictures of one size: there is none to choose")
    before = vision.preprocess
    preprocess = replace(before, size=size, pre_resize=before.pre_resize if pre_resize is None else pre_resize)
    other = type(vision)(**{**settings, "preprocess": preprocess.to_dict()})
    other.load_state_dict(vision.state_dict())
    return other
