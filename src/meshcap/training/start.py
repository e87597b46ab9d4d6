"""What a run begins with: a vocabulary, a vision and a model, new or taken from a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
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
from meshcap.training.settings import TrainSettings
from meshcap.training.tasks import Parts
from meshcap.vision import Vision, create_vision, load_vision

Tokens = Sequence[Sequence[Sequence[str]]]  # pictures, captions, words
RARE = 100  # words whose mean a new word starts from


def check_captions(tokens: Tokens) -> None:
    """Refuse captions that nothing can be learned from."""
    kinds = Counter(tuple(caption) for captions in tokens for caption in captions)
    if len(tokens) > 1 and len(kinds) == 1:
        raise MeshcapError(
            f"all {kinds.total():,} captions are {' '.join(next(iter(kinds)))!r}: expected captions that tell pictures "
            "apart"
        )


def check_coverage(vocabulary: Vocabulary, tokens: Tokens) -> float:
    """The share of words that the vocabulary lacks; refuses one that lacks a fifth of them."""
    found = vocabulary.report(caption for captions in tokens for caption in captions)
    if found.share > 0.2:
        worst = ", ".join(word for word, _ in found.most_common_unknown[:3])
        raise MeshcapError(
            f"a vocabulary of {len(vocabulary):,} words lacks {found.share:.0%} of the words in the captions (most "
            f"often {worst}): raise --max-words or lower --min-count"
        )
    return found.share


def begin(settings: TrainSettings, tokens: Tokens, store: FeatureStore | None) -> Parts:
    """Everything new, or what `settings.start` names, with the words it lacks added.

    Args:
        tokens: of the training captions.
        store: precomputed features, where pictures are not looked at.
    """
    assert settings.min_count is not None
    flat = [caption for captions in tokens for caption in captions]
    if settings.start is not None:
        return _begin_from(settings, settings.start, flat, store)
    vocabulary = Vocabulary.build(flat, settings.min_count, settings.max_words, tokenizer=settings.tokenizer)
    vision = None
    if store is None:
        assert settings.vision is not None
        given = {name: getattr(settings, name) for name in ("size", "geometry") if getattr(settings, name) is not None}
        vision = create_vision(settings.vision, **given)
    width = vision.width if vision is not None else store.width if store is not None else 0
    known = {field.name for field in fields(model_class(settings.model).config_class)}
    sizes = {
        name: getattr(settings, name)
        for name in ("d_model", "heads", "d_ff", "encoder_layers", "decoder_layers", "slots", "dropout")
        if getattr(settings, name) is not None and name in known
    }
    needed: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "d_input": width,
        "max_length": settings.max_length,
        "boxes": vision is not None or (store is not None and store.boxes),
        # <unk> tells a reader nothing, and self-critical training must not draw what is banned later.
        "suppressed_ids": (vocabulary.unk, vocabulary.pad, vocabulary.bos),
    }
    return Parts(create_model(settings.model, **sizes, **needed, **settings.options), vocabulary, vision)


def _begin_from(settings: TrainSettings, start: str, flat: list[Sequence[str]], store: FeatureStore | None) -> Parts:
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
    if vision is not None and settings.size is not None:
        vision = resized(vision, settings.size)
    counts = Counter(word for caption in flat for word in caption)
    least = settings.min_count or 1
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
    """The same image encoder for squares of `size` pixels, made from squares of `pre_resize` (see `Preprocess`)."""
    settings = vision.settings()
    if "preprocess" not in settings:
        raise MeshcapError(f"{vision.name} reads pictures of one size: there is none to choose")
    before = vision.preprocess
    way = replace(before, size=size, pre_resize=before.pre_resize if pre_resize is None else pre_resize)
    other = type(vision)(**{**settings, "preprocess": way.to_dict()})
    other.load_state_dict(vision.state_dict())
    return other
