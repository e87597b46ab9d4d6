"""Captioners by name: make a new one, read a saved one, list them all.

Everything registered here is tested, trained and compared by the same code. `register` adds your own.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import torch

from meshcap.errors import MeshcapError
from meshcap.folders import CONFIG, find_file, read_config
from meshcap.models.base import CaptionModel
from meshcap.models.hopfield import HopfieldCaptioner
from meshcap.models.m2 import M2, Transformer
from meshcap.models.recurrent import Seq2Seq
from meshcap.models.show_attend_tell import NTM, Hierarchical, ShowAttendTell

Model = TypeVar("Model", bound=type[CaptionModel])

MODELS: dict[str, type[CaptionModel]] = {}


def register(model: Model) -> Model:
    """Add a captioner under its `name`; usable as a decorator."""
    if MODELS.setdefault(model.name, model) is not model:
        raise MeshcapError(f"a captioner called {model.name!r} is registered already")
    return model


for model in (Seq2Seq, ShowAttendTell, Hierarchical, NTM, HopfieldCaptioner, Transformer, M2):  # by year
    register(model)


def list_models(pattern: str = "*") -> list[str]:
    """Names of the registered captioners, in alphabetical order: `list_models("*former")`.

    Args:
        pattern: as of file names: `*` is anything, `?` one character, `[ab]` either.
    """
    return sorted(name for name in MODELS if fnmatchcase(name, pattern))


def create_model(name: str, **settings: Any) -> CaptionModel:
    """A new captioner with random weights: `create_model("m2", vocab_size=10_000, slots=20)`.

    Args:
        name: one of `list_models()`.
        settings: fields of the model's config, such as `M2Config`.

    Raises:
        MeshcapError: an unknown name or setting, or a value that cannot work.
    """
    model = model_class(name)
    return model(model.config_class.from_dict(settings))


def load_model(name_or_folder: str | Path, *, dtype: torch.dtype = torch.float32, **hub: Any) -> CaptionModel:
    """The captioner in a model folder, a run, or on the Hugging Face hub (`owner/name`), in evaluation mode.

    Args:
        dtype: the numbers that weights are kept in.
        hub: keywords of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

    Raises:
        MeshcapError: no such model, or settings or weights that do not fit.
    """
    settings = read_config(find_file(name_or_folder, CONFIG, **hub))
    return model_class(str(settings.get("model"))).from_pretrained(name_or_folder, dtype=dtype, **hub)


def model_class(name: str) -> type[CaptionModel]:
    """The class of a registered captioner."""
    if name not in MODELS:
        raise MeshcapError(f"no captioner is called {name!r}: expected one of {', '.join(list_models())}")
    return MODELS[name]
