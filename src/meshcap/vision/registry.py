"""Visions by name, and how a model folder keeps one: `vision/vision.json`, and its weights beside it.

Reading a folder executes no code of the folder's: names are looked up here, weights are safetensors.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch

from meshcap.errors import MeshcapError
from meshcap.files import write_text
from meshcap.folders import (
    DEFAULT,
    VISION_CONFIG,
    VISION_FOLDER,
    WEIGHTS,
    Bits,
    fetch_folder,
    find_file,
    find_optional,
    read_config,
)
from meshcap.vision.backbone import Patches, SmallCNN, Vision
from meshcap.vision.efficientnet import VARIANTS, EfficientNetLite, load_imagenet
from meshcap.vision.score import ScoreVision
from meshcap.vision.vit import ViT
from meshcap.weights import build_for, load_weights, save_weights, stored

VISIONS: dict[str, type[Vision]] = {kind.name: kind for kind in (EfficientNetLite, Patches, ScoreVision, SmallCNN, ViT)}


def create_vision(spec: str, *, size: int | None = None, geometry: str | None = None, **settings: Any) -> Vision:
    """A new backbone: `create_vision("efficientnet-lite2", size=256)`.

    Args:
        spec: "efficientnet-lite0" to "-lite4" (trained on ImageNet), "small-cnn" (random), "patches" (no weights),
            "score" (bars of music), "hf:" and a name on the Hugging Face hub or a folder, or a model folder
            ("default": the packaged one), whose vision it is.
        size, geometry: how pictures are shown to it; each has its own where they are left out.
        settings: others that it has.

    Raises:
        MeshcapError: an unknown spec or setting, or weights that are not installed.
    """
    seen: dict[str, Any] = {
        name: value for name, value in (("size", size), ("geometry", geometry)) if value is not None
    }
    if spec == DEFAULT or Path(spec).is_dir():
        if given := ", ".join((*seen, *settings)):
            raise MeshcapError(f"{spec} is a model, which sees pictures as it was trained to: leave out {given}")
        found = load_vision(spec)
        if found is None:
            raise MeshcapError(f"{spec} is a model without vision: expected one that was trained on pictures")
        return found
    if spec.startswith("hf:"):
        from meshcap.vision.hf import create_hf

        _expect_settings(create_hf, spec, settings)
        return create_hf(spec.removeprefix("hf:"), **seen, **settings)
    if seen:
        settings["preprocess"] = {**(settings.get("preprocess") or {}), **seen}
    name, _, variant = spec.partition("-")
    if name == "efficientnet" and variant in VARIANTS:
        _expect_settings(EfficientNetLite, spec, settings, but=("variant",))
        return load_imagenet(variant, **settings)
    if spec in (EfficientNetLite.name, ViT.name) or spec not in VISIONS:
        choices = (
            *(f"efficientnet-{variant}" for variant in VARIANTS),
            Patches.name,
            SmallCNN.name,
            ScoreVision.name,
            "hf:NAME",
            "a model folder",
        )
        raise MeshcapError(f"no vision is called {spec!r}: expected one of {', '.join(choices)}")
    _expect_settings(VISIONS[spec], spec, settings)
    return VISIONS[spec](**settings)


def save_vision(vision: Vision, model_folder: str | Path, *, bits: Bits = 32) -> None:
    """Write a backbone into a model folder, each file whole or not at all; what was there is replaced.

    `bits` are those of `CaptionModel.save_pretrained`.
    """
    own_way: Any = getattr(vision, "save_weights", None)
    if own_way is not None and bits != 32:
        raise MeshcapError(f"a vision {vision.name!r} keeps its files in a way of its own: {bits} bits are not for it")
    folder = Path(model_folder) / VISION_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeshcapError(f"{folder} cannot be made a folder: {error.strerror}") from error
    settings = json.dumps({"vision": vision.name, **vision.settings()}, indent=2) + "\n"
    if own_way is not None:
        own_way(folder)
    elif state := stored(vision, bits):
        weights = {name: t.float() if t.dtype == torch.float64 else t for name, t in state.items()}
        save_weights(folder / WEIGHTS, weights)
    else:
        (folder / WEIGHTS).unlink(missing_ok=True)
    write_text(folder / VISION_CONFIG, settings)


def load_vision(name_or_folder: str | Path, *, dtype: torch.dtype = torch.float32, **hub: Any) -> Vision | None:
    """The backbone of a model folder or of a model on the hub; None where it has none and reads features.

    Raises:
        MeshcapError: no such model, settings or weights that do not fit.
    """
    path = find_optional(name_or_folder, f"{VISION_FOLDER}/{VISION_CONFIG}", **hub)
    if path is None:
        return None
    settings = read_config(path)
    name = settings.pop("vision", None)
    kind = vision_class(str(name))
    own_way: Any = getattr(kind, "from_folder", None)
    if own_way is not None:
        return own_way(fetch_folder(name_or_folder, VISION_FOLDER, **hub), settings).to(dtype).eval()
    _expect_settings(kind, str(path), settings)
    weights = find_optional(name_or_folder, f"{VISION_FOLDER}/{WEIGHTS}", **hub)
    if weights is None:
        with torch.device("meta"):
            needs_weights = bool(kind(**settings).state_dict())
        if needs_weights:
            find_file(name_or_folder, f"{VISION_FOLDER}/{WEIGHTS}", **hub)  # says that there is none
        vision = kind(**settings).to(dtype)
    else:
        vision = build_for(lambda: kind(**settings), settings, weights, dtype=dtype)
        load_weights(vision, weights)
    return vision.eval()


def vision_class(name: str) -> type[Vision]:
    if name in VISIONS:
        return VISIONS[name]
    from meshcap.vision.hf import HFDetector, HFGrid

    others: dict[str, type[Vision]] = {kind.name: kind for kind in (HFGrid, HFDetector)}
    if name not in others:
        raise MeshcapError(f"no vision is called {name!r}: expected one of {', '.join((*VISIONS, *others))}")
    return others[name]


def _expect_settings(kind: Any, owner: str, settings: dict[str, Any], but: tuple[str, ...] = ()) -> None:
    known = [name for name in inspect.signature(kind).parameters if name not in ("name", *but)]
    for name in settings:
        if name not in known:
            raise MeshcapError(f"unknown setting {name!r} for {owner}: expected {', '.join(known)}")
