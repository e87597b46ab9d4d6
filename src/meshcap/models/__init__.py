"""Captioners made of attention and memory."""

from meshcap.models.m2 import M2, M2Config
from meshcap.models.pretrained import CaptionModel, ModelConfig
from meshcap.models.registry import MODELS, create, load, register
from meshcap.models.transformer import Transformer, TransformerConfig

__all__ = [
    "M2",
    "MODELS",
    "CaptionModel",
    "M2Config",
    "ModelConfig",
    "Transformer",
    "TransformerConfig",
    "create",
    "load",
    "register",
]
