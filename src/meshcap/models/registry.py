"""Captioners by name. Everything registered here is tested, trained and compared by the same code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from meshcap.errors import MeshcapError
from meshcap.folders import CONFIG, find_file, read_config
from meshcap.models.hierarchical import Hierarchical
from meshcap.models.hopfield import HopfieldCaptioner
from meshcap.models.m2 import M2
from meshcap.models.ntm import NTM
from meshcap.models.pretrained import CaptionModel
from meshcap.models.seq2seq import Seq2Seq
from meshcap.models.show_attend_tell import ShowAttendTell
from meshcap.models.transformer import Transformer

Model = TypeVar("Model", bound=type[CaptionModel])

MODELS: dict[str, type[CaptionModel]] = {}


def register(model: Model) -> Model:
    """Add a captioner under its `name`; usable as a decorator."""
    if MODELS.setdefault(model.name, model) is not model:
        raise MeshcapError(f"a captioner called {model.name!r} is registered already")
    return model


# In the order in which they were thought of.
register(Seq2Seq)
register(ShowAttendTell)
register(Hierarchical)
register(NTM)
register(HopfieldCaptioner)
register(Transformer)
register(M2)


def create(name: str, **settings: Any) -> CaptionModel:
    """A new captioner with random weights: `create("m2", vocab_size=10_000, slots=20)`."""
    model = model_class(name)
    return model(model.config_class.from_dict(settings))


def load(name_or_folder: str | Path, **hub: Any) -> CaptionModel:
    """Whatever captioner a folder or a hub name holds."""
    settings = read_config(find_file(name_or_folder, CONFIG, **hub))
    return model_class(str(settings.get("model"))).from_pretrained(name_or_folder, **hub)


def model_class(name: str) -> type[CaptionModel]:
    if name not in MODELS:
        raise MeshcapError(f"no captioner is called {name!r}: expected one of {', '.join(sorted(MODELS))}")
    return MODELS[name]
